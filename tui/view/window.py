"""Which part of a scene is shown, and where the cursor stands. Changed by keys and mouse; knows no terminal.

    window = Window(scene, columns=110, height=30)
    window.zoom(0.5)                 # half as much time, around the cursor
    window.lines[window.line].part   # what the cursor's line shows: Part.SECOND

Places are nanoseconds on the axis of the scene (axis.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np

from traces.model import Column
from tui.view.alignment import Alignment
from tui.view.axis import Axis
from tui.view.scene import Row, Scene
from tui.view.tracks import Kind

CURVE_LINES = 2  # of a memory curve, per side
MARGIN = 0.05  # on both sides of what is fitted
LEAST_NS = 20  # the shortest time that the whole window can show


class Part(Enum):
    FIRST = 0
    SECOND = 1
    DIFFERENCE = 2


@dataclass(frozen=True)
class Line:
    """A line of the picture: which row of the scene, which part of it, and, of a curve, which line from above."""

    row: int
    part: Part
    level: int = 0
    head: bool = False  # the first line of its row: it carries the label


class Window:
    def __init__(self, scene: Scene, columns: int = 80, height: int = 24) -> None:
        self.scene = scene
        self.columns = columns
        self.height = height
        self.alignment = Alignment.STEP
        self.mirrored = self.swapped = False
        self.memory = self.host = True
        self.start_ns = 0.0
        self.ns_per_column = 1.0
        self.cursor_ns = 0
        self.line = self.top = 0
        self.home()

    # --- what is there ---

    @property
    def axis(self) -> Axis:
        return self.scene.axis(self.alignment)

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """The lines of the picture from top to bottom, also those outside the window's height."""
        found: list[Line] = []
        sides = [Part.FIRST] if len(self.scene.traces) == 1 else [Part.FIRST, Part.SECOND]
        if self.swapped:
            sides.reverse()
        for number, row in enumerate(self.scene.rows):
            if (row.kind == Kind.MEMORY and not self.memory) or (row.kind == Kind.HOST and not self.host):
                continue
            there = [part for part in sides if row.tracks[part.value] is not None]
            shown = there if row.kind == Kind.HOST else sides  # stacks differ in depth: no lines for what one has not
            here = [
                Line(number, part, level) for part in shown for level in range(CURVE_LINES if row.is_curve else 1)
            ]
            if len(shown) == 2:
                here.append(Line(number, Part.DIFFERENCE))
            found += [replace(here[0], head=True), *here[1:]]
        return tuple(found)

    @property
    def edges_ns(self) -> Column:
        """The places between the columns, one more than columns, growing."""
        edges = np.floor(self.start_ns + np.arange(self.columns + 1) * self.ns_per_column).astype(np.int64)
        return np.asarray(edges)

    @property
    def end_ns(self) -> float:
        return self.start_ns + self.columns * self.ns_per_column

    @property
    def cursor_line(self) -> Line | None:
        return self.lines[self.line] if self.lines else None

    @property
    def cursor_row(self) -> Row | None:
        line = self.cursor_line
        return self.scene.rows[line.row] if line is not None else None

    @property
    def cursor_side(self) -> int:
        """The trace that the cursor's line shows; on a line of differences the second one."""
        line = self.cursor_line
        return 0 if line is None or line.part is Part.FIRST else len(self.scene.traces) - 1

    @property
    def cursor_column(self) -> int:
        return int(np.searchsorted(self.edges_ns, self.cursor_ns, side="right")) - 1

    @property
    def steps_begin_ns(self) -> int:
        """Where the first step begins on the axis; 0 without steps or in a single trace."""
        slots = self.axis.slots_ns
        return int(slots[1]) if len(slots) > 1 and self.scene.step_pairs else 0

    # --- what is changed ---

    def show(self, scene: Scene) -> None:
        """A scene with more in it: the same place stays shown, unless a second trace makes another axis of it."""
        row = self.cursor_row
        other_axis = len(scene.traces) != len(self.scene.traces) or not self.axis.length_ns
        self.scene = scene
        self._relaid()
        if other_axis:
            self.home()
        elif row is not None:
            self._to_row(next((n for n, other in enumerate(scene.rows) if other.label == row.label), 0))

    def resize(self, columns: int, height: int) -> None:
        """The same time span in another number of columns."""
        span = self.columns * self.ns_per_column
        self.columns, self.height = max(columns, 1), max(height, 1)
        self._set(self.start_ns, span)
        self._keep_line_in_sight()

    def home(self) -> None:
        """All steps; of traces without steps, everything."""
        begin_ns = self.steps_begin_ns
        if begin_ns >= self.axis.length_ns:
            begin_ns = 0
        self.start_ns, self.cursor_ns = float(begin_ns), begin_ns
        self._set(begin_ns, self.axis.length_ns - begin_ns)

    def everything(self) -> None:
        self._set(0, self.axis.length_ns)

    @property
    def at_home(self) -> bool:
        begin_ns = self.steps_begin_ns
        return self.start_ns == begin_ns and self.columns * self.ns_per_column >= self.axis.length_ns - begin_ns

    def fit(self, begin_ns: int, end_ns: int) -> None:
        """Show this stretch with a margin."""
        span = max(end_ns - begin_ns, 1)
        self._set(begin_ns - MARGIN * span, span * (1 + 2 * MARGIN))

    def zoom(self, factor: float, around_ns: int | None = None) -> None:
        """Show `factor` times as much time; the place around which this is done stays where it is."""
        at_ns = self.cursor_ns if around_ns is None else around_ns
        if not self.start_ns <= at_ns <= self.end_ns:
            at_ns = int((self.start_ns + self.end_ns) / 2)
        span = self.columns * self.ns_per_column
        new_span = self._bounded(span * factor)
        self._set(at_ns - (at_ns - self.start_ns) * new_span / span, new_span)

    def pan(self, columns: float) -> None:
        """Move to the right by so many columns; the cursor keeps its column."""
        before = self.start_ns
        self._set(self.start_ns + columns * self.ns_per_column, self.columns * self.ns_per_column)
        self.cursor_ns = self._on_axis(self.cursor_ns + self.start_ns - before)

    def move(self, columns: int) -> None:
        """Move the cursor, and the window where it would leave it."""
        at = min(max(self.cursor_column, 0), self.columns - 1) + columns
        self.cursor_ns = self._on_axis(self.start_ns + (at + 0.5) * self.ns_per_column)
        self._keep_cursor_in_sight()

    def point(self, column: int, line: int) -> None:
        """Put the cursor where the mouse points: a column and a line of what is in sight."""
        self.cursor_ns = self._on_axis(self.start_ns + (column + 0.5) * self.ns_per_column)
        if self.top + line < len(self.lines):
            self.line = self.top + line

    def move_line(self, lines: int) -> None:
        if self.lines:
            self.line = min(max(self.line + lines, 0), len(self.lines) - 1)
            self._keep_line_in_sight()

    def go(self, at_ns: int, row: int | None = None, side: int | None = None) -> None:
        """Put the cursor at a place, on a row and side, and bring both into sight."""
        self.cursor_ns = self._on_axis(at_ns)
        if row is not None:
            kind = self.scene.rows[row].kind
            if (kind == Kind.HOST and not self.host) or (kind == Kind.MEMORY and not self.memory):
                self.host |= kind == Kind.HOST
                self.memory |= kind == Kind.MEMORY
                self._relaid()
            self._to_row(row, side)
        self._keep_cursor_in_sight(centre=True)

    def align(self, by: Alignment) -> None:
        """Align otherwise; what the cursor points at stays under it."""
        side = self.cursor_side
        time_ns = int(self.axis.sides[side].times([self.cursor_ns])[0])
        column = self.cursor_ns - self.start_ns
        self.alignment = by
        place = self.axis.sides[side].place(time_ns, self.cursor_ns)
        if place is not None:
            self.cursor_ns = place
            self._set(place - column, self.columns * self.ns_per_column)

    def toggle(self, what: str) -> None:
        """Turn "mirrored", "swapped", "memory" or "host" on or off."""
        line = self.cursor_line
        setattr(self, what, not getattr(self, what))
        self._relaid()
        if line is not None:
            self._to_row(line.row, None if line.part is Part.DIFFERENCE else line.part.value)

    # --- bounds ---

    def _relaid(self) -> None:
        self.__dict__.pop("lines", None)
        self.line = min(self.line, max(len(self.lines) - 1, 0))
        self._keep_line_in_sight()

    def _to_row(self, row: int, side: int | None = None) -> None:
        here = [n for n, line in enumerate(self.lines) if line.row == row]
        wanted = [n for n in here if side is None or self.lines[n].part.value == side]
        if here:
            self.line = (wanted or here)[0]
        self._keep_line_in_sight()

    def _bounded(self, span: float) -> float:
        return min(max(span, LEAST_NS, self.columns), max(self.axis.length_ns, self.columns, LEAST_NS) * (1 + 2 * MARGIN))

    def _set(self, start_ns: float, span: float) -> None:
        span = self._bounded(span)
        self.ns_per_column = span / self.columns
        slack = MARGIN * span
        furthest = max(self.axis.length_ns + slack - span, 0.0)
        # Whole nanoseconds, or columns of one nanosecond would jitter.
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
        """Scroll so that the cursor's row is seen as a whole, if it fits."""
        if not self.lines:
            self.top = 0
            return
        row = self.lines[self.line].row
        here = [n for n, line in enumerate(self.lines) if line.row == row]
        first, last = (here[0], here[-1]) if len(here) <= self.height else (self.line, self.line)
        self.top = min(self.top, first)
        self.top = max(self.top, last - self.height + 1)
        self.top = max(min(self.top, len(self.lines) - self.height), 0)
