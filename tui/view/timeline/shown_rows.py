"""Decides which rows the timeline shows, in which order, and how many text lines each row has.

    rows = ShownRows(scene, height=30)
    rows.shown                # (0, 1, 4): rows of the scene, from top to bottom
    rows.lines[3].part        # what the fourth line of the picture shows: LinePart.SECOND
    rows.toggle("memory")     # also updates rows.shown, the heights and the lines
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from tui.view.scene.scene import Scene, SceneRow
from tui.view.scene.tracks import Fold, TrackKey, TrackKind

_LEAST_LINES = {TrackKind.MEMORY: 2}  # minimum number of lines per row and trace; 1 for all other kinds of rows
_MOST_LINES = dict.fromkeys(TrackKind, 2) | {TrackKind.GPU: 12, TrackKind.MEMORY: 8, TrackKind.PHASES: 4}
# the kinds of rows that get additional lines if the window has free lines, in this order
_ORDER = """
GPU MEMORY GPU PHASES GPU MEMORY HOST GPU LOADER COLLECTIVES PARTS
GPU PHASES GPU MEMORY GPU GPU MEMORY GPU PHASES GPU MEMORY GPU MEMORY
"""
_GROWING = tuple(TrackKind[name] for name in _ORDER.split())
_FEW_RANKS = 2  # with more ranks, the rows of all ranks except the first are folded at the start
_FEW_STREAMS = 4


class LinePart(Enum):
    FIRST = 0
    SECOND = 1
    DIFFERENCE = 2


@dataclass(frozen=True)
class WindowLine:
    row: int
    part: LinePart
    level: int = 0
    head: bool = False  # True for the first line of a row, which shows the label


class ShownRows:
    def __init__(self, scene: Scene, height: int) -> None:
        self.scene = scene
        self.height = height
        self.mirrored = self.swapped = False
        self.memory = self.host = True
        self.folded: set[Fold] = set()
        self.pinned: list[TrackKey] = []
        self.wanted = ""
        self._positions: dict[TrackKey, int] = {}  # positions of rows that the user moved
        self._foldable: set[Fold] = set()
        self._fold_new()

    @cached_property
    def shown(self) -> tuple[int, ...]:
        found = []
        for number, row in enumerate(self.scene.rows):
            off = (row.kind == TrackKind.MEMORY and not self.memory) or (row.kind == TrackKind.HOST and not self.host)
            folded = any(fold in self.folded for fold in row.folds)
            # The summary row of a group of similar ranks stays visible while the group is expanded.
            unfolded = row.stands_for is not None and row.stands_for not in self.folded and row.stands_for.what != "ranks"
            if not (off or folded or unfolded) and self.wanted.casefold() in row.label.casefold():
                found.append(number)
        keys = [row.key for row in self.scene.rows]
        found.sort(key=lambda n: (keys[n] not in self.pinned, self._positions.get(keys[n], n)))
        return tuple(found)

    @cached_property
    def lines(self) -> tuple[WindowLine, ...]:
        found: list[WindowLine] = []
        for number in self.shown:
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
        if row.kind == TrackKind.HOST:  # host rows have no line of differences, because a replay lacks some recorded calls
            return [part for part in sides if row.tracks[part.value] is not None]
        return sides if len(sides) == 1 else [*sides, LinePart.DIFFERENCE]

    @cached_property
    def heights(self) -> dict[int, int]:
        sides = {row: sum(part is not LinePart.DIFFERENCE for part in self._parts(self.scene.rows[row])) for row in self.shown}
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
        """Return the number of lines that do not scroll."""
        count = sum(self.scene.rows[line.row].key in self.pinned for line in self.lines)
        return count if count <= self.height // 2 else 0

    # --- changes ---

    def show(self, scene: Scene) -> None:
        self.scene = scene
        self._fold_new()
        self.forget()

    def forget(self) -> None:
        for worked_out in ("shown", "heights", "lines"):
            self.__dict__.pop(worked_out, None)

    def toggle(self, what: str) -> None:
        setattr(self, what, not getattr(self, what))
        self.forget()

    def filter(self, text: str) -> None:
        self.wanted = text
        self.forget()

    def fold_of(self, row: SceneRow, what: tuple[str, ...]) -> Fold | None:
        own = (Fold("thread", row.key.rank, row.key.position),) if row.kind is TrackKind.HOST else ()
        choices = [fold for fold in (row.stands_for, *own, *row.folds) if fold in self._foldable and fold.what in what]
        return choices[0] if choices else None

    def fold(self, fold: Fold) -> None:
        self.folded ^= {fold}
        self.forget()

    def pin(self, key: TrackKey) -> None:
        (self.pinned.remove if key in self.pinned else self.pinned.append)(key)
        self.forget()

    def move(self, row: int, by: int) -> None:
        """Swap a row with the row above (`by` = -1) or below (`by` = 1). Pinned rows stay above the others."""
        keys = [self.scene.rows[number].key for number in self.shown]
        at = self.shown.index(row)
        if not 0 <= at + by < len(keys) or (keys[at] in self.pinned) != (keys[at + by] in self.pinned):
            return
        both = [self._positions.get(keys[n], self.shown[n]) for n in (at, at + by)]
        self._positions |= {keys[at]: both[1], keys[at + by]: both[0]}
        self.forget()

    def reveal(self, row: int) -> None:
        of = self.scene.rows[row]
        hidden = row not in self.shown
        self.host |= of.kind == TrackKind.HOST
        self.memory |= of.kind == TrackKind.MEMORY
        self.folded -= set(of.folds)
        if hidden:
            self.wanted = ""
            self.forget()

    def instead_of(self, row: int, fold: Fold | None) -> int:
        if fold is None or row in self.shown:
            return row
        key = self.scene.rows[row].key
        same = [n for n in self.shown if fold in (self.scene.rows[n].stands_for, *self.scene.rows[n].folds)]
        thread = [n for n in self.shown if self.scene.rows[n].key[:3] == key[:3]]
        return next(iter(same or thread), row)

    def _fold_new(self) -> None:
        hiding = [fold for row in self.scene.rows for fold in row.folds]
        standing = {row.stands_for for row in self.scene.rows}
        found = {fold for fold in hiding if fold.what == "thread" or fold in standing}
        ranks = list(dict.fromkeys(fold.rank for fold in hiding if fold.what == "rank" and fold in found))
        counts = Counter(hiding)
        for fold in found - self._foldable:
            later_rank = fold.what == "rank" and len(ranks) > _FEW_RANKS and fold.rank != ranks[0]
            if fold.what in ("thread", "ranks") or later_rank or (fold.what == "device" and counts[fold] > _FEW_STREAMS):
                self.folded.add(fold)
        self._foldable |= found
