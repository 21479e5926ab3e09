"""At which op of the script a request for memory comes, for the timeline: requests are told in batches, as ops are.

places = OpPlaces(pending)      # what has been launched and not been played
places.now()                    # how many ops have been launched so far
places.played(count, row, next_row)     # the pending ones have been, as host rows of the timeline from `row` on
host_rows([places.of(ops)])     # their rows, of some ops that were played last or are to come next
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import NamedTuple

import numpy as np

from traces.model.trace import Column

_PER_OP = 3  # entries of `ScriptLaunches.pending`


class OpPlaces:
    """Counts the ops of one process."""

    __slots__ = ("_first", "_next_row", "_pending", "_played", "_row")

    def __init__(self, pending: Sized = ()) -> None:
        self._pending = pending
        self._played = 0  # ops
        self._first = 0  # of the batch that was played last
        self._row = 0  # and its row
        self._next_row = 0

    def now(self) -> int:
        """How many ops have been launched so far: the number of the next one, from 0 on."""
        return self._played + len(self._pending) // _PER_OP

    def played(self, count: int, row: int, next_row: int) -> None:
        """The next `count` ops became the host rows from `row` on, and others come from `next_row` on."""
        self._first, self._row, self._next_row = self._played, row, next_row
        self._played += count

    def of(self, ops: Column, begun: int = 0) -> PlacedOps:
        """Ops by their numbers, counted from `begun` on, as of now.

        Exact for the batch played last, and for the next one, where no row of another kind comes between.
        """
        return PlacedOps(ops, begun, self.now(), self._first, self._row, self._played, self._next_row)


class PlacedOps(NamedTuple):
    """Ops whose host rows the thread that writes the timeline is to work out (`host_rows`)."""

    ops: Column
    begun: int
    now: int
    first: int
    row: int
    played: int
    next_row: int


def host_rows(placed: Sequence[PlacedOps]) -> Column:
    """The host rows of all these ops: all at once, for there are some ten times as many of them as handed over."""
    counts = [len(one.ops) for one in placed]
    known = np.array([one[1:] for one in placed], np.int64).reshape(-1, 6)
    begun, now, first, row, played, next_row = np.repeat(known, counts, axis=0).T
    ops = np.minimum(begun + np.concatenate([np.empty(0, np.int64), *(one.ops for one in placed)]), now)
    latest = np.minimum(row + ops - first, next_row)
    rows: Column = np.where(ops < played, np.maximum(latest, row), next_row + ops - played)
    return rows
