"""The tables beside the lanes: kernels and ops by difference, phases, steps. Choosing a row jumps to its place.

    heads, rows = table_of(scene, "kernels")   # rows[0].cells == ["longer", "sgemm", "96", "1.2 ms", "1.3 ms", "+0.1 ms"]

The rows are those of `trace diff`; of one trace, those of `trace info`. At most TABLE_ROWS are shown.
"""

from __future__ import annotations

from typing import NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.message import Message
from textual.widget import Widget
from textual.widgets import DataTable, TabbedContent, TabPane

from traces.measure import kernel_table, op_table
from traces.model import NONE
from tui.figures import ABSENT, count_text, error_text, fit, time_text
from tui.view.ruler import step_name
from tui.view.scene import TABLE_ROWS, Scene, short_name

TABS = ("kernels", "ops", "phases", "steps")
_NAME_WIDTH = 24


class TableRow(NamedTuple):
    """`name` (or the number of a pair of steps) is what choosing the row goes to; `side` the trace in which it surely is."""

    cells: list[str]
    name: str
    side: int = 0
    step: int = NONE


class Table(NamedTuple):
    heads: list[str]
    rows: list[TableRow]
    left_out: int = 0


def table_of(scene: Scene, tab: str) -> Table:
    if not scene.has_figures:
        return Table(["working out the figures ..."], [])
    two = len(scene.traces) == 2
    if tab == "steps":
        made = _steps(scene)
    elif tab == "phases":
        made = _phases(scene) if two else _own_phases(scene)
    else:
        made = _changes(scene, tab) if two else _own_work(scene, tab)
    return Table(made.heads, made.rows[:TABLE_ROWS], max(len(made.rows) - TABLE_ROWS, 0))


def _changes(scene: Scene, tab: str) -> Table:
    assert scene.comparison is not None
    changes = scene.comparison.changes
    lists = changes.kernels if tab == "kernels" else changes.ops
    rows = []
    for sign, found in (("+", lists.longer), ("-", lists.shorter), ("new", lists.added), ("gone", lists.gone)):
        for change in found:
            a, b = change.recorded_ns, change.replayed_ns
            counts = [count_text(round(count, 1)) for count in (change.recorded_count, change.replayed_count)]
            number = counts[0] if counts[0] == counts[1] else "→".join(counts)
            times = [time_text(a) if change.recorded_count else ABSENT, time_text(b) if change.replayed_count else ABSENT]
            cells = [sign, fit(short_name(change.name), _NAME_WIDTH), time_text(b - a, signed=True), *times, number]
            rows.append((abs(b - a), TableRow(cells, change.name, 1 if sign == "new" else 0)))
    rows.sort(key=lambda row: -row[0])
    return Table(["", tab, "change", *scene.words, "per step"], [row for _, row in rows])


def _own_work(scene: Scene, tab: str) -> Table:
    work = (kernel_table if tab == "kernels" else op_table)(scene.traces[0])
    rows = [
        TableRow([fit(short_name(w.name), _NAME_WIDTH), count_text(w.count), time_text(w.device_ns)], w.name) for w in work
    ]
    return Table([tab, "count", "GPU time"], rows)


def _phases(scene: Scene) -> Table:
    assert scene.comparison is not None
    rows = []
    for name, phase in scene.comparison.phases.items():
        a, b = phase.recorded_median_ns, phase.replayed_median_ns
        cells = [name, time_text(b - a, signed=True), time_text(a), time_text(b), error_text(phase.error)]
        rows.append(TableRow(cells, name, 0 if a else 1))
    return Table(["phase", "change", *scene.words, "error"], rows)


def _own_phases(scene: Scene) -> Table:
    assert scene.summary is not None
    rows = [
        TableRow([name, *map(time_text, (phase.median_ns, phase.device_median_ns, phase.busy_median_ns))], name)
        for name, phase in scene.summary.phases.items()
    ]
    return Table(["phase", "on the host", "between events", "GPU busy"], rows)


def _steps(scene: Scene) -> Table:
    rows = []
    for number, pair in enumerate(scene.step_pairs):
        times = [
            int(trace.steps.duration_ns[row]) if row != NONE else None
            for trace, row in zip(scene.traces, pair, strict=False)
        ]
        cells = [step_name(scene, number), *map(time_text, times)]
        if len(times) == 2:
            known = None if None in times else times[1] - times[0]  # type: ignore[operator]
            cells.insert(1, time_text(known, signed=True))
        rows.append(TableRow(cells, "", step=number))
    heads = ["step", "change", *scene.words] if len(scene.traces) == 2 else ["step", "lasts"]
    return Table(heads, rows)


class Tables(Widget):
    """The tabs. A table is filled when it is first looked at, for most never are."""

    DEFAULT_CSS = """
    Tables { width: 62; display: none; border-left: solid #3a424b; }
    Tables.below { width: 1fr; height: 45%; border-left: none; border-top: solid #3a424b; }
    Tables.open { display: block; }
    Tables DataTable { height: 1fr; }
    """

    class Chosen(Message):
        """A row was chosen, in the table of a tab."""

        def __init__(self, tab: str, row: TableRow) -> None:
            super().__init__()
            self.tab = tab
            self.row = row

    def __init__(self) -> None:
        super().__init__()
        self._scene: Scene | None = None
        self._shown: dict[str, tuple[Scene, Table]] = {}

    def compose(self) -> ComposeResult:
        with TabbedContent():
            for tab in TABS:
                with TabPane(tab, id=tab):
                    yield DataTable(cursor_type="row", zebra_stripes=True, id=f"table-{tab}")

    def show(self, scene: Scene) -> None:
        self._scene = scene
        if self.has_class("open"):
            self._fill()

    def toggle(self, below: bool) -> bool:
        """Open or close; whether it is open then."""
        self.set_class(below, "below")
        self.toggle_class("open")
        if self.has_class("open"):
            self._fill()
            self.focus_table()
        return self.has_class("open")

    def focus_table(self) -> None:
        self.query_one(f"#table-{self.tab}", DataTable).focus()

    @property
    def tab(self) -> str:
        return self.query_one(TabbedContent).active or TABS[0]

    def on_tabbed_content_tab_activated(self) -> None:
        if self.has_class("open"):
            self._fill()

    def _fill(self) -> None:
        scene, tab = self._scene, self.tab
        if scene is None or (tab in self._shown and self._shown[tab][0] is scene):
            return
        table = table_of(scene, tab)
        self._shown[tab] = scene, table
        widget = self.query_one(f"#table-{tab}", DataTable)
        widget.clear(columns=True)
        widget.add_columns(*table.heads)
        widget.add_rows([[Text(cell) for cell in row.cells] for row in table.rows])  # a str would be read as markup
        if table.left_out:
            self.notify(f"{table.left_out} more rows are not shown: trace diff --json has them")

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        tab = (event.data_table.id or "").removeprefix("table-")
        if tab in self._shown and event.cursor_row < len(self._shown[tab][1].rows):
            self.post_message(self.Chosen(tab, self._shown[tab][1].rows[event.cursor_row]))
