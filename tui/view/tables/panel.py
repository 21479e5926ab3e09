"""Defines the widget that shows tables beside the timeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.message import Message
from textual.widget import Widget
from textual.widgets import DataTable, Input, Static, Tab, Tabs

from tui.formatting import Unit, Value, count_text, fit
from tui.view.scene.character_rows import one_column_each
from tui.view.scene.scene import TABLE_ROWS
from tui.view.tables.parts import TableRow, TabTable, csv_text
from tui.view.tables.rows import TABS

_NAME_WIDTH = 38
_SORTS = "123456789"


class TableGrid(DataTable[Text], inherit_bindings=True):
    """Shows a table. Arrow keys change the tab, and Shift with an arrow key scrolls the table."""

    BINDINGS = [
        Binding("left", "ask('tab', -1)", "table", key_display="← →"),
        Binding("right", "ask('tab', 1)", "next table", show=False),
        Binding("shift+left", "scroll_left", "scroll", show=False),
        Binding("shift+right", "scroll_right", "scroll", show=False),
        *(Binding(key, f"ask('sort', {int(key) - 1})", "sort", show=key == "1", key_display="1-9") for key in _SORTS),
        Binding("slash", "ask('filter')", "filter"),
        Binding("y", "ask('copy')", "copy CSV"),
        Binding("e", "ask('save')", "save CSV"),
    ]

    @dataclass
    class Asked(Message):
        what: str
        number: int

    def action_ask(self, what: str, number: int = 0) -> None:
        self.post_message(self.Asked(what, number))


class TablePanel(Widget):
    DEFAULT_CSS = """
    TablePanel { width: 50%; min-width: 60; display: none; border-left: solid $panel; }
    TablePanel.below { width: 1fr; height: 60%; border-left: none; border-top: solid $panel; }
    TablePanel.open { display: block; layout: vertical; }
    TablePanel Tabs { height: 2; }
    TablePanel Tab { color: $foreground 80%; }
    TablePanel TableGrid { height: 1fr; }
    TablePanel #filtering { height: 1; display: none; }
    TablePanel #filtering.open { display: block; }
    TablePanel #filtering Static { width: 9; }
    TablePanel #filter { border: none; height: 1; padding: 0; width: 1fr; }
    TablePanel #name { height: auto; max-height: 3; color: $text-muted; }
    TablePanel.below #name { max-height: 2; }
    """

    @dataclass
    class Chosen(Message):
        row: TableRow

    @dataclass
    class Saving(Message):
        tab: str
        text: str

    def __init__(self) -> None:
        super().__init__()
        self.source: Callable[[str], TabTable] | None = None
        self._of: dict[str, TabTable] = {}
        self._sorted: dict[str, tuple[int, bool]] = {}  # for each tab: the sorted column, and True for ascending order
        self._shown: list[TableRow] = []

    def compose(self) -> ComposeResult:
        tabs = Tabs(*(Tab(tab, id=tab) for tab in TABS))
        tabs.can_focus = False
        yield tabs
        yield TableGrid(cursor_type="row", zebra_stripes=True)
        with Horizontal(id="filtering"):
            yield Static("filter ")
            yield Input(id="filter", placeholder="part of a name; Enter goes back to the table, Esc shows all", compact=True)
        yield Static(id="name")

    @property
    def rows(self) -> TableGrid:
        return self.query_one(TableGrid)

    @property
    def tab(self) -> str:
        return self.query_one(Tabs).active or TABS[0]

    @property
    def is_open(self) -> bool:
        return self.has_class("open")

    def forget(self, tab: str | None = None) -> None:
        for name in TABS if tab is None else (tab,):
            self._of.pop(name, None)
        if self.is_open and tab in (None, self.tab):
            self._fill()

    def open(self, tab: str | None = None) -> None:
        self.add_class("open")
        if tab is not None and tab != self.tab:
            self.query_one(Tabs).active = tab  # setting the active tab also fills the table
        else:
            self._fill()
        self.rows.focus()

    def close(self) -> None:
        self.remove_class("open")

    def end_filter(self) -> bool:
        field = self.query_one("#filter", Input)
        was = self.query_one("#filtering").has_class("open")
        self.query_one("#filtering").remove_class("open")
        if was:
            field.value = ""
            self._fill()
            self.rows.focus()
        return was

    def table(self) -> TabTable:
        tab = self.tab
        if tab not in self._of:
            assert self.source is not None
            self._of[tab] = self.source(tab)
        table = self._of[tab]
        wanted = self.query_one("#filter", Input).value.casefold().strip()
        rows = [row for row in table.rows if not wanted or wanted in _searched(row)]
        if tab in self._sorted:
            column, rising = self._sorted[tab]
            if column < len(table.columns):
                known = [row for row in rows if row.values[column] is not None]
                unknown = [row for row in rows if row.values[column] is None]
                rows = sorted(known, key=lambda row: _order(row.values[column]), reverse=not rising) + unknown
        return table._replace(rows=rows)

    def _fill(self) -> None:
        if self.source is None:
            return
        table, widget = self.table(), self.rows
        column, rising = self._sorted.get(self.tab, (-1, False))
        widget.clear(columns=True)
        self._shown = table.rows[:TABLE_ROWS]
        columns = []
        for n, head in enumerate(table.columns):
            name = head.name + ((" ▲" if rising else " ▼") if n == column else "")
            side: Literal["left", "right"] = "left" if head.unit is Unit.TEXT else "right"
            texts = [_cell_text(head.unit, row.values[n]) for row in self._shown]
            # The column gets a fixed width, because measuring every cell is slow.
            widget.add_column(Text(name, justify=side), width=max(len(name), *map(len, texts), 1), key=str(n))
            columns.append([Text(text, justify=side) for text in texts])
        widget.add_rows(zip(*columns, strict=True))
        self._say(0 if self._shown else None, table)

    def _say(self, at: int | None, table: TabTable | None = None) -> None:
        text = ""
        if at is not None and at < len(self._shown):
            text = self._shown[at].full_name
        elif table is not None:
            text = table.note or "no row matches the filter"
        more = len(table.rows) - len(self._shown) if table is not None else 0
        if more:
            text = f"{count_text(more)} more rows are not shown, but are copied and saved;  {text}"
        # Kernel names are shown without the prefix "void".
        self.query_one("#name", Static).update(Text(one_column_each(text).removeprefix("void ")))

    # --- events ---

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        event.stop()
        if self.is_open:
            self._fill()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        if self._shown:
            self._say(event.cursor_row)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        if event.cursor_row < len(self._shown):
            self.post_message(self.Chosen(self._shown[event.cursor_row]))

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        event.stop()
        self._sort(event.column_index)

    def on_table_grid_asked(self, event: TableGrid.Asked) -> None:
        event.stop()
        if event.what == "tab":
            self.query_one(Tabs).active = TABS[(TABS.index(self.tab) + event.number) % len(TABS)]
        elif event.what == "sort":
            self._sort(event.number)
        elif event.what == "filter":
            self.query_one("#filtering").add_class("open")
            self.query_one("#filter", Input).focus()
        elif event.what == "copy":
            table = self.table()
            self.app.copy_to_clipboard(csv_text(table))
            self.notify(f"copied {count_text(len(table.rows))} rows as CSV")
        elif event.what == "save":
            self.post_message(self.Saving(self.tab, csv_text(self.table())))

    def _sort(self, column: int) -> None:
        columns = self._of[self.tab].columns if self.tab in self._of else ()
        if column < len(columns):
            before = self._sorted.get(self.tab)
            rising = columns[column].unit is Unit.TEXT
            self._sorted[self.tab] = (column, not before[1] if before is not None and before[0] == column else rising)
            self._fill()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.is_open:
            self._fill()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.rows.focus()


def _cell_text(unit: Unit, value: Value) -> str:
    text = unit.text(value)
    return fit(one_column_each(text), _NAME_WIDTH) if unit is Unit.TEXT else text


def _searched(row: TableRow) -> str:
    texts = [row.name, *(value for value in row.values if isinstance(value, str))]
    if row.difference is not None:
        texts += [row.difference.name, row.difference.other_name]
    return " ".join(texts).casefold()


def _order(value: Value) -> tuple[str, float]:
    return (value.casefold(), 0.0) if isinstance(value, str) else ("", float(value or 0))
