"""Looks up the window (a step, a phase) that contains a time.

    steps = TimeWindows(trace.steps.start_ns, trace.steps.end_ns, trace.steps.rank)
    steps.holding(times_ns, ranks)      # for each time, the row of that rank's step, or NONE

Windows of one owner (the steps of a rank, the phases of a step) do not overlap. Windows of different owners may.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.model.trace import NONE, Column


class TimeWindows:
    """Represents half-open time windows [start, end), in any order.

    `owner` gives an integer for each window, such as its rank. By default all windows have the same owner.
    """

    def __init__(self, start_ns: Any, end_ns: Any, owner: Any = None) -> None:
        self._start_ns, self._end_ns = np.asarray(start_ns), np.asarray(end_ns)
        owners = np.zeros(len(self._start_ns), dtype=np.int64) if owner is None else np.asarray(owner)
        order = np.lexsort((self._end_ns, self._start_ns, owners))
        found, first = np.unique(owners[order], return_index=True)
        parts = np.split(order, first[1:]) if len(order) else []
        self._rows_of: dict[int, Column] = dict(zip(found.tolist(), parts, strict=True))

    def holding(self, time_ns: Any, owner: Any = None) -> Column:
        """Return one row for each time: the window of the same owner that contains the time. If there is no such window, the
        row is NONE.
        """
        times = np.asarray(time_ns)
        owners = np.zeros(len(times), dtype=np.int64) if owner is None else np.asarray(owner)
        found = np.full(len(times), NONE, dtype=np.int64)
        for number in np.unique(owners).tolist():
            rows = self._rows_of.get(number)
            if rows is None:
                continue
            asked = np.flatnonzero(owners == number)
            place = np.searchsorted(self._start_ns[rows], times[asked], side="right") - 1
            row = rows[place]
            found[asked] = np.where((place >= 0) & (times[asked] < self._end_ns[row]), row, NONE)
        return found
