"""Formats communication between ranks: exposed and hidden time, and the bytes of each operation.

communication_rows(Both(None, Communication((), exposed_ns=4_000_000, hidden_ns=12_000_000, steps=1)))
# [["exposed, per step: ...", "-", "4.0 ms"], ["hidden behind computation, per step", "-", "12.0 ms"], ...]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.formatting import ABSENT, count_text, share_text, size_text, time_text

if TYPE_CHECKING:
    from traces.analyses.communication import Communication, Operation
    from traces.comparison.compare import Both


def exposure_sentence(of: Communication | None) -> str:
    """Describes the communication in one trace. Returns "" if no communication on a device was recorded."""
    whole_ns = 0 if of is None else of.exposed_ns + of.hidden_ns
    if of is None or not whole_ns:
        return ""
    hidden = share_text(of.hidden_ns / whole_ns)
    return f"exposed {time_text(of.exposed_ns)}, hidden behind computation {time_text(of.hidden_ns)} ({hidden})"


def communication_rows(sides: Both[Communication | None]) -> list[list[str]]:
    """Returns rows with one column per trace. The first rows have times per step and rank. The others have each operation's
    count and bytes.
    """
    both = [sides.recorded, sides.replayed]
    per_step = [None if of is None else (of.exposed_ns / max(of.steps, 1), of.hidden_ns / max(of.steps, 1)) for of in both]
    labels = ("exposed, per step: the GPU has nothing else to do", "hidden behind computation, per step")
    rows = [
        [label, *(ABSENT if times_ns is None else time_text(times_ns[number]) for times_ns in per_step)]
        for number, label in enumerate(labels)
    ]
    calls = [{(row.name, row.phase): row for row in (of.operations if of else ())} for of in both]
    for name, phase in dict.fromkeys(key for side in calls for key in side):
        told = [side.get((name, phase)) for side in calls]
        label = f"{name} in {phase}" if phase else f"{name} outside of steps"
        rows.append([label, *map(_calls, told)])
    return rows


def _calls(row: Operation | None) -> str:
    return ABSENT if row is None else f"{count_text(row.count)}x {size_text(row.bytes)}"
