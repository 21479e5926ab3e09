"""Estimates how much CPU time torch.profiler used in profiled steps, and subtracts this time.

    run = with_clean_pace(run, trace, rank=0)   # run.profiler_cost.op_ns == 480, run.host_scale["forward"] == 0.98
    pace = CleanPace(trace, rank=0, waits=host_waits(trace, rank=0).intervals)
    pace.own_ns(times_ns)                       # recorded host times without waits and the profiler's cost
    pace.scale[phase_row]                       # a factor for the remaining time

Note [The profiler's cost per event]
    The profiler takes host time just before it reads the start time of an event. The gap between two events is therefore
    reduced by the cost of the later event, but never below `LEAST_GAP_NS`. For each phase, host time in profiled steps minus
    host time in clean steps is the sum of the costs of its events. First, one common factor for all costs in `EVENT_COSTS` is
    fitted. Then the cost of each kind of event is fitted. Large deviations from the first fit are penalized
    (`EVENT_COST_SPREAD`). Short phases vary less than long phases, so they count more. All costs are therefore reduced until
    they add up to at most the slowdown of the whole step.

Note [Interrupted steps]
    Another program may interrupt the script in one of the few profiled steps. Each gap between two events therefore has the
    same share of the phase in all steps with the same events: the median gap. The profiler's cost is subtracted from the
    median gaps. Medians of the reduced gaps would be wrong: a short gap is reduced to `LEAST_GAP_NS` in most steps, so its
    median loses the time of the other steps, and the few long gaps would have to make up for that time.

Note [Outliers in profiled steps]
    A profiled step may contain work of the script that no other step contains, for example a checkpoint, and a replay would
    repeat its time in other steps. A profiled phase is an outlier if it takes more than `OUTLIER_TIMES` times as long as the
    longest clean phase with the same label. A phase with twice as many ops as the median may take twice as long. An outlier
    takes the median time of the other profiled phases with this label. If all of them are as long, the recorder saw only a part
    of the clean phases, and nothing is changed.

Note [The clean steps decide]
    The remaining difference is distributed proportionally: the factor `host_scale` of a phase makes the median of its profiled
    steps equal to the median of its clean steps. Phases with one name are compared one by one (phase_labels.py). Each kind of
    step, given by its numbers of backward passes and optimizer steps, has its own factors if at least `FEWEST_ALIKE` profiled
    and clean steps are of this kind. Only the host's own time is compared. A phase with synchronous calls also waits for the
    GPU. Its launches and calls are therefore repeated with scaled host times: the GPU starts with its lag at the start of the
    phase, and each call waits until the GPU has finished. The chosen factor is the smallest factor that makes the phase as
    long as in clean steps. If launches may wait too, the host waits for the whole lag and for all launched work.

Note [A full launch queue]
    A host that runs ahead of the GPU waits when the launch queue is full. A profiled host is slower, and may never fill the
    queue. Clean phases that begin or end with a nearly full queue are therefore left out. The number of queued launches is
    estimated from the GPU's lag, and from the launches and the GPU time of each phase in profiled steps.

Note [Phases with different names]
    If recorder and profile name different phases, a phase that only one of them names is added to the phase before it. The same
    applies to a forward pass without module calls: in clean steps, the recorder sees only its end (phase_rule.py). The caller
    passes such phases as `cut_otherwise`, because the recorder has also cut the profiled steps.

Note [Threads at the same time]
    The replicas of nn.DataParallel run in threads, and each thread waits for Python's lock while another thread runs. A
    profiler makes these waits longer, so the costs are fitted to the other phases, if there are any. All costs are reduced by a
    common factor until no phase with stages costs more than its measured slowdown. Stages divide their phase in the same
    proportions as in the clean steps, and all replicas count as one stage.

Note [The wait for a batch]
    The profiler slows a step, so the loader has more time to prepare a batch and profiled steps wait less. Each profiled step
    gets a wait from the clean steps by rank: the longest wait replaces the longest, and so on. All waits are then shifted until
    the median step equals the median clean step. The recorder does not see ops, so in clean steps the wait includes ops just
    before it. A profile names these ops "other". Such phases are not compared, and their time is subtracted from the wait.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Self

import numpy as np

from traces.analyses.modules import PREFIX
from traces.analyses.waits import HostWaits, host_waits, synchronous_calls
from traces.combining.phase_labels import LOADER, PhaseLabels, common_counts, counts_in
from traces.comparison.thresholds import (
    EVENT_COST_SPREAD,
    EVENT_COSTS,
    FEWEST_ALIKE,
    FULL_QUEUE,
    LEAST_GAP_NS,
    LEAST_NOISE,
    NEARLY_FULL,
    OUTLIER_TIMES,
)  # fmt: skip
from traces.figures.measure import clean_steps, launch_phases, passes_of_steps, work_rows
from traces.model.intervals import Intervals
from traces.model.run import ProfilerCost, Run
from traces.model.trace import NONE, WITHOUT_PROFILER, Column, HostKind, StepKind, Trace

# Kinds of events, in the order of the fields of ProfilerCost
OP, PLAIN_OP, RANGE, MODULE, RUNTIME, LAUNCH, MEMORY = range(7)

_MOST_ROUNDS = 1000
_HALVINGS = 20
_WAIT = -1.0  # in place of a GPU time, which is never negative: the host waits
_FAR_NS = 1 << 52

Earlier = dict[str, str | None]  # by name of a phase: the name of the phase before it


class HostEvents(NamedTuple):
    time_ns: Column
    kind: Column  # NONE marks the end of an event

    @classmethod
    def of(cls, trace: Trace, rank: int) -> HostEvents:
        host, memory = trace.host, trace.memory
        launches = trace.device.launch[work_rows(trace)]
        launches = launches[launches != NONE]
        launching = set(np.unique(host.thread[launches]).tolist())
        own = [row for row, thread in enumerate(trace.threads) if thread.rank == rank]
        chosen = [row for row in own if row in launching or trace.threads[row].role == "main"]
        is_event = np.isin(host.kind, (HostKind.OP, HostKind.ANNOTATION, HostKind.RUNTIME))
        rows = np.flatnonzero(np.isin(host.thread, chosen) & is_event)
        is_launch = np.zeros(len(host), dtype=bool)
        is_launch[launches] = True
        kind = np.where(host.shapes[rows] != NONE, OP, PLAIN_OP)
        kind[host.kind[rows] == HostKind.ANNOTATION] = RANGE
        kind[trace.strings.matching(host.name[rows], lambda text: text.startswith(PREFIX))] = MODULE
        calls = host.kind[rows] == HostKind.RUNTIME
        kind[calls] = np.where(is_launch[rows[calls]], LAUNCH, RUNTIME)
        requests = memory.time_ns[np.isin(memory.thread, chosen)]
        times = np.concatenate((host.start_ns[rows], requests, host.end_ns[rows]))
        kinds = np.concatenate((kind, np.full(len(requests), MEMORY), np.full(len(rows), NONE)))
        order = np.argsort(times, kind="stable")
        return cls(times[order], kinds[order])

    def counts(self, start_ns: Column, end_ns: Column) -> Column:
        started = np.cumsum(self.kind[:, None] == np.arange(len(EVENT_COSTS)), axis=0)
        started = np.concatenate((np.zeros((1, len(EVENT_COSTS)), dtype=np.int64), started))
        return np.asarray(started[self.time_ns.searchsorted(end_ns)] - started[self.time_ns.searchsorted(start_ns)])


class _WithoutCost:
    # see Note [The profiler's cost per event] and Note [Interrupted steps]
    def __init__(
        self, times_ns: Column, cost_ns: Column, kinds: Column, of: Sequence[tuple[int, int]], start_ns: Column, end_ns: Column
    ) -> None:
        """The profiler used `cost_ns` before each event."""
        self.zero_ns = int(start_ns[0]) if len(start_ns) else 0  # np.interp uses floats, which cannot hold unix times in ns
        times = times_ns - self.zero_ns
        windows, gaps_ns, owed_ns, alike = [], [], [], defaultdict[tuple[int, int, bytes], list[int]](list)
        for place, window in enumerate(zip((start_ns - self.zero_ns).tolist(), (end_ns - self.zero_ns).tolist(), strict=True)):
            first, last = times.searchsorted(window)
            windows.append(np.concatenate((window[:1], times[first:last], window[1:])))
            gaps_ns.append(np.diff(windows[-1]).astype(np.float64))
            owed_ns.append(np.append(cost_ns[first:last], 0.0))
            if first < last:
                alike[*of[place], kinds[first:last].tobytes()].append(place)
        for places in alike.values():
            if len(places) >= FEWEST_ALIKE:
                recorded = np.array([gaps_ns[place] for place in places])
                usual_ns = np.median(recorded, axis=0)
                for place in places if usual_ns.any() else ():
                    gaps_ns[place] = usual_ns * float(np.median(recorded.sum(axis=1)) / usual_ns.sum())
        before, after, removed_ns = [np.array([-_FAR_NS])], [np.array([-_FAR_NS], dtype=np.float64)], 0.0
        for at, recorded_ns, owed in zip(windows, gaps_ns, owed_ns, strict=True):
            # Subtract the profiler's overhead from the gaps between events, but leave at least `LEAST_GAP_NS` in each gap.
            # If a gap is too short, the rest of its overhead (`backlog`) is subtracted from later gaps.
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
        windows = _active_ns(phases.start_ns, waits), _active_ns(phases.end_ns, waits)
        of = list(zip(labels.of[steps.rows].tolist(), trace.steps.kind[phases.step].tolist(), strict=True))
        return cls(_active_ns(events.time_ns, waits), per_kind[events.kind], events.kind, of, *windows)

    def __call__(self, times_ns: Column) -> Column:
        moved = np.interp(np.asarray(times_ns) - self.zero_ns, self._before, self._after)
        return np.asarray(np.rint(moved).astype(np.int64) + self.zero_ns)


class _StagePace:
    # see Note [Threads at the same time]
    def __init__(self, trace: Trace, rows: Column, waits: Intervals, without_cost: _WithoutCost) -> None:
        phases, self._zero_ns = trace.phases, without_cost.zero_ns
        with_stages = np.unique(trace.parts.phase[trace.parts.phase != NONE])
        clean: dict[tuple[int, ...], list[Column]] = {}
        for row in with_stages[trace.steps.kind[phases.step[with_stages]] == StepKind.STEADY].tolist():
            names, moments_ns = _stages(trace, row)
            clean.setdefault(names, []).append(np.diff(moments_ns))
        before, after = [np.array([-_FAR_NS])], [np.array([-_FAR_NS], dtype=np.float64)]
        for row in rows[np.isin(rows, with_stages)].tolist():
            names, moments_ns = _stages(trace, row)
            shares = np.median(clean.get(names, [np.zeros(1)]), axis=0)
            if not shares.any() or waits.within(phases.start_ns[row : row + 1], phases.end_ns[row : row + 1]).any():
                continue
            at_ns = without_cost(_active_ns(moments_ns, waits)) - self._zero_ns
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


class ProfiledSteps:
    """Counts the events in each phase of profiled steps."""

    def __init__(self, trace: Trace, rank: int, events: HostEvents) -> None:
        phases = trace.phases
        mine = np.append(trace.steps.rank == rank, False)[phases.step]
        order = np.argsort(phases.start_ns, kind="stable")
        without = np.isin(trace.steps.kind, WITHOUT_PROFILER)
        is_clean = np.isin(phases.step, np.flatnonzero(without))
        clean = order[(mine & is_clean)[order]]
        mine &= ~is_clean
        rows = order[mine[order]]
        counts = events.counts(phases.start_ns[rows], phases.end_ns[rows])
        seen = np.isin(phases.step[rows], phases.step[rows][counts.any(axis=1)])
        seen |= trace.steps.kind[phases.step[rows]] == StepKind.PROFILED
        self.rows, self.counts = rows[seen], counts[seen]
        self.steps = np.unique(phases.step[self.rows])
        self.of = phases.step[self.rows]
        # see Note [The wait for a batch]
        known = phases.name[clean[_before_loader(trace, clean)]]
        self.unseen = _before_loader(trace, self.rows) & ~np.isin(phases.name[self.rows], known)

    def texts(self, labels: PhaseLabels) -> list[str]:
        return [labels.texts[row] for row in np.unique(labels.of[self.rows]).tolist()]

    def rows_by_step(self, labels: PhaseLabels, texts: Sequence[str], steps: Column | None = None) -> list[Column]:
        """For each step, return the indices of the phases with the labels `texts`, but leave out steps without these phases. If
        `steps` is given, also leave out the phases in the mask `unseen`."""
        named = np.isin(labels.of[self.rows], [labels.ids[text] for text in texts])
        if steps is not None:
            named &= ~self.unseen
        found = [np.flatnonzero(named & (self.of == step)) for step in (self.steps if steps is None else steps).tolist()]
        return [indices for indices in found if len(indices)]


@dataclass
class _Phase:
    names: tuple[str, ...]
    clean_ns: float  # host time including waits for the GPU
    noise_ns: float  # possible error of the profiled-minus-clean difference
    profiled_ns: float  # host time without waits for the GPU
    waits: bool
    has_threads: bool  # with DataParallel stages, whose threads run at the same time
    wait_ns: float
    lag_ns: float  # the GPU's lag at the start of the phase in clean steps
    work_ns: float  # GPU time of the work that the phase launches
    is_full: bool  # True if the launch queue is nearly full in all clean steps
    counts: Column
    own_ns: float = 0.0
    calls: Sequence[list[tuple[float, float]]] = ()  # per step: own host times of launches with their GPU times, and of waits


class CleanPace:
    """Estimates the CPU times that profiled steps would have without the profiler. The profiler's overhead is subtracted from
    the CPU time of each phase."""

    def __init__(self, trace: Trace, rank: int, waits: Intervals) -> None:
        run = trace.run_of(rank)
        self._waits = waits
        self._without_cost: _WithoutCost | None = None
        self._by_stage: _StagePace | None = None
        factors = {name: factor for name, factor in run.host_scale.items() if 0 < factor < np.inf}
        labels = PhaseLabels(trace, counts_in(factors))
        by_label = [factors.get(text, factors.get(name, 1.0)) for text, name in zip(labels.texts, labels.names, strict=True)]
        self.scale = np.array([*by_label, 1.0])[labels.of]
        if run.profiler_cost is None:
            return
        events = HostEvents.of(trace, rank)
        steps = ProfiledSteps(trace, rank, events)
        self.scale[np.setdiff1d(np.arange(len(trace.phases)), steps.rows)] = 1.0
        self._without_cost = _WithoutCost.of(trace, events, run.profiler_cost, steps, labels, waits)
        self._by_stage = _StagePace(trace, steps.rows, waits, self._without_cost)
        own_ns = self.own_ns(trace.phases.end_ns[steps.rows]) - self.own_ns(trace.phases.start_ns[steps.rows])
        is_clean = _without_profiler(trace, rank, steps)
        for text in sorted(steps.texts(labels), key=LOADER.__eq__):
            places = steps.rows_by_step(labels, [text])
            of_steps = np.array([own_ns[of].sum() for of in places], dtype=np.float64)
            if text == LOADER:
                usual_ns = _by_rank(of_steps, _clean_loader_ns(trace, rank))
                unseen_ns = np.bincount(steps.of, own_ns * self.scale[steps.rows] * steps.unseen, len(trace.steps))
                usual_ns = np.maximum(usual_ns - unseen_ns[steps.of[[of[0] for of in places]]], 0)
            else:
                kinds = trace.steps.kind[trace.phases.step[[steps.rows[of[0]] for of in places]]]
                counts = np.array([steps.counts[of].sum(axis=0) for of in places])
                scale = self.scale[steps.rows[places[0][0]]]  # of all phases with this label
                usual_ns = scale * _of_same_events(of_steps, kinds, counts)
                for kind in np.unique(kinds).tolist():
                    own, clean = kinds == kind, is_clean[kind == StepKind.EVALUATION] & (labels.of == labels.ids[text])
                    of_clean, of_step = np.unique(trace.phases.step[clean], return_inverse=True)
                    clean_ns = np.bincount(of_step, trace.phases.duration_ns[clean], len(of_clean))
                    usual_ns[own] = _without_outliers(usual_ns[own], counts[own][:, [OP, PLAIN_OP]].sum(axis=1), clean_ns)
                usual_ns /= scale
            for of, has_ns, wanted_ns in zip(places, of_steps.tolist(), usual_ns.tolist(), strict=True):
                if has_ns > 0:
                    self.scale[steps.rows[of]] *= wanted_ns / has_ns

    def own_ns(self, times_ns: Column) -> Column:
        """Subtract the profiler's overhead and the waits for the GPU from the given times of CPU events."""
        active_ns = _active_ns(times_ns, self._waits)
        if self._without_cost is None or self._by_stage is None:
            return active_ns
        return self._by_stage(self._without_cost(active_ns))


def with_clean_pace(run: Run, trace: Trace, rank: int, cut_otherwise: Collection[str] = ()) -> Run:
    """Return a copy of a run with an estimate of the profiler's overhead, from steps with and without the profiler. The
    argument `cut_otherwise` contains names of phases that begin elsewhere in the profile."""
    events = HostEvents.of(trace, rank)
    steps = ProfiledSteps(trace, rank, events)
    kinds = _comparable_steps(trace, rank, steps)
    if not kinds:
        return run
    host_waited, synchronous = host_waits(trace, rank), synchronous_calls(trace, rank)
    waits = host_waited.intervals
    launches, work_ns = _launches_by_phase(trace)
    full = [_full_queues(trace, rank, profiled, launches, work_ns) for profiled, _ in kinds]
    counts = [common_counts(trace, *kind) if min(map(len, kind)) >= FEWEST_ALIKE else set() for kind in kinds]
    # the first kind decides; its phases without another one of their name have the name as key
    numbered = [{of for of in counts[0] if of[1] > 1}, *(own - counts[0] for own in counts[1:])]
    labels = [PhaseLabels(trace, own) for own in numbered]
    all_labels = PhaseLabels(trace, set().union(*numbered))
    # the costs are fitted to phases by name, because a sum of several phases varies less than each of them
    by_name, *phases = (
        _phases(trace, host_waited, synchronous, steps, own, *kind, is_full, work_ns, cut_otherwise)
        for own, kind, is_full in zip((PhaseLabels(trace), *labels), (kinds[0], *kinds), (full[0], *full), strict=True)
    )
    cost = _fitted_cost(by_name)
    without_cost = _WithoutCost.of(trace, events, cost, steps, all_labels, waits)
    start_ns, end_ns = (_active_ns(ns[steps.rows], waits) for ns in (trace.phases.start_ns, trace.phases.end_ns))
    own_ns = without_cost(end_ns) - without_cost(start_ns)
    calls = _calls(trace, synchronous, steps.rows, waits, lambda times_ns: without_cost(_active_ns(times_ns, waits)))
    scales: dict[str, float] = {}
    for (profiled, clean), of_kind, is_full, found in zip(kinds, labels, full, phases, strict=True):
        for phase in found:
            places = steps.rows_by_step(of_kind, phase.names, profiled)
            phase.own_ns = _median([own_ns[of].sum() for of in places])
            if phase.waits and not phase.is_full:
                phase.calls = [_in_turn([calls[row] for row in of.tolist()], own_ns[of]) for of in places]
        unhindered = np.setdiff1d(clean, trace.phases.step[is_full])
        scales |= _scales(found, of_kind, _compute_ns(trace, unhindered)) | scales
    return replace(run, profiler_cost=cost, host_scale=scales)


def _calls(
    trace: Trace, synchronous: Column, rows: Column, waits: Intervals, own: Callable[[Column], Column]
) -> list[list[tuple[float, float]]]:
    of_launch, work = launch_phases(trace), work_rows(trace)
    work = work[np.isin(of_launch[work], rows)]
    launched_ns = trace.host.start_ns[trace.device.launch[work]]
    called_ns = np.sort(trace.host.start_ns[synchronous])
    order = np.lexsort((launched_ns, of_launch[work]))
    row_of = of_launch[work[order]]
    found = []
    for row in rows.tolist():
        start_ns, end_ns = trace.phases.start_ns[row : row + 1], trace.phases.end_ns[row : row + 1]
        launches = order[slice(*row_of.searchsorted((row, row + 1)))]
        syncs_ns = called_ns[slice(*called_ns.searchsorted((start_ns[0], end_ns[0])))]
        times_ns = np.concatenate((launched_ns[launches], syncs_ns))
        lasts_ns = np.concatenate((trace.device.duration_ns[work[launches]], np.full(len(syncs_ns), _WAIT)))
        # Without the profiler, the launch queue fills up earlier. If the queue was full, assume that the host waits for all GPU
        # work of the phase.
        if waits.within(start_ns, syncs_ns[:1] if len(syncs_ns) else end_ns)[0]:
            times_ns, lasts_ns = np.repeat(start_ns, 2), np.array([lasts_ns[: len(launches)].sum(), _WAIT])
        own_ns = own(times_ns) - own(start_ns)
        in_turn = np.argsort(own_ns, kind="stable")
        found.append(list(zip(own_ns[in_turn].tolist(), lasts_ns[in_turn].tolist(), strict=True)))
    return found


def _in_turn(calls: Sequence[list[tuple[float, float]]], own_ns: Column) -> list[tuple[float, float]]:
    before_ns = np.cumsum(own_ns) - own_ns
    joined = [(at + before, ns) for of, before in zip(calls, before_ns.tolist(), strict=True) for at, ns in of]
    return [*joined, (float(own_ns.sum()), 0.0)]


def _lasts_ns(calls: list[tuple[float, float]], lag_ns: float, factor: float) -> float:
    # see Note [The clean steps decide]
    waited_ns, done_ns = 0.0, lag_ns
    for own_ns, work_ns in calls:
        now_ns = factor * own_ns + waited_ns
        if work_ns < 0:
            waited_ns += max(done_ns - now_ns, 0.0)
        elif work_ns > 0:
            done_ns = max(done_ns, now_ns) + work_ns
    return factor * calls[-1][0] + waited_ns


def _least_factor(phase: _Phase) -> float:
    if not phase.calls:
        return (phase.clean_ns - phase.work_ns - phase.lag_ns) / phase.own_ns
    low, high = 0.0, phase.clean_ns / phase.own_ns
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_short = _median([_lasts_ns(calls, phase.lag_ns, middle) for calls in phase.calls]) < phase.clean_ns
        low, high = (middle, high) if is_short else (low, middle)
    return high


def _active_ns(times_ns: Column, waits: Intervals) -> Column:
    return np.asarray(times_ns - waits.before(times_ns))


def _median(values: Sequence[float] | Column) -> float:
    return float(np.median(values)) if len(values) else 0.0


def _comparable_steps(trace: Trace, rank: int, steps: ProfiledSteps) -> list[tuple[Column, Column]]:
    """For each kind of step, return its profiled and its clean steps. The kind with the most profiled steps is the first."""
    kind = trace.steps.kind
    trained = steps.steps[kind[steps.steps] == StepKind.PROFILED]
    profiled = trained if len(trained) else steps.steps[kind[steps.steps] == StepKind.EVALUATION]
    clean = clean_steps(trace, trains=bool(len(trained)))
    rows = np.setdiff1d(clean[trace.steps.rank[clean] == rank], steps.steps)
    if not len(rows) or not len(profiled):
        return []
    passes = passes_of_steps(trace)
    kinds = [kind for kind, _ in Counter(passes[profiled].tolist()).most_common()]
    found = [(profiled[passes[profiled] == kind], rows[passes[rows] == kind]) for kind in kinds]
    first = next((own for own in found if len(own[1])), (profiled, rows))
    return [first, *(own for own in found if own is not first and min(map(len, own)) >= FEWEST_ALIKE)]


def _compute_ns(trace: Trace, steps: Column) -> float:
    phases = trace.phases
    loader = (phases.name == trace.strings.find(LOADER)) & np.isin(phases.step, steps)
    waited_ns = np.bincount(phases.step[loader], phases.duration_ns[loader], len(trace.steps))
    return _median(trace.steps.duration_ns[steps] - waited_ns[steps])


def _launches_by_phase(trace: Trace) -> tuple[Column, Column]:
    """For each phase, return the number of its launches and the GPU time of the launched work."""
    phase, work = launch_phases(trace), work_rows(trace)
    launched = work[phase[work] != NONE]
    rows, phases = phase[launched], len(trace.phases)
    return np.bincount(rows, minlength=phases), np.bincount(rows, trace.device.duration_ns[launched], phases)


def _phases(
    trace: Trace, host_waited: HostWaits, synchronous: Column, steps: ProfiledSteps, labels: PhaseLabels, profiled: Column,
    clean: Column, is_full: Column, work_ns: Column, cut_otherwise: Collection[str],
) -> list[_Phase]:  # fmt: skip
    of = trace.phases
    waits, is_launch = host_waited.intervals, np.isin(host_waited.call, trace.device.launch)
    is_launch &= ~np.isin(host_waited.call, synchronous)
    synchronous_ns = np.sort(host_waited.start_ns[~is_launch])
    in_clean = np.isin(of.step, clean)
    names = {labels.texts[row]: row for row in np.unique(labels.of[in_clean]).tolist()}
    common = [name for name, row in names.items() if 2 * len(np.unique(of.step[in_clean & (labels.of == row)])) > len(clean)]
    common = [name for name in common if name != LOADER]
    theirs = [name for name in steps.texts(labels) if name != LOADER]
    theirs = [name for name in theirs if 2 * len(steps.rows_by_step(labels, [name], profiled)) > len(profiled)]
    in_profiled = np.isin(of.step, profiled)
    shared = []
    for name in common:
        named = labels.of == names[name]
        usual_ns, profiled_ns = _median(of.duration_ns[in_clean & named]), _median(of.duration_ns[in_profiled & named])
        # if a name is not shared, the recorder saw at most the end of the phase
        if name in theirs and labels.names[names[name]] not in cut_otherwise and usual_ns >= LEAST_NOISE * profiled_ns:
            shared.append(name)
    of_clean, of_profiled = np.flatnonzero(in_clean), np.flatnonzero(in_profiled)
    earlier = (_earlier_phases(trace, labels, *of) for of in ((of_clean, common), (of_profiled, theirs)))
    groups = _groups(shared, *earlier)
    whole_ns, wait_ns = of.duration_ns, waits.within(of.start_ns, of.end_ns)
    called = np.diff(np.searchsorted(synchronous_ns, np.stack((of.start_ns, of.end_ns))), axis=0)[0] > 0
    called |= wait_ns > LEAST_NOISE * whole_ns  # a shorter wait in a launch may be a coincidence
    lag_ns = np.where(of.device_start_ns == NONE, 0, np.maximum(of.device_start_ns - of.start_ns, 0))
    found = []
    for own, other in groups:
        rows_of_clean = in_clean & np.isin(labels.of, [names[name] for name in own])
        rows_of_steps = [np.flatnonzero(rows_of_clean & (of.step == step)) for step in clean.tolist()]
        always_full = all(is_full[rows].any() for rows in rows_of_steps)
        if not always_full:
            rows_of_steps = [rows for rows in rows_of_steps if not is_full[rows].any()]
        places = steps.rows_by_step(labels, other, profiled)
        if not places or not any(map(len, rows_of_steps)):
            continue
        clean_ns = np.array([whole_ns[rows].sum() for rows in rows_of_steps if len(rows)])
        active_ns = np.array([(whole_ns - wait_ns)[steps.rows[at]].sum() for at in places])
        found.append(
            _Phase(
                names=other,
                clean_ns=_median(clean_ns),
                noise_ns=float(np.hypot(_noise_ns(clean_ns), _noise_ns(active_ns))),
                profiled_ns=_median(active_ns),
                waits=always_full or any(called[steps.rows[at]].any() for at in places),
                has_threads=bool(np.isin(trace.parts.phase, rows_of_clean.nonzero()[0]).any()),
                wait_ns=_median([wait_ns[steps.rows[at]].sum() for at in places]),
                lag_ns=_median([lag_ns[rows].max() for rows in rows_of_steps if len(rows)]),
                is_full=always_full,
                work_ns=_median([work_ns[steps.rows[at]].sum() for at in places]),
                counts=np.median([steps.counts[at].sum(axis=0) for at in places], axis=0),
            )
        )
    return found


def _full_queues(trace: Trace, rank: int, profiled: Column, launches: Column, work_ns: Column) -> Column:
    """For each phase, return whether the launch queue was nearly full when the phase began or ended."""
    # see Note [A full launch queue]
    phases = trace.phases
    in_profiled = np.isin(phases.step, profiled)
    rows = np.flatnonzero(np.append(trace.steps.rank == rank, False)[phases.step])
    rows = rows[np.argsort(phases.start_ns[rows], kind="stable")]
    launched, device_ns = np.zeros(len(rows)), np.zeros(len(rows))
    for name in np.unique(phases.name[rows]).tolist():
        known = in_profiled & (phases.name == name)
        launched[phases.name[rows] == name] = _median(launches[known])
        device_ns[phases.name[rows] == name] = _median(work_ns[known])
    launched, device_ns = np.cumsum(launched), np.cumsum(device_ns)
    end_ns = phases.device_end_ns[rows]
    lag_ns = np.where(end_ns == NONE, 0, np.maximum(end_ns - phases.end_ns[rows], 0))
    queued = launched - np.interp(device_ns - lag_ns, device_ns, launched, left=0.0)
    is_full = queued >= NEARLY_FULL * FULL_QUEUE
    found = np.zeros(len(phases), dtype=bool)
    found[rows] = is_full | np.append(False, is_full[:-1])
    return found


def _earlier_phases(trace: Trace, labels: PhaseLabels, rows: Column, names: Sequence[str]) -> Earlier:
    phases = trace.phases
    rows = rows[np.lexsort((phases.start_ns[rows], phases.step[rows]))]
    counts: dict[str, Counter[str | None]] = {}
    previous: tuple[int, str | None] = NONE, None
    for step, label in zip(phases.step[rows].tolist(), labels.of[rows].tolist(), strict=True):
        if (text := labels.texts[label]) in names:
            counts.setdefault(text, Counter())[previous[1] if previous[0] == step else None] += 1
            previous = step, text
    return {name: earlier.most_common(1)[0][0] for name, earlier in counts.items()}


def _groups(shared: Sequence[str], clean: Earlier, profiled: Earlier) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    # see Note [Phases with different names]
    if not shared:
        return [(tuple(clean), tuple(profiled))] if clean and profiled else []

    def joined(names: Earlier) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {name: [] for name in shared}
        for name in names:
            at: str | None = name
            for _ in names:
                at = at if at in groups else names.get(at or "")
            groups[at if at in groups else shared[0]].append(name)
        return groups

    of_clean, of_profiled = joined(clean), joined(profiled)
    return [(tuple(of_clean[name]), tuple(of_profiled[name])) for name in shared]


def _noise_ns(values_ns: Column) -> float:
    low, high = np.percentile(values_ns, (25, 75))
    return float(max((high - low) / 1.35 * 1.25 / np.sqrt(len(values_ns)), LEAST_NOISE * np.median(values_ns)))


def _fitted_cost(phases: Sequence[_Phase]) -> ProfilerCost:
    # see Note [The profiler's cost per event]
    known = [phase for phase in phases if phase.noise_ns > 0]
    in_turn = [phase for phase in known if not phase.has_threads] or known
    shown = [phase for phase in in_turn if not phase.waits] or in_turn
    if not shown:
        return ProfilerCost()
    noise = np.array([phase.noise_ns for phase in shown])
    counts = np.array([phase.counts for phase in shown]) / noise[:, None]
    slower = np.array([phase.profiled_ns - (phase.clean_ns - phase.wait_ns) for phase in shown]) / noise
    units = counts @ np.array(EVENT_COSTS)
    unit_ns = max(float(units @ slower) / float(units @ units), 0.0) if units.any() else 0.0
    if unit_ns == 0:
        return ProfilerCost()
    prior_ns, spread_ns = unit_ns * np.array(EVENT_COSTS), unit_ns * np.array(EVENT_COSTS) * EVENT_COST_SPREAD
    left = counts.T @ counts + np.diag(1 / spread_ns**2)
    right = counts.T @ slower + prior_ns / spread_ns**2
    costs_ns = _least_squares(left, right, prior_ns)
    costs_ns *= _affordable_share(known, costs_ns)
    return ProfilerCost(*(round(cost_ns) for cost_ns in costs_ns.tolist()))


def _affordable_share(phases: Sequence[_Phase], costs_ns: Column) -> float:
    # see Note [The profiler's cost per event] and Note [Threads at the same time]
    longest_waits_ns = [max(phase.wait_ns, phase.lag_ns + phase.work_ns) if phase.waits else 0.0 for phase in phases]
    all_slower_ns = sum(phase.profiled_ns - phase.clean_ns + ns for phase, ns in zip(phases, longest_waits_ns, strict=True))
    all_predicted_ns = sum(float(phase.counts @ costs_ns) for phase in phases)
    share = min(max(all_slower_ns, 0.0) / all_predicted_ns, 1.0) if all_predicted_ns else 1.0
    for phase in phases:
        slower_ns = max(phase.profiled_ns - (phase.clean_ns - phase.wait_ns) + phase.noise_ns, 0.0)
        predicted_ns = float(phase.counts @ costs_ns)
        if phase.has_threads and predicted_ns > slower_ns:
            share = min(share, slower_ns / predicted_ns)
    return share


def _least_squares(left: Column, right: Column, start: Column) -> Column:
    x = start.copy()
    for _ in range(_MOST_ROUNDS):
        before = x.copy()
        for i in range(len(x)):
            x[i] = max(x[i] + (right[i] - left[i] @ x) / left[i, i], 0.0)
        if np.allclose(x, before, rtol=1e-6, atol=1e-3):
            break
    return x


def _scales(phases: Sequence[_Phase], labels: PhaseLabels, compute_ns: float) -> dict[str, float]:
    """Return a factor for each label, and for each name without numbers."""
    # see Note [The clean steps decide]
    scaled = [phase for phase in phases if phase.own_ns > 0]
    sure = [phase for phase in scaled if not phase.waits]
    clean_ns, own_ns = sum(phase.clean_ns for phase in sure), sum(phase.own_ns for phase in sure)
    usual = clean_ns / own_ns if own_ns else 1.0
    medians_ns = sum(phase.clean_ns for phase in phases)
    whole = compute_ns / medians_ns if medians_ns and compute_ns else 1.0
    scales: dict[str, float] = {}
    sums_ns: dict[str, tuple[float, float]] = {}
    for phase in scaled:
        target_ns = phase.clean_ns
        if phase.waits:
            target_ns = min(max(usual, _least_factor(phase)) * phase.own_ns, phase.clean_ns - phase.wait_ns)
        if target_ns > 0:
            scales |= dict.fromkeys(phase.names, whole * target_ns / phase.own_ns)
            for name in {labels.names[labels.ids[text]] for text in phase.names}:
                target_sum_ns, own_sum_ns = sums_ns.get(name, (0.0, 0.0))
                sums_ns[name] = target_sum_ns + target_ns, own_sum_ns + phase.own_ns
    return {name: whole * target_ns / own_ns for name, (target_ns, own_ns) in sums_ns.items()} | scales


def _of_same_events(own_ns: Column, kinds: Column, counts: Column) -> Column:
    event_counts = np.column_stack([kinds, counts[:, [OP, PLAIN_OP, LAUNCH]]])
    _, group = np.unique(event_counts, axis=0, return_inverse=True)
    group = group.reshape(-1)
    return np.array([np.median(own_ns[group == own]) for own in group.tolist()])


def _without_profiler(trace: Trace, rank: int, steps: ProfiledSteps) -> tuple[Column, Column]:
    """Return two masks of phases without the profiler: those of training steps, and those of evaluation steps."""
    kind, of = trace.steps.kind, trace.phases.step
    is_own = (trace.steps.rank == rank) & ~np.isin(np.arange(len(trace.steps)), steps.steps)
    training, evaluation = is_own & np.isin(kind, WITHOUT_PROFILER), is_own & (kind == StepKind.EVALUATION)
    return np.append(training, False)[of], np.append(evaluation, False)[of]


def _without_outliers(values_ns: Column, ops: Column, clean_ns: Column) -> Column:
    # see Note [Outliers in profiled steps]
    if len(clean_ns) < FEWEST_ALIKE:
        return values_ns
    more = np.maximum(ops / max(_median(ops), 1.0), 1.0)
    is_outlier = values_ns > OUTLIER_TIMES * clean_ns.max() * more
    if is_outlier.all():
        return values_ns
    return np.asarray(np.where(is_outlier, _median((values_ns / more)[~is_outlier]) * more, values_ns))


def _clean_loader_ns(trace: Trace, rank: int) -> Column:
    # see Note [The wait for a batch]
    phases = trace.phases
    clean = np.flatnonzero((trace.steps.kind == StepKind.STEADY) & (trace.steps.rank == rank))
    rows = np.flatnonzero((phases.name == trace.strings.find(LOADER)) & np.isin(phases.step, clean))
    steps = np.unique(phases.step[rows])
    if not len(steps):
        return np.zeros(0)
    waited_ns = np.bincount(phases.step[rows], phases.duration_ns[rows], len(trace.steps))[steps]
    whole_ns = trace.steps.duration_ns[steps]
    missing_ns = _median(whole_ns) - _median(whole_ns - waited_ns) - _median(waited_ns)
    return np.asarray(np.maximum(waited_ns + missing_ns, 0))


def _before_loader(trace: Trace, rows: Column) -> Column:
    is_loader = trace.phases.name[rows] == trace.strings.find(LOADER)
    of = trace.phases.step[rows]
    return np.asarray(np.append(is_loader[1:] & (of[1:] == of[:-1]), False)[: len(rows)])


def _by_rank(values: Column, others: Column) -> Column:
    if not len(others):
        return values
    rank = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return np.asarray(np.quantile(others, (rank + 0.5) / len(values)))
