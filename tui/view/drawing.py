"""Draws what a window shows, line by line, as cells. What has not changed since the last frame is not drawn again.

    drawing = Drawing()
    for line, cells in drawing.frame(window):
        print(label_of(window, line), cells.text())
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from traces.model import Column
from tui.view.axis import Side
from tui.view.cells import (
    Busy,
    Cells,
    blank,
    busy,
    curve_cells,
    curve_difference,
    curve_values,
    difference_cells,
    lane_cells,
)
from tui.view.lanes import Curve
from tui.view.scene import Row
from tui.view.tracks import Kind
from tui.view.window import CURVE_LINES, Line, Part, Window

T = TypeVar("T")


class Drawing:
    """Keeps the last frame's parts, by what they were made of."""

    def __init__(self) -> None:
        self._of: tuple[object, ...] | None = None
        self._parts: dict[tuple[object, ...], object] = {}
        self._edges_ns: Column = np.zeros(0, dtype=np.int64)

    def frame(self, window: Window) -> list[tuple[Line, Cells]]:
        """The lines in sight."""
        return [(line, self.line(window, line)) for line in window.lines[window.top : window.top + window.height]]

    def _look_again(self, window: Window) -> None:
        """Forget what was made of another stretch of time, or of another scene."""
        of = (window.scene, window.alignment, window.start_ns, window.ns_per_column, window.columns)
        if self._of is None or of[0] is not self._of[0] or of[1:] != self._of[1:]:
            self._of, self._parts, self._edges_ns = of, {}, window.edges_ns

    def line(self, window: Window, line: Line) -> Cells:
        self._look_again(window)
        row, edges = window.scene.rows[line.row], self._edges_ns
        if line.part is Part.DIFFERENCE:
            return self._once((line.row, line.part), lambda: self._difference(window, line.row, row, edges))
        side = line.part.value
        hanging = window.mirrored and line.part is (Part.FIRST if window.swapped else Part.SECOND)
        track = row.tracks[side]
        if track is None:
            return blank(window.columns)
        view = window.axis.sides[side]
        if isinstance(track.lane, Curve):
            parts = self._once(
                (line.row, side, hanging),
                lambda: curve_cells(track.lane, view, edges, _highest(row), CURVE_LINES, hanging=hanging),
            )
            return parts[line.level]
        name_of = partial(window.scene.span_name, side, track)
        lane = track.lane
        found = self._busy(line.row, row, side, view, edges)
        return self._once(
            (line.row, side, hanging), lambda: lane_cells(lane, view, edges, name_of, hanging=hanging, found=found)
        )

    def busy(self, window: Window, row: int, side: int) -> Busy | None:
        """What each column of a row and side holds; None of a curve or where there is none."""
        if window.scene.rows[row].lane(side) is None:
            return None
        self._look_again(window)
        return self._busy(row, window.scene.rows[row], side, window.axis.sides[side], self._edges_ns)

    def _busy(self, number: int, row: Row, side: int, view: Side, edges: Column) -> Busy:
        lane = row.lane(side)
        assert lane is not None
        return self._once((number, side, "busy"), lambda: busy(lane, view, edges))

    def _difference(self, window: Window, number: int, row: Row, edges: Column) -> Cells:
        if row.tracks[0] is None or row.tracks[1] is None:
            return blank(window.columns)
        sides = window.axis.sides
        if row.is_curve:
            curves = [track.lane for track in row.tracks if track is not None and isinstance(track.lane, Curve)]
            values = [curve_values(curve, side, edges) for curve, side in zip(curves, sides, strict=True)]
            return curve_difference(values[0], values[1], _highest(row))
        found = [self._busy(number, row, side, sides[side], edges) for side in (0, 1)]
        return difference_cells(found[0], found[1], edges)

    def _once(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        if key not in self._parts:
            self._parts[key] = make()
        return self._parts[key]  # type: ignore[return-value]


def _highest(row: Row) -> int:
    """What the top of a row of curves stands for: the highest of both, so that they compare."""
    return max(track.lane.peak for track in row.tracks if track is not None and isinstance(track.lane, Curve))


def label_of(window: Window, line: Line, width: int) -> str:
    """What stands to the left of a line: the row's name above, then which trace it is."""
    scene = window.scene
    if line.head:
        row = scene.rows[line.row]
        label = row.label
        if row.kind == Kind.HOST and None in row.tracks:
            label += f" {scene.words[line.part.value]}"  # the only line of its row, or one beside an empty one
        return _fitted(label, width)
    if line.level:
        return " " * width
    return _fitted("difference" if line.part is Part.DIFFERENCE else scene.words[line.part.value], width)


def _fitted(text: str, width: int) -> str:
    if len(text) > width:
        for words, short in ((" stream ", " s"), (" thread", ""), (" recorded", " rec"), (" replayed", " rep")):
            text = text.replace(words, short)
    if len(text) > width:
        text = text[: width - 1] + "…"
    return text.ljust(width)
