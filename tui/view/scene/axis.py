"""Defines the time axis of the timeline, and converts screen columns to times in a trace.

    axis = Axis.of([SlotTimes([0, 100], [100, 220]), SlotTimes([500, 590], [590, 720])])  # two slots: (starts, ends) of each
    axis.length_ns                     # 230: the slots are 100 and 130 wide
    axis.sides[1].pieces([0, 50, 150]) # columns [0, 1, 1], from [500, 550, 590], to [550, 590, 640]

The time axis is divided into *slots*. If two traces are aligned by their steps, each slot shows one step of each trace, and
both steps begin at the slot's left edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from traces.model.intervals import containing
from traces.model.trace import NONE, Column


class Pieces(NamedTuple):
    column: Column
    from_ns: Column
    to_ns: Column


class SlotTimes:
    def __init__(self, start_ns: Any, end_ns: Any) -> None:
        self.start_ns: Column = np.asarray(start_ns, dtype=np.int64)
        self.end_ns: Column = np.maximum(self.start_ns, np.asarray(end_ns, dtype=np.int64))
        self.at_ns: Column = np.zeros(len(self.start_ns), dtype=np.int64)  # position of `start_ns` on the axis

        # Group consecutive slots that have no time between them.
        starts = np.ones(len(self.start_ns), dtype=bool)
        starts[1:] = self.start_ns[1:] != self.end_ns[:-1]
        self._run = np.cumsum(starts) - 1
        ends = np.append(starts[1:], True)[: len(starts)]
        self._run_start_ns, self._run_end_ns = self.start_ns[starts], self.end_ns[ends]
        self._columns: ScreenColumns | None = None  # cache for the last edges, because all rows of a frame use the same edges

    def times(self, at_ns: Any) -> Column:
        return self._times(np.asarray(at_ns, dtype=np.int64))[0]

    def shown(self, at_ns: Any) -> Column:
        positions = np.asarray(at_ns, dtype=np.int64)
        slot = np.maximum(np.searchsorted(self.at_ns, positions, side="right") - 1, 0)
        inside = positions - self.at_ns[slot]
        return np.asarray((inside >= 0) & (inside < self.end_ns[slot] - self.start_ns[slot]))

    def _times(self, positions: Column) -> tuple[Column, Column]:
        slot = np.maximum(np.searchsorted(self.at_ns, positions, side="right") - 1, 0)
        times = np.clip(self.start_ns[slot] + (positions - self.at_ns[slot]), self.start_ns[slot], self.end_ns[slot])
        return times, slot

    def columns(self, edges_ns: Column) -> ScreenColumns:
        if self._columns is None or self._columns.edges_ns is not edges_ns:
            self._columns = ScreenColumns(self, edges_ns)
        return self._columns

    def pieces(self, edges_ns: Any) -> Pieces:
        edges = np.asarray(edges_ns, dtype=np.int64)
        times, slot = self._times(edges)
        run = self._run[slot]
        column = np.arange(len(edges) - 1)
        if run[0] == run[-1] and (run[1:] == run[:-1]).all():
            return Pieces(column, times[:-1], times[1:])
        crossed = run[1:] - run[:-1]
        column = np.repeat(column, crossed + 1)
        first = np.cumsum(crossed + 1) - (crossed + 1)
        runs = run[:-1][column] + np.arange(len(column)) - first[column]  # for each interval, the run that contains it
        begin, end = self._run_start_ns[runs], self._run_end_ns[runs]
        begin[first] = times[:-1]
        end[first + crossed] = times[1:]
        return Pieces(column, begin, np.maximum(begin, end))

    def positions(self, time_ns: int) -> Column:
        held = (self.start_ns <= time_ns) & (time_ns < self.end_ns)
        if not held.any():  # a time at the end of a slot is shown at the start of the following gap
            held = self.end_ns == time_ns
        return np.asarray(self.at_ns[held] + time_ns - self.start_ns[held])

    def every_position(self, time_ns: Any) -> tuple[Column, Column]:
        times = np.asarray(time_ns, dtype=np.int64)
        back = np.flatnonzero(self.start_ns[1:] < self.end_ns[:-1]) + 1  # if a step is shown twice, times jump back
        found: list[tuple[Column, Column]] = [(times[:0], times[:0])]
        for slots in np.split(np.arange(len(self.start_ns)), back):
            place = containing(self.start_ns[slots], self.end_ns[slots], times)
            held = np.flatnonzero(place != NONE)
            slot = slots[place[held]]
            found.append((self.at_ns[slot] + times[held] - self.start_ns[slot], held))
        positions, which = (np.concatenate(column) for column in zip(*found, strict=True))
        order = np.argsort(positions, kind="stable")
        return positions[order], which[order]

    def position(self, time_ns: int, near_ns: int = 0) -> int | None:
        """Return the position of a time on the axis, or None if the axis does not show this time. If the axis shows the time
        more than once, return the position nearest to `near_ns`."""
        positions = self.positions(time_ns)
        return int(positions[np.argmin(np.abs(positions - near_ns))]) if len(positions) else None


class ScreenColumns:
    def __init__(self, side: SlotTimes, edges_ns: Column) -> None:
        self._side = side
        self.edges_ns = edges_ns

    @cached_property
    def pieces(self) -> Pieces:
        return self._side.pieces(self.edges_ns)

    @cached_property
    def shown_ns(self) -> Column:
        pieces = self.pieces
        return np.bincount(pieces.column, weights=pieces.to_ns - pieces.from_ns, minlength=len(self.edges_ns) - 1)

    @cached_property
    def bounds_ns(self) -> tuple[Column, Column, Column]:
        edges = self.edges_ns
        return self._side.shown(edges[:-1]), self._side.times(edges[:-1]), self._side.times(edges[1:] - 1)

    @cached_property
    def gaps(self) -> tuple[Column, Column]:
        middle = (self.edges_ns[:-1] + self.edges_ns[1:]) // 2
        columns = np.flatnonzero(~self._side.shown(middle))
        return columns, self._side.times(middle[columns])


@dataclass(frozen=True)
class Axis:
    sides: tuple[SlotTimes, ...]
    slots_ns: Column
    length_ns: int

    @classmethod
    def of(cls, sides: Sequence[SlotTimes], *, flush_right: int = 0) -> Axis:
        widths = np.max([side.end_ns - side.start_ns for side in sides], axis=0)
        slots = np.cumsum(widths) - widths
        for side in sides:
            side.at_ns = slots.copy()
            side.at_ns[:flush_right] += (widths - (side.end_ns - side.start_ns))[:flush_right]
        return cls(tuple(sides), slots, int(widths.sum()))
