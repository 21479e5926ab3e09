"""Draws the visible lines of the timeline. Unchanged lines come from a cache.

    for line, cells in Drawing().frame(window): ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from traces.model.trace import Column
from tui.formatting import size_text
from tui.view.scene import character_rows
from tui.view.scene.alignment import Alignment
from tui.view.scene.categories import Category
from tui.view.scene.compared import mark_gaps, sign_columns
from tui.view.scene.lanes import Curve
from tui.view.scene.scene import Scene, SceneRow
from tui.view.scene.tracks import Fold, TrackKey, TrackKind
from tui.view.timeline.shown_rows import LinePart, WindowLine
from tui.view.timeline.window import Window

T = TypeVar("T")


class Drawing:
    def __init__(self) -> None:
        self._of: tuple[object, ...] | None = None
        self._parts: dict[tuple[object, ...], object] = {}

    def frame(self, window: Window) -> list[tuple[WindowLine, character_rows.CharacterRow]]:
        return [(window.rows.lines[n], self.line(window, window.rows.lines[n])) for n in window.visible]

    def _look_again(self, window: Window) -> None:
        of = (window.scene, window.alignment, window.start_ns, window.ns_per_column, window.columns)
        if self._of is None or of[0] is not self._of[0] or of[1:] != self._of[1:]:
            self._of, self._parts = of, {}

    def line(self, window: Window, line: WindowLine) -> character_rows.CharacterRow:
        self._look_again(window)
        row, edges = window.scene.rows[line.row], window.edges_ns
        if line.part is LinePart.DIFFERENCE:
            return self._once((line.row, line.part), lambda: self._difference(window, line.row, row, edges))
        side = line.part.value
        hanging = window.rows.mirrored and line.part is (LinePart.FIRST if window.rows.swapped else LinePart.SECOND)
        track = row.tracks[side]
        if track is None:
            return character_rows.blank(window.columns)
        view, lines = window.axis.sides[side], window.rows.heights[line.row]
        lane = track.lane
        if isinstance(lane, Curve):
            top = window.scene.top_bytes(line.row)
            kinds = self._phase_kinds(window, row, side)
            parts = self._once(
                (line.row, side, hanging, lines),
                lambda: character_rows.curve_characters(lane, view, edges, top, lines, hanging=hanging, kinds=kinds),
            )
            return parts[line.level]
        name_of = partial(window.scene.span_name, side, track)
        found = self.busy(window, line.row, side)
        return self._once(
            (line.row, side, hanging, lines),
            lambda: character_rows.lane_characters(lane, view, edges, name_of, lines=lines, hanging=hanging, found=found),
        )[line.level]

    def _phase_kinds(self, window: Window, row: SceneRow, side: int) -> Column | None:
        wanted = TrackKey(TrackKind.PHASES, row.key.rank)
        number = next((n for n, other in enumerate(window.scene.rows) if other.key == wanted), None)
        found = None if number is None else self.busy(window, number, side)
        if found is None:
            return None
        return np.where(found.total_ns > 0, character_rows.dominant(found), np.uint16(Category.MEMORY))

    def busy(self, window: Window, row: int, side: int) -> character_rows.Busy | None:
        if (lane := window.scene.rows[row].lane(side)) is None:
            return None
        self._look_again(window)
        return self._once((row, side, "busy"), lambda: character_rows.busy(lane, window.axis.sides[side], window.edges_ns))

    def _difference(self, window: Window, number: int, row: SceneRow, edges: Column) -> character_rows.CharacterRow:
        sides = window.axis.sides
        if row.tracks[0] is None or row.tracks[1] is None:
            return character_rows.blank(window.columns)
        if row.is_curve:
            curves = [track.lane for track in row.tracks if track is not None and isinstance(track.lane, Curve)]
            values = [character_rows.curve_values(curve, side, edges) for curve, side in zip(curves, sides, strict=True)]
            offset = window.scene.unrecorded_bytes(number)
            return character_rows.curve_difference(values[0], values[1], window.scene.top_bytes(number), offset)
        first, second = (self.busy(window, number, side) for side in (0, 1))
        assert first is not None and second is not None
        sums = window.scene.sums(number)
        if sums is None:
            cells = character_rows.difference_characters(first, second, edges)
        else:
            of_columns = sums[0].columns(sides[0], edges), sums[1].columns(sides[1], edges)
            by_place = window.alignment is not Alignment.COUNTERPART
            cells = sign_columns((first, second), of_columns, by_place, edges)
        if window.alignment is Alignment.COUNTERPART and row.kind in (TrackKind.GPU, TrackKind.PHASES):
            mark_gaps(cells, sides, edges)
        return cells

    def _once(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        if key not in self._parts:
            self._parts[key] = make()
        return self._parts[key]  # type: ignore[return-value]


def label_of(window: Window, line: WindowLine, width: int) -> str:
    scene = window.scene
    row = scene.rows[line.row]
    if line.head:
        label = _folded_mark(window, row) + row.label
        if row.kind == TrackKind.HOST and None in row.tracks:
            label += f" {scene.words[line.part.value]}"  # name the trace, because only one of the two traces has this row
        return _fitted(label, width)
    if line.level:
        return _scale(scene, line, width).rjust(width) if row.is_curve else " " * width
    return _fitted("difference" if line.part is LinePart.DIFFERENCE else scene.words[line.part.value], width)


def _folded_mark(window: Window, row: SceneRow) -> str:
    if row.key in window.rows.pinned:
        return "▪ "
    thread = Fold("thread", row.key.rank, row.key.position)
    folded = row.stands_for is not None or (row.kind is TrackKind.HOST and not row.key.detail and thread in window.rows.folded)
    return "▸ " if folded else ""


def _scale(scene: Scene, line: WindowLine, width: int) -> str:
    if line.level > 1:
        return ""
    top = size_text(scene.top_bytes(line.row))
    limit = scene.limit_bytes(line.row)
    if not limit:
        return f"top {top}"
    of = size_text(limit)
    number, unit = top.split()
    texts = [f"top {top} of {of}", *([f"top {number} of {of}"] if of.endswith(unit) else [])]
    return next((text for text in texts if len(text) <= width), f"top {top}")


def _fitted(text: str, width: int) -> str:
    if len(text) > width:
        for words, short in (("rank ", "r"), (" stream ", " s"), (" thread", ""), (" recorded", " rec"), (" replayed", " rep")):
            text = text.replace(words, short)
    if len(text) > width:
        text = text[: width - 1] + "…"
    return text.ljust(width)
