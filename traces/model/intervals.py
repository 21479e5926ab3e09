"""Computes unions of time intervals, and finds the time window that contains a given time.

    busy = Intervals(start_ns=[0, 5, 20], end_ns=[10, 12, 30])
    busy.start_ns, busy.end_ns      # array([0, 20]), array([12, 30])
    busy.total_ns                   # 22
    busy.within([8], [25])          # array([9])

    steps = TimeWindows(trace.steps.start_ns, trace.steps.end_ns, trace.steps.rank)
    steps.holding(times_ns, ranks)  # for each time, the index of that rank's step, or NONE
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.model.row_order import differs, grouped, sum_by
from traces.model.trace import NONE, Column

_LONG_AGO = np.int64(-(2**62))


class Intervals:
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
        # for a time t in interval k: before(t) = t + _shift_ns[k]
        self._ends_ns = np.append(_LONG_AGO, self.end_ns)
        gaps = self.start_ns[1:] - self.end_ns[:-1]
        self._shift_ns = np.append(-_LONG_AGO, -np.cumsum(np.append(self.start_ns[:1], gaps)))

    @property
    def total_ns(self) -> int:
        return int(self._ends_ns[-1] + self._shift_ns[-1])

    def before(self, time_ns: Any) -> Column:
        times = np.asarray(time_ns)
        after = self.start_ns.searchsorted(times, "right")
        return np.asarray(np.minimum(times, self._ends_ns[after]) + self._shift_ns[after])

    def within(self, start_ns: Any, end_ns: Any) -> Column:
        """Return how much of each time window [start, end) the intervals cover, in nanoseconds."""
        return np.asarray(self.before(end_ns) - self.before(start_ns))

    def holds(self, time_ns: Any) -> Column:
        return np.asarray(containing(self.start_ns, self.end_ns, time_ns) != NONE)


def containing(start_ns: Column, end_ns: Column, time_ns: Any) -> Column:
    """For each time, return the index of the interval [start, end) that contains it, or NONE. The intervals must be sorted and
    must not overlap."""
    times = np.asarray(time_ns)
    if not len(start_ns):
        return np.full(len(times), NONE)
    row = np.searchsorted(start_ns, times, side="right") - 1
    return np.where((row >= 0) & (times < end_ns[row]), row, NONE)


def outermost(start_ns: Column, end_ns: Column) -> Column:
    """Return False for each interval that begins inside an earlier interval, and True for all others. The intervals must be
    sorted by their start."""
    return np.append(True, start_ns[1:] >= np.maximum.accumulate(end_ns)[:-1])[: len(start_ns)]


class TimeWindows:
    """Finds the time window, such as a training step, that contains a given time. Time windows of one `owner` (for example, of
    one rank) must not overlap."""

    def __init__(self, start_ns: Any, end_ns: Any, owner: Any = None) -> None:
        self._start_ns, self._end_ns = np.asarray(start_ns), np.asarray(end_ns)
        owners = np.zeros(len(self._start_ns), dtype=np.int64) if owner is None else np.asarray(owner)
        order = np.lexsort((self._end_ns, self._start_ns, owners))
        found, first = np.unique(owners[order], return_index=True)
        parts = np.split(order, first[1:]) if len(order) else []
        self._rows_of: dict[int, Column] = dict(zip(found.tolist(), parts, strict=True))

    def holding(self, time_ns: Any, owner: Any = None) -> Column:
        times = np.asarray(time_ns)
        owners = np.zeros(len(times), dtype=np.int64) if owner is None else np.asarray(owner)
        found = np.full(len(times), NONE, dtype=np.int64)
        for rows_of_owner in grouped(owners):
            rows = self._rows_of.get(int(owners[rows_of_owner[0]]))
            if rows is None:
                continue
            place = containing(self._start_ns[rows], self._end_ns[rows], times[rows_of_owner])
            found[rows_of_owner] = np.append(rows, NONE)[place]
        return found


def union_by_group(group: Column, start_ns: Column, end_ns: Column, groups: int) -> Column:
    order = np.lexsort((start_ns, group))
    group, start_ns, end_ns = group[order], start_ns[order], end_ns[order]
    # the latest end of all earlier intervals in the same group
    by_end = np.argsort(end_ns, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[by_end] = np.arange(len(order))
    first_of_group = group * np.int64(len(order))
    latest_ns = end_ns[by_end][np.maximum.accumulate(first_of_group + rank) - first_of_group] if len(order) else end_ns
    covered_until_ns = np.append(np.int64(_LONG_AGO), latest_ns[:-1])
    covered_until_ns[differs(group)] = _LONG_AGO
    added_ns = np.maximum(latest_ns - np.maximum(start_ns, covered_until_ns[: len(order)]), 0)
    return sum_by(group, added_ns, groups)
