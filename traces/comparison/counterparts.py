"""Finds the kernel in one trace that corresponds to a kernel in another trace.

    pairs = paired_steps(recorded, replayed)          # [(0, 0), (1, 1), ...] indices of both traces' steps
    found = counterparts(recorded, replayed, pairs)
    found.first[7], found.second[7]                   # indices of the two device tables; NONE if one trace has no counterpart

Kernels are paired by op, input shapes, phase and kernel name.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from traces.comparison.changed_ops import kernel_key, op_key, replaced_work
from traces.comparison.thresholds import SAME_KERNEL_NS, SAME_KERNEL_SHARE
from traces.figures.measure import launch_phases, launch_steps, op_of, work_in_launch_order
from traces.model.trace import NONE, Column, Trace, parse_shapes
from traces.names.equivalent_ops import distinct_shapes

StepPairs = list[tuple[int, int]]  # pairs of step rows, one row for each trace; NONE if a trace lacks the step


class KernelChange(IntEnum):
    SAME = 0
    LONGER = 1
    SHORTER = 2
    OTHER_KERNEL = 3  # the same op, or the op that replaced it, ran a kernel with another name
    GONE = 4
    NEW = 5


@dataclass(frozen=True)
class Counterparts:
    step: Column
    first: Column
    second: Column
    change: Column
    change_ns: Column  # the time in the second trace minus the time in the first
    certain: Column  # whether the two kernels of a pair have the same phase and op

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def _by_row(self) -> tuple[Column, Column]:
        return np.argsort(self.first, kind="stable"), np.argsort(self.second, kind="stable")

    def of(self, side: int, row: int) -> Column:
        """Return the pairs that contain a given kernel of the first trace (`side` 0) or of the second trace (`side` 1)."""
        order, column = self._by_row[side], (self.first, self.second)[side]
        begin, end = np.searchsorted(column[order], [row, row + 1])
        return order[begin:end]


def paired_steps(first: Trace, second: Trace) -> StepPairs:
    ours, theirs = steps_in_order(first), steps_in_order(second)
    if not len(ours) or not len(theirs):
        return []
    for one, other, swap in ((first, second, False), (second, first, True)):
        driver = other.steps.recorded_step
        rows = ours if swap else theirs
        driven = driver[rows]
        if (driven >= 0).any() and (driven < len(one.steps)).all() and other.is_replay_of(one):
            pairs = list(zip(driven.tolist(), rows.tolist(), strict=True))
            return [(b, a) for a, b in pairs] if swap else pairs
    longer = max(len(ours), len(theirs))
    padded = [[*rows.tolist(), *[NONE] * (longer - len(rows))] for rows in (ours, theirs)]
    return list(zip(*padded, strict=True))


def steps_in_order(trace: Trace, rank: int | None = None) -> Column:
    """Return the indices of a rank's steps in time order. The default is the first rank."""
    steps = trace.steps
    if not len(steps):
        return np.arange(0)
    rows = np.flatnonzero(steps.rank == (steps.rank.min() if rank is None else rank))
    return np.asarray(rows[np.argsort(steps.start_ns[rows], kind="stable")])


def counterparts(first: Trace, second: Trace, pairs: StepPairs) -> Counterparts:
    texts: dict[object, int] = {}
    sides = [_LaunchedWork.of(trace, [pair[side] for pair in pairs], texts) for side, trace in enumerate((first, second))]
    left = [np.arange(len(work.row)) for work in sides]
    found: list[tuple[Column, Column, bool]] = []
    for columns in _LEVELS:
        keys = _common_keys(*(work.columns(columns, rest) for work, rest in zip(sides, left, strict=True)))
        ours, others = _one_key(*((key, _numbered(key)) for key in keys))
        _, mine, theirs = np.intersect1d(ours, others, assume_unique=True, return_indices=True)
        if "name" not in columns:  # A kernel without a known op is paired with a kernel of the same name in the other trace
            known = sides[0].op[left[0][mine]] != NONE
            mine, theirs = mine[known], theirs[known]
        found.append((left[0][mine], left[1][theirs], {"phase", "op"} <= set(columns)))
        left = [np.delete(rest, taken) for rest, taken in zip(left, (mine, theirs), strict=True)]
    mine, theirs, left = _replaced(first, second, sides, left, pairs)
    found.append((mine, theirs, False))
    a, b = np.concatenate([rows for rows, _, _ in found]), np.concatenate([rows for _, rows, _ in found])
    certain = np.concatenate([np.full(len(rows), sure) for rows, _, sure in found])
    order = np.lexsort((a, sides[0].step[a]))
    a, b, certain = a[order], b[order], certain[order]
    ours, theirs, gone, new = sides[0].row[a], sides[1].row[b], sides[0].row[left[0]], sides[1].row[left[1]]
    step = sides[0].step[a]
    duration_ns = np.where(_first_use(step, ours), first.device.duration_ns[ours], 0)
    change_ns = np.where(_first_use(step, theirs), second.device.duration_ns[theirs], 0) - duration_ns
    change = _changed(duration_ns, change_ns, sides[0].name[a] == sides[1].name[b])
    return Counterparts(
        step=np.concatenate([step, sides[0].step[left[0]], sides[1].step[left[1]]]),
        first=np.concatenate([ours, gone, np.full(len(new), NONE)]),
        second=np.concatenate([theirs, np.full(len(gone), NONE), new]),
        change=np.r_[change, np.full(len(gone), KernelChange.GONE), np.full(len(new), KernelChange.NEW)].astype(np.uint8),
        change_ns=np.concatenate([change_ns, -first.device.duration_ns[gone], second.device.duration_ns[new]]),
        certain=np.concatenate([certain, np.zeros(len(gone) + len(new), dtype=bool)]),
    )


def _replaced(
    first: Trace, second: Trace, sides: list[_LaunchedWork], left: list[Column], pairs: StepPairs
) -> tuple[Column, Column, list[Column]]:
    mine: list[int] = []
    theirs: list[int] = []
    if len(left[0]) and len(left[1]):
        steps = [np.array([pair[side] for pair in pairs if NONE not in pair], dtype=np.int64) for side in (0, 1)]
        rows = [side.row[rest] for side, rest in zip(sides, left, strict=True)]
        groups = replaced_work(first, second, (steps[0], steps[1]), (rows[0], rows[1]))
        of: list[dict[tuple[int, ...], list[int]]] = [{}, {}]
        for side, rest, group, found in zip(sides, left, groups, of, strict=True):
            kept = rest[group != NONE]
            keys = np.stack([side.step[kept], side.device[kept], group[group != NONE]]).T.tolist()
            for place, key in zip(kept.tolist(), keys, strict=True):
                found.setdefault(tuple(key), []).append(place)
        for key in of[0].keys() & of[1].keys():
            ours, others = of[0][key], of[1][key]
            longer = max(len(ours), len(others))
            mine += ours + ours[-1:] * (longer - len(ours))
            theirs += others + others[-1:] * (longer - len(others))
    a, b = np.array(mine, dtype=np.int64), np.array(theirs, dtype=np.int64)
    return a, b, [np.setdiff1d(left[0], a), np.setdiff1d(left[1], b)]


def pairs_in_same_order(found: Counterparts, first: Trace, second: Trace) -> Column:
    sure = np.flatnonzero(found.certain)
    ranks = np.array([device.rank for device in first.devices] or [0])
    sure = sure[ranks[first.device.device[found.first[sure]]] == ranks.min()] if len(sure) else sure
    begin = first.device.start_ns[found.first[sure]]
    order = np.lexsort((begin, found.step[sure]))
    sure, begin = sure[order], begin[order]
    then = second.device.start_ns[found.second[sure]]
    kept = [np.zeros(0, dtype=np.int64)]
    bounds = [0, *(np.flatnonzero(np.diff(found.step[sure])) + 1).tolist(), len(sure)]
    for start, end in itertools.pairwise(bounds):
        kept.append(sure[start:end][_longest_growing(begin[start:end], then[start:end])])
    return np.concatenate(kept)


def _longest_growing(begin: Column, then: Column) -> Column:
    fresh = np.ones(len(begin), dtype=bool)
    fresh[1:] = begin[1:] > begin[:-1]
    rows = np.flatnonzero(fresh)
    values = then[rows]
    return rows if (values[1:] > values[:-1]).all() else rows[longest_rising(values.tolist())]


def longest_rising(values: Sequence[int]) -> list[int]:
    """Return the indices of a longest strictly increasing subsequence."""
    ends: list[int] = []  # for each length, the smallest last value of an increasing sequence of this length
    lengths = []
    for value in values:
        at = bisect_left(ends, value)
        ends[at : at + 1] = [value]
        lengths.append(at + 1)
    found: list[int] = []
    for place in range(len(values) - 1, -1, -1):
        if lengths[place] == len(ends) - len(found) and (not found or values[place] < values[found[-1]]):
            found.append(place)
    return found[::-1]


# The strictest level is tried first.
_SAME_PLACE = ("step", "device")
_LEVELS = (
    (*_SAME_PLACE, "phase", "op", "shapes", "name"),
    (*_SAME_PLACE, "phase", "op", "name"),
    (*_SAME_PLACE, "op", "name"),
    (*_SAME_PLACE, "phase", "name", "duration_ns"),  # in a replay, a kernel without an op has its recorded duration
    (*_SAME_PLACE, "phase", "name"),
    (*_SAME_PLACE, "name"),
    (*_SAME_PLACE, "phase", "op"),
)


@dataclass(frozen=True)
class _LaunchedWork:
    row: Column
    step: Column
    device: Column
    phase: Column
    op: Column
    shapes: Column
    name: Column
    duration_ns: Column

    @classmethod
    def of(cls, trace: Trace, steps: Sequence[int], texts: dict[object, int]) -> _LaunchedWork:
        rows, pair = _by_pair(trace, work_in_launch_order(trace), steps)
        strings = trace.strings
        phase, op = launch_phases(trace)[rows], op_of(trace)[rows]
        names = _numbers(strings.texts, texts)
        of_device = set(np.unique(trace.device.name[rows]).tolist())
        kernels = _numbers(
            [("kernel", kernel_key(text) if number in of_device else text) for number, text in enumerate(strings.texts)], texts
        )
        ops = _numbers([("op", op_key(text)) for text in strings.texts], texts)
        shapes = _numbers([_shapes_of(text) for text in strings.texts], texts)
        devices = _numbers([(device.rank, device.index) for device in trace.devices], texts)
        return cls(
            row=rows,
            step=pair,
            device=devices[trace.device.device[rows]] if len(devices) else np.zeros(len(rows), dtype=np.int64),
            phase=_named(names, trace.phases.name, phase),
            op=_named(ops, trace.host.name, op),
            shapes=_named(shapes, trace.host.shapes, op),
            name=_named(kernels, trace.device.name, rows),
            duration_ns=trace.device.duration_ns[rows],
        )

    def columns(self, names: Sequence[str], rows: Column) -> list[Column]:
        return [getattr(self, name)[rows] for name in names]


def _by_pair(trace: Trace, rows: Column, steps: Sequence[int]) -> tuple[Column, Column]:
    if not steps:
        return rows, np.zeros(len(rows), dtype=np.int64)
    order = np.full(len(trace.steps) + 1, NONE)
    for rank in np.unique(trace.steps.rank).tolist():
        own = steps_in_order(trace, rank)
        order[own] = np.arange(len(own))
    of_row = order[launch_steps(trace)[rows]]
    sort = np.argsort(of_row, kind="stable")
    bounds = np.searchsorted(of_row[sort], np.arange(len(trace.steps) + 1))
    parts = [sort[bounds[order[step]] : bounds[order[step] + 1]] if step != NONE else sort[:0] for step in steps]
    return rows[np.concatenate(parts)], np.repeat(np.arange(len(steps)), [len(part) for part in parts])


def _numbers(values: Sequence[object], texts: dict[object, int]) -> Column:
    return np.array([texts.setdefault(value, len(texts)) for value in values], dtype=np.int64)


def _named(numbers: Column, names: Column, rows: Column) -> Column:
    found = np.full(len(rows), NONE, dtype=np.int64)
    known = np.flatnonzero(rows != NONE)
    string = names[rows[known]]
    known, string = known[string != NONE], string[string != NONE]
    found[known] = numbers[string]
    return found


def _shapes_of(text: str) -> object:
    if text[:1].isdigit() and not text.strip("0123456789,;?"):
        return distinct_shapes(parse_shapes(text))
    return None


def _common_keys(*sides: Sequence[Column]) -> list[Column]:
    ends = np.cumsum([len(columns[0]) for columns in sides])[:-1]
    key = np.zeros(sum(len(columns[0]) for columns in sides), dtype=np.int64)
    for column in zip(*sides, strict=True):
        values = np.concatenate(column) + 1
        key = np.unique(key * (int(values.max(initial=0)) + 1) + values, return_inverse=True)[1]
    return np.split(key, ends)


def _numbered(key: Column) -> Column:
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.searchsorted(ordered, ordered, side="left")
    number = np.empty(len(key), dtype=np.int64)
    number[order] = np.arange(len(key)) - first
    return number


def _one_key(*pairs: tuple[Column, Column]) -> list[Column]:
    most = max((int(number.max(initial=0)) for _, number in pairs), default=0) + 1
    return [key * most + number for key, number in pairs]


def _first_use(step: Column, rows: Column) -> Column:
    first = np.zeros(len(rows), dtype=bool)
    first[np.unique(np.stack([step, rows]), axis=1, return_index=True)[1]] = True
    return first


def _changed(duration_ns: Column, change_ns: Column, same_name: Column) -> Column:
    alike = np.abs(change_ns) <= np.maximum(SAME_KERNEL_SHARE * duration_ns, SAME_KERNEL_NS)
    found = np.where(change_ns > 0, KernelChange.LONGER, KernelChange.SHORTER)
    return np.where(same_name, np.where(alike, KernelChange.SAME, found), KernelChange.OTHER_KERNEL)
