"""How two traces are laid over each other: by step, by wall time, or by op. Each makes an axis (see axis.py).

    axis = by_step(recorded, replayed)        # a slot per pair of steps: later steps do not inherit earlier drift
    axis = by_op(recorded, replayed)          # a slot per pair of ops that launched GPU work

A replayed step lies over the recorded step that drove it, as often as it was replayed; of two recordings the first lies over
the first. Steps are those of the first rank, and the other ranks lie as they lay beside it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from enum import Enum

import numpy as np

from traces.equivalents import canonical_op
from traces.measure import launch_phases, launch_steps, op_of, window_ns, work_rows
from traces.model import NONE, Column, Trace
from tui.view.axis import Axis, Side


class Alignment(Enum):
    STEP = "step"
    WALL = "wall time"
    OP = "op"


Pairs = list[tuple[int, int]]  # rows of both traces' steps; NONE where one has no such step


def alone(trace: Trace) -> Axis:
    """The axis of one trace."""
    start_ns, end_ns = extent_ns(trace)
    return Axis.of([Side([start_ns], [end_ns])])


def by_wall(first: Trace, second: Trace) -> Axis:
    """One slot, in which the first paired steps begin together; without steps, the traces."""
    windows = [extent_ns(trace) for trace in (first, second)]
    pairs = paired_steps(first, second)
    marks = [window[0] for window in windows]
    if pairs and NONE not in pairs[0]:
        marks = [int(trace.steps.start_ns[row]) for trace, row in zip((first, second), pairs[0], strict=True)]
    before = [Side([window[0], mark], [mark, window[1]]) for window, mark in zip(windows, marks, strict=True)]
    return Axis.of(before, flush_right=1)


def by_step(first: Trace, second: Trace) -> Axis:
    """A slot per pair of steps, with what precedes the first one before it; by wall time where one has no steps."""
    pairs = paired_steps(first, second)
    if not pairs:
        return by_wall(first, second)
    cuts = [_cuts(trace, [pair[n] for pair in pairs]) for n, trace in enumerate((first, second))]
    return Axis.of([Side(*cut) for cut in cuts], flush_right=1)


def by_op(first: Trace, second: Trace) -> Axis:
    """As by step, and within a step a slot per pair of ops: the k-th call of an op in a phase lies over the k-th."""
    pairs = paired_steps(first, second)
    if not pairs:
        return by_wall(first, second)
    sides: list[tuple[list[int], list[int]]] = [([], []), ([], [])]
    cuts = [_cuts(trace, [pair[n] for pair in pairs]) for n, trace in enumerate((first, second))]
    anchors = [_anchors(first), _anchors(second)]
    for slot in range(len(cuts[0][0])):
        a, b = pairs[slot - 1] if slot else (NONE, NONE)
        both = _common_order(anchors[0].get(a, {}), anchors[1].get(b, {}))
        for number, (starts, ends) in enumerate(sides):
            begin, end = cuts[number][0][slot], cuts[number][1][slot]
            inner = [min(max(times[number], begin), end) for times in both]
            starts += [begin, *inner]
            ends += [*inner, end]
    return Axis.of([Side(starts, ends) for starts, ends in sides], flush_right=1)


def paired_steps(first: Trace, second: Trace) -> Pairs:
    """Which step lies over which, in the order of the axis."""
    ours, theirs = steps_in_order(first), steps_in_order(second)
    if not len(ours) or not len(theirs):
        return []
    for one, other, swap in ((first, second, False), (second, first, True)):
        driver = other.steps.recorded_step
        rows = ours if swap else theirs
        driven = driver[rows]
        if (driven >= 0).any() and (driven < len(one.steps)).all():
            pairs = list(zip(driven.tolist(), rows.tolist(), strict=True))
            return [(b, a) for a, b in pairs] if swap else pairs
    longer = max(len(ours), len(theirs))
    padded = [[*rows.tolist(), *[NONE] * (longer - len(rows))] for rows in (ours, theirs)]
    return list(zip(*padded, strict=True))


def steps_in_order(trace: Trace) -> Column:
    """The rows of the first rank's steps, in order of time."""
    steps = trace.steps
    rows = np.flatnonzero(steps.rank == steps.rank.min()) if len(steps) else np.arange(0)
    return np.asarray(rows[np.argsort(steps.start_ns[rows], kind="stable")])


def extent_ns(trace: Trace) -> tuple[int, int]:
    """The first start and the last end of anything that can be shown; (0, 0) for an empty trace."""
    start_ns, end_ns = window_ns(trace)
    starts, ends = ([start_ns], [end_ns]) if end_ns > start_ns else ([], [])
    for table in (trace.batches, trace.collectives, trace.parts):
        if len(table):
            starts.append(int(table.start_ns.min()))
            ends.append(int(table.end_ns.max()))
    for times in (trace.memory.time_ns, trace.phases.device_start_ns, trace.phases.device_end_ns):
        known = times[times >= 0]
        if len(known):
            starts.append(int(known.min()))
            ends.append(int(known.max()) + 1)
    return (min(starts), max(ends)) if starts else (start_ns, end_ns)


def _cuts(trace: Trace, rows: list[int]) -> tuple[list[int], list[int]]:
    """Starts and ends of this trace's slots: one for what precedes the first step, then one per step.

    A step's slot reaches to the next step's start where that is the next slot, so that what happens between steps is not
    lost, and the last one to the end of the trace.
    """
    steps, (begin_ns, end_ns) = trace.steps, extent_ns(trace)
    first = next((row for row in rows if row != NONE), NONE)
    first_ns = int(steps.start_ns[first]) if first != NONE else end_ns
    starts, ends = [begin_ns], [first_ns]
    following = dict(itertools.pairwise(steps_in_order(trace).tolist()))
    last = max((place for place, row in enumerate(rows) if row != NONE), default=NONE)
    for place, row in enumerate(rows):
        if row == NONE:
            starts.append(ends[-1])
            ends.append(ends[-1])
            continue
        starts.append(int(steps.start_ns[row]))
        ends.append(int(steps.end_ns[row]))
        if place == last:
            ends[-1] = max(ends[-1], end_ns if following.get(row) is None else ends[-1])
        elif rows[place + 1] == following.get(row):
            ends[-1] = int(steps.start_ns[rows[place + 1]])
    return starts, ends


def _anchors(trace: Trace) -> dict[int, dict[tuple[str, str, int], int]]:
    """Per step: when each op with GPU work was launched, by (phase, canonical name, its how-manieth), in order of time."""
    rows = work_rows(trace)
    op, step, phase = op_of(trace)[rows], launch_steps(trace)[rows], launch_phases(trace)[rows]
    keep = (op >= 0) & (step >= 0)
    op, chosen = np.unique(op[keep], return_index=True)
    step, phase = step[keep][chosen], phase[keep][chosen]
    order = np.argsort(trace.host.start_ns[op], kind="stable")
    names = [canonical_op(text) for text in trace.strings.texts]
    phase_names = _phase_texts(trace, phase[order])
    found: dict[int, dict[tuple[str, str, int], int]] = {}
    seen: dict[tuple[int, str, str], int] = {}
    columns = (step[order].tolist(), trace.host.name[op][order].tolist(), trace.host.start_ns[op][order].tolist())
    for number, name, start_ns, of_phase in zip(*columns, phase_names, strict=True):
        key = (number, of_phase, names[name])
        place = seen[key] = seen.get(key, -1) + 1
        found.setdefault(number, {})[of_phase, names[name], place] = start_ns
    return found


def _phase_texts(trace: Trace, phases: Column) -> list[str]:
    return [trace.strings[int(trace.phases.name[row])] if row >= 0 else "" for row in phases.tolist()]


def _common_order(first: dict[tuple[str, str, int], int], second: dict[tuple[str, str, int], int]) -> list[tuple[int, int]]:
    """The times of ops that both have, of which each is later than the one before on both sides: as many as can be."""
    both = [(first[key], second[key]) for key in first if key in second]
    tails: list[int] = []  # the smallest last time of a growing sequence of each length
    at: list[int] = []
    back: list[int] = []
    for number, (_, time_ns) in enumerate(both):
        place = bisect_left(tails, time_ns)
        back.append(at[place - 1] if place else NONE)
        if place == len(tails):
            tails.append(time_ns)
            at.append(number)
        else:
            tails[place], at[place] = time_ns, number
    chosen = []
    number = at[-1] if at else NONE
    while number != NONE:
        chosen.append(both[number])
        number = back[number]
    return chosen[::-1]
