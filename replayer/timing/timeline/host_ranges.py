"""Adds the calls of each nn.Module to the timeline of a replay.

    note = ranges.of_thread(thread.row).append
    note((name + 1) * NAMED + len(pending))     # a call begins; `name` is a string of the timeline
    note(~len(pending))     # the innermost call has ended

For speed, the times of module calls are computed later, when the file is written.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from replayer.memory.op_rows import PER_OP
from traces.model.trace import NONE, Column, HostKind

NAMED = 1 << 16  # larger than the number of pending ops, but small, because adding small integers is faster


class _ThreadMarks:
    __slots__ = ("assigned", "flat")

    def __init__(self) -> None:
        self.flat: list[int] = []
        self.assigned: list[tuple[int, int, int]] = []


class HostRanges:
    def __init__(self) -> None:
        self.under_way = 0
        self.begun_ns = 0  # approximate start of the first call
        self._threads: dict[int, _ThreadMarks] = {}
        self._reordered: list[tuple[int, list[int]]] = []

    def of_thread(self, row: int) -> list[int]:
        return self._threads.setdefault(row, _ThreadMarks()).flat

    def assign_rows(self, row: int, ops: int) -> None:
        for marks in self._threads.values():
            if len(marks.flat) > (marks.assigned[-1][0] if marks.assigned else 0):
                marks.assigned.append((len(marks.flat), row, ops))

    def reordered(self, row: int, order: list[int]) -> None:
        self._reordered.append((row, order))

    def pop(self, row: int) -> TakenRanges:
        self.assign_rows(row, 0)
        taken = []
        for thread, marks in self._threads.items():
            if marks.flat:
                taken.append((thread, marks.flat[:], marks.assigned))
                del marks.flat[:]
                marks.assigned = []
        reordered, self._reordered = self._reordered, []
        return TakenRanges(taken, reordered, self.begun_ns)


def _in_groups(depth: Column) -> Column:
    return np.argsort(depth.astype(np.int16), kind="stable")  # numpy sorts small integers in linear time


@dataclass(frozen=True, slots=True)
class _RangeMarks:
    thread: int
    name: Column
    op: Column
    depth: Column
    top: Column

    @classmethod
    def of(cls, thread: int, marks: list[int], assigned_rows: list[tuple[int, int, int]]) -> _RangeMarks:
        flat, assigned = np.array(marks, np.int64), np.array(assigned_rows, np.int64)
        name = np.where(flat < 0, 0, flat // NAMED)
        pending = np.where(flat < 0, ~flat, flat % NAMED)
        until, row, ops = assigned.T
        count = np.diff(until, prepend=0)
        op = np.repeat(row, count) + np.minimum(pending // PER_OP, np.repeat(ops, count))
        depth = np.cumsum(np.where(name > 0, 1, -1))
        lowest = np.minimum.accumulate(np.minimum(depth, 0))
        kept = np.diff(lowest, prepend=0) == 0
        name, op, depth = name[kept] - 1, op[kept], (depth - lowest)[kept]
        # the innermost running call is the latest call of the same depth
        by_depth = _in_groups(depth)
        begins = name[by_depth] >= 0
        latest = by_depth[np.maximum.accumulate(np.where(begins, np.arange(len(name)), 0))]
        top = np.empty(len(name), np.int64)
        top[by_depth] = (np.cumsum(name >= 0) - 1)[latest]
        return cls(thread, name, op, depth, np.where(depth > 0, top, NONE))

    @property
    def begins(self) -> Column:
        return np.flatnonzero(self.name >= 0)

    def ends(self) -> Column:
        ends = np.full(len(self.name) + 1, len(self.name))
        by_call = _in_groups(self.depth + (self.name < 0))  # At each depth, begins and ends alternate.
        ends[by_call[:-1]] = by_call[1:]
        chosen = ends[self.begins]
        return np.where(np.append(self.name, NONE)[chosen] < 0, chosen, len(self.name))


@dataclass(frozen=True, slots=True)
class TakenRanges:
    threads: list[tuple[int, list[int], list[tuple[int, int, int]]]]
    reordered: list[tuple[int, list[int]]]
    begun_ns: int

    def __len__(self) -> int:
        return sum(len([mark for mark in flat if mark >= 0]) for _, flat, _ in self.threads)

    def rows_of(self, ops: Column) -> Column:
        rows = ops.copy()
        for first, order in self.reordered:
            inside = (ops >= first) & (ops < first + len(order))
            rows[inside] = first + np.argsort(order)[ops[inside] - first]
        return rows

    def rows(self, thread: Column, start_ns: Column, end_ns: Column, row: int) -> tuple[Column, Column]:
        """Return a table of module calls, and the parents of all ops and module calls. A parent is the timeline row of the
        enclosing module call."""
        called = np.arange(row, row + len(thread))
        for first, order in self.reordered:
            called[first - row : first - row + len(order)] = first + np.array(order)
        parent, made, above = np.full(len(thread), NONE), [np.empty((0, 5), np.int64)], [np.empty(0, np.int64)]
        number = row + len(thread)
        for marks in itertools.starmap(_RangeMarks.of, self.threads):
            ops = np.flatnonzero(thread == marks.thread)
            ops = ops[np.argsort(called[ops], kind="stable")]
            at = np.searchsorted(marks.op, called[ops], side="right") - 1
            enclosing_range = np.append(marks.top, NONE)[at]
            parent[ops] = np.where(enclosing_range == NONE, NONE, enclosing_range + number)
            begins = marks.begins
            times = self._times(marks, called[ops], start_ns[ops], end_ns[ops])
            made.append(
                np.stack([np.full(len(begins), marks.thread), np.full(len(begins), int(HostKind.ANNOTATION)), *times], 1)
            )
            outer = np.append(marks.top, NONE)[begins - 1]
            above.append(np.where(outer == NONE, NONE, outer + number))
            number += len(begins)
        return np.concatenate(made), np.concatenate([parent, *above])

    def _times(self, marks: _RangeMarks, op: Column, start_ns: Column, end_ns: Column) -> tuple[Column, Column, Column]:
        begins, ends = marks.begins, marks.ends()
        first = np.searchsorted(op, marks.op[begins])
        last = np.searchsorted(op, np.append(marks.op, op[-1] + 1 if len(op) else 0)[ends]) - 1
        # The rows of `record_function` have the clock's time, and ops inside may begin earlier.
        start_ns, end_ns = np.minimum.accumulate(start_ns[::-1])[::-1], np.maximum.accumulate(end_ns)
        starts, until = np.append(start_ns, self.begun_ns), np.append(end_ns, self.begun_ns)
        # a range without ops is placed at the end of the previous op
        begin_ns = np.where(first <= last, starts[np.minimum(first, len(op))], until[last])
        begin_ns = np.where((last < 0) & len(op), starts[0], begin_ns)
        end_ns = np.where(first <= last, np.maximum(until[last], begin_ns), begin_ns)
        for level in range(2, int(marks.depth.max(initial=0)) + 1):  # Each range stays inside its outer call.
            inner = np.flatnonzero(marks.depth[begins] == level)
            outer = marks.top[begins[inner] - 1]
            begin_ns[inner] = np.clip(begin_ns[inner], begin_ns[outer], end_ns[outer])
            end_ns[inner] = np.clip(end_ns[inner], begin_ns[outer], end_ns[outer])
        return marks.name[begins], begin_ns, end_ns - begin_ns
