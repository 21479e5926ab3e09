"""Finds the op that made a memory request.

    op_rows = OpRows(pending)       # `pending` contains launched ops that are not yet simulated
    op_rows.launched_count()                   # number of ops launched so far
    op_rows.played(count, row, next_row)   # the simulated ops are now host rows, starting at `row`
    host_rows([op_rows.with_offset(ops)])    # host rows of ops in the last or the next batch
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import NamedTuple

import numpy as np

from traces.model.trace import Column

PER_OP = 3  # entries of `ScriptLaunches.pending`; see Note [Three entries per op] in gpu/launches.py


class OpRows:
    __slots__ = ("_first", "_next_row", "_pending", "_played", "_row")

    def __init__(self, pending: Sized = ()) -> None:
        self._pending = pending
        self._played = 0
        self._first = 0
        self._row = 0
        self._next_row = 0

    def launched_count(self) -> int:
        return self._played + len(self._pending) // PER_OP

    def played(self, count: int, row: int, next_row: int) -> None:
        self._first, self._row, self._next_row = self._played, row, next_row
        self._played += count

    def with_offset(self, ops: Column, first_op: int = 0) -> UnresolvedOps:
        return UnresolvedOps(ops, first_op, self.launched_count(), self._first, self._row, self._played, self._next_row)


class UnresolvedOps(NamedTuple):
    ops: Column
    first_op: int
    now: int
    first: int
    row: int
    played: int
    next_row: int


def host_rows(unresolved: Sequence[UnresolvedOps]) -> Column:
    counts = [len(one.ops) for one in unresolved]
    known = np.array([one[1:] for one in unresolved], np.int64).reshape(-1, 6)
    first_op, now, first, row, played, next_row = np.repeat(known, counts, axis=0).T
    ops = np.minimum(first_op + np.concatenate([np.empty(0, np.int64), *(one.ops for one in unresolved)]), now)
    latest = np.minimum(row + ops - first, next_row)
    rows: Column = np.where(ops < played, np.maximum(latest, row), next_row + ops - played)
    return rows
