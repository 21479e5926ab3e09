"""Finds the runtime call that launched each kernel, and counts launch calls without a kernel.

    found = Launches.of(host, device, names_ops)
    found.launch      # per device span: an index of the host table, or NONE
    found.backlog     # a mask: work that was launched before the recording began

Note [One correlation, several calls]
    A kernel and the call that launched it have the same correlation id. If a file contains two calls for one launch
    (cuLaunchKernel inside cudaLaunchKernel), the outer call is used. If unrelated calls of several processes have the same
    correlation id, the External id decides.

    On AMD GPUs, early releases of PyTorch 2 wrote no correlation ids. In their files, a kernel has the same External id as the
    call that launched the kernel, and no other call has this id.

Note [No ids]
    Some tools remove the ids from profiles. If all work of a file runs on one stream, launches and kernels are matched in
    order, because a stream runs its kernels in launch order. The file must contain as many launches as kernels, and as many
    copy calls as copies.

Note [Backlog]
    If the GPU lags behind the host, a recording begins with GPU work that was launched earlier, called backlog. A kernel
    belongs to the backlog if it has no launching call and runs before all launched work of its stream. Backlog belongs to no
    training step. If another kernel has no launching call, the profiler lost the call.

Note [Lost kernels]
    If the buffers of the profiler are full, it drops kernels but keeps their launch calls, so a busy GPU looks idle. The
    importer therefore counts launch calls without a kernel. A launch during stream capture is not counted, because the launch
    only adds a node to the CUDA graph. The last launches of a recording are also not counted if the GPU was still busy with
    earlier work when the profiler stopped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traces.kineto.spans.external_ids import latest_by_id
from traces.model.row_order import lists_by_key
from traces.model.trace import NONE, Column, DeviceKind, DeviceSpans, HostKind, HostSpans, Strings
from traces.names.device_names import LAUNCH_CALL, STARTS_WORK

_BEGIN_CAPTURE = re.compile(r"[a-z]+StreamBeginCapture")
_END_CAPTURE = re.compile(r"[a-z]+StreamEndCapture")


@dataclass
class HostColumns:
    spans: HostSpans
    op: Column  # NONE if the span is not an op
    named: Column  # External id of a runtime call, which may be the id of the calling op
    correlation: Column


@dataclass
class DeviceColumns:
    spans: DeviceSpans
    named: Column
    correlation: Column


@dataclass
class Launches:
    launch: Column
    # see Note [One correlation, several calls]
    ambiguous: Column
    backlog: Column  # spans launched before the recording began, see Note [Backlog]

    @classmethod
    def of(cls, host: HostColumns, device: DeviceColumns, names_ops: bool) -> Launches:
        parent = host.spans.parent  # see Note [One correlation, several calls]
        inner = (parent != NONE) & (host.correlation == host.correlation[parent])
        calls = np.asarray(np.where(inner, NONE, host.correlation))
        launch = np.full(len(device.spans), NONE, "i4")
        joined = np.flatnonzero(device.correlation > 0)
        starts = host.spans.start_ns
        launch[joined] = latest_by_id(calls, starts, device.correlation[joined], device.spans.start_ns[joined])
        ambiguous = np.zeros(len(launch), bool)
        ids, counts = np.unique(calls[calls > 0], return_counts=True)
        if (counts > 1).any():
            ambiguous = np.isin(device.correlation, ids[counts > 1])
            _decide(launch, host, device, calls, np.flatnonzero(ambiguous))
        missing = (launch == NONE) & (device.named > 0) & (device.spans.kind != DeviceKind.ANNOTATION)
        if names_ops and missing.any():
            rows = np.flatnonzero(missing)
            ops = latest_by_id(host.op, starts, device.named[rows], device.spans.start_ns[rows])
            began = ops != NONE
            began[began] &= starts[ops[began]] <= device.spans.start_ns[rows[began]]
            launch[rows[began]] = ops[began]
        return cls(launch, ambiguous & device.spans.is_work, _backlog(device, launch, calls))


def correlate_by_external_ids(host: HostColumns, device: DeviceColumns) -> None:
    # see Note [One correlation, several calls]
    if (host.correlation > 0).any() or (device.correlation > 0).any():
        return
    ids, counts = np.unique(host.named[host.named > 0], return_counts=True)
    works = device.spans.is_work & np.isin(device.named, ids[counts == 1])
    device.correlation[works] = device.named[works]
    calls = np.isin(host.named, device.named[works])
    host.correlation[calls] = host.named[calls]


def correlate_in_order(host: HostColumns, device: DeviceColumns, strings: Strings) -> int:
    """If a file contains no correlation ids, match runtime calls with kernels and copies by their order. Return the number of
    matches."""
    # see Note [No ids]
    if (host.correlation > 0).any() or (device.correlation > 0).any() or (device.named > 0).any():
        return 0
    spans, work = host.spans, device.spans
    calls = np.flatnonzero((spans.kind == HostKind.RUNTIME) & strings.matching(spans.name, STARTS_WORK.match))
    calls = calls[np.argsort(spans.start_ns[calls], kind="stable")]
    works = np.flatnonzero(work.is_work)
    works = works[np.argsort(work.start_ns[works], kind="stable")]
    on_one_stream = len(set(zip(work.device[works].tolist(), work.stream[works].tolist(), strict=True))) == 1
    if not on_one_stream or len(calls) != len(works) or (spans.start_ns[calls] > work.start_ns[works]).any():
        return 0
    host.correlation[calls] = device.correlation[works] = np.arange(1, len(works) + 1)
    return len(works)


class WithoutWork(NamedTuple):
    lost_kernels: int
    captured: int
    unfinished: Column  # launch calls that the GPU had not run when the recording ended


def without_work(host: HostColumns, work: DeviceSpans, strings: Strings) -> WithoutWork:
    # see Note [Lost kernels]
    spans, launch = host.spans, work.launch
    is_call = spans.kind == HostKind.RUNTIME
    launching = np.flatnonzero(is_call & (host.correlation > 0) & strings.matching(spans.name, LAUNCH_CALL.match))
    worked = np.zeros(len(spans) + 1, bool)
    worked[launch[launch != NONE]] = True
    ids = np.unique(host.correlation[worked[:-1] & (host.correlation > 0)])
    worked[:-1] |= np.isin(host.correlation, ids)
    is_launch = np.zeros(len(spans) + 1, bool)
    is_launch[launching] = True
    inner = launching[is_launch[spans.parent[launching]]]
    worked[inner] |= worked[spans.parent[inner]]
    worked[spans.parent[inner[worked[inner]]]] = True
    is_launch[inner] = False
    without = np.flatnonzero(is_launch[:-1] & ~worked[:-1])
    begins = np.sort(spans.start_ns[is_call & strings.matching(spans.name, _BEGIN_CAPTURE.match)])
    ends = np.sort(spans.end_ns[is_call & strings.matching(spans.name, _END_CAPTURE.match)])
    at_ns = spans.start_ns[without]
    # number of CUDA graph captures in progress; if a capture began before the recording, only its end was recorded
    begun_before = (np.searchsorted(ends, ends, side="right") - np.searchsorted(begins, ends)).max(initial=0)
    open_captures = begun_before + np.searchsorted(begins, at_ns, side="right") - np.searchsorted(ends, at_ns)
    lost = without[open_captures <= 0]
    captured = len(without) - len(lost)
    if len(lost) and (launch != NONE).any():
        worked_ns, last_call_ns = spans.start_ns[launch[launch != NONE]].max(), spans.end_ns[is_call].max()
        if worked_ns < spans.start_ns[lost].min() and last_call_ns <= work.end_ns[work.is_work].max():
            return WithoutWork(0, captured, lost)
    return WithoutWork(len(lost), captured, lost[:0])


def _decide(launch: Column, host: HostColumns, device: DeviceColumns, calls: Column, rows: Column) -> None:
    twice = np.flatnonzero((calls > 0) & np.isin(calls, device.correlation[rows])).tolist()
    named = lists_by_key(((int(calls[call]), int(host.named[call])), call) for call in twice)
    for row in rows.tolist():
        name = int(device.named[row])
        same = named.get((int(device.correlation[row]), name), []) if name > 0 else []
        if same:
            begun = [call for call in same if host.spans.start_ns[call] <= device.spans.start_ns[row]]
            launch[row] = max(begun or same[:1], key=lambda call: int(host.spans.start_ns[call]))


def _backlog(device: DeviceColumns, launch: Column, calls: Column) -> Column:
    called = calls[calls > 0]
    if not len(called):
        return np.zeros(len(launch), bool)
    return np.asarray(before_launched_work(device.spans, launch) & (device.correlation < called.min()))


def before_launched_work(spans: DeviceSpans, launch: Column) -> Column:
    found = spans.is_work & (launch == NONE)
    launched = spans.is_work & (launch != NONE)
    if not launched.any():
        return np.zeros(len(spans), bool)
    for number, stream in {(int(spans.device[row]), int(spans.stream[row])) for row in np.flatnonzero(found).tolist()}:
        on_stream = (spans.device == number) & (spans.stream == stream)
        launched_ns = spans.start_ns[on_stream & launched]
        if len(launched_ns):
            found &= ~on_stream | (spans.start_ns < launched_ns.min())
    return np.asarray(found)
