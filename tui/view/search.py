"""Searches the events of both traces by name.

    hits = search(scene, "sgemm")     # [Hit("kernel", "volta_sgemm_128x64_nn", 96, ...), ...]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tui.view.scene.scene import TABLE_ROWS, Scene

_WHAT = {"device": "kernel", "phases": "phase", "parts": "part", "collectives": "collective", "host": "op"}


@dataclass(frozen=True)
class Hit:
    what: str
    name: str
    count: int
    side: int
    table: str
    string: int


def search(scene: Scene, text: str) -> list[Hit]:
    """Return the most frequent event names that contain the text, at most TABLE_ROWS. The search ignores case."""
    wanted = text.casefold().strip()
    if not wanted:
        return []
    hits: list[Hit] = []
    for table, what in _WHAT.items():
        for side, trace in enumerate(scene.traces):
            names = [number for number, name in enumerate(trace.strings.texts) if wanted in name.casefold()]
            column = getattr(trace, table).name
            if not names or not len(column):
                continue
            counts = np.bincount(column, minlength=len(trace.strings))
            found = sorted((number for number in names if counts[number]), key=lambda number: -counts[number])
            hits += [Hit(what, trace.strings[n], int(counts[n]), side, table, n) for n in found]
    return hits[:TABLE_ROWS]
