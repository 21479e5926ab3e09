"""Computes the GPU's busy time for each character of a timeline row.

    lane = Lane(start_ns=[0, 20], duration_ns=[10, 20], category=[3, 1])
    lane.covered([0, 25], [25, 50])  # {1: array([5, 15]), 3: array([10, 0])}: nanoseconds per category and window
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.model.intervals import Intervals, containing
from traces.model.trace import NONE, Column


class Lane:
    """Stores the events of one timeline row. Overlapping events are shortened."""

    def __init__(self, start_ns: Any, duration_ns: Any, category: Any, row: Any = None) -> None:
        start = np.asarray(start_ns, dtype=np.int64)
        end = start + np.asarray(duration_ns, dtype=np.int64)
        kinds = np.asarray(category, dtype=np.uint8)
        rows = np.arange(len(start), dtype=np.int32) if row is None else np.asarray(row, dtype=np.int32)
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, end, kinds, rows = start[order], end[order], kinds[order], rows[order]
        self.instants_ns: Column = start[end <= start]
        if (start[1:] < end[:-1]).any():
            busy_until = np.maximum.accumulate(np.maximum(start, end))
            start = np.maximum(start, np.concatenate([start[:1], busy_until[:-1]]))
        self.start_ns: Column = start
        self.end_ns: Column = np.maximum(start, end)
        self.category: Column = kinds
        self.row: Column = rows
        self._by_category = {
            int(kind): Intervals(start[kinds == kind], self.end_ns[kinds == kind]) for kind in np.unique(kinds)
        }

    def __len__(self) -> int:
        return len(self.start_ns)

    def covered(self, from_ns: Any, to_ns: Any) -> dict[int, Column]:
        begin, end = np.asarray(from_ns, dtype=np.int64), np.asarray(to_ns, dtype=np.int64)
        if len(begin) > 1 and np.array_equal(begin[1:], end[:-1]):  # adjacent windows share edges: look each up once
            edges = np.append(begin, end[-1:])
            before = {kind: intervals.before(edges) for kind, intervals in self._by_category.items()}
            return {kind: ns[1:] - ns[:-1] for kind, ns in before.items()}
        return {kind: intervals.within(begin, end) for kind, intervals in self._by_category.items()}

    def instants(self, from_ns: Any, to_ns: Any) -> Column:
        begin, end = (np.searchsorted(self.instants_ns, times, side="left") for times in (from_ns, to_ns))
        return np.asarray(end - begin)

    def rows_at(self, time_ns: Any) -> Column:
        return containing(self.start_ns, self.end_ns, time_ns)

    def nearest(self, time_ns: int) -> int:
        if not len(self.start_ns):
            return NONE
        position = max(int(np.searchsorted(self.start_ns, time_ns, side="right")) - 1, 0)
        behind_ns = time_ns - int(self.end_ns[position])
        if behind_ns >= 0 and position + 1 < len(self.start_ns) and int(self.start_ns[position + 1]) - time_ns < behind_ns:
            return position + 1
        return position

    def position_of(self, row: int) -> int:
        found = np.flatnonzero(self.row == row)
        return int(found[0]) if len(found) else NONE


class Curve:
    """Represents a value that changes over time, such as the allocated memory."""

    def __init__(self, time_ns: Any, value: Any, has_total: bool = True) -> None:
        self.has_total = has_total  # False: memory from before the recording is missing
        self.time_ns: Column = np.asarray(time_ns, dtype=np.int64)
        self.value: Column = np.asarray(value, dtype=np.int64)
        if (self.time_ns[1:] < self.time_ns[:-1]).any():
            order = np.argsort(self.time_ns, kind="stable")
            self.time_ns, self.value = self.time_ns[order], self.value[order]

    def __len__(self) -> int:
        return len(self.time_ns)

    @property
    def peak(self) -> int:
        return max(int(self.value.max()), 0) if len(self.value) else 0

    def highest(self, from_ns: Any, to_ns: Any) -> Column:
        begin, end = np.asarray(from_ns, dtype=np.int64), np.asarray(to_ns, dtype=np.int64)
        if not len(self.time_ns):
            return np.zeros(len(begin), dtype=np.int64)
        first = np.maximum(np.searchsorted(self.time_ns, begin, side="right") - 1, 0)
        behind = np.maximum(np.searchsorted(self.time_ns, end, side="left"), first + 1)
        # The end of a span may be the length of the array, which `reduceat` rejects. So append an element.
        bounds = np.stack([first, behind], axis=1).ravel()
        padded = np.append(self.value[int(first.min()) : int(behind.max())], np.int64(0))
        return np.asarray(np.maximum.reduceat(padded, bounds - int(first.min()))[::2])
