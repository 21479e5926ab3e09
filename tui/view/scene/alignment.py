"""Aligns two traces on a common time axis by wall time, by step, or by matching events.

    axis = by_step(recorded, replayed)              # one slot per pair of steps, so drift does not carry over to later steps
    axis = by_counterpart(recorded, replayed, found)  # also aligns counterparts within each step

Traces with several ranks are aligned by the steps of their first rank.
"""

from __future__ import annotations

import itertools
from collections import Counter
from enum import Enum

import numpy as np

from traces.comparison.counterparts import Counterparts, paired_steps, pairs_in_same_order, steps_in_order
from traces.figures.measure import window_ns
from traces.model.trace import NONE, Column, Trace
from tui.view.scene.axis import Axis, SlotTimes

ANCHOR_NS = 5_000  # maximum distance between counterparts; a smaller value would add more gaps and lengthen the axis


class Alignment(Enum):
    COUNTERPART = "counterpart"
    STEP = "step"
    WALL = "wall time"


def axis_of_trace(trace: Trace) -> Axis:
    start_ns, end_ns = extent_ns(trace)
    return Axis.of([SlotTimes([start_ns], [end_ns])])


def by_wall(first: Trace, second: Trace) -> Axis:
    windows = [extent_ns(trace) for trace in (first, second)]
    pairs = paired_steps(first, second)
    marks = [window[0] for window in windows]
    if pairs and NONE not in pairs[0]:
        marks = [int(trace.steps.start_ns[row]) for trace, row in zip((first, second), pairs[0], strict=True)]
    before = [SlotTimes([window[0], mark], [mark, window[1]]) for window, mark in zip(windows, marks, strict=True)]
    return Axis.of(before, flush_right=1)


def by_step(first: Trace, second: Trace) -> Axis:
    pairs = paired_steps(first, second)
    if not pairs:
        return by_wall(first, second)
    cuts = [_cuts(trace, [pair[n] for pair in pairs]) for n, trace in enumerate((first, second))]
    return Axis.of([SlotTimes(*cut) for cut in cuts], flush_right=1)


def by_counterpart(first: Trace, second: Trace, found: Counterparts) -> Axis:
    """Align two traces at matching kernels, by adding gaps. No gap is added if matching kernels are at most 5 µs (ANCHOR_NS)
    apart on the time axis."""
    pairs = paired_steps(first, second)
    if not pairs:
        return by_wall(first, second)
    kernels = pairs_in_same_order(found, first, second)
    bounds = np.searchsorted(found.step[kernels], np.arange(len(pairs) + 1))
    phases = [
        {step: {key: int(trace.phases.start_ns[row]) for key, row in rows.items()} for step, rows in phase_rows(trace).items()}
        for trace in (first, second)
    ]
    sides: list[tuple[list[int], list[int]]] = [([], []), ([], [])]
    cuts = [_cuts(trace, [pair[n] for pair in pairs]) for n, trace in enumerate((first, second))]
    for slot in range(len(cuts[0][0])):
        begins = [cuts[0][0][slot], cuts[1][0][slot]]
        anchors: list[tuple[int, int]] = []
        if slot:
            of = kernels[bounds[slot - 1] : bounds[slot]]
            starts = first.device.start_ns[found.first[of]], second.device.start_ns[found.second[of]]
            both = [phases[side].get(pairs[slot - 1][side], {}) for side in (0, 1)]
            anchors = _drifting(_with_phases(*starts, *both), begins[0], begins[1])
        for side, (side_starts, side_ends) in enumerate(sides):
            begin, end = begins[side], cuts[side][1][slot]
            inner = [min(max(times[side], begin), end) for times in anchors]
            side_starts += [begin, *inner]
            side_ends += [*inner, end]
    return Axis.of([SlotTimes(starts, ends) for starts, ends in sides], flush_right=1)


def _with_phases(
    first_ns: Column, second_ns: Column, ours: dict[tuple[str, int], int], theirs: dict[tuple[str, int], int]
) -> list[tuple[int, int]]:
    both = list(zip(first_ns.tolist(), second_ns.tolist(), strict=True))
    last = (-1, -1)
    for key, begin in ours.items():
        then = theirs.get(key)
        if then is not None and begin > last[0] and then > last[1]:
            positions = [np.searchsorted(times, [at, at + 1]) for times, at in ((first_ns, begin), (second_ns, then))]
            if (positions[0] == positions[1]).all() and positions[0][0] == positions[0][1]:
                both.append((begin, then))
                last = begin, then
    return sorted(both)


def _drifting(both: list[tuple[int, int]], first_ns: int, second_ns: int) -> list[tuple[int, int]]:
    chosen = []
    ahead_ns = second_ns - first_ns
    for begin, then in both:
        if abs(then - begin - ahead_ns) > ANCHOR_NS:
            chosen.append((begin, then))
            ahead_ns = then - begin
    return chosen


def phase_rows(trace: Trace) -> dict[int, dict[tuple[str, int], int]]:
    found: dict[int, dict[tuple[str, int], int]] = {}
    seen: Counter[tuple[int, str]] = Counter()
    for row, (step, name) in enumerate(zip(trace.phases.step.tolist(), trace.phases.name.tolist(), strict=True)):
        text = trace.strings[name]
        found.setdefault(step, {})[text, seen[step, text]] = row
        seen[step, text] += 1
    return found


def extent_ns(trace: Trace) -> tuple[int, int]:
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
    steps, (begin_ns, end_ns) = trace.steps, extent_ns(trace)
    first = next((row for row in rows if row != NONE), NONE)
    first_ns = int(steps.start_ns[first]) if first != NONE else end_ns
    starts, ends = [begin_ns], [first_ns]
    following = dict(itertools.pairwise(steps_in_order(trace).tolist()))
    last = max((position for position, row in enumerate(rows) if row != NONE), default=NONE)
    for position, row in enumerate(rows):
        if row == NONE:
            starts.append(ends[-1])
            ends.append(ends[-1])
            continue
        starts.append(int(steps.start_ns[row]))
        ends.append(int(steps.end_ns[row]))
        if position == last:
            ends[-1] = max(ends[-1], end_ns if following.get(row) is None else ends[-1])
        elif rows[position + 1] == following.get(row):
            ends[-1] = int(steps.start_ns[rows[position + 1]])
    return starts, ends
