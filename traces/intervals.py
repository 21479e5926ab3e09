"""Sets of time intervals: their union, and how much of a window they cover.

    busy = Intervals(start_ns=[0, 5, 20], end_ns=[10, 12, 30])
    busy.start_ns, busy.end_ns      # array([0, 20]), array([12, 30])
    busy.total_ns                   # 22
    busy.within([8], [25])          # array([9])

A query costs one binary search per time, however many intervals there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.model import Column


class Intervals:
    """Half-open intervals [start, end), merged where they touch or overlap; `start_ns` and `end_ns` are the merged ones in
    order of time. Intervals may be given in any order, and empty ones cover nothing."""

    def __init__(self, start_ns: Any, end_ns: Any) -> None:
        start = np.asarray(start_ns, dtype=np.int64)
        end = np.asarray(end_ns, dtype=np.int64)
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order]) if len(end) else end
        first = np.ones(len(start), dtype=bool)
        first[1:] = start[1:] > end[:-1]
        last = np.append(first[1:], True)[: len(start)]
        self.start_ns: Column = start[first]
        self.end_ns: Column = end[last]
        self._covered_ns = np.concatenate([[0], np.cumsum(self.end_ns - self.start_ns)])  # before each interval, and at the end

    @property
    def total_ns(self) -> int:
        return int(self._covered_ns[-1])

    def before(self, time_ns: Any) -> Column:
        """The covered nanoseconds before each time."""
        times = np.asarray(time_ns)
        if not len(self.start_ns):
            return np.zeros(len(times), dtype=np.int64)
        row = np.searchsorted(self.start_ns, times, side="right") - 1
        inside = np.minimum(times, self.end_ns[row]) - self.start_ns[row]
        return np.asarray(np.where(row < 0, 0, self._covered_ns[row] + inside))

    def within(self, start_ns: Any, end_ns: Any) -> Column:
        """The covered nanoseconds in each window, one per pair of times."""
        return np.asarray(self.before(end_ns) - self.before(start_ns))

    def holds(self, time_ns: Any) -> Column:
        """Whether each time lies in one of the intervals."""
        times = np.asarray(time_ns)
        if not len(self.start_ns):
            return np.zeros(len(times), dtype=bool)
        row = np.searchsorted(self.start_ns, times, side="right") - 1
        return np.asarray((row >= 0) & (times < self.end_ns[row]))
