"""Searching by name: kernels, ops, phases, collectives and steps of both traces.

    hits = search(scene, "sgemm")     # [Hit("kernel", "volta_sgemm_128x64_nn", 96, ...), ...]
    next_place(window, hits[0], 1)    # the Span after the cursor that the hit stands for
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.model import Column
from tui.view.scene import TABLE_ROWS, Scene
from tui.view.spans import Span, find_span
from tui.view.window import Window

_WHAT = {"device": "kernel", "phases": "phase", "parts": "part", "collectives": "collective", "host": "op"}


@dataclass(frozen=True)
class Hit:
    """One name in one trace, and how often it is there."""

    what: str
    name: str
    count: int
    side: int
    table: str
    string: int


def search(scene: Scene, text: str) -> list[Hit]:
    """Names that contain `text` in any case, the most frequent first within a table, at most TABLE_ROWS."""
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


def rows_named(scene: Scene, side: int, table: str, name: str) -> Column:
    trace = scene.traces[side]
    return np.flatnonzero(getattr(trace, table).name == trace.strings.find(name))


def next_place(window: Window, hit: Hit, by: int) -> tuple[Span, int] | None:
    """The hit's next (`by` 1) or previous (-1) occurrence on the axis seen from the cursor, and where that is.

    Behind the last one comes the first again. None if the alignment shows none of them.
    """
    spans = getattr(window.scene.traces[hit.side], hit.table)
    rows = np.flatnonzero(spans.name == hit.string)
    side = window.axis.sides[hit.side]
    found: list[tuple[int, int]] = []
    for row in rows[np.argsort(spans.start_ns[rows], kind="stable")].tolist():
        found += [(place, row) for place in side.places(int(spans.start_ns[row])).tolist()]
    if not found:
        return None
    found.sort()
    if by > 0:
        place, row = next((at for at in found if at[0] > window.cursor_ns), found[0])
    else:
        place, row = next((at for at in reversed(found) if at[0] < window.cursor_ns), found[-1])
    span = find_span(window.scene, hit.side, hit.table, row)
    return None if span is None else (span, place)
