"""Implements the keyboard actions that change the timeline's rows and the alignment of two traces."""

from __future__ import annotations

from tui.formatting import counted
from tui.view.actions.context import ViewContext
from tui.view.actions.selection import Selection
from tui.view.scene.alignment import Alignment
from tui.view.screens import PromptScreen
from tui.view.timeline.window import fold, move_row, pin


class RowLayout:
    def __init__(self, context: ViewContext, selection: Selection) -> None:
        self._context, self._selection = context, selection

    def align(self) -> None:
        window, order = self._context.window, list(Alignment)
        window.align(order[(order.index(window.alignment) + 1) % len(order)])
        self._selection.span = self._selection.range_from_ns = None
        self._context.tables.forget("range")
        self._context.tell(f"aligned by {window.alignment.value}")

    def turn(self, what: str) -> None:
        self._context.change_window(lambda window: window.change_rows(lambda rows: rows.toggle(what)))

    def fold(self) -> None:
        folded = fold(self._context.window, ("thread", "device"))
        self._context.tell("" if folded else "this row cannot be folded")

    def fold_rank(self) -> None:
        self._context.tell("" if fold(self._context.window, ("rank", "ranks")) else "there is only one rank")

    def pin(self) -> None:
        row = self._context.window.cursor_row
        if row is not None:
            is_pinned = pin(self._context.window)
            self._context.tell(f"{row.label} is pinned; p unpins it" if is_pinned else f"{row.label} is no longer pinned")

    def move_row(self, by: int) -> None:
        self._context.change_window(lambda window: move_row(window, by))

    def filter(self) -> None:
        window = self._context.window

        def filtered(text: str | None) -> None:
            window.change_rows(lambda rows: rows.filter(text or ""))
            shown = counted(len(window.rows.shown), "row")
            self._context.tell(f"{shown} with {text} in the name; Esc shows all" if text else "")

        screen = PromptScreen("show only rows whose name contains", "part of a row's name, e.g. stream", window.rows.wanted)
        self._context.open(screen, filtered)
