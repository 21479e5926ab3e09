"""Which part of a scene is shown, and where the cursor stands. Changed by keys and mouse; knows no terminal.

    window = Window(scene, columns=110, height=30)
    window.zoom(0.5)                 # half as much time, around the cursor
    window.lines[window.line].part   # what the cursor's line shows: LinePart.SECOND

Places are nanoseconds on the axis of the scene (axis.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np

from traces.model import Column
from tui.view.alignment import Alignment
from tui.view.axis import Axis
from tui.view.scene import Scene, SceneRow
from tui.view.tracks import Fold, TrackKey, TrackKind

_LEAST_LINES = {TrackKind.MEMORY: 2}  # of a row, per side; 1 of others
_MOST_LINES = dict.fromkeys(TrackKind, 2) | {TrackKind.GPU: 12, TrackKind.MEMORY: 8, TrackKind.PHASES: 4}
# In this order they take what room is left.
_ORDER = """
GPU MEMORY GPU PHASES GPU MEMORY HOST GPU LOADER COLLECTIVES PARTS
GPU PHASES GPU MEMORY GPU GPU MEMORY GPU PHASES GPU MEMORY GPU MEMORY
"""
_GROWING = tuple(TrackKind[name] for name in _ORDER.split())
_FEW_RANKS = 2  # of more, all but the first are folded at first
_FEW_STREAMS = 4
MARGIN = 0.05  # on both sides of what is fitted
LEAST_NS = 20  # the shortest time that the whole window can show


class LinePart(Enum):
    FIRST = 0
    SECOND = 1
    DIFFERENCE = 2


@dataclass(frozen=True)
class WindowLine:
    """A line of the picture: which row of the scene, which part of it, and which of the part's lines from above."""

    row: int
    part: LinePart
    level: int = 0
    head: bool = False  # the first line of its row: it carries the label


class Window:
    def __init__(self, scene: Scene, columns: int = 80, height: int = 24) -> None:
        self.scene = scene
        self.columns = columns
        self.height = height
        self.alignment = Alignment.COUNTERPART
        self.mirrored = self.swapped = False
        self.memory = self.host = True
        self.folded: set[Fold] = set()
        self.pinned: list[TrackKey] = []
        self.wanted = ""  # only rows whose labels hold this are shown
        self.range_ns: tuple[int, int] | None = None  # the two ends of the selected stretch, in any order
        self.lit: list[tuple[int, int, int, int]] = []  # row, side, and from where to where on the axis: what is selected
        self._places: dict[TrackKey, int] = {}  # of rows that were moved
        self._foldable: set[Fold] = set()
        self._edges: tuple[tuple[float, float, int], Column] | None = None
        self.start_ns = 0.0
        self.ns_per_column = 1.0
        self.cursor_ns = 0
        self.line = self.top = 0
        self._fold_new()
        self.home()

    # --- what is there ---

    @property
    def axis(self) -> Axis:
        return self.scene.axis(self.alignment)

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """The rows of the scene that are shown, from top to bottom: first the pinned ones."""
        found = []
        for number, row in enumerate(self.scene.rows):
            off = (row.kind == TrackKind.MEMORY and not self.memory) or (row.kind == TrackKind.HOST and not self.host)
            folded = any(fold in self.folded for fold in row.folds)
            unfolded = row.stands_for is not None and row.stands_for not in self.folded
            if not (off or folded or unfolded) and self.wanted.casefold() in row.label.casefold():
                found.append(number)
        keys = [row.key for row in self.scene.rows]
        found.sort(key=lambda n: (keys[n] not in self.pinned, self._places.get(keys[n], n)))
        return tuple(found)

    @cached_property
    def lines(self) -> tuple[WindowLine, ...]:
        """The lines of the picture from top to bottom, also those outside the window's height."""
        found: list[WindowLine] = []
        for number in self.rows:
            here = [
                WindowLine(number, part, level)
                for part in self._parts(self.scene.rows[number])
                for level in range(1 if part is LinePart.DIFFERENCE else self.heights[number])
            ]
            found += [replace(here[0], head=True), *here[1:]]
        return tuple(found)

    def _parts(self, row: SceneRow) -> list[LinePart]:
        sides = [LinePart.FIRST] if len(self.scene.traces) == 1 else [LinePart.FIRST, LinePart.SECOND]
        if self.swapped:
            sides.reverse()
        if row.kind == TrackKind.HOST:  # no differences: a replay lacks calls that a recorder sees
            return [part for part in sides if row.tracks[part.value] is not None]
        return sides if len(sides) == 1 else [*sides, LinePart.DIFFERENCE]

    @cached_property
    def heights(self) -> dict[int, int]:
        """The lines of each side of the rows that are shown: more where the window has room for all rows of a kind."""
        sides = {row: sum(part is not LinePart.DIFFERENCE for part in self._parts(self.scene.rows[row])) for row in self.rows}
        kinds = {row: self.scene.rows[row].kind for row in sides}
        heights = {row: _LEAST_LINES.get(kind, 1) for row, kind in kinds.items()}
        two = len(self.scene.traces) == 2
        used = sum(heights[row] * count + (two and kinds[row] != TrackKind.HOST) for row, count in sides.items())
        for kind in _GROWING:
            growing = [row for row in sides if kinds[row] == kind and heights[row] < _MOST_LINES[kind]]
            needed = sum(sides[row] for row in growing)
            if used + needed <= self.height:
                used += needed
                for row in growing:
                    heights[row] += 1
        return heights

    @property
    def pinned_lines(self) -> int:
        """So many lines stay at the top, whatever is scrolled; none where they would leave no room for others."""
        count = sum(self.scene.rows[line.row].key in self.pinned for line in self.lines)
        return count if count <= self.height // 2 else 0

    @property
    def visible(self) -> range | list[int]:
        """The numbers of the lines in sight."""
        pinned = self.pinned_lines
        return [*range(pinned), *range(self.top + pinned, min(self.top + self.height, len(self.lines)))]

    @property
    def edges_ns(self) -> Column:
        """The places between the columns, one more than columns, growing."""
        of = self.start_ns, self.ns_per_column, self.columns
        if self._edges is None or self._edges[0] != of:  # every line of a frame asks for them
            edges = np.floor(self.start_ns + np.arange(self.columns + 1) * self.ns_per_column).astype(np.int64)
            self._edges = of, edges
        return self._edges[1]

    @property
    def end_ns(self) -> float:
        return self.start_ns + self.columns * self.ns_per_column

    @property
    def cursor_line(self) -> WindowLine | None:
        return self.lines[self.line] if self.lines else None

    @property
    def cursor_row(self) -> SceneRow | None:
        line = self.cursor_line
        return self.scene.rows[line.row] if line is not None else None

    @property
    def cursor_side(self) -> int:
        """The trace that the cursor's line shows; on a line of differences the second one."""
        line = self.cursor_line
        return 0 if line is None or line.part is LinePart.FIRST else len(self.scene.traces) - 1

    @property
    def cursor_column(self) -> int:
        return int(np.searchsorted(self.edges_ns, self.cursor_ns, side="right")) - 1

    @property
    def steps_begin_ns(self) -> int:
        """Where the first step begins on the axis, behind what the script does to set itself up; 0 without steps."""
        slots, trace = self.axis.slots_ns, self.scene.traces[0]
        if len(self.scene.traces) == 1 and len(trace.steps):
            return self.axis.sides[0].place(int(trace.steps.start_ns.min())) or 0
        return int(slots[1]) if len(slots) > 1 and self.scene.step_pairs else 0

    # --- what is changed ---

    def show(self, scene: Scene) -> None:
        """A scene with more in it: the same place stays shown, unless a second trace makes another axis of it."""
        row, before, at_home = self.cursor_row, self.axis, self.at_home
        other_axis = len(scene.traces) != len(self.scene.traces) or not before.length_ns
        side = self.cursor_side
        time_ns = int(before.sides[side].times([self.cursor_ns])[0]) if before.length_ns else 0
        self.scene = scene
        self._fold_new()
        self._relaid()
        if other_axis or (at_home and self.axis is not before):
            self.home()
        elif self.axis is not before:
            self._keep_under_cursor(side, time_ns)
        if row is not None and not other_axis:
            self._to_row(next((n for n, other in enumerate(scene.rows) if other.key == row.key), 0))

    def resize(self, columns: int, height: int) -> None:
        """The same time span in another number of columns."""
        span = self.columns * self.ns_per_column
        self.columns, self.height = max(columns, 1), max(height, 1)
        self._set(self.start_ns, span)
        self._relaid()

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
        if line < len(self.visible):
            self.line = self.visible[line]
            self.line -= self.lines[self.line].level

    def move_line(self, lines: int) -> None:
        """Up or down by one part of a row, or by so many lines, to the first line of a part."""
        if not self.lines:
            return
        at = min(max(self.line + lines, 0), len(self.lines) - 1)
        while self.lines[at].level and lines == 1 and at + 1 < len(self.lines):
            at += 1
        self.line = at - self.lines[at].level
        self._keep_line_in_sight()

    def go(self, at_ns: int, row: int | None = None, side: int | None = None) -> None:
        """Put the cursor at a place, on a row and side, and bring both into sight."""
        self.cursor_ns = self._on_axis(at_ns)
        if row is not None:
            self._show_row(row)
            self._to_row(row, side)
        self._keep_cursor_in_sight(centre=True)

    def align(self, by: Alignment) -> None:
        """Align otherwise; what the cursor points at stays under it."""
        side = self.cursor_side
        time_ns = int(self.axis.sides[side].times([self.cursor_ns])[0])
        self.alignment = by
        self.range_ns = None
        self._keep_under_cursor(side, time_ns)

    def _keep_under_cursor(self, side: int, time_ns: int) -> None:
        """The cursor stays in its column, where the axis is another one, at a time of one side."""
        column = self.cursor_ns - self.start_ns
        place = self.axis.sides[side].place(time_ns, self.cursor_ns)
        if place is not None:
            self.cursor_ns = self._on_axis(place)
            self._set(place - column, self.columns * self.ns_per_column)

    def toggle(self, what: str) -> None:
        """Turn "mirrored", "swapped", "memory" or "host" on or off."""
        self._keeping_line(lambda: setattr(self, what, not getattr(self, what)))

    # --- rows ---

    def fold(self, what: tuple[str, ...]) -> bool:
        """Fold or unfold the cursor's row with those that it belongs to, of a kind in `what`; whether there are any."""
        row = self.cursor_row
        if row is None:
            return False
        own = (Fold("thread", row.key.rank, row.key.place),) if row.kind is TrackKind.HOST else ()
        choices = [fold for fold in (row.stands_for, *own, *row.folds) if fold in self._foldable and fold.what in what]
        if not choices:
            return False
        self._keeping_line(lambda: self.folded.symmetric_difference_update({choices[0]}), choices[0])
        return True

    def pin(self) -> bool:
        """Pin the cursor's row to the top, or unpin it; whether it is pinned then."""
        row = self.cursor_row
        if row is None:
            return False
        self._keeping_line(lambda: (self.pinned.remove if row.key in self.pinned else self.pinned.append)(row.key))
        return row.key in self.pinned

    def filter(self, text: str) -> None:
        self._keeping_line(lambda: setattr(self, "wanted", text))

    def move_row(self, by: int) -> None:
        """Let the cursor's row and the one above (-1) or below (1) change places."""
        line = self.cursor_line
        if line is None:
            return
        keys = [self.scene.rows[row].key for row in self.rows]
        at = self.rows.index(line.row)
        if not 0 <= at + by < len(keys) or (keys[at] in self.pinned) != (keys[at + by] in self.pinned):
            return
        both = [self._places.get(keys[n], self.rows[n]) for n in (at, at + by)]
        self._keeping_line(lambda: self._places.update({keys[at]: both[1], keys[at + by]: both[0]}))

    def _show_row(self, row: int) -> None:
        """See that a row is not hidden."""
        of = self.scene.rows[row]
        hidden = row not in self.rows
        self.host |= of.kind == TrackKind.HOST
        self.memory |= of.kind == TrackKind.MEMORY
        self.folded -= set(of.folds)
        if hidden:
            self.wanted = ""
            self._relaid()

    def _fold_new(self) -> None:
        """What is new is folded if there is much of it: stacks, devices of many streams, all but the first of many ranks."""
        hiding = [fold for row in self.scene.rows for fold in row.folds]
        standing = {row.stands_for for row in self.scene.rows}
        found = {fold for fold in hiding if fold.what == "thread" or fold in standing}
        ranks = sorted({fold.rank for fold in found if fold.what == "rank"})
        for fold in found - self._foldable:
            later_rank = fold.what == "rank" and len(ranks) > _FEW_RANKS and fold.rank != ranks[0]
            if fold.what == "thread" or later_rank or (fold.what == "device" and hiding.count(fold) > _FEW_STREAMS):
                self.folded.add(fold)
        self._foldable |= found

    # --- bounds ---

    def _keeping_line(self, change: Callable[[], object], fold: Fold | None = None) -> None:
        """Change which rows there are; the cursor stays on its row, or goes to the one that a fold is shown as."""
        line = self.cursor_line
        change()
        self._relaid()
        if line is None:
            return
        row, key = line.row, self.scene.rows[line.row].key
        if fold is not None and row not in self.rows:
            same = [n for n in self.rows if fold in (self.scene.rows[n].stands_for, *self.scene.rows[n].folds)]
            thread = [n for n in self.rows if self.scene.rows[n].key[:3] == key[:3]]
            row = next(iter(same or thread), row)
        self._to_row(row, None if line.part is LinePart.DIFFERENCE else line.part.value)

    def _relaid(self) -> None:
        for worked_out in ("rows", "heights", "lines"):
            self.__dict__.pop(worked_out, None)
        self.line = min(self.line, max(len(self.lines) - 1, 0))
        self._keep_line_in_sight()

    def _to_row(self, row: int, side: int | None = None) -> None:
        here = [n for n, line in enumerate(self.lines) if line.row == row]
        wanted = [n for n in here if side is None or self.lines[n].part.value == side]
        if here:
            self.line = (wanted or here)[0]
        elif self.lines:  # the row is gone: to the first line of the one that is there now
            self._to_row(self.lines[self.line].row)
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
        row, pinned = self.lines[self.line].row, self.pinned_lines
        height = self.height - pinned
        if self.line >= pinned:
            here = [n - pinned for n, line in enumerate(self.lines) if line.row == row]
            at = self.line - pinned
            first, last = (here[0], here[-1]) if len(here) <= height else (at, at)
            self.top = min(self.top, first)
            self.top = max(self.top, last - height + 1)
        self.top = max(min(self.top, len(self.lines) - self.height), 0)
