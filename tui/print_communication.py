"""Communication between ranks as text: how much of its time a GPU has nothing else to do, and how many bytes went.

    communication_rows({"recorded": None, "replayed": {"exposed_ns": 4_000_000, "hidden_ns": 12_000_000, ...}})
    # [["exposed: nothing else to do meanwhile", "-", "4.0 ms"], ["hidden behind computation", "-", "12.0 ms"], ...]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tui.figures import ABSENT, count_text, share_text, size_text, time_text

Communication = Mapping[str, Any]  # a summary's "communication", or one side of a comparison's


def exposure_sentence(of: Communication | None) -> str:
    """Of one trace; empty where nothing is known to have been communicated on a device."""
    whole_ns = 0 if of is None else of["exposed_ns"] + of["hidden_ns"]
    if of is None or not whole_ns:
        return ""
    hidden = share_text(of["hidden_ns"] / whole_ns)
    return f"exposed {time_text(of['exposed_ns'])}, hidden behind computation {time_text(of['hidden_ns'])} ({hidden})"


def communication_rows(sides: Mapping[str, Communication | None]) -> list[list[str]]:
    """Time per step and rank, then count and bytes of each operation of the whole run; one column per side."""
    both = list(sides.values())
    rows = [
        [label, *[ABSENT if of is None else time_text(of[key] / max(of["steps"], 1)) for of in both]]
        for label, key in (
            ("exposed, per step: the GPU has nothing else to do", "exposed_ns"),
            ("hidden behind computation, per step", "hidden_ns"),
        )
    ]
    calls = [{(row["name"], row["phase"]): row for row in (of["operations"] if of else ())} for of in both]
    for name, phase in dict.fromkeys(key for side in calls for key in side):
        told = [side.get((name, phase)) for side in calls]
        label = f"{name} in {phase}" if phase else f"{name} outside of steps"
        rows.append([label, *map(_calls, told)])
    return rows


def _calls(row: Mapping[str, Any] | None) -> str:
    return ABSENT if row is None else f"{count_text(row['count'])}x {size_text(row['bytes'])}"
