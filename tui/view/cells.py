"""One row of the timeline as characters: columns of busy shares become glyphs and paint numbers, still without a terminal.

    cells = lane_cells(lane, side, edges_ns, names)
    "".join(cells.glyphs)    # "▃▆█sgemm███▁ ▏"

The height of a glyph is the busy share of its column in eighths, its paint the category with most of the time. A span that
is wide enough carries its name. What has no length but is there is a thin line. The row of differences says in signs what
its colours say: + the replay is busier, - less busy, = as busy with the same, ~ as busy with something else.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from traces.model import NONE, Column
from tui.view.axis import Side
from tui.view.categories import Category
from tui.view.lanes import Curve, Lane

Glyphs = npt.NDArray[np.str_]

EIGHTHS = np.array(list(" ▁▂▃▄▅▆▇█"))
INSTANT = "▏"
NAME_COLUMNS = 5  # a span narrower than this carries no name
SAME_SHARE = 0.05  # of a column: busy shares that differ by less are alike

# A paint is a category, or one of Sign, with at most one of these flags.
NAMED = 32  # the glyph is a letter of a name, on the category's colour
HANGING = 64  # the glyph is cut out of the colour: what is left of it hangs from the cell's upper edge


class Sign(IntEnum):
    """Paints that are no category."""

    BLANK = 24
    MORE = 25  # the replay is busier
    LESS = 26
    ALIKE = 27
    OTHER_WORK = 28  # as busy, with something else


SIGNS = {Sign.BLANK: " ", Sign.MORE: "+", Sign.LESS: "-", Sign.ALIKE: "=", Sign.OTHER_WORK: "~"}


_SIGN_GLYPHS = np.full(max(SIGNS) + 1, " ")
_SIGN_GLYPHS[list(SIGNS)] = list(SIGNS.values())


@dataclass(frozen=True)
class Cells:
    """A row: a character of one column's width and a paint for each column."""

    glyphs: Glyphs
    paints: Column

    def text(self) -> str:
        return "".join(self.glyphs.tolist())


@dataclass(frozen=True)
class Busy:
    """What each column of a lane holds: nanoseconds by category, and whether anything without length stands there."""

    by_category: dict[int, Column]
    total_ns: Column
    instants: Column


def busy(lane: Lane, side: Side, edges_ns: Column) -> Busy:
    """How long the lane is busy in each column between neighbouring edges."""
    columns = len(edges_ns) - 1
    pieces = side.pieces(edges_ns)
    covered = lane.covered(pieces.from_ns, pieces.to_ns)
    instants = np.zeros(columns, dtype=np.int64)
    if len(lane.instants_ns):
        instants = lane.instants(pieces.from_ns, pieces.to_ns)
    if len(pieces.column) > columns:
        covered = {kind: _summed(pieces.column, ns, columns) for kind, ns in covered.items()}
        if len(lane.instants_ns):
            instants = _summed(pieces.column, instants, columns)
    total = np.zeros(columns, dtype=np.int64)
    for ns in covered.values():
        total += ns
    return Busy(covered, total, instants)


def _summed(column: Column, values: Column, columns: int) -> Column:
    sums = np.zeros(columns, dtype=np.int64)
    np.add.at(sums, column, values)
    return sums


def dominant(found: Busy) -> Column:
    """The category with most time in each column; 0 where nothing is."""
    if not found.by_category:
        return np.zeros(len(found.total_ns), dtype=np.uint8)
    kinds = np.array(list(found.by_category), dtype=np.uint8)
    if len(kinds) == 1:
        return np.full(len(found.total_ns), kinds[0])
    return np.asarray(kinds[np.argmax(np.stack(list(found.by_category.values())), axis=0)])


def lane_cells(
    lane: Lane, side: Side, edges_ns: Column, name_of: Callable[[int], str], *, hanging: bool = False, found: Busy | None = None
) -> Cells:
    """A lane's row. `name_of` gives the name of a row of the lane's table; `found` is what `busy` returned, if known."""
    found = busy(lane, side, edges_ns) if found is None else found
    levels = eighths(found.total_ns, edges_ns[1:] - edges_ns[:-1])
    cells = _columns(levels, dominant(found), hanging)
    instants = (found.total_ns == 0) & (found.instants > 0)
    if instants.any():
        cells.glyphs[instants] = INSTANT
        middle = lane.category[np.maximum(np.searchsorted(lane.start_ns, side.times(edges_ns[1:][instants])) - 1, 0)]
        cells.paints[instants] = middle
    _write_names(cells, lane, side, edges_ns, levels, name_of)
    return cells


def eighths(busy_ns: Column, width_ns: Column) -> Column:
    """Levels 0 to 8: at least 1 where there is anything, and 8 only where the column is all but full."""
    level = np.floor(busy_ns * 8 / np.maximum(width_ns, 1) + 0.5).astype(np.int64)
    return np.clip(level, busy_ns > 0, 8)


def _columns(levels: Column, kinds: Column, hanging: bool) -> Cells:
    cut = hanging & (levels < 8)  # a full column is full either way
    glyphs = EIGHTHS[np.where(cut & (levels > 0), 8 - levels, levels)]
    paints = np.where(levels > 0, kinds | np.where(cut, HANGING, 0), Sign.BLANK).astype(np.uint8)
    return Cells(glyphs, paints)


def _write_names(
    cells: Cells, lane: Lane, side: Side, edges_ns: Column, levels: Column, name_of: Callable[[int], str]
) -> None:
    """The name of every span that fills several columns, from the second of them on."""
    if np.count_nonzero(levels == 8) < NAME_COLUMNS:
        return
    middle = (edges_ns[:-1] + edges_ns[1:]) // 2
    place = np.where((levels == 8) & side.shown(middle), lane.at(side.times(middle)), NONE)
    breaks = [0, *(np.flatnonzero(place[1:] != place[:-1]) + 1).tolist(), len(place)]
    for begin, end in itertools.pairwise(breaks):
        if end - begin >= NAME_COLUMNS and place[begin] != NONE:
            name = name_of(int(lane.row[place[begin]]))
            room = end - begin - 2
            text = name if len(name) <= room else name[: room - 1] + "…"
            cells.glyphs[begin + 1 : begin + 1 + len(text)] = list(text)
            cells.paints[begin + 1 : begin + 1 + len(text)] |= NAMED


def difference_cells(first: Busy, second: Busy, edges_ns: Column) -> Cells:
    """Signs for how `second` differs from `first` in each column; blank where neither has anything."""
    width = np.maximum(edges_ns[1:] - edges_ns[:-1], 1)
    change = (second.total_ns - first.total_ns) / width
    anything = (first.total_ns + second.total_ns + first.instants + second.instants) > 0
    signs = np.full(len(change), Sign.ALIKE, dtype=np.uint8)
    signs[shifted_ns(first, second) > 2 * SAME_SHARE * width] = Sign.OTHER_WORK
    signs[change > SAME_SHARE] = Sign.MORE
    signs[change < -SAME_SHARE] = Sign.LESS
    signs[~anything] = Sign.BLANK
    return _signs(signs)


def shifted_ns(first: Busy, second: Busy) -> Column:
    """Per column the nanoseconds by which the categories differ, added up: busy longer, or with something else."""
    nothing = np.zeros(len(first.total_ns), dtype=np.int64)
    kinds = sorted(first.by_category.keys() | second.by_category.keys())
    total = nothing.copy()
    for kind in kinds:
        total += np.abs(second.by_category.get(kind, nothing) - first.by_category.get(kind, nothing))
    return total


def curve_cells(
    curve: Curve, side: Side, edges_ns: Column, highest: int, rows: int, *, hanging: bool = False
) -> list[Cells]:
    """A curve in `rows` rows, from top to bottom, of which the uppermost ends at `highest`."""
    values = curve_values(curve, side, edges_ns)
    levels = np.ceil(values * (8 * rows) / max(highest, 1)).astype(np.int64)
    kinds = np.full(len(values), Category.MEMORY, dtype=np.uint8)
    parts = [_columns(np.clip(levels - 8 * below, 0, 8), kinds, hanging) for below in range(rows)]
    return parts if hanging else parts[::-1]


def curve_values(curve: Curve, side: Side, edges_ns: Column) -> Column:
    """The highest value in each column; 0 where the column shows nothing of this trace."""
    columns = len(edges_ns) - 1
    pieces = side.pieces(edges_ns)
    held = pieces.to_ns > pieces.from_ns
    values = np.zeros(columns, dtype=np.int64)
    if held.any():
        np.maximum.at(values, pieces.column[held], curve.highest(pieces.from_ns[held], pieces.to_ns[held]))
    return values


def curve_difference(first: Column, second: Column, highest: int) -> Cells:
    """Signs for how the second curve's values differ from the first's."""
    signs = np.full(len(first), Sign.ALIKE, dtype=np.uint8)
    signs[second > first + SAME_SHARE * highest] = Sign.MORE
    signs[second < first - SAME_SHARE * highest] = Sign.LESS
    signs[(first == 0) & (second == 0)] = Sign.BLANK
    return _signs(signs)


def blank(columns: int) -> Cells:
    return Cells(np.full(columns, " "), np.full(columns, Sign.BLANK, dtype=np.uint8))


def _signs(signs: Column) -> Cells:
    return Cells(_SIGN_GLYPHS[signs], signs)


def plain(text: str) -> str:
    """`text` in characters that are one column wide: others would push the row out of place."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _is_one_column(c) else "·" for c in text)


def _is_one_column(c: str) -> bool:
    return c.isprintable() and unicodedata.east_asian_width(c) not in "WF" and not unicodedata.combining(c)
