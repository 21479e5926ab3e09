"""What a replay has charged and how far behind it was: the figures under its report."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from statistics import median

from traces.model.layouts import Shape
from traces.model.run import HostFigures
from traces.model.trace import Origin


@dataclass(slots=True)
class ReplayStats:
    """Nanoseconds and counts since the first step began. The first step itself, in which plans are learned, gives no row
    to the columns per step."""

    charged_ns: dict[int, int] = field(default_factory=lambda: {int(origin): 0 for origin in Origin})  # device time
    uncharged_ns: int = 0  # recorded device time of phases that the script never entered
    reads_unrecorded: int = 0  # host reads answered with a placeholder
    sizes_assumed: int = 0  # results whose size depends on values that nobody knows
    events_never_recorded: int = 0  # but waited for; of the whole run
    missing: dict[tuple[str, tuple[Shape, ...]], int] = field(default_factory=dict)  # op, shapes -> count
    # of the step under way
    lag_ns: int = 0  # by which the script's host was slower than the recorded one
    waited_ns: int = 0
    ops: int = 0
    # per step; eight bytes each are all that grows with a run
    step_lag_ns: array[int] = field(default_factory=lambda: array("q"))
    step_busy_ns: array[int] = field(default_factory=lambda: array("q"))  # host time, waiting for device and data taken out
    step_ops: array[int] = field(default_factory=lambda: array("q"))

    def miss(self, op: str, shapes: tuple[Shape, ...]) -> None:
        """An op had no recorded counterpart."""
        self.missing[op, shapes] = self.missing.get((op, shapes), 0) + 1

    def restart(self) -> None:
        """What came before the first step is not part of the figures."""
        self.charged_ns = {int(origin): 0 for origin in Origin}
        self.uncharged_ns = self.reads_unrecorded = self.sizes_assumed = 0
        self.missing = {}
        self.lag_ns = self.waited_ns = self.ops = 0

    def end_step(self, busy_ns: int, *, keep: bool) -> None:
        """A step has ended; `keep` says whether it counts."""
        if keep:
            self.step_lag_ns.append(self.lag_ns)
            self.step_busy_ns.append(busy_ns)
            self.step_ops.append(self.ops)
        self.lag_ns = self.waited_ns = self.ops = 0

    def host_figures(self, speed: float) -> HostFigures:
        """What a step costs the host, in recorded time, which flows at `speed`; per op by this machine's clock."""
        if not self.step_ops:
            return HostFigures()
        per_op_ns = median(busy / max(ops, 1) for busy, ops in zip(self.step_busy_ns, self.step_ops, strict=True))
        return HostFigures(
            lag_ns_per_step=int(median(self.step_lag_ns)),
            lag_ns_of_worst_step=max(self.step_lag_ns),
            us_per_op=round(per_op_ns / 1000 / speed, 3),
            ops_per_step=int(median(self.step_ops)),
        )
