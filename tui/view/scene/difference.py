"""Describes one difference between two traces."""

from __future__ import annotations

from dataclasses import dataclass

from tui.formatting import counted, time_text
from tui.view.scene.short_names import short_name


@dataclass(frozen=True)
class Difference:
    what: str
    table: str  # "device" or "phases"
    name: str
    other_name: str  # name of the other kernel, or ""
    op: str
    phase: str
    count: int
    steps: int
    total_ns: int
    pair: int
    rows: tuple[int, int]
    times_ns: tuple[int, int]

    @property
    def sentence(self) -> str:
        at = ", ".join(part for part in (short_name(self.op) if self.op else "", self.phase) if part)
        name = short_name(self.name) + (f" ({at})" if at else "")
        a, b = map(time_text, self.times_ns)
        meaning = {
            "gone": f"{name} is gone: {a}",
            "new": f"{name} is new: {b}",
            "another kernel": f"{name} became {short_name(self.other_name)}: {a} → {b}",
            "waits longer": f"the GPU is idle for a longer time before {name}: {a} → {b}",
            "waits less": f"the GPU is idle for a shorter time before {name}: {a} → {b}",
            "phase longer": f"{self.name} takes more time on the host: {a} → {b}",
            "phase shorter": f"{self.name} takes less time on the host: {a} → {b}",
        }.get(self.what, f"{name} is {self.what}: {a} → {b}")
        often = f", {counted(self.count, 'time')} in {counted(self.steps, 'step')}" if self.count > 1 else ""
        return f"{time_text(self.total_ns, signed=True)}{often}: {meaning}"
