"""Measures how far the CPU runs ahead of the GPU, using launch delays and queue lengths.

    launch_figures(trace)[0]        # StreamLaunches(device="cuda:0", stream=7, count=8772, delay_median_ns=..., ...)
    queue_length(trace, 0, 7)       # QueueLength(time_ns=array([...]), length=array([...])): a step function
    long_launches(trace)[0]         # LongLaunches(call="cudaLaunchKernel", reason="kernels loaded at first use", ...)

Launch delays and queue lengths are defined as in Holistic Trace Analysis.

Note [Long launch calls]
    A launch takes the host some microseconds. A call of LONG_LAUNCH_NS or more is host time with one of these reasons:

    the host waited for the GPU    see `traces.analyses.waits`
    the launch queue was full      when the call began, its stream had FULL_QUEUE launches that had not ended. NVIDIA's driver
                                   then blocks until one ends. CUDA documents neither the rule nor the depth. A Tesla V100
                                   never had more than 1022 pending (recording `v100_absolute_ns`).
    kernels loaded at first use    the call launches the first kernel of its name in the recording, or contains a call that
                                   loads a module. CUDA has loaded kernels lazily since 11.7 (CUDA C++ Programming Guide,
                                   "Lazy Loading"). A CUDA graph loads its kernels at instantiation.
    not visible                    none of these
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.analyses.waits import host_waits
from traces.comparison.thresholds import FULL_QUEUE, LONG_LAUNCH_NS
from traces.figures.measure import enclosing, launch_steps, profiled_steps, work_rows
from traces.model.result_cache import cached_result
from traces.model.row_order import distinct, grouped, lists_by_key
from traces.model.trace import NONE, Column, DeviceKind, HostKind, Trace
from traces.names.device_names import GRAPH_LAUNCHES

_LOADS = ("ModuleLoad", "LibraryLoad", "ModuleGetFunction", "LibraryGetKernel")
WAITED, FULL, LOADED, NOT_VISIBLE = (
    "the host waited for the GPU", "the launch queue was full", "kernels loaded at first use", "not visible",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StreamLaunches:
    """Contains the launch delays and the average queue length of one CUDA stream."""

    device: str  # device label, such as "cuda:0"
    stream: int  # number of the CUDA stream
    count: int  # number of launches
    delay_median_ns: int  # time between launch and start
    delay_p95_ns: int  # 95th percentile
    queue_mean: float  # mean number of launched kernels that have not started
    queue_most: int  # largest number of launched kernels that have not started


@dataclass(frozen=True, slots=True)
class QueueLength:
    time_ns: Column
    length: Column

    @property
    def mean(self) -> float:
        lasted_ns = np.diff(self.time_ns)
        return float((self.length[:-1] * lasted_ns).sum() / lasted_ns.sum()) if lasted_ns.sum() else 0.0


def launched_rows(trace: Trace) -> Column:
    rows = work_rows(trace)
    return np.asarray(rows[trace.device.launch[rows] != NONE])


def launched_ns(trace: Trace, rows: Column) -> Column:
    """For each kernel, return the end of its launch call or the start of the kernel, whichever is earlier. Unknown times are
    NONE."""
    launch = trace.device.launch[rows]
    returned_ns = np.append(_returned_ns(trace), NONE)[launch]
    return np.asarray(np.where(launch != NONE, np.minimum(returned_ns, trace.device.start_ns[rows]), NONE))


@cached_result
def _returned_ns(trace: Trace) -> Column:
    returned_ns = trace.host.end_ns
    for rank in trace.ranks:
        waits = host_waits(trace, rank)
        returned_ns[waits.call] = waits.start_ns
    return returned_ns


def launch_delay_ns(trace: Trace, rows: Column) -> Column:
    host, launch = trace.host, trace.device.launch[rows]
    is_call = host.kind[launch] == HostKind.RUNTIME  # in a replay, the launch is an op, so its start is used
    called_ns = np.where(is_call, host.end_ns[launch], host.start_ns[launch])
    return np.asarray(np.maximum(trace.device.start_ns[rows] - called_ns, 0))


def queue_length(trace: Trace, device: int, stream: int) -> QueueLength:
    rows = launched_rows(trace)
    return _queue(trace, rows[(trace.device.device[rows] == device) & (trace.device.stream[rows] == stream)])


def _queue(trace: Trace, rows: Column) -> QueueLength:
    times_ns = np.concatenate([trace.host.start_ns[trace.device.launch[rows]], trace.device.start_ns[rows]])
    changes = np.repeat([1, -1], len(rows))
    moments, place = np.unique(times_ns, return_inverse=True)
    return QueueLength(moments, np.cumsum(np.bincount(place, weights=changes, minlength=len(moments))).astype(np.int64))


def launch_figures(trace: Trace) -> list[StreamLaunches]:
    rows, steps = launched_rows(trace), profiled_steps(trace)
    if len(steps):
        rows = rows[np.isin(launch_steps(trace)[rows], steps)]
    spans = trace.device.take(rows)
    delay_ns = launch_delay_ns(trace, rows)
    found = []
    for mine in grouped(spans.device, spans.stream):
        device, stream = int(spans.device[mine[0]]), int(spans.stream[mine[0]])
        queue = _queue(trace, rows[mine])
        median_ns, p95_ns = (round(float(value)) for value in np.percentile(delay_ns[mine], (50, 95)))
        label = trace.device_label(device)
        longest = max(int(queue.length.max()), 0)
        found.append(StreamLaunches(label, stream, len(mine), median_ns, p95_ns, round(queue.mean, 2), longest))
    return sorted(found, key=lambda of: -of.count)


# see Note [Long launch calls]
@dataclass(frozen=True, slots=True)
class LongLaunches:
    """Counts the slow calls of one launch function, such as `cudaLaunchKernel`."""

    call: str  # name of the function
    reason: str  # why the calls took long
    count: int  # number of slow calls
    host_ns: int  # total duration
    longest_ns: int  # duration of the slowest call


def long_launches(trace: Trace) -> list[LongLaunches]:
    host, spans = trace.host, trace.device
    rows = launched_rows(trace)
    rows = rows[host.kind[spans.launch[rows]] == HostKind.RUNTIME]
    call, first, _ = distinct(spans.launch[rows])
    rows = rows[first]
    long = host.duration_ns[call] >= LONG_LAUNCH_NS
    if not long.any():
        return []
    waited = np.concatenate([host_waits(trace, rank).call for rank in trace.ranks])
    reasons = np.full(len(call), NOT_VISIBLE, dtype=object)
    reasons[_loads_kernels(trace, call)] = LOADED
    reasons[_pending(trace, rows) >= FULL_QUEUE] = FULL
    reasons[np.isin(call, waited)] = WAITED
    names = [trace.strings[name] for name in host.name[call[long]].tolist()]
    keys = zip(names, reasons[long].tolist(), strict=True)
    sums = lists_by_key(zip(keys, host.duration_ns[call[long]].tolist(), strict=True))
    found = [LongLaunches(*key, len(took), sum(took), max(took)) for key, took in sums.items()]
    return sorted(found, key=lambda of: (-of.host_ns, of.call, of.reason))


def _loads_kernels(trace: Trace, call: Column) -> Column:
    host, spans = trace.host, trace.device
    rows = launched_rows(trace)
    rows = rows[spans.kind[rows] == DeviceKind.KERNEL]
    rows = rows[np.argsort(host.start_ns[spans.launch[rows]], kind="stable")]
    firsts = np.unique(np.stack([spans.device[rows].astype("i8"), spans.name[rows]]), axis=1, return_index=True)[1]
    first_calls = spans.launch[rows[firsts]]
    first_calls = first_calls[~trace.strings.matching(host.name[first_calls], GRAPH_LAUNCHES.__contains__)]
    loads = trace.strings.matching(host.name, lambda text: any(mark in text for mark in _LOADS))
    is_load = (host.kind == HostKind.RUNTIME) & loads
    is_call = np.zeros(len(host), dtype=bool)
    is_call[call] = True
    return np.isin(call, np.concatenate([first_calls, enclosing(host, is_call)[is_load]]))


def _pending(trace: Trace, rows: Column) -> Column:
    host, spans = trace.host, trace.device
    found, launched = np.zeros(len(rows), dtype=np.int64), launched_rows(trace)
    for on in grouped(spans.device[launched], spans.stream[launched]):
        of = launched[on]
        mine = (spans.device[rows] == spans.device[of[0]]) & (spans.stream[rows] == spans.stream[of[0]])
        of = of[np.lexsort((spans.end_ns[of], spans.launch[of]))]
        of = of[np.append(spans.launch[of][1:] != spans.launch[of][:-1], True)]  # a graph counts with the kernel that ends last
        called_ns = host.start_ns[spans.launch[rows[mine]]]
        ended = np.searchsorted(np.sort(spans.end_ns[of]), called_ns, side="right")
        found[mine] = np.searchsorted(np.sort(host.start_ns[spans.launch[of]]), called_ns, side="left") - ended
    return found
