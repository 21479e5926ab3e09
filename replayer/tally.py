"""What a replay has charged and how far behind it was: the figures under its report."""

from __future__ import annotations

from dataclasses import dataclass, field

from traces.model import Origin, Shape


@dataclass(slots=True)
class Tally:
    """Nanoseconds and counts of a run; the first step, in which plans are learned, is left out of the host's figures."""

    charged_ns: dict[int, int] = field(default_factory=lambda: {int(origin): 0 for origin in Origin})  # device time
    uncharged_ns: int = 0  # recorded device time of phases that the script never entered
    lag_ns: int = 0  # by which the script's host was slower than the recorded one
    busy_ns: int = 0  # host time that was neither waiting for the device nor for data
    waited_ns: int = 0
    ops: int = 0
    steps: int = 0
    reads_unrecorded: int = 0  # host reads answered with a placeholder
    missing: dict[tuple[str, tuple[Shape, ...]], int] = field(default_factory=dict)  # op, shapes -> count

    def miss(self, op: str, shapes: tuple[Shape, ...]) -> None:
        """An op had no recorded counterpart."""
        self.missing[op, shapes] = self.missing.get((op, shapes), 0) + 1

    def restart(self) -> None:
        """What came before the first step is not part of the figures."""
        self.charged_ns = {int(origin): 0 for origin in Origin}
        self.uncharged_ns = self.reads_unrecorded = 0
        self.missing = {}
        self.forget_host()

    def forget_host(self) -> None:
        """Start the host's figures anew."""
        self.lag_ns = self.busy_ns = self.ops = self.steps = 0
