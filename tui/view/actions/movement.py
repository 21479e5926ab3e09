"""Implements the keys that zoom, move the visible time range, or move the cursor."""

from __future__ import annotations

from tui.view.actions.context import ViewContext
from tui.view.actions.selection import Selection
from tui.view.timeline.spans import duration_of, position_of

_PAN = 0.25  # share of the window's width


class Movement:
    def __init__(self, context: ViewContext, selection: Selection) -> None:
        self._context, self._selection = context, selection

    def zoom(self, factor: float) -> None:
        self._context.following = False
        self._context.change_window(lambda window: window.zoom(factor))

    def pan(self, by: int) -> None:
        self._context.following = False
        self._context.change_window(lambda window: window.pan(by * max(int(_PAN * window.columns), 1)))

    def move(self, by: int) -> None:
        self._selection.span = None
        self._context.change_window(lambda window: window.move(by))

    def line(self, by: int) -> None:
        self._selection.span = None
        self._context.change_window(lambda window: window.move_line(by))

    def page(self, by: int) -> None:
        self.line(by * self._context.window.rows.height)

    def step(self, position: int) -> None:
        marks = self._context.timeline.marks
        if not marks:
            self._context.tell("no steps in this trace")
        else:
            self._selection.go(marks[position][0])

    def fit(self) -> None:
        window = self._context.window
        span, before = self._selection.span, (window.start_ns, window.ns_per_column)
        if window.range_ns is not None:
            window.fit(*window.range_ns)
        elif span is not None:
            begin = position_of(window, span)
            if begin is not None:
                window.fit(begin, begin + duration_of(window.scene, span))
        if before == (window.start_ns, window.ns_per_column):
            if window.at_home:
                window.everything()
            else:
                cursor_ns = window.cursor_ns
                window.home()
                window.cursor_ns = cursor_ns
        self._context.tell("")
