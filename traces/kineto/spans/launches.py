"""Finds the runtime call that launched each device span, and counts launches whose GPU work is missing from the recording.

    found = Launches.of(host, device, names_ops)
    found.launch      # per device span: a row of the host table, or NONE
    found.backlog     # a mask: work that was launched before the recording began

A device span and its launching call have the same correlation id. Launches are not found by flow events, because newer files
lack the start of most flows.

Note [One correlation, several calls]
    If a file contains two calls for one launch (cuLaunchKernel inside cudaLaunchKernel), the outer call is used. Files joined
    from several processes may contain unrelated calls with the same correlation id. In such files, the call that has the device
    span's External id launched the span. If several calls have this External id, the last call that began before the device
    span is used.

Note [Backlog]
    If the GPU lags behind the host, a recording begins with work of earlier steps, called backlog. Streams execute work in
    order, and CUPTI's correlation ids increase. So work without a launching call is backlog if it runs before all launched work
    of its stream, and if its correlation id, where recorded, is lower than every call's id. Backlog is not part of any step.
    All other work without a launching call was launched while calls were being recorded, so the profiler lost the call.

Note [Lost kernels]
    If a profiler's buffers are full or missing, it drops device records but keeps the calls, so that a busy GPU looks idle. For
    this reason, launch calls without device work are counted, except
    * during stream capture, when a launch becomes a graph node and nothing runs;
    * calls that the file contains twice, if one of the two has work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traces.kineto.spans.external_ids import latest_by_id
from traces.model.trace import NONE, Column, DeviceKind, DeviceSpans, HostKind, HostSpans, Strings

_LAUNCHES = re.compile(r"(?:cuda|cu|hip)\w*Launch\w*Kernel|(?:cuda|cu|hip)GraphLaunch")
_BEGIN_CAPTURE = re.compile(r"(?:cuda|cu|hip)StreamBeginCapture")
_END_CAPTURE = re.compile(r"(?:cuda|cu|hip)StreamEndCapture")


@dataclass
class HostColumns:
    """The host spans with their correlation ids and External ids. Each column contains one number per host span."""

    spans: HostSpans
    op: Column  # NONE if the span is not an op
    named: Column  # External id of a runtime call, possibly the calling op's id
    correlation: Column


@dataclass
class DeviceColumns:
    """The device spans with their correlation ids and External ids. If the profiler recorded no id for a span, the id is
    0 or less."""

    spans: DeviceSpans
    named: Column
    correlation: Column


@dataclass
class Launches:
    """The launching call of each device span."""

    launch: Column
    # device spans whose correlation id belongs to several calls, see Note [One correlation, several calls]
    ambiguous: Column
    backlog: Column  # spans launched before the recording began, see Note [Backlog]

    @classmethod
    def of(cls, host: HostColumns, device: DeviceColumns, names_ops: bool) -> Launches:
        """Find the launches. The parents of `host` must be known already. `names_ops` is True if the file's External ids are
        ids of ops."""
        calls = _calls(host)
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


class WithoutWork(NamedTuple):
    """Counts launch calls without a recorded kernel. Either the profiler lost the kernel, or the kernel was captured into a
    CUDA graph and did not run."""

    lost_kernels: int
    captured: int


def without_work(host: HostColumns, launch: Column, strings: Strings) -> WithoutWork:
    """Count the launch calls whose kernel is not in the recording, see Note [Lost kernels]. `launch` contains, for each device
    span, the row of the runtime call that launched it."""
    spans = host.spans
    is_call = spans.kind == HostKind.RUNTIME
    launching = np.flatnonzero(is_call & (host.correlation > 0) & strings.matching(spans.name, _LAUNCHES.match))
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
    # Stream captures in progress. If a capture began before the recording, only its end is recorded.
    begun_before = max(int((np.searchsorted(ends, ends, side="right") - np.searchsorted(begins, ends)).max(initial=0)), 0)
    open_captures = begun_before + np.searchsorted(begins, at_ns, side="right") - np.searchsorted(ends, at_ns)
    lost_kernels = int((open_captures <= 0).sum())
    return WithoutWork(lost_kernels, len(without) - lost_kernels)


def _calls(host: HostColumns) -> Column:
    """Return the correlation id of each call. If a runtime call contains another call with the same correlation id, NONE is
    returned for the inner call.
    """
    parent = host.spans.parent
    inner = (host.correlation > 0) & (parent != NONE) & (host.correlation == host.correlation[parent])
    return np.asarray(np.where(inner, NONE, host.correlation))


def _decide(launch: Column, host: HostColumns, device: DeviceColumns, calls: Column, rows: Column) -> None:
    named: dict[tuple[int, int], list[int]] = {}
    for call in np.flatnonzero((calls > 0) & np.isin(calls, device.correlation[rows])).tolist():
        named.setdefault((int(calls[call]), int(host.named[call])), []).append(call)
    for row in rows.tolist():
        told = int(device.named[row])
        same = named.get((int(device.correlation[row]), told), []) if told > 0 else []
        if same:
            begun = [call for call in same if host.spans.start_ns[call] <= device.spans.start_ns[row]]
            launch[row] = max(begun or same[:1], key=lambda call: int(host.spans.start_ns[call]))


def _backlog(device: DeviceColumns, launch: Column, calls: Column) -> Column:
    called = calls[calls > 0]
    if not len(called):
        return np.zeros(len(launch), bool)
    known_later = (device.correlation > 0) & (device.correlation >= called.min())
    return np.asarray(before_launched_work(device.spans, launch) & ~known_later)


def before_launched_work(spans: DeviceSpans, launch: Column) -> Column:
    """Return a boolean mask of GPU work that has no launching call and begins before all launched work of its stream.

    If no launching call is known, the mask is False for all device spans.
    """
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
