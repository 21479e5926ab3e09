"""Chooses the training steps of two traces for a comparison.

    ours, theirs = steps_to_compare(recorded, replay)       # rows of the step tables: steady steps that a replay repeated
    without_profiler(recorded, ours)                        # the clean steps whose times stand for those of profiled steps
    steps_of_kernels(recorded, ours, replay, theirs)        # the steps with equal kernels, paired by step number
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

import numpy as np

from traces.comparison.thresholds import MATCHED_STEP
from traces.figures import measure
from traces.model.trace import NONE, STEP_MARKS, Column, Origin, StepKind, Trace

_IN_A_RUN = 500  # number of last steps in which to look for equal sequences of steps


def steps_to_compare(recorded: Trace, other: Trace) -> tuple[Column, Column]:
    """Choose the steps to compare: in a recording the profiled steps, in a replay all steps after the warm-up. If no steps were
    found in one of two recordings, whole recordings are compared."""
    without = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    if not len(recorded.steps) or not len(other.steps):
        return without
    source = other.steps.recorded_step
    driven = (source >= 0) & (source < len(recorded.steps))
    if not driven.any() or not other.is_replay_of(recorded):
        lacks_marks = [STEP_MARKS in trace.lacks for trace in (recorded, other)]
        has_several = any(len(trace.steps) > len(trace.ranks) for trace in (recorded, other))
        if lacks_marks[0] != lacks_marks[1] and has_several:
            return without
        return _same_kinds(recorded, measure.profiled_steps(recorded), other, measure.profiled_steps(other))
    trained = driven & (other.steps.kind != StepKind.EVALUATION)
    steady = trained & (other.steps.kind != StepKind.WARMUP)
    evaluations = measure.evaluation_steps(recorded)
    # In a step that compiles code, Inductor may run additional kernels to measure their times.
    without_compiling = evaluations[~measure.compiles_in_evaluation(recorded)[evaluations]]
    evaluated, clean = (driven & np.isin(source, rows) for rows in (evaluations, without_compiling))
    rows = np.flatnonzero(next((chosen for chosen in (steady, trained, clean) if chosen.any()), evaluated))
    return source[rows].astype(np.int64), rows


def steps_of_kernels(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> tuple[Column, Column]:
    """Choose the steps for a comparison of kernels. Replayed steps with mostly estimated kernel times are left out."""
    if not np.array_equal(other.steps.recorded_step[theirs], ours):
        return ours, theirs
    rows, step_of = measure.work_rows(other), measure.launch_steps(other)
    rows = rows[step_of[rows] != NONE]
    steps, duration_ns = step_of[rows], other.device.duration_ns[rows]
    is_recorded = np.isin(other.device.origin[rows], (Origin.EXACT, Origin.EQUIVALENT, Origin.PHASE))
    whole_ns, recorded_ns = (np.bincount(steps, ns, len(other.steps)) for ns in (duration_ns, duration_ns * is_recorded))
    matched = (recorded_ns >= MATCHED_STEP * whole_ns)[theirs]
    if matched.any():
        ours, theirs = ours[matched], theirs[matched]
    step_of = measure.launch_steps(recorded)[measure.work_rows(recorded)]
    launched = np.bincount(step_of[step_of != NONE], minlength=len(recorded.steps))
    is_own = other.steps.number[theirs] == recorded.steps.number[ours]
    return (ours[is_own], theirs[is_own]) if len(np.unique(launched[ours])) > 1 and is_own.any() else (ours, theirs)


def steps_of_verdict(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> tuple[Column, Column]:
    """Select the training steps of both traces that are compared to find out whether both traces are of the same program. A
    replayed step is compared with the recorded step of the same number."""
    rows = np.unique(ours)
    row_of = dict(zip(_rank_and_number(other, theirs), theirs.tolist(), strict=True))
    same = np.array([row_of.get(key, NONE) for key in _rank_and_number(recorded, rows)], np.int64)
    passes = measure.passes_of_steps
    if other.is_replay and (same != NONE).all() and (passes(recorded)[rows] == passes(other)[same]).all():
        return rows, same
    return _same_kinds(recorded, ours, other, theirs)


def _rank_and_number(trace: Trace, rows: Column) -> Iterator[tuple[int, int]]:
    return zip(trace.steps.rank[rows].tolist(), trace.steps.number[rows].tolist(), strict=True)


def _same_kinds(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> tuple[Column, Column]:
    rows = [np.unique(one)[-_IN_A_RUN:] for one in (ours, theirs)]
    kinds = [measure.passes_of_steps(trace)[of].tolist() for trace, of in zip((recorded, other), rows, strict=True)]
    if len(set(kinds[0])) < 2 or set(kinds[0]) != set(kinds[1]):
        return ours, theirs
    at, there, count = SequenceMatcher(a=kinds[0], b=kinds[1], autojunk=False).find_longest_match()
    if set(kinds[0][at : at + count]) != set(kinds[0]):
        return ours, theirs
    return rows[0][at : at + count], rows[1][there : there + count]


def without_profiler(trace: Trace, rows: Column) -> Column:
    profiled = measure.ran_under_profiler(trace)
    clean = measure.clean_steps(trace, trains=bool((trace.steps.kind[rows] == StepKind.PROFILED).any()))
    if not len(clean) or not profiled[rows].any():
        return rows
    passes = measure.passes_of_steps(trace)
    kinds, counts = np.unique(passes[rows], return_counts=True)
    if len(kinds) == 1 or not np.isin(kinds, passes[clean]).all():
        return clean
    return np.concatenate([np.resize(clean[passes[clean] == kind], count) for kind, count in zip(kinds, counts, strict=True)])


def shared_evaluations(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> tuple[Column, Column]:
    # Evaluation steps may differ in length, for example in text generation, and a replay repeats them in order.
    is_clean = not np.array_equal(other.steps.recorded_step[theirs], ours)
    if not is_clean or not other.is_replay_of(recorded) or (recorded.steps.kind[ours] != StepKind.EVALUATION).any():
        return ours, theirs
    keys = [trace.steps.number[of] << 32 | trace.steps.rank[of] for trace, of in ((recorded, ours), (other, theirs))]
    known = [np.isin(own, others) for own, others in (keys, keys[::-1])]
    return (ours[known[0]], theirs[known[1]]) if known[0].any() else (ours, theirs)
