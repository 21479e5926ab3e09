"""Collects the numbers for the report of a replay."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from statistics import median

from traces.model.layouts import Shape
from traces.model.run import HostFigures
from traces.model.trace import Origin


@dataclass(slots=True)
class ReplayStats:
    # device time for each origin of durations
    charged_ns: dict[int, int] = field(default_factory=lambda: {int(origin): 0 for origin in Origin})
    uncharged_ns: int = 0  # recorded device time of phases that the script did not enter
    reads_unrecorded: int = 0  # number of values that the host read but that were not recorded
    sizes_assumed: int = 0  # number of assumed sizes of data-dependent results
    events_never_recorded: int = 0  # number of events in the whole run that the script waited for, but never recorded
    # number of unmatched ops for each (op, shapes)
    missing: dict[tuple[str, tuple[Shape, ...]], int] = field(default_factory=dict)
    lag_ns: int = 0  # time by which the script's host time exceeds the recorded host time
    waited_ns: int = 0
    ops: int = 0
    # these figures take eight bytes per step; all other figures have a constant size
    step_lag_ns: array[int] = field(default_factory=lambda: array("q"))
    step_busy_ns: array[int] = field(default_factory=lambda: array("q"))  # host time except waits for the device and for data
    step_ops: array[int] = field(default_factory=lambda: array("q"))

    def miss(self, op: str, shapes: tuple[Shape, ...]) -> None:
        self.missing[op, shapes] = self.missing.get((op, shapes), 0) + 1

    def restart(self) -> None:
        self.charged_ns = {int(origin): 0 for origin in Origin}
        self.uncharged_ns = self.reads_unrecorded = self.sizes_assumed = 0
        self.missing = {}
        self.lag_ns = self.waited_ns = self.ops = 0

    def end_step(self, busy_ns: int, *, keep: bool) -> None:
        if keep:
            self.step_lag_ns.append(self.lag_ns)
            self.step_busy_ns.append(busy_ns)
            self.step_ops.append(self.ops)
        self.lag_ns = self.waited_ns = self.ops = 0

    def host_figures(self, speed: float) -> HostFigures:
        """Return the CPU time that the replayer uses per step and per op."""
        if not self.step_ops:
            return HostFigures()
        per_op_ns = median(busy / max(ops, 1) for busy, ops in zip(self.step_busy_ns, self.step_ops, strict=True))
        return HostFigures(
            lag_ns_per_step=int(median(self.step_lag_ns)),
            lag_ns_of_worst_step=max(self.step_lag_ns),
            us_per_op=round(per_op_ns / 1000 / speed, 3),
            ops_per_step=int(median(self.step_ops)),
        )
