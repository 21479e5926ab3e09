"""Stores the visible time range of the timeline and the position of the cursor.

    window = Window(scene, columns=110, height=30)
    window.zoom(0.5)                      # shows half as much time, around the cursor
    window.rows.lines[window.line].part   # what the cursor's line shows: LinePart.SECOND

All positions are nanoseconds on the time axis.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from traces.model.trace import Column, StepKind
from tui.view.scene.alignment import Alignment
from tui.view.scene.axis import Axis
from tui.view.scene.scene import Scene, SceneRow
from tui.view.scene.tracks import Fold
from tui.view.timeline.shown_rows import LinePart, ShownRows, WindowLine

MARGIN = 0.05  # share of the window left free on both sides by `fit`
LEAST_NS = 20  # the shortest time range that the window can show


class Window:
    def __init__(self, scene: Scene, columns: int = 80, height: int = 24) -> None:
        self.scene = scene
        self.columns = columns
        self.alignment = Alignment.COUNTERPART
        self.rows = ShownRows(scene, height)
        self.range_ns: tuple[int, int] | None = None  # the two ends of the selected range, in any order
        self.lit: list[tuple[int, int, int, int]] = []  # highlighted spans: row, side, start and end on the axis
        self._edges: tuple[tuple[float, float, int], Column] | None = None
        self.start_ns = 0.0
        self.ns_per_column = 1.0
        self.cursor_ns = 0
        self.line = self.top = 0
        self.home()

    # --- state ---

    @property
    def axis(self) -> Axis:
        return self.scene.axis(self.alignment)

    @property
    def visible(self) -> range | list[int]:
        pinned = self.rows.pinned_lines
        return [*range(pinned), *range(self.top + pinned, min(self.top + self.rows.height, len(self.rows.lines)))]

    @property
    def edges_ns(self) -> Column:
        of = self.start_ns, self.ns_per_column, self.columns
        if self._edges is None or self._edges[0] != of:  # cached, because every line of a frame uses the same edges
            edges = np.floor(self.start_ns + np.arange(self.columns + 1) * self.ns_per_column).astype(np.int64)
            self._edges = of, edges
        return self._edges[1]

    @property
    def end_ns(self) -> float:
        return self.start_ns + self.columns * self.ns_per_column

    @property
    def cursor_line(self) -> WindowLine | None:
        return self.rows.lines[self.line] if self.rows.lines else None

    @property
    def cursor_row(self) -> SceneRow | None:
        line = self.cursor_line
        return self.scene.rows[line.row] if line is not None else None

    @property
    def cursor_side(self) -> int:
        line = self.cursor_line
        return 0 if line is None or line.part is LinePart.FIRST else len(self.scene.traces) - 1

    @property
    def cursor_column(self) -> int:
        return int(np.searchsorted(self.edges_ns, self.cursor_ns, side="right")) - 1

    # --- changes ---

    def show(self, scene: Scene) -> None:
        row, before, at_home = self.cursor_row, self.axis, self.at_home
        other_axis = len(scene.traces) != len(self.scene.traces) or not before.length_ns
        side = self.cursor_side
        time_ns = int(before.sides[side].times([self.cursor_ns])[0]) if before.length_ns else 0
        self.scene = scene
        self.rows.show(scene)
        self._relaid()
        if other_axis or (at_home and self.axis is not before):
            self.home()
        elif self.axis is not before:
            self._keep_under_cursor(side, time_ns)
        if row is not None and not other_axis:
            self._to_row(next((n for n, other in enumerate(scene.rows) if other.key == row.key), 0))

    def resize(self, columns: int, height: int) -> None:
        span = self.columns * self.ns_per_column
        self.columns = max(columns, 1)
        self.rows.height = max(height, 1)
        self.rows.forget()
        self._set(self.start_ns, span)
        self._relaid()

    def home(self) -> None:
        begin_ns = _steps_begin_ns(self.scene, self.axis)
        if begin_ns >= self.axis.length_ns:
            begin_ns = 0
        self.start_ns, self.cursor_ns = float(begin_ns), begin_ns
        self._set(begin_ns, self.axis.length_ns - begin_ns)

    def everything(self) -> None:
        self._set(0, self.axis.length_ns)

    @property
    def at_home(self) -> bool:
        begin_ns = _steps_begin_ns(self.scene, self.axis)
        return self.start_ns == begin_ns and self.columns * self.ns_per_column >= self.axis.length_ns - begin_ns

    def fit(self, begin_ns: int, end_ns: int) -> None:
        span = max(end_ns - begin_ns, 1)
        self._set(begin_ns - MARGIN * span, span * (1 + 2 * MARGIN))

    def zoom(self, factor: float, around_ns: int | None = None) -> None:
        """Make the visible time range `factor` times as long. The time `around_ns` stays in the same column of the screen. By
        default, it is the cursor's time."""
        at_ns = self.cursor_ns if around_ns is None else around_ns
        if not self.start_ns <= at_ns <= self.end_ns:
            at_ns = int((self.start_ns + self.end_ns) / 2)
        span = self.columns * self.ns_per_column
        new_span = _bounded(span * factor, self.columns, self.axis)
        self._set(at_ns - (at_ns - self.start_ns) * new_span / span, new_span)

    def pan(self, columns: float) -> None:
        before = self.start_ns
        self._set(self.start_ns + columns * self.ns_per_column, self.columns * self.ns_per_column)
        self.cursor_ns = self._on_axis(self.cursor_ns + self.start_ns - before)

    def move(self, columns: int) -> None:
        at = min(max(self.cursor_column, 0), self.columns - 1) + columns
        self.cursor_ns = self._on_axis(self.start_ns + (at + 0.5) * self.ns_per_column)
        self._keep_cursor_in_sight()

    def point(self, column: int, line: int) -> None:
        self.cursor_ns = self._on_axis(self.start_ns + (column + 0.5) * self.ns_per_column)
        if line < len(self.visible):
            self.line = self.visible[line]
            self.line -= self.rows.lines[self.line].level

    def move_line(self, lines: int) -> None:
        if not self.rows.lines:
            return
        at = min(max(self.line + lines, 0), len(self.rows.lines) - 1)
        while self.rows.lines[at].level and lines == 1 and at + 1 < len(self.rows.lines):
            at += 1
        self.line = at - self.rows.lines[at].level
        self._keep_line_in_sight()

    def go(self, at_ns: int, row: int | None = None, side: int | None = None) -> None:
        self.cursor_ns = self._on_axis(at_ns)
        if row is not None:
            self.rows.reveal(row)
            self._relaid()
            self._to_row(row, side)
        self._keep_cursor_in_sight(centre=True)

    def align(self, by: Alignment) -> None:
        side = self.cursor_side
        time_ns = int(self.axis.sides[side].times([self.cursor_ns])[0])
        self.alignment = by
        self.range_ns = None
        self._keep_under_cursor(side, time_ns)

    def _keep_under_cursor(self, side: int, time_ns: int) -> None:
        column = self.cursor_ns - self.start_ns
        position = self.axis.sides[side].position(time_ns, self.cursor_ns)
        if position is not None:
            self.cursor_ns = self._on_axis(position)
            self._set(position - column, self.columns * self.ns_per_column)

    # --- bounds ---

    def change_rows(self, change: Callable[[ShownRows], object], fold: Fold | None = None) -> None:
        line = self.cursor_line
        change(self.rows)
        self._relaid()
        if line is None:
            return
        row = self.rows.instead_of(line.row, fold)
        self._to_row(row, None if line.part is LinePart.DIFFERENCE else line.part.value)

    def _relaid(self) -> None:
        self.line = min(self.line, max(len(self.rows.lines) - 1, 0))
        self._keep_line_in_sight()

    def _to_row(self, row: int, side: int | None = None) -> None:
        here = [n for n, line in enumerate(self.rows.lines) if line.row == row]
        wanted = [n for n in here if side is None or self.rows.lines[n].part.value == side]
        if here:
            self.line = (wanted or here)[0]
        elif self.rows.lines:  # the cursor's row no longer exists, so the cursor moves to the first line of the next row
            self._to_row(self.rows.lines[self.line].row)
        self._keep_line_in_sight()

    def _set(self, start_ns: float, span: float) -> None:
        span = _bounded(span, self.columns, self.axis)
        self.ns_per_column = span / self.columns
        slack = MARGIN * span
        furthest = max(self.axis.length_ns + slack - span, 0.0)
        # round to whole nanoseconds, because columns of about one nanosecond would jitter otherwise
        self.start_ns = float(round(min(max(start_ns, min(-slack, self.axis.length_ns - span)), furthest)))

    def _on_axis(self, at_ns: float) -> int:
        return int(min(max(at_ns, 0), max(self.axis.length_ns - 1, 0)))

    def _keep_cursor_in_sight(self, centre: bool = False) -> None:
        if self.start_ns <= self.cursor_ns < self.end_ns:
            return
        span = self.columns * self.ns_per_column
        if centre:
            self._set(self.cursor_ns - span / 2, span)
        elif self.cursor_ns < self.start_ns:
            self._set(self.cursor_ns - self.ns_per_column / 2, span)
        else:
            self._set(self.cursor_ns - span + self.ns_per_column, span)

    def _keep_line_in_sight(self) -> None:
        if not self.rows.lines:
            self.top = 0
            return
        row, pinned = self.rows.lines[self.line].row, self.rows.pinned_lines
        height = self.rows.height - pinned
        if self.line >= pinned:
            here = [n - pinned for n, line in enumerate(self.rows.lines) if line.row == row]
            at = self.line - pinned
            first, last = (here[0], here[-1]) if len(here) <= height else (at, at)
            self.top = min(self.top, first)
            self.top = max(self.top, last - height + 1)
        self.top = max(min(self.top, len(self.rows.lines) - self.rows.height), 0)


def _steps_begin_ns(scene: Scene, axis: Axis) -> int:
    slots, trace = axis.slots_ns, scene.traces[0]
    if len(scene.traces) == 1 and len(trace.steps):
        after_warmup = trace.steps.kind != StepKind.WARMUP
        return axis.sides[0].position(int(trace.steps.start_ns[after_warmup | ~after_warmup.any()].min())) or 0
    return int(slots[1]) if len(slots) > 1 and scene.step_pairs else 0


def _bounded(span_ns: float, columns: int, axis: Axis) -> float:
    return min(max(span_ns, LEAST_NS, columns), max(axis.length_ns, columns, LEAST_NS) * (1 + 2 * MARGIN))


def fold(window: Window, what: tuple[str, ...]) -> bool:
    row = window.cursor_row
    found = None if row is None else window.rows.fold_of(row, what)
    if found is None:
        return False
    window.change_rows(lambda rows: rows.fold(found), found)
    return True


def pin(window: Window) -> bool:
    row = window.cursor_row
    if row is None:
        return False
    window.change_rows(lambda rows: rows.pin(row.key))
    return row.key in window.rows.pinned


def move_row(window: Window, by: int) -> None:
    line = window.cursor_line
    if line is not None:
        window.change_rows(lambda rows: rows.move(line.row, by))
