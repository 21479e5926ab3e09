"""Computes sums over a time range of a trace, such as the GPU busy time.

    sums = range_sums(scene, axis, begin_ns, end_ns)[0]
    sums.length_ns, sums.busy_ns       # length of the range within the trace, and busy time summed over devices
    sums.kernels["volta_sgemm_nn"]     # Totals; total_ns counts only the part of a span within the range
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.analyses.idle import IdleReason, IdleSpans
from traces.figures.measure import work_rows
from traces.model.intervals import Intervals
from traces.model.trace import Trace
from tui.view.scene.axis import Axis, SlotTimes
from tui.view.scene.categories import Category, of_device
from tui.view.scene.scene import Scene
from tui.view.scene.totals import Totals, totals_by_name, totals_by_op


@dataclass(frozen=True)
class RangeSums:
    length_ns: int
    busy_ns: int
    devices: int  # number of devices that have work in the trace
    kinds: dict[str, Totals]
    kernels: dict[str, Totals]
    ops: dict[str, Totals]
    phases: dict[str, Totals]  # host time in each phase, over all ranks
    idle_by_reason: dict[str, int]  # idle time within steps, see traces/analyses/idle.py

    @property
    def idle_ns(self) -> int:
        return self.length_ns * self.devices - self.busy_ns


def range_sums(scene: Scene, axis: Axis, begin_ns: int, end_ns: int) -> list[RangeSums]:
    return [
        _sums(trace, side, idle, begin_ns, end_ns)
        for trace, side, idle in zip(scene.traces, axis.sides, scene.idle, strict=True)
    ]


def _sums(trace: Trace, side: SlotTimes, idle: IdleSpans, begin_ns: int, end_ns: int) -> RangeSums:
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
    idle_ns = shown.within(idle.start_ns, idle.end_ns)
    phases = trace.phases
    of_phases = shown.within(phases.start_ns, phases.end_ns)
    seen = of_phases > 0
    once = np.ones(len(rows), dtype=np.int64)
    return RangeSums(
        length_ns=shown.total_ns,
        busy_ns=busy_ns,
        devices=len(devices),
        kinds=_most_first(totals_by_name(lambda kind: Category(kind).name.lower(), of_device(trace, rows), once, within)),
        kernels=_most_first(totals_by_name(trace.strings.__getitem__, spans.name[rows], once, within)),
        ops=_most_first(totals_by_op(trace, rows, once, within)),
        phases=_most_first(
            totals_by_name(trace.strings.__getitem__, phases.name[seen], seen[seen].astype(np.int64), of_phases[seen])
        ),
        idle_by_reason={reason.name.lower(): int(idle_ns[idle.reason == reason].sum()) for reason in IdleReason},
    )


def _most_first(totals: dict[str, Totals]) -> dict[str, Totals]:
    return dict(sorted(totals.items(), key=lambda item: -item[1].total_ns))
