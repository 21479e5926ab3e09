"""The widget that shows a window of a scene: two lines of ruler, then the lanes, drawn line by line (textual's Line API).

The widget changes nothing by itself but the window, by mouse: click selects, wheel zooms, drag pans. It tells the app so.
"""

from __future__ import annotations

import re
from bisect import bisect_right

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tui.view import palette
from tui.view.alignment import Alignment
from tui.view.cells import Cells
from tui.view.drawing import Drawing, label_of
from tui.view.ruler import step_places, steps_line, times_line
from tui.view.scene import Scene
from tui.view.window import Line, Window

RULER_LINES = 2
_WHEEL = 0.8
_WORDS = re.compile(r" +|[^ ]+(?: [^ ]+)*")
_WIDE_LABELS = 20
_NARROW_LABELS = 14
_WIDE = 100  # columns of the terminal from which on labels may be wide


class Timeline(Widget, can_focus=True):
    DEFAULT_CSS = "Timeline { height: 1fr; width: 1fr; }"

    class Changed(Message):
        """The cursor or the window was changed by mouse; `selected` if by a click."""

        def __init__(self, selected: bool) -> None:
            super().__init__()
            self.selected = selected

    def __init__(self) -> None:
        super().__init__()
        self.window: Window | None = None
        self.drawing = Drawing()
        self._marks: tuple[Scene, Alignment, list[tuple[int, str, int]]] | None = None
        self._drawn: list[tuple[Line, Cells]] | None = None
        self._dragged_from: tuple[int, float] | None = None
        self._dragged = False

    # --- what others tell it ---

    def show(self, scene: Scene) -> None:
        """Show a scene, where the one before was looked at if it had anything to look at."""
        if self.window is None:
            self.window = Window(scene, *self._room())
        else:
            self.window.show(scene)
        self.redraw()

    def redraw(self) -> None:
        self._drawn = None
        self.refresh()

    @property
    def marks(self) -> list[tuple[int, str, int]]:
        """Where steps begin, in this scene and alignment."""
        assert self.window is not None
        scene, by = self.window.scene, self.window.alignment
        if self._marks is None or self._marks[0] is not scene or self._marks[1] is not by:
            self._marks = scene, by, step_places(scene, by)
        return self._marks[2]

    # --- drawing ---

    @property
    def label_width(self) -> int:
        return _WIDE_LABELS if self.size.width >= _WIDE else _NARROW_LABELS

    def _room(self) -> tuple[int, int]:
        return max(self.size.width - self.label_width - 1, 1), max(self.size.height - RULER_LINES, 1)

    def render_line(self, y: int) -> Strip:
        window = self.window
        if window is None:
            return Strip.blank(self.size.width, palette.LABEL)
        if y < RULER_LINES:
            return self._ruler(window, y)
        if self._drawn is None:
            self._drawn = self.drawing.frame(window)
        at = y - RULER_LINES
        if at >= len(self._drawn):
            return Strip.blank(self.size.width, palette.LABEL)
        line, cells = self._drawn[at]
        return strip_of(window, line, cells, self.label_width, window.top + at == window.line)

    def _ruler(self, window: Window, y: int) -> Strip:
        by = f"by {window.alignment.value}" if len(window.scene.traces) == 2 else "time"
        label = ("" if y == 0 else by)[: self.label_width].ljust(self.label_width) + " "
        text = steps_line(window, self.marks) if y == 0 else times_line(window)
        column = window.cursor_column
        parts = [(label, palette.RULER), (text, palette.RULER)]
        if 0 <= column < window.columns:
            rest = text[column + 1 :]
            parts[1:] = [(text[:column], palette.RULER), (text[column], palette.CURSOR_CELL), (rest, palette.RULER)]
        # Gaps are segments of their own: some programs that show SVG pictures drop the spaces that a text begins with.
        return Strip([Segment(word, style) for part, style in parts for word in _WORDS.findall(part)])

    # --- mouse and size ---

    def on_resize(self, event: events.Resize) -> None:
        if self.window is not None:
            self.window.resize(*self._room())
            self.redraw()

    def _column(self, event: events.MouseEvent) -> int:
        return event.x - self.label_width - 1

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if self.window is not None and event.button == 1:
            self._dragged_from = (event.screen_x, self.window.start_ns)
            self._dragged = False
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.window is None or self._dragged_from is None or (event.screen_x == self._dragged_from[0] and not self._dragged):
            return
        self._dragged = True
        begin, start_ns = self._dragged_from
        self.window.pan((start_ns - self.window.start_ns) / self.window.ns_per_column - (event.screen_x - begin))
        self.redraw()
        self.post_message(self.Changed(False))

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self.release_mouse()
        pressed, self._dragged_from = self._dragged_from is not None, None
        if self.window is None or not pressed or self._dragged:
            return
        self.window.point(max(self._column(event), 0), max(event.y - RULER_LINES, 0))
        self.redraw()
        self.post_message(self.Changed(True))

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
        self.redraw()
        self.post_message(self.Changed(False))


def strip_of(window: Window, line: Line, cells: Cells, label_width: int, is_cursor: bool) -> Strip:
    """A line of the picture: its label, then its cells, neighbours of one paint in one segment."""
    label = label_of(window, line, label_width)
    style = palette.LABEL_CURSOR if is_cursor else palette.LABEL if line.head else palette.LABEL_DIM
    segments = [Segment(label, style), Segment(" ", palette.LABEL)]
    text, paints = cells.text(), cells.paints
    begins = np.flatnonzero(paints[1:] != paints[:-1]) + 1
    styles = [palette.STYLES[paint] for paint in paints[np.append(0, begins)].tolist()]
    bounds = [0, *begins.tolist(), len(text)]
    cursor = window.cursor_column
    if 0 <= cursor < len(text):
        _cut_out(bounds, styles, cursor, is_cursor)
    segments += [Segment(text[begin:end], style) for begin, end, style in zip(bounds, bounds[1:], styles, strict=False)]
    return Strip(segments, label_width + 1 + len(text))


def _cut_out(bounds: list[int], styles: list[Style], cursor: int, is_cursor: bool) -> None:
    """Make the cursor's column a stretch of its own: `styles` has the style between each two of `bounds`."""
    at = bisect_right(bounds, cursor) - 1
    inside = styles[at]
    cut = [bound for bound in (cursor, cursor + 1) if bound not in (bounds[at], bounds[at + 1])]
    styles[at : at + 1] = [inside] * (len(cut) + 1)
    bounds[at + 1 : at + 1] = cut
    styles[bounds.index(cursor)] = palette.CURSOR_CELL if is_cursor else inside + palette.CURSOR
