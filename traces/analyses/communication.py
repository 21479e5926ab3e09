"""Measures communication between ranks, and its overlap with other GPU work.

    of = communication(trace)
    of.operations[0]    # Operation("all_reduce", phase="backward", count=40, bytes=187032, duration_ns=...)
    of.exposed_ns       # time in which the device only communicated, or only waited for another rank
    of.hidden_ns        # time in which the device communicated and computed
    of.exposed_per_step_ns      # mean over steps and ranks; only communication launched in steps with kernels
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traces.analyses.waits import host_waits
from traces.figures import measure
from traces.figures.pace import counted_steps
from traces.figures.spread import median
from traces.model.intervals import Intervals
from traces.model.result_cache import cached_result
from traces.model.row_order import by_value, grouped
from traces.model.trace import NONE, Column, DeviceKind, Ending, Trace
from traces.names.collectives import is_communication
from traces.names.device_names import copy_direction

_OF_DATA_PARALLEL = re.compile(r"(?:nccl|rccl)\w*_(Broadcast|Reduce)(?:_|$)")


def communication_kernels(trace: Trace) -> Column:
    matches = (trace.device.kind == DeviceKind.KERNEL) & trace.strings.matching(trace.device.name, is_communication)
    return np.asarray(matches & ~np.isin(trace.device.name, list(data_parallel_kernels(trace))))


def data_parallel_kernels(trace: Trace) -> dict[int, str]:
    if len(trace.collectives):
        return {}
    table = trace.device
    names = np.unique(table.name[table.kind == DeviceKind.KERNEL]).tolist()
    matches = {name: match for name in names if (match := _OF_DATA_PARALLEL.match(trace.strings[name])) is not None}
    own = np.isin(table.name, list(matches))
    if len(np.unique(table.device[own])) <= len(np.unique(measure.device_ranks(trace)[own])):
        return {}
    return {name: match[1].lower() for name, match in matches.items()}


@dataclass(frozen=True, slots=True)
class CollectiveTotals:
    """Counts the calls of one collective on all ranks, and sums up their durations."""

    name: str  # such as "all_reduce"
    backend: str  # such as "nccl"
    count: int  # number of calls
    bytes: int | None  # None if no sizes were recorded
    timed: int  # number of calls with a recorded end
    bounded: int  # number of calls for which only an upper bound of the duration is known
    duration_ns: int  # sum over the calls in `timed` and `bounded`
    median_ns: int | None  # median of the calls in `timed`, or of the upper bounds if `timed` is 0


@dataclass(frozen=True, slots=True)
class Operation:
    name: str  # such as "all_reduce"
    phase: str  # training phase
    count: int  # number of calls
    bytes: int | None  # total size of the inputs on all ranks, or None if unknown
    duration_ns: int  # total duration, without calls whose end was not recorded


@dataclass(frozen=True, slots=True)
class Communication:
    operations: tuple[Operation, ...]  # most bytes first
    exposed_ns: int  # time in which a device only communicates
    hidden_ns: int  # time in which other work runs at the same time
    steps: int  # number of steps with recorded kernels, summed over ranks
    exposed_per_step_ns: int  # `exposed_ns` per step and rank; if there are no steps, for the whole trace
    hidden_per_step_ns: int  # `hidden_ns` per step and rank; if there are no steps, for the whole trace


def communicates(trace: Trace) -> bool:
    return bool(len(trace.collectives)) or bool(communication_kernels(trace).any())


def communication(trace: Trace) -> Communication:
    exposed_ns, hidden_ns = np.sum([(0, 0), *_overlap(trace, True).values()], axis=0).tolist()
    per_step = mean_of_ranks(trace, communication_per_step(trace))
    return Communication(_operations(trace), exposed_ns, hidden_ns, len(counted_steps(trace)), *per_step)


def mean_of_ranks(trace: Trace, of_gpus_ns: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    """Add the times of each rank's GPUs, and return the mean of the ranks."""
    ranks = max(len(np.unique(trace.steps.rank[counted_steps(trace)])), 1)
    return tuple((np.sum([(0, 0), *of_gpus_ns.values()], axis=0) // ranks).tolist())


@cached_result
def communication_per_step(trace: Trace) -> dict[int, tuple[int, int]]:
    """For each GPU, return two times per step: communication without computation, and communication during computation."""
    return _per_step(trace, _overlap(trace, _of_counted_steps(trace)))


def _of_counted_steps(trace: Trace) -> Column | bool:
    rows = counted_steps(trace)
    return np.isin(measure.launch_steps(trace), rows) if len(rows) else True


def _per_step(trace: Trace, times_ns: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    ranks = trace.steps.rank[counted_steps(trace)]
    steps = {row: int((ranks == measure.rank_of_device(trace, row)).sum()) or 1 for row in times_ns}
    return {row: (first_ns // steps[row], second_ns // steps[row]) for row, (first_ns, second_ns) in times_ns.items()}


@cached_result
def copies_per_step(trace: Trace) -> dict[int, tuple[int, int]]:
    """For each GPU, return two times per step: how long the host or the GPU waits for copies between CPU and GPU memory, and
    how long such copies run. A copy that runs at the same time as other work of this GPU costs no time."""
    spans, found = trace.device, {}
    to_host = trace.strings.matching(spans.name, lambda name: copy_direction(name) in ("h2d", "d2h"))
    copies = (spans.kind == DeviceKind.MEMCPY) & to_host
    others = np.flatnonzero(spans.is_work & ~copies)
    others_of = by_value(spans.device[others])
    launched_ns = np.where(spans.launch == NONE, spans.start_ns.min(initial=0), measure.launch_time_ns(trace))
    launched_ns = np.minimum(launched_ns, spans.start_ns)
    end_ns = spans.end_ns
    for device, copying in measure.intervals_by_device(trace, copies & _of_counted_steps(trace)).items():
        own, of_host = others[others_of.get(device, [])], host_waits(trace, measure.rank_of_device(trace, device)).intervals
        working = Intervals(spans.start_ns[own], end_ns[own])
        waits_ns = np.append(launched_ns[own], of_host.start_ns), np.append(end_ns[own], of_host.end_ns)
        of_copies = copying.start_ns, copying.end_ns
        waited_ns = int((Intervals(*waits_ns).within(*of_copies) - working.within(*of_copies)).sum())
        found[device] = waited_ns, copying.total_ns
    return _per_step(trace, found)


def _overlap(trace: Trace, counted: Column | bool) -> dict[int, tuple[int, int]]:
    found, kernels = {}, communication_kernels(trace)
    sends = measure.intervals_by_device(trace, kernels & counted)
    computes = measure.intervals_by_device(trace, trace.device.is_work & ~kernels & np.isin(trace.device.device, list(sends)))
    for device, of in sends.items():
        hidden_ns = int(computes[device].within(of.start_ns, of.end_ns).sum()) if device in computes else 0
        found[device] = of.total_ns - hidden_ns, hidden_ns
    return found


def collective_totals(trace: Trace) -> list[CollectiveTotals]:
    table, texts = trace.collectives, trace.strings
    found = []
    for rows in map(table.take, grouped(table.name, table.backend)):
        sizes = rows.bytes[rows.bytes != NONE]
        seen, bounds = (rows.duration_ns[rows.ending == ending] for ending in (Ending.SEEN, Ending.BY))
        found.append(
            CollectiveTotals(
                texts[rows.name[0]],
                texts[rows.backend[0]],
                count=len(rows),
                bytes=int(sizes.sum()) if len(sizes) else None,
                timed=len(seen),
                bounded=len(bounds),
                duration_ns=int(seen.sum() + bounds.sum()),
                median_ns=median(seen if len(seen) else bounds),
            )
        )
    return sorted(found, key=lambda row: (-row.duration_ns, row.name))


def _operations(trace: Trace) -> tuple[Operation, ...]:
    table = trace.collectives
    called_in = np.append(trace.phases.name, NONE)[measure.phase_windows(trace).holding(table.call_ns, table.rank)]
    found = []
    for own in grouped(table.name, called_in):
        rows = table.take(own)
        known = bool((rows.bytes != NONE).all())
        found.append(
            Operation(
                trace.strings[rows.name[0]],
                trace.strings[called_in[own[0]]],
                count=len(rows),
                bytes=int(rows.bytes.sum()) if known else None,
                duration_ns=int(rows.duration_ns[rows.ending != Ending.UNSEEN].sum()),
            )
        )
    return tuple(sorted(found, key=lambda row: (-(row.bytes or 0), -row.count, row.name, row.phase)))
