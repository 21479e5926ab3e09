"""Sums over a stretch of the axis: busy and idle time, kinds of work, kernels and ops, in each trace.

sums = stretch_sums(scene, axis, begin_ns, end_ns)[0]
sums.length_ns, sums.busy_ns       # of this trace's time in the stretch; the union per device, summed over devices
sums.kernels["volta_sgemm_nn"]     # (calls, ns); what the stretch cuts counts with what lies within it
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.equivalents import canonical_op
from traces.idle import IdleReason, IdleSpans
from traces.intervals import Intervals
from traces.measure import op_of, work_rows
from traces.model import Column, Trace
from tui.view.axis import Axis, SlotTimes
from tui.view.categories import Category, of_device
from tui.view.scene import Scene

CountAndTime = tuple[int, int]


@dataclass(frozen=True)
class StretchSums:
    length_ns: int
    busy_ns: int
    devices: int  # that have any work in the trace
    kinds: dict[str, CountAndTime]
    kernels: dict[str, CountAndTime]
    ops: dict[str, CountAndTime]
    phases: dict[str, CountAndTime]  # the host's time in them, over all ranks
    idle_by_reason: dict[str, int]  # where a step is known: see traces/idle.py

    @property
    def idle_ns(self) -> int:
        return self.length_ns * self.devices - self.busy_ns


def stretch_sums(scene: Scene, axis: Axis, begin_ns: int, end_ns: int) -> list[StretchSums]:
    """Of each trace, from one place on the axis to another."""
    return [
        _sums(trace, side, idle, begin_ns, end_ns)
        for trace, side, idle in zip(scene.traces, axis.sides, scene.idle, strict=True)
    ]


def _sums(trace: Trace, side: SlotTimes, idle: IdleSpans, begin_ns: int, end_ns: int) -> StretchSums:
    pieces = side.pieces([begin_ns, end_ns])
    shown = Intervals(pieces.from_ns, pieces.to_ns)
    spans, rows = trace.device, work_rows(trace)
    within = shown.within(spans.start_ns[rows], spans.end_ns[rows])
    inside = (within > 0) | ((spans.duration_ns[rows] == 0) & shown.holds(spans.start_ns[rows]))
    devices = np.unique(spans.device[rows])
    rows, within = rows[inside], within[inside]
    busy_ns = 0
    for device in devices.tolist():
        of = rows[spans.device[rows] == device]
        busy = Intervals(spans.start_ns[of], spans.end_ns[of])
        busy_ns += int(busy.within(shown.start_ns, shown.end_ns).sum())
    kinds = of_device(trace, rows)
    idle_ns = shown.within(idle.start_ns, idle.end_ns)
    phases = trace.phases
    of_phases = shown.within(phases.start_ns, phases.end_ns)
    seen = of_phases > 0
    op = op_of(trace)[rows]
    known = op >= 0
    return StretchSums(
        length_ns=shown.total_ns,
        busy_ns=busy_ns,
        devices=len(devices),
        kinds={Category(kind).name.lower(): sums for kind, sums in _by(kinds, within).items()},
        kernels={trace.strings[name]: sums for name, sums in _by(spans.name[rows], within).items()},
        ops=_by_op(trace, op[known], within[known]),
        phases={trace.strings[name]: sums for name, sums in _by(phases.name[seen], of_phases[seen]).items()},
        idle_by_reason={reason.name.lower(): int(idle_ns[idle.reason == reason].sum()) for reason in IdleReason},
    )


def _by(keys: Column, within_ns: Column) -> dict[int, CountAndTime]:
    """Per key how many rows it has and how long they are, most time first."""
    found, index, counts = np.unique(keys, return_inverse=True, return_counts=True)
    times = np.bincount(index, weights=within_ns, minlength=len(found))
    order = np.argsort(-times, kind="stable")
    return {int(found[n]): (int(counts[n]), int(times[n])) for n in order.tolist()}


def _by_op(trace: Trace, op: Column, within_ns: Column) -> dict[str, CountAndTime]:
    """Per canonical op how many calls had work here, and how long that is."""
    calls, index = np.unique(op, return_inverse=True)
    times = np.bincount(index, weights=within_ns, minlength=len(calls))
    found: dict[str, CountAndTime] = {}
    for name, time_ns in zip(trace.host.name[calls].tolist() if len(calls) else [], times.tolist(), strict=True):
        text = canonical_op(trace.strings[name])
        count, total_ns = found.get(text, (0, 0))
        found[text] = count + 1, total_ns + int(time_ns)
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))
