"""Marks where the kernels of one trace take longer than those of another trace.

    sides = kernel_differences(recorded, replayed, found)    # by row of the two device tables
    lane_sums = Sums(lane, sides[1])
    changed_ns, other_ns = lane_sums.columns(side, edges_ns)  # extra duration, and time in which another kernel runs
"""

from __future__ import annotations

import numpy as np

from traces.comparison.counterparts import Counterparts, KernelChange
from traces.model.trace import Column, Trace
from tui.view.scene.axis import SlotTimes
from tui.view.scene.character_rows import SAME_SHARE, SIGNS, Busy, CharacterRow, Sign, change_characters, has_events
from tui.view.scene.lanes import Lane

_GAP_SHARE = 0.25  # time in only one trace is ignored if it is less than this share of a column


def kernel_differences(first: Trace, second: Trace, found: Counterparts) -> tuple[Column, Column]:
    sides = np.zeros((2, len(first.device))), np.zeros((2, len(second.device)))
    gone = found.change == KernelChange.GONE
    sides[0][0, found.first[gone]] = found.change_ns[gone]
    changed = ~gone & (found.change != KernelChange.SAME)
    np.add.at(sides[1][0], found.second[changed], found.change_ns[changed])  # a fused kernel has several counterparts
    other = found.second[found.change == KernelChange.OTHER_KERNEL]
    sides[1][1, other] = second.device.duration_ns[other]
    return sides


class Sums:
    def __init__(self, lane: Lane, of_rows: Column) -> None:
        self._start_ns, self._length_ns = lane.start_ns, np.maximum(lane.end_ns - lane.start_ns, 1)
        self._each = of_rows[:, lane.row]
        self._before = np.concatenate([np.zeros((2, 1)), np.cumsum(self._each, axis=1)], axis=1)

    def columns(self, side: SlotTimes, edges_ns: Column) -> Column:
        columns = side.columns(edges_ns)
        pieces = columns.pieces
        if len(pieces.column) == len(columns.edges_ns) - 1 and np.array_equal(pieces.from_ns[1:], pieces.to_ns[:-1]):
            return np.diff(self._until(np.append(pieces.from_ns, pieces.to_ns[-1:])), axis=1)
        sums = self._until(pieces.to_ns) - self._until(pieces.from_ns)
        return np.stack([np.bincount(pieces.column, weights=of, minlength=len(edges_ns) - 1) for of in sums])

    def _until(self, time_ns: Column) -> Column:
        if not len(self._start_ns):
            return np.zeros((2, len(time_ns)))
        row = np.searchsorted(self._start_ns, time_ns, side="right") - 1
        share = np.minimum((time_ns - self._start_ns[row]) / self._length_ns[row], 1)
        return np.asarray(np.where(row < 0, 0, self._before[:, row] + self._each[:, row] * share))


def sign_columns(busy: tuple[Busy, Busy], sums: tuple[Column, Column], by_place: bool, edges_ns: Column) -> CharacterRow:
    """Return one character per screen column, such as "+" where kernels take longer in the second trace."""
    most = np.maximum(np.maximum(busy[0].total_ns, busy[1].total_ns), 1)
    changed, other = sums[0] + sums[1]
    if by_place:
        changed = (busy[1].total_ns - busy[0].total_ns).astype(float)
        most = np.maximum(edges_ns[1:] - edges_ns[:-1], 1)
    return change_characters(changed, SAME_SHARE * most, other > SAME_SHARE * most, has_events(*busy))


def mark_gaps(cells: CharacterRow, sides: tuple[SlotTimes, ...], edges_ns: Column) -> None:
    shown = [side.columns(edges_ns).shown_ns for side in sides]
    longer = (shown[1] - shown[0]) / np.maximum(edges_ns[1:] - edges_ns[:-1], 1)
    columns = np.flatnonzero(np.abs(longer) > _GAP_SHARE)
    columns = columns[(cells.paints[columns] == Sign.ALIKE) | (cells.paints[columns] == Sign.BLANK)]
    cells.paints[columns] = np.where(longer[columns] > 0, Sign.LATER, Sign.EARLIER)
    cells.glyphs[columns] = np.where(longer[columns] > 0, SIGNS[Sign.LATER], SIGNS[Sign.EARLIER])
