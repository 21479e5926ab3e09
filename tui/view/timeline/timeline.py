"""Defines the widget that shows the rows of the timeline, and the ruler above them."""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from traces.model.trace import Column
from tui.view.scene.axis import Axis
from tui.view.scene.character_rows import LIT, NAMED, CharacterRow, Sign
from tui.view.scene.scene import Scene
from tui.view.timeline.drawing import Drawing, label_of
from tui.view.timeline.palette import Palette, palette_of
from tui.view.timeline.ruler import Marks, step_positions, steps_line, time_words, times_line
from tui.view.timeline.shown_rows import WindowLine
from tui.view.timeline.window import Window

RULER_LINES = 2
_WHEEL = 0.8
_WORDS = re.compile(r" +|[^ ]+(?: [^ ]+)*")
_WIDE_LABELS = 20
_NARROW_LABELS = 14
_WIDE = 100  # with at least this many columns, labels may be wide


class TimelineView(Widget, can_focus=True):
    DEFAULT_CSS = "TimelineView { height: 1fr; width: 1fr; }"

    @dataclass
    class Changed(Message):
        selected: bool

    def __init__(self) -> None:
        super().__init__()
        self.window: Window | None = None
        self.drawing = Drawing()
        self._marks: tuple[Scene, Axis, Marks] | None = None
        self._drawn: list[tuple[WindowLine, CharacterRow]] | None = None
        self._dragged_from: tuple[int, float] | None = None
        self._dragged = False
        self._from_ns: int | None = None  # start of a range that the user is selecting

    # --- calls by the app ---

    def show(self, scene: Scene) -> None:
        if self.window is None:
            self.window = Window(scene, *self._room())
        else:
            self.window.show(scene)
        self.redraw()

    def redraw(self) -> None:
        self._drawn = None
        self.refresh()

    @property
    def marks(self) -> Marks:
        assert self.window is not None
        scene, axis = self.window.scene, self.window.axis
        if self._marks is None or self._marks[0] is not scene or self._marks[1] is not axis:
            self._marks = scene, axis, step_positions(scene, self.window.alignment)
        return self._marks[2]

    @property
    def palette(self) -> Palette:
        return palette_of(self.app.current_theme.dark)

    # --- drawing ---

    @property
    def label_width(self) -> int:
        return _WIDE_LABELS if self.size.width >= _WIDE else _NARROW_LABELS

    def _room(self) -> tuple[int, int]:
        return max(self.size.width - self.label_width - 1, 1), max(self.size.height - RULER_LINES, 1)

    def render_line(self, y: int) -> Strip:
        window = self.window
        if window is None:
            return Strip.blank(self.size.width, self.palette.label)
        self._fit(window)
        if y < RULER_LINES:
            return self._ruler(window, y)
        if self._drawn is None:
            self._drawn = self.drawing.frame(window)
        at = y - RULER_LINES
        if at >= len(self._drawn):
            return Strip.blank(self.size.width, self.palette.label)
        line, cells = self._drawn[at]
        return strip_of(window, line, cells, self.label_width, window.visible[at] == window.line, self.palette)

    def _ruler(self, window: Window, y: int) -> Strip:
        by = f"by {window.alignment.value}" if len(window.scene.traces) == 2 else ""
        label = (by if y == 0 else time_words(window, self.marks, self.label_width)).ljust(self.label_width) + " "
        text = steps_line(window, self.marks) if y == 0 else times_line(window, self.marks)
        palette = self.palette
        styles = [palette.ruler] * len(text)
        selected = range_columns(window)
        styles[selected.start : selected.stop] = [palette.ruler_range] * len(selected)
        if 0 <= (column := window.cursor_column) < window.columns:
            styles[column] = palette.cursor_cell
        bounds = [0, *(n for n in range(1, len(text)) if styles[n] is not styles[n - 1]), len(text)]
        parts = [(label, palette.ruler), *((text[a:b], styles[a]) for a, b in itertools.pairwise(bounds))]
        # Put spaces into separate SVG elements, because some viewers remove spaces at the start of a text.
        return Strip([Segment(word, style) for part, style in parts for word in _WORDS.findall(part)])

    # --- mouse and size ---

    def on_resize(self, event: events.Resize) -> None:
        if self.window is not None:
            self._fit(self.window)
            self.redraw()

    def _fit(self, window: Window) -> None:
        if (window.columns, window.rows.height) != self._room():
            window.resize(*self._room())
            self._drawn = None

    def _column(self, event: events.MouseEvent) -> int:
        return event.x - self.label_width - 1

    def _position(self, event: events.MouseEvent) -> int:
        assert self.window is not None
        column = min(max(self._column(event), 0), self.window.columns)
        return min(max(int(self.window.start_ns + column * self.window.ns_per_column), 0), self.window.axis.length_ns)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if self.window is not None and event.button == 1:
            self._dragged_from = (event.screen_x, self.window.start_ns)
            self._dragged = False
            self._from_ns = self._position(event) if event.shift else None
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.window is None or self._dragged_from is None or (event.screen_x == self._dragged_from[0] and not self._dragged):
            return
        self._dragged = True
        if self._from_ns is not None:
            self.window.range_ns = self._from_ns, self._position(event)
            self._changed()
            return
        begin, start_ns = self._dragged_from
        self.window.pan((start_ns - self.window.start_ns) / self.window.ns_per_column - (event.screen_x - begin))
        self._changed()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self.release_mouse()
        pressed, self._dragged_from = self._dragged_from is not None, None
        if self.window is None or not pressed or self._dragged:
            return
        self.window.point(max(self._column(event), 0), max(event.y - RULER_LINES, 0))
        self._changed(is_selected=True)

    def _changed(self, *, is_selected: bool = False) -> None:
        self.redraw()
        self.post_message(self.Changed(is_selected))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, _WHEEL)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 1 / _WHEEL)

    def _wheel(self, event: events.MouseEvent, factor: float) -> None:
        if self.window is None:
            return
        event.stop()
        column = min(max(self._column(event), 0), self.window.columns - 1)
        self.window.zoom(factor, int(self.window.start_ns + (column + 0.5) * self.window.ns_per_column))
        self._changed()


def range_columns(window: Window) -> range:
    return range(0) if window.range_ns is None else _columns(window, *sorted(window.range_ns))


def _columns(window: Window, begin_ns: int, end_ns: int) -> range:
    first = int((begin_ns - window.start_ns) / window.ns_per_column)
    behind = math.ceil((end_ns - window.start_ns) / window.ns_per_column)
    return range(min(max(first, 0), window.columns), min(max(behind, 0), window.columns))


def strip_of(
    window: Window, line: WindowLine, cells: CharacterRow, label_width: int, is_cursor: bool, palette: Palette
) -> Strip:
    label = label_of(window, line, label_width)
    style = palette.label_cursor if is_cursor else palette.label if line.head else palette.label_dim
    segments = [Segment(label, style), Segment(" ", palette.label)]
    text, paints = cells.text(), _lit(window, line, cells.paints)
    begins = np.flatnonzero(paints[1:] != paints[:-1]) + 1
    styles = [palette.styles[paint] for paint in paints[np.append(0, begins)].tolist()]
    bounds = [0, *begins.tolist(), len(text)]
    cursor = window.cursor_column
    if 0 <= cursor < len(text):
        over = palette.cursor_cell if is_cursor else palette.cursor_name if paints[cursor] & NAMED else palette.cursor
        _cut_out(bounds, styles, cursor, over)
    segments += map(Segment, map(text.__getitem__, map(slice, bounds, bounds[1:])), styles)
    return Strip(segments, label_width + 1 + len(text))


def _lit(window: Window, line: WindowLine, paints: Column) -> Column:
    if window.range_ns is None and not window.lit:
        return paints
    selected = range_columns(window)
    spans = [(begin, end) for row, side, begin, end in window.lit if (row, side) == (line.row, line.part.value)]
    if not selected and not spans:
        return paints
    paints = paints.copy()
    within = paints[selected.start : selected.stop]
    within[within == Sign.BLANK] |= LIT
    for begin, end in spans:
        columns = _columns(window, begin, end)
        within = paints[columns.start : max(columns.stop, columns.start + 1)]
        within[within != Sign.BLANK] |= LIT
    return paints


def _cut_out(bounds: list[int], styles: list[Style], cursor: int, over: Style) -> None:
    at = bisect_right(bounds, cursor) - 1
    inside = styles[at]
    cut = [bound for bound in (cursor, cursor + 1) if bound not in (bounds[at], bounds[at + 1])]
    styles[at : at + 1] = [inside] * (len(cut) + 1)
    bounds[at + 1 : at + 1] = cut
    styles[bounds.index(cursor)] = inside + over
