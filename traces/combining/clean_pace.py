"""Estimates the host times that profiled steps would have without the profiler.

    pace = CleanPace(trace, rank=0, waits=host_waits(trace, rank=0).intervals)
    pace.own_ns(times_ns)                       # recorded host times without waits and the profiler's cost
    pace.scale[phase_row]                       # a factor for the remaining time

Note [Interrupted steps]
    Another program may interrupt the script in one of the few profiled steps. The time between two neighboring ops or launches
    is therefore replaced by its median over these steps. For example, the second gap between `aten::mm` and `aten::add` in the
    forward pass is compared with the second such gap in the forward passes of the other steps, which may call other ops, too.
    These medians are then multiplied by one number, so that a typical forward pass keeps its length. Only the ops and launches
    of the thread with the most events are compared, because the events of several threads come in a random order.

Note [Stalls in some steps]
    A script may also wait in some of its steps, for example in every fourth step. A profiled phase is unusual if it is at least
    `LONG_STEP` times as long or as short as the median phase of the same kind. Each unusual phase is compared with the clean
    phase at the same percentile: the longest of four profiled phases, for example, with the 87.5th percentile of the clean
    phases. The profiled phase keeps its gaps if this clean phase is as unusual, and a part of its gaps if it is less unusual.

Note [Outliers in profiled steps]
    A profiled step may contain work that no other step contains, for example saving a checkpoint. A replay would then be too
    slow in other steps. A profiled phase is an outlier if it takes more than `OUTLIER_TIMES` times as long as the longest phase
    of the same kind without the profiler. The replay uses the median time of the other profiled phases instead.

Note [The wait for a batch]
    The profiler slows a step, so the loader has more time to prepare a batch and profiled steps wait less. The waits in
    profiled steps are therefore replaced by the waits in clean steps. Training and evaluation may use different loaders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Self

import numpy as np

from traces.combining.phase_labels import LOADER, LOADERS, PhaseLabels, counts_in
from traces.combining.profiled_steps import HostEvents, ProfiledSteps, active_ns, median_or_zero
from traces.comparison.thresholds import FEWEST_ALIKE, LEAST_GAP_NS, LONG_STEP, OUTLIER_TIMES
from traces.figures.measure import compiles_in_evaluation
from traces.model.intervals import Intervals
from traces.model.row_order import differs, lists_by_key
from traces.model.run import ProfilerCost, Run
from traces.model.trace import NONE, WITHOUT_PROFILER, Column, StepKind, Trace

_FAR_NS = 1 << 52
_PHASE = -2  # takes the place of an event's name at the start and the end of a phase


class CleanPace:
    def __init__(self, trace: Trace, rank: int, waits: Intervals, run: Run | None = None) -> None:
        run = run or trace.run_of(rank)
        self._waits = waits
        self._without_cost: WithoutCost | None = None
        self._by_stage: _StagePace | None = None
        factors = {name: factor for name, factor in run.host_scale.items() if 0 < factor < np.inf}
        labels = PhaseLabels(trace, counts_in(factors))
        keys = zip(labels.texts, labels.names, labels.phases, strict=True)
        # see Note [The clean steps decide] in profiler_cost.py
        by_label = [factors.get(text, factors.get(name, min(factors.get(phase, 1.0), 1.0))) for text, name, phase in keys]
        self.scale = np.array([*by_label, 1.0])[labels.of]
        if run.profiler_cost is None:
            return
        events = HostEvents.of(trace, rank)
        steps = ProfiledSteps(trace, rank, events)
        self.scale[np.setdiff1d(np.arange(len(trace.phases)), steps.rows)] = 1.0
        self._without_cost = WithoutCost.of(trace, events, run.profiler_cost, steps, labels, waits)
        self._by_stage = _StagePace(trace, steps.rows, waits, self._without_cost)
        own_ns = self.own_ns(trace.phases.end_ns[steps.rows]) - self.own_ns(trace.phases.start_ns[steps.rows])
        is_clean, before = (_without_profiler(trace, steps, kinds) for kinds in (WITHOUT_PROFILER, [StepKind.STEADY]))
        for text in sorted(steps.texts(labels), key=LOADERS.__contains__):
            places = steps.rows_by_step(labels, [text])
            of_steps = np.array([own_ns[of].sum() for of in places], dtype=np.float64)
            if text in LOADERS:
                usual_ns = _by_rank(of_steps, _clean_loader_ns(trace, before[text != LOADER]))
                unseen_ns = np.bincount(steps.of, own_ns * self.scale[steps.rows] * steps.unseen, len(trace.steps))
                usual_ns = np.maximum(usual_ns - unseen_ns[steps.of[[of[0] for of in places]]], 0)
            else:
                kinds = trace.steps.kind[trace.phases.step[[steps.rows[of[0]] for of in places]]]
                scale = self.scale[steps.rows[places[0][0]]]  # one factor for all phases with this label
                usual_ns = of_steps + (scale - 1) * np.minimum(of_steps, median_or_zero(of_steps) if scale > 1 else np.inf)
                for kind in np.unique(kinds).tolist():
                    own, clean = kinds == kind, is_clean[kind == StepKind.EVALUATION] & (labels.of == labels.ids[text])
                    of_clean, of_step = np.unique(trace.phases.step[clean], return_inverse=True)
                    clean_ns = np.bincount(of_step, trace.phases.duration_ns[clean], len(of_clean))
                    usual_ns[own] = _without_outliers(usual_ns[own], clean_ns)
                usual_ns /= scale
            for of, has_ns, wanted_ns in zip(places, of_steps.tolist(), usual_ns.tolist(), strict=True):
                if has_ns > 0:
                    self.scale[steps.rows[of]] *= wanted_ns / has_ns

    def own_ns(self, times_ns: Column) -> Column:
        """Subtract the profiler's cost and the waits for the GPU from the times of CPU events."""
        times_ns = active_ns(times_ns, self._waits)
        if self._without_cost is None or self._by_stage is None:
            return times_ns
        return self._by_stage(self._without_cost(times_ns))


class WithoutCost:
    # see Note [The profiler's cost per event] in profiler_cost.py, and Note [Interrupted steps]
    def __init__(
        self, events: HostEvents, cost_ns: Column, kinds: Column, clean_ns: Sequence[Column], steps: Column, start_ns: Column,
        end_ns: Column,
    ) -> None:  # fmt: skip
        self.zero_ns = int(start_ns[0]) if len(start_ns) else 0  # np.interp uses floats, which cannot hold unix times in ns
        times = events.time_ns - self.zero_ns
        windows, gaps_ns, owed_ns, begun_by = [], [], [], []
        for window in zip((start_ns - self.zero_ns).tolist(), (end_ns - self.zero_ns).tolist(), strict=True):
            first, last = times.searchsorted(window)
            windows.append(np.concatenate((window[:1], times[first:last], window[1:])))
            gaps_ns.append(np.diff(windows[-1]).astype(np.float64))
            owed_ns.append(np.append(cost_ns[first:last], 0.0))
            thread = events.thread[first:last]
            is_busiest = thread == np.bincount(thread, minlength=1).argmax()
            begun_by.append(np.append(_PHASE, np.where(is_busiest, events.name[first:last], NONE)))
        gaps_ns = _usual_gaps(gaps_ns, begun_by, kinds, clean_ns, steps) if gaps_ns else []
        before, after, removed_ns = [np.array([-_FAR_NS])], [np.array([-_FAR_NS], dtype=np.float64)], 0.0
        for at, recorded_ns, owed in zip(windows, gaps_ns, owed_ns, strict=True):
            # From the time between two CPU events, subtract the time that the profiler needs to record one event.
            balance = np.cumsum(owed - np.maximum(recorded_ns - float(LEAST_GAP_NS), 0.0))
            backlog = balance - np.minimum(np.minimum.accumulate(balance), 0.0)
            own_ns = recorded_ns - np.diff(np.cumsum(owed) - backlog, prepend=0.0)
            before.append(at)
            after.append(at[0] - removed_ns + np.append(0.0, np.cumsum(own_ns)))
            removed_ns = float(at[-1] - after[-1][-1])
        before.append(np.array([_FAR_NS]))
        after.append(np.array([_FAR_NS - removed_ns]))
        self._before, self._after = np.concatenate(before), np.concatenate(after)

    @classmethod
    def of(
        cls, trace: Trace, events: HostEvents, cost: ProfilerCost, steps: ProfiledSteps, labels: PhaseLabels, waits: Intervals
    ) -> Self:
        per_kind = np.append(np.array([getattr(cost, field.name) for field in fields(cost)], dtype=np.float64), 0.0)
        phases = trace.phases.take(steps.rows)
        windows = active_ns(phases.start_ns, waits), active_ns(phases.end_ns, waits)
        waits_for_data = np.arange(len(phases)) * (phases.name == trace.strings.find(LOADER))
        columns = labels.of[steps.rows], trace.steps.kind[phases.step], waits_for_data
        (label, kind, _), kinds = np.unique(columns, axis=1, return_inverse=True)
        is_clean = _without_profiler(trace, steps, [StepKind.STEADY])
        rows = [is_clean[int(of == StepKind.EVALUATION)] & (labels.of == name) for name, of in zip(label, kind, strict=True)]
        clean_ns = [trace.phases.duration_ns[of] for of in rows]
        active = events._replace(time_ns=active_ns(events.time_ns, waits))
        return cls(active, per_kind[events.kind], kinds.reshape(-1), clean_ns, phases.step, *windows)

    def __call__(self, times_ns: Column) -> Column:
        moved = np.interp(np.asarray(times_ns) - self.zero_ns, self._before, self._after)
        return np.asarray(np.rint(moved).astype(np.int64) + self.zero_ns)


def _usual_gaps(
    gaps_ns: Sequence[Column], begun_by: Sequence[Column], kinds: Column, clean_ns: Sequence[Column], steps: Column
) -> list[Column]:
    # see Note [Interrupted steps]
    all_ns, names = np.concatenate(gaps_ns), np.concatenate(begun_by)
    begins = np.flatnonzero(names != NONE)
    between_ns, phase = np.add.reduceat(all_ns, begins), np.repeat(np.arange(len(kinds)), [*map(len, gaps_ns)])
    places, step = np.arange(len(begins)), steps[phase[begins]]
    ids = np.unique(names[begins], return_inverse=True)[1]
    key = (kinds[phase[begins]] * len(names) + ids) * len(names) + np.roll(ids, -1)  # a phase's last gap ends with `_PHASE`
    order = np.lexsort((step, key))
    number = np.empty_like(order)
    number[order] = places - np.maximum.accumulate(places * differs(step[order], key[order]))
    order = np.lexsort((between_ns, number, key))
    firsts = np.flatnonzero(differs(number[order], key[order]))
    counts = np.diff(firsts, append=len(order))
    usual_ns = np.empty_like(between_ns)
    usual_ns[order] = np.repeat(between_ns[order[firsts + (counts - 1) // 2]], counts)
    ratio = np.divide(usual_ns, between_ns, out=np.ones_like(usual_ns), where=between_ns > 0)
    found = np.split(all_ns * np.repeat(ratio, np.diff(begins, append=len(names))), np.flatnonzero(np.diff(phase)) + 1)
    recorded_ns, found_ns = (np.array([gaps.sum() for gaps in of]) for of in (gaps_ns, found))
    longer = np.divide(recorded_ns, found_ns, out=np.ones_like(found_ns), where=found_ns > 0)
    shares, factors = np.zeros(len(kinds)), np.ones(len(kinds))
    for kind, of_clean_ns in enumerate(clean_ns):
        own = kinds == kind
        shares[own] = _shares_kept(recorded_ns[own], of_clean_ns)
        factors[own] = (1 - shares[own]) * np.percentile(longer[own], 50, method="lower")
    return [share * gaps + factor * usual for share, gaps, factor, usual in zip(shares, gaps_ns, factors, found, strict=True)]


def _shares_kept(profiled_ns: Column, clean_ns: Column) -> Column:
    # see Note [Stalls in some steps]
    both_ns = np.stack((profiled_ns, _by_rank(profiled_ns, clean_ns if len(clean_ns) >= FEWEST_ALIKE else np.ones(1))))
    profiled, clean = relative = both_ns / np.maximum(np.percentile(both_ns, 50, axis=1, method="lower", keepdims=True), 1)
    are_far = (relative >= LONG_STEP).all(axis=0) | (LONG_STEP * relative <= 1).all(axis=0)
    return np.asarray(np.divide(clean - 1, profiled - 1, out=np.zeros_like(clean), where=are_far).clip(max=1.0))


class _StagePace:
    # see Note [Threads at the same time] in profiler_cost.py
    def __init__(self, trace: Trace, rows: Column, waits: Intervals, without_cost: WithoutCost) -> None:
        phases, self._zero_ns = trace.phases, without_cost.zero_ns
        with_stages = np.unique(trace.parts.phase[trace.parts.phase != NONE])
        steady = with_stages[trace.steps.kind[phases.step[with_stages]] == StepKind.STEADY].tolist()
        clean = lists_by_key((names, np.diff(moments_ns)) for names, moments_ns in (_stages(trace, row) for row in steady))
        before, after = [np.array([-_FAR_NS])], [np.array([-_FAR_NS], dtype=np.float64)]
        for row in rows[np.isin(rows, with_stages)].tolist():
            names, moments_ns = _stages(trace, row)
            shares = np.median(clean.get(names, [np.zeros(1)]), axis=0)
            if not shares.any() or waits.within(phases.start_ns[row : row + 1], phases.end_ns[row : row + 1]).any():
                continue
            at_ns = without_cost(active_ns(moments_ns, waits)) - self._zero_ns
            before.append(at_ns)
            after.append(at_ns[0] + np.append(0.0, np.cumsum(shares)) * (at_ns[-1] - at_ns[0]) / shares.sum())
        self._before, self._after = (np.concatenate([*ends, [_FAR_NS]]) for ends in (before, after))

    def __call__(self, times_ns: Column) -> Column:
        moved = np.interp(times_ns - self._zero_ns, self._before, self._after)
        return np.asarray(np.rint(moved).astype(np.int64) + self._zero_ns)


def _stages(trace: Trace, row: int) -> tuple[tuple[int, ...], Column]:
    parts, phases = trace.parts, trace.phases
    names, moments_ns = [int(phases.name[row])], [int(phases.start_ns[row])]
    for name in dict.fromkeys(parts.name[parts.phase == row].tolist()):
        alike = (parts.phase == row) & (parts.name == name)
        begin_ns, end_ns = int(parts.start_ns[alike].min()), int(parts.end_ns[alike].max())
        if moments_ns[-1] <= begin_ns and end_ns <= phases.end_ns[row]:
            names.append(name)
            moments_ns += [begin_ns, end_ns]
    return tuple(names), np.array([*moments_ns, int(phases.end_ns[row])])


def _without_profiler(trace: Trace, steps: ProfiledSteps, kinds: Sequence[StepKind]) -> tuple[Column, Column]:
    """Mark the phases of training steps of the given kinds, and the phases of evaluation steps."""
    kind, of = trace.steps.kind, trace.phases.step
    is_own = (trace.steps.rank == steps.rank) & ~np.isin(np.arange(len(trace.steps)), steps.steps)
    training = is_own & np.isin(kind, kinds)
    evaluation = is_own & (kind == StepKind.EVALUATION) & ~compiles_in_evaluation(trace)
    return np.append(training, False)[of], np.append(evaluation, False)[of]


def _without_outliers(values_ns: Column, clean_ns: Column) -> Column:
    # see Note [Outliers in profiled steps]
    is_outlier = values_ns > OUTLIER_TIMES * clean_ns.max(initial=0)
    if len(clean_ns) < FEWEST_ALIKE or is_outlier.all():
        return values_ns
    return np.asarray(np.where(is_outlier, median_or_zero(values_ns[~is_outlier]), values_ns))


def _clean_loader_ns(trace: Trace, is_clean: Column) -> Column:
    # see Note [The wait for a batch]
    phases = trace.phases
    rows = np.flatnonzero((phases.name == trace.strings.find(LOADER)) & is_clean)
    steps = np.unique(phases.step[rows])
    waited_ns = np.bincount(phases.step[rows], phases.duration_ns[rows], len(trace.steps))[steps]
    whole_ns = trace.steps.duration_ns[steps]
    missing_ns = median_or_zero(whole_ns) - median_or_zero(whole_ns - waited_ns) - median_or_zero(waited_ns)
    return np.asarray(np.maximum(waited_ns + missing_ns, 0))


def _by_rank(values: Column, others: Column) -> Column:
    if not len(others):
        return values
    rank = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return np.asarray(np.quantile(others, (rank + 0.5) / len(values)))
