"""Finds the differences between two traces, and sorts the differences by size.

    found = differences(scene)
    found[0].what, found[0].total_ns        # "longer", 4_100_000: sum over all steps, in the second trace's time
    found[0].rows                           # rows of the two device tables for the largest occurrence
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traces.comparison.counterparts import Counterparts, KernelChange, pairs_in_same_order
from traces.comparison.thresholds import LEAST_PHASE_NS, SAME_KERNEL_SHARE
from traces.figures.measure import device_ranks, launch_phases, op_of, work_rows
from traces.model.intervals import Intervals
from traces.model.row_order import differs
from traces.model.trace import NONE, Column, StepKind, Trace
from tui.view.scene.alignment import ANCHOR_NS, phase_rows
from tui.view.scene.difference import Difference
from tui.view.scene.scene import TABLE_ROWS, Scene
from tui.view.scene.tracks import rows_by_key

_WORDS = {
    KernelChange.LONGER: "longer",
    KernelChange.SHORTER: "shorter",
    KernelChange.OTHER_KERNEL: "another kernel",
    KernelChange.GONE: "gone",
    KernelChange.NEW: "new",
}


def differences(scene: Scene, *, everything: bool = False) -> tuple[Difference, ...]:
    """Return up to TABLE_ROWS differences, largest first. With `everything`, the result also contains differences in warm-up
    steps and in the time spent waiting for data."""
    found = scene.counterparts
    if found is None:
        return ()
    chosen = np.zeros(len(scene.step_pairs) or 1, dtype=bool)
    chosen[compared_pairs(scene, everything=everything)] = True
    all_of_them = [
        *_of_kernels(scene, found, chosen, everything),
        *_of_waits(scene, found, chosen, everything),
        *_of_phases(scene, chosen, everything),
    ]
    return tuple(sorted(all_of_them, key=lambda one: (-abs(one.total_ns), one.name))[:TABLE_ROWS])


def compared_pairs(scene: Scene, *, everything: bool = False) -> list[int]:
    """Return the pairs of steps that should be compared, as indices of `scene.step_pairs`. Return [0] for traces without
    steps."""
    if not scene.step_pairs:
        return [0]
    odd = (StepKind.WARMUP, StepKind.INCOMPLETE, StepKind.AFTER_PROFILE)
    both = [n for n, pair in enumerate(scene.step_pairs) if NONE not in pair]
    clean = [
        n
        for n in both
        if not any(int(trace.steps.kind[row]) in odd for trace, row in zip(scene.traces, scene.step_pairs[n], strict=True))
    ]
    return both if everything or not clean else clean


def _of_kernels(scene: Scene, found: Counterparts, chosen: Column, everything: bool) -> list[Difference]:
    positions = np.flatnonzero((found.change != KernelChange.SAME) & chosen[found.step])
    own = np.where(found.first[positions] != NONE, 0, 1)  # the name comes from the trace that has the kernel
    ours, theirs = _names(scene.traces[0])[:, found.first[positions]], _names(scene.traces[1])[:, found.second[positions]]
    names = np.where(own == 0, ours, theirs)
    became = np.where(found.change[positions] == KernelChange.OTHER_KERNEL, theirs[2], NONE)
    sides = found.first, found.second
    # the index NONE (-1) selects the appended 0
    times_ns = [np.append(trace.device.duration_ns, 0)[of] for trace, of in zip(scene.traces, sides, strict=True)]
    changes = _ChangedRows("device", found.step, found.change_ns, sides, times_ns)
    made = []
    for group in _groups(found.change[positions], own, *names, became):
        of, strings = positions[group], scene.traces[own[group[0]]].strings
        phase, op, name = (strings[int(number)] for number in names[:, group[0]])
        if phase != "loader" or everything:
            other_name = scene.traces[1].strings[int(became[group[0]])]
            what = _WORDS[KernelChange(int(found.change[of[0]]))]
            made.append(changes.difference(of, what, name, op, phase, other_name))
    return made


def _of_waits(scene: Scene, found: Counterparts, chosen: Column, everything: bool) -> list[Difference]:
    order = pairs_in_same_order(found, *scene.traces)
    order = order[chosen[found.step[order]]]
    sides = found.first[order], found.second[order]
    idle = [
        _idle_before(trace, rows, found.step[order], [pair[side] for pair in scene.step_pairs], everything)
        for side, (trace, rows) in enumerate(zip(scene.traces, sides, strict=True))
    ]
    changes = _ChangedRows("device", found.step[order], idle[1] - idle[0], sides, idle)
    positions = np.flatnonzero(np.abs(changes.change_ns) > ANCHOR_NS)
    names = _names(scene.traces[0])[:, sides[0][positions]]
    made = []
    for group in _groups(changes.change_ns[positions] > 0, *names):
        what = "waits longer" if changes.change_ns[positions[group[0]]] > 0 else "waits less"
        phase, op, name = (scene.traces[0].strings[int(number)] for number in names[:, group[0]])
        made.append(changes.difference(positions[group], what, name, op, phase))
    return made


@dataclass(frozen=True)
class _ChangedRows:
    table: str
    step: Column
    change_ns: Column
    rows: Sequence[Column]
    times_ns: Sequence[Column]

    def difference(self, of: Column, what: str, name: str, op: str, phase: str, other_name: str = "") -> Difference:
        largest = of[np.argmax(np.abs(self.change_ns[of]))]
        rows, times = ((int(first[largest]), int(second[largest])) for first, second in (self.rows, self.times_ns))
        often = len(of), len(np.unique(self.step[of])), int(self.change_ns[of].sum()), int(self.step[largest])
        return Difference(what, self.table, name, other_name, op, phase, *often, rows, times)


def _idle_before(trace: Trace, rows: Column, pair: Column, steps: list[int], everything: bool) -> Column:
    """Return how long the GPU was idle before each kernel. The kernels must be sorted by time."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    spans = trace.device
    work = work_rows(trace)
    ranks = device_ranks(trace)
    work = work[ranks[work] == ranks[rows[0]]]
    start_ns, end_ns = spans.start_ns[work], spans.end_ns[work]
    if not everything:
        loader = np.flatnonzero(trace.phases.name == trace.strings.find("loader"))
        start_ns = np.concatenate([start_ns, trace.phases.start_ns[loader]])
        end_ns = np.concatenate([end_ns, trace.phases.end_ns[loader]])
    begin = spans.start_ns[rows]
    before = np.concatenate([begin[:1], spans.end_ns[rows[:-1]]])
    first = differs(pair)
    if steps:
        before[first] = trace.steps.start_ns[np.array(steps)[pair[first]]]
    before = np.minimum(before, begin)
    return np.asarray(begin - before - Intervals(start_ns, end_ns).within(before, begin))


def _of_phases(scene: Scene, chosen: Column, everything: bool) -> list[Difference]:
    first, second = scene.traces
    if first.phase_timing is not second.phase_timing or not scene.step_pairs:
        return []
    segments = [phase_rows(trace) for trace in scene.traces]
    of_name: dict[str, list[tuple[int, int, int]]] = {}
    for pair in np.flatnonzero(chosen).tolist():
        ours, theirs = (segments[side].get(scene.step_pairs[pair][side], {}) for side in (0, 1))
        for key in filter(theirs.__contains__, ours):
            of_name.setdefault(key[0], []).append((pair, ours[key], theirs[key]))
    made = []
    for name, found in of_name.items():
        numbers, *rows = (np.array(column) for column in zip(*found, strict=True))
        times_ns = [trace.phases.duration_ns[of] for trace, of in zip(scene.traces, rows, strict=True)]
        changes = _ChangedRows("phases", numbers, times_ns[1] - times_ns[0], rows, times_ns)
        unlike = np.flatnonzero(np.abs(changes.change_ns) > np.maximum(SAME_KERNEL_SHARE * times_ns[0], LEAST_PHASE_NS))
        if len(unlike) and (name != "loader" or everything):
            what = "phase longer" if changes.change_ns[unlike].sum() > 0 else "phase shorter"
            made.append(changes.difference(unlike, what, name, "", name))
    return made


def _names(trace: Trace) -> Column:
    phase, op = np.append(trace.phases.name, NONE)[launch_phases(trace)], np.append(trace.host.name, NONE)[op_of(trace)]
    return np.append(np.stack([phase, op, trace.device.name]), np.full((3, 1), NONE), axis=1)


def _groups(*keys: Column) -> list[Column]:
    return [positions for _, positions in rows_by_key(np.arange(len(keys[0])), *reversed(keys))]
