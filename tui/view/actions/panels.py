"""Opens and closes the panels (tables, help page, output of the script) when a key is pressed."""

from __future__ import annotations

from textual.widgets import Static

from tui.view.actions.context import ViewContext
from tui.view.actions.difference_walk import DifferenceWalk
from tui.view.actions.selection import Selection
from tui.view.screens import HelpScreen
from tui.view.tables.parts import TabTable
from tui.view.tables.rows import TABS, table_of


class Panels:
    def __init__(self, context: ViewContext, selection: Selection, walk: DifferenceWalk) -> None:
        self._context, self._selection, self._walk = context, selection, walk

    def table(self, tab: str) -> TabTable:
        window = self._context.window
        return table_of(self._context.scene, tab, self._walk.found(), window.axis, window.range_ns)

    def help(self) -> None:
        self._context.open(HelpScreen(self._context.timeline.palette))

    def tables(self) -> None:
        tables = self._context.tables
        if tables.is_open:
            tables.close()
            self._context.timeline.focus()
        else:
            tables.open("range" if self._context.window.range_ns is not None else self._first_tab())

    def range(self) -> None:
        if self._selection.range_from_ns is None:
            self._selection.range_from_ns = self._context.window.cursor_ns
            self._selection.span = None
            self._context.tell("range started: move the cursor, then press v to list the events")
        else:
            self._selection.range_from_ns = None
            self._context.tables.forget("range")
            self._context.tell("")
            self._context.tables.open("range")

    def close(self) -> None:
        tables, window = self._context.tables, self._context.timeline.window
        output = self._context.timeline.screen.query_one("#output", Static)
        if tables.end_filter():
            return
        if window is not None and window.range_ns is not None:
            self._selection.range_from_ns = window.range_ns = None
            tables.forget("range")
        elif tables.is_open:
            tables.close()
            self._context.timeline.focus()
        elif output.has_class("open"):
            output.remove_class("open")
        elif window is not None and window.rows.wanted:
            window.change_rows(lambda rows: rows.filter(""))
        elif self._selection.span is not None:
            self._selection.span = None
        self._context.tell("")

    def _first_tab(self) -> str | None:
        if len(self._context.scene.traces) == 2 or self.table(self._context.tables.tab).rows:
            return None
        return next((tab for tab in TABS if self.table(tab).rows), None)
