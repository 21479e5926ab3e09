"""Draws each row of the timeline as characters with colour codes.

    (cells,) = lane_characters(lane, side, edges_ns, names)
    "".join(cells.glyphs)    # "▃▆█sgemm███▁ ▏"

The characters form a bar chart: the taller a bar, the longer the GPU was busy.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from traces.model.row_order import sum_by
from traces.model.trace import NONE, Column
from tui.view.scene.axis import SlotTimes
from tui.view.scene.categories import Category
from tui.view.scene.lanes import Curve, Lane

Glyphs = npt.NDArray[np.str_]

EIGHTHS = np.array(list(" ▁▂▃▄▅▆▇█"))
INSTANT = "▏"
NAME_COLUMNS = 5  # minimum width of a span that shows its name
_LEAST_ROOM = 4  # columns for a shortened name
SAME_SHARE = 0.05  # smaller differences of busy share in a column count as equal

CUT = "┄"  # marks a span that continues after a gap of the axis

# The colour of a character is stored in one number. Bits 0 to 4 contain the category of the GPU work. If the row compares two
# traces, bits 0 to 4 contain a `Sign`. Bits 5 to 7 are flags. The higher bits contain 1 + the category of the background.
NAMED = 32  # the glyph is a letter of a name, drawn on the category's colour
HANGING = 64  # the glyph is inverted, so the coloured area hangs from the cell's upper edge
LIT = 128  # the cell is selected or in the selected range
BEHIND = 8


class Sign(IntEnum):
    BLANK = 24
    MORE = 25  # the GPU is busier in the second trace
    LESS = 26
    ALIKE = 27
    OTHER_WORK = 28  # equally busy, but with different work
    LATER = 29  # time that only the replay has, because the replay waits longer
    EARLIER = 30  # time that only the recording has


SIGNS = {
    Sign.BLANK: " ", Sign.MORE: "+", Sign.LESS: "-", Sign.ALIKE: "=", Sign.OTHER_WORK: "~", Sign.LATER: ">", Sign.EARLIER: "<",
}  # fmt: skip
SIGN_WORDS = {
    Sign.MORE: "longer or new", Sign.LESS: "shorter or gone", Sign.OTHER_WORK: "other work", Sign.ALIKE: "same",
    Sign.LATER: "waits longer", Sign.EARLIER: "waits less",
}  # fmt: skip
_SIGN_GLYPHS = np.full(max(SIGNS) + 1, " ")
_SIGN_GLYPHS[list(SIGNS)] = list(SIGNS.values())


@dataclass(frozen=True)
class CharacterRow:
    glyphs: Glyphs
    paints: Column

    def text(self) -> str:
        return "".join(self.glyphs.tolist())


@dataclass(frozen=True)
class Busy:
    by_category: dict[int, Column]
    total_ns: Column
    instants: Column


def busy(lane: Lane, side: SlotTimes, edges_ns: Column) -> Busy:
    columns = len(edges_ns) - 1
    pieces = side.columns(edges_ns).pieces
    covered = lane.covered(pieces.from_ns, pieces.to_ns)
    instants = lane.instants(pieces.from_ns, pieces.to_ns)
    if len(pieces.column) > columns:
        covered = {kind: sum_by(pieces.column, ns, columns) for kind, ns in covered.items()}
        instants = sum_by(pieces.column, instants, columns)
    total = np.zeros(columns, dtype=np.int64)
    for ns in covered.values():
        total += ns
    return Busy(covered, total, instants)


def dominant(found: Busy) -> Column:
    if not found.by_category:
        return np.zeros(len(found.total_ns), dtype=np.uint16)
    kinds = np.array(list(found.by_category), dtype=np.uint16)
    if len(kinds) == 1:
        return np.full(len(found.total_ns), kinds[0])
    return np.asarray(kinds[np.argmax(np.stack(list(found.by_category.values())), axis=0)])


def lane_characters(
    lane: Lane,
    side: SlotTimes,
    edges_ns: Column,
    name_of: Callable[[int], str],
    *,
    lines: int = 1,
    hanging: bool = False,
    found: Busy | None = None,
) -> list[CharacterRow]:
    found = busy(lane, side, edges_ns) if found is None else found
    levels = eighths(found.total_ns, edges_ns[1:] - edges_ns[:-1], lines)
    parts = _stacked(found, levels, lines, hanging)
    base = parts[0] if hanging else parts[-1]
    instants = (found.total_ns == 0) & (found.instants > 0)
    if instants.any():
        base.glyphs[instants] = INSTANT
        at = np.maximum(np.searchsorted(lane.start_ns, side.times(edges_ns[1:][instants])) - 1, 0)
        base.paints[instants] = lane.category[at]
    _mark_cuts(base, lane, side, edges_ns, found)
    _write_names(parts[(len(parts) - 1) // 2], lane, side, edges_ns, levels == 8 * lines, name_of)
    return parts


def eighths(busy_ns: Column, width_ns: Column, lines: int = 1) -> Column:
    level = np.floor(busy_ns * (8 * lines) / np.maximum(width_ns, 1) + 0.5).astype(np.int64)
    return np.clip(level, busy_ns > 0, 8 * lines)


def _stacked(found: Busy, levels: Column, lines: int, hanging: bool) -> list[CharacterRow]:
    kinds = sorted(found.by_category)
    if lines == 1:
        cells = _columns(levels, dominant(found), hanging)
        if len(kinds) > 1:
            held = np.stack([found.by_category[kind] for kind in kinds])
            _paint_two(cells, held, np.array(kinds, dtype=np.uint16), np.flatnonzero(levels == 8), hanging)
        return [cells]
    if len(kinds) == 1:
        return _piled(levels, dominant(found), lines, hanging)
    shares = np.cumsum([found.by_category[kind] for kind in kinds] or [found.total_ns], axis=0)
    tops = np.rint(shares * (levels / np.maximum(found.total_ns, 1))).astype(np.int64)  # upper edges in eighths
    bottoms = np.vstack([np.zeros_like(tops[:1]), tops[:-1]])
    numbers = np.array(kinds or [Category.OTHER], dtype=np.uint16)
    parts = []
    for below in range(0, 8 * lines, 8):
        held = np.clip(tops, below, below + 8) - np.clip(bottoms, below, below + 8)  # rows: categories; columns: screen columns
        largest = np.argmax(held, axis=0)
        filled = held.sum(axis=0)
        cells = _columns(filled, numbers[largest], hanging)
        _paint_two(cells, held, numbers, np.flatnonzero(filled == 8), hanging)
        parts.append(cells)
    return parts if hanging else parts[::-1]


def _paint_two(cells: CharacterRow, held: Column, numbers: Column, full: Column, hanging: bool) -> None:
    held, column = held[:, full], np.arange(len(full))
    largest = np.argmax(held, axis=0)
    most = held[largest, column]
    held[largest, column] = 0
    second = np.argmax(held, axis=0)
    next_most = held[second, column]
    two = np.flatnonzero(next_most * 16 >= np.maximum(most + next_most, 1))  # at least half of an eighth
    is_lower = (largest[two] < second[two]) != hanging
    lower, upper = np.where(is_lower, largest[two], second[two]), np.where(is_lower, second[two], largest[two])
    part = np.where(is_lower, most[two], next_most[two]) * 8 / (most[two] + next_most[two])
    cells.glyphs[full[two]] = EIGHTHS[np.clip(np.rint(part).astype(np.int64), 1, 7)]
    cells.paints[full[two]] = numbers[lower] | ((numbers[upper] + 1) << BEHIND)


def _piled(levels: Column, kinds: Column, lines: int, hanging: bool) -> list[CharacterRow]:
    parts = [_columns(np.clip(levels - 8 * below, 0, 8), kinds, hanging) for below in range(lines)]
    return parts if hanging else parts[::-1]


def _columns(levels: Column, kinds: Column, hanging: bool) -> CharacterRow:
    cut = hanging & (levels < 8)  # full cells are not inverted, because they look the same
    glyphs = EIGHTHS[np.where(cut & (levels > 0), 8 - levels, levels)]
    paints = np.where(levels > 0, kinds | np.where(cut, HANGING, 0), Sign.BLANK).astype(np.uint16)
    return CharacterRow(glyphs, paints)


def _mark_cuts(cells: CharacterRow, lane: Lane, side: SlotTimes, edges_ns: Column, found: Busy) -> None:
    columns, time_ns = side.columns(edges_ns).gaps
    if not len(columns) or not len(lane):
        return
    position = lane.rows_at(time_ns)
    inside = (position != NONE) & (lane.start_ns[position] < time_ns) & (found.total_ns[columns] == 0)
    cells.glyphs[columns[inside]] = CUT
    cells.paints[columns[inside]] = lane.category[position[inside]]


def _write_names(
    cells: CharacterRow, lane: Lane, side: SlotTimes, edges_ns: Column, full: Column, name_of: Callable[[int], str]
) -> None:
    if not full.any():
        return
    shown, begin_ns, last_ns = side.columns(edges_ns).bounds_ns
    shown = full & shown
    position = np.where(shown, lane.rows_at(begin_ns), NONE)
    position[shown & (lane.end_ns[position] <= last_ns)] = NONE
    breaks = [0, *(np.flatnonzero(position[1:] != position[:-1]) + 1).tolist(), len(position)]
    for begin, end in itertools.pairwise(breaks):
        if end - begin >= NAME_COLUMNS - 1 and position[begin] != NONE:
            name = name_of(int(lane.row[position[begin]]))
            room = end - begin - 2
            if len(name) > room < _LEAST_ROOM:
                continue
            text = name if len(name) <= room else name[: room - 1] + "…"
            cells.glyphs[begin + 1 : begin + 1 + len(text)] = list(text)
            cells.paints[begin + 1 : begin + 1 + len(text)] = lane.category[position[begin]] | NAMED


def difference_characters(first: Busy, second: Busy, edges_ns: Column) -> CharacterRow:
    width = np.maximum(edges_ns[1:] - edges_ns[:-1], 1)
    nothing = np.zeros(len(first.total_ns), dtype=np.int64)
    kinds = first.by_category.keys() | second.by_category.keys()
    shifted_ns = sum(np.abs(second.by_category.get(kind, nothing) - first.by_category.get(kind, nothing)) for kind in kinds)
    is_other = shifted_ns > 2 * SAME_SHARE * width
    return change_characters((second.total_ns - first.total_ns) / width, SAME_SHARE, is_other, has_events(first, second))


def has_events(first: Busy, second: Busy) -> Column:
    return np.asarray((first.total_ns + second.total_ns + first.instants + second.instants) > 0)


def change_characters(change: Column, least: Column | float, is_other: Column, shown: Column) -> CharacterRow:
    """Compare two traces column by column: "+" means that the second trace has the higher value, and "-" that it has the lower
    value. If both values are nearly equal, "=" means that both traces ran the same kernels, and "~" that they ran different
    kernels."""
    signs = np.where(is_other, np.uint16(Sign.OTHER_WORK), np.uint16(Sign.ALIKE))
    signs[change > least] = Sign.MORE
    signs[change < -least] = Sign.LESS
    signs[~shown] = Sign.BLANK
    return CharacterRow(_SIGN_GLYPHS[signs], signs)


def curve_characters(
    curve: Curve,
    side: SlotTimes,
    edges_ns: Column,
    highest: int,
    rows: int,
    *,
    hanging: bool = False,
    kinds: Column | None = None,
) -> list[CharacterRow]:
    values = curve_values(curve, side, edges_ns)
    levels = np.ceil(values * (8 * rows) / max(highest, 1)).astype(np.int64)
    kinds = np.full(len(values), Category.MEMORY, dtype=np.uint16) if kinds is None else kinds
    return _piled(levels, kinds, rows, hanging)


def curve_values(curve: Curve, side: SlotTimes, edges_ns: Column) -> Column:
    columns = len(edges_ns) - 1
    pieces = side.columns(edges_ns).pieces
    held = pieces.to_ns > pieces.from_ns
    values = np.zeros(columns, dtype=np.int64)
    if held.any():
        np.maximum.at(values, pieces.column[held], curve.highest(pieces.from_ns[held], pieces.to_ns[held]))
    return values


def curve_difference(first: Column, second: Column, highest: int, offset: int = 0) -> CharacterRow:
    is_other = np.zeros(len(first), dtype=bool)
    return change_characters(second - first - offset, SAME_SHARE * highest, is_other, (first != 0) | (second != 0))


def blank(columns: int) -> CharacterRow:
    return CharacterRow(np.full(columns, " "), np.full(columns, Sign.BLANK, dtype=np.uint16))


def one_column_each(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _is_one_column(c) else "·" for c in text)


def _is_one_column(c: str) -> bool:
    return c.isprintable() and unicodedata.east_asian_width(c) not in "WF" and not unicodedata.combining(c)
