"""Estimates how much CPU time torch.profiler used in profiled steps.

    run = with_clean_pace(run, trace, rank=0)   # run.profiler_cost.op_ns == 480, run.host_scale["forward"] == 0.98

Note [The profiler's cost per event]
    torch.profiler uses the CPU just before it reads the start time of an event. The profiler's cost for the later event is
    therefore subtracted from the time between two events. The result is at least `LEAST_GAP_NS`. In each phase, profiled steps
    take longer than clean steps, and the difference is the sum of the costs of the events. A fit of these differences gives the
    cost of each kind of event. All costs are then reduced until they add up to at most the slowdown of the whole step.

Note [The clean steps decide]
    For each phase, the factor `host_scale` makes the median host time of the profiled steps equal to the median of the clean
    steps. Only the time without waits for the GPU is compared. In a phase with synchronous calls, these waits depend on the
    factor, so the host and the GPU are simulated in this phase. If several factors give the right duration, the factor nearest
    to that of other phases is used. If a factor is greater than 1, the profile lacks work of this phase. This work does not
    depend on the rest of the phase, so a phase longer than the median becomes longer only by as much as the median phase.
    Evaluation steps without factors of their own use the factors of training steps, but no factor greater than 1. Finally, one
    number multiplies all factors, so that the median length of the corrected profiled steps is the median length of the clean
    steps.

Note [Threads at the same time]
    The replicas of nn.DataParallel run in threads, and each thread waits for Python's lock while another thread runs. A
    profiler makes these waits longer, so its cost is measured in phases without nn.DataParallel if possible. All costs are then
    reduced until no nn.DataParallel phase costs more than its measured slowdown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from traces.analyses.waits import host_waits, synchronous_calls
from traces.combining.clean_pace import CleanPace, WithoutCost
from traces.combining.compared_phases import ComparedPhase, comparable_steps, compared_phases, full_queues, launches_by_phase
from traces.combining.phase_labels import LOADER, PhaseLabels, common_counts
from traces.combining.profiled_steps import HostEvents, ProfiledSteps, active_ns, median_or_zero
from traces.comparison.thresholds import EVENT_COST_SPREAD, EVENT_COSTS, FEWEST_ALIKE, LEAST_NOISE
from traces.figures.measure import launch_phases, work_rows
from traces.model.intervals import Intervals
from traces.model.run import ProfilerCost, Run
from traces.model.trace import Column, Trace

_MOST_ROUNDS = 1000
_HALVINGS = 20
_WAIT = -1.0  # marks a wait of the host; real GPU times are never negative


def with_clean_pace(run: Run, trace: Trace, rank: int, cut_otherwise: Collection[str] = ()) -> Run:
    """Estimate the profiler's cost from steps with and without the profiler, and return a copy of `run` with the result."""
    events = HostEvents.of(trace, rank)
    steps = ProfiledSteps(trace, rank, events)
    kinds = comparable_steps(trace, rank, steps)
    if not kinds:
        return run
    host_waited, synchronous = host_waits(trace, rank), synchronous_calls(trace, rank)
    waits = host_waited.intervals
    launches, work_ns = launches_by_phase(trace)
    full = [full_queues(trace, rank, profiled, launches) for profiled, _ in kinds]
    counts = [common_counts(trace, *kind) if min(map(len, kind)) >= FEWEST_ALIKE else set() for kind in kinds]
    # labels depend on the most frequent kind of step; the label of a phase that runs once per step is its name
    numbered = [{of for of in counts[0] if of[1] > 1}, *(own - counts[0] for own in counts[1:])]
    labels = [PhaseLabels(trace, own) for own in numbered]
    all_labels = PhaseLabels(trace, set().union(*numbered))
    # the costs are fitted to the sum of all phases with one name, because the sum varies less than each phase
    by_name, *phases = (
        compared_phases(trace, host_waited, synchronous, steps, own, *kind, is_full, work_ns, cut_otherwise)
        for own, kind, is_full in zip((PhaseLabels(trace), *labels), (kinds[0], *kinds), (full[0], *full), strict=True)
    )
    cost = _fitted_cost(by_name, np.any(steps.counts, axis=0))
    without_cost = WithoutCost.of(trace, events, cost, steps, all_labels, waits)
    start_ns, end_ns = (active_ns(ns[steps.rows], waits) for ns in (trace.phases.start_ns, trace.phases.end_ns))
    own_ns = without_cost(end_ns) - without_cost(start_ns)
    calls = _calls(trace, synchronous, steps.rows, waits, lambda times_ns: without_cost(active_ns(times_ns, waits)))
    scales: dict[str, float] = {}
    for (profiled, clean), of_kind, is_full, found in zip(kinds, labels, full, phases, strict=True):
        for phase in found:
            phase.own_ns = median_or_zero([own_ns[of].sum() for of in phase.places])
            if phase.waits and not phase.is_full:
                phase.calls = [_in_turn([calls[row] for row in of.tolist()], own_ns[of]) for of in phase.places]
        corrected = partial(_corrected_step_ns, trace, rank, waits, replace(run, profiler_cost=cost), steps, profiled)
        unhindered = np.setdiff1d(clean, trace.phases.step[is_full])
        scales |= _scales(found, of_kind, _step_ns(trace, trace.phases.duration_ns, unhindered), corrected) | scales
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
        # Without the profiler, the host launches kernels faster, so it may have to wait because the launch queue is full.
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


def _factor(phase: ComparedPhase, usual: float) -> float:
    """Return the factor that corrects a phase's host time for the profiler's slowdown."""
    # see Note [The clean steps decide]
    if not phase.calls:
        return max(usual, (phase.clean_ns - phase.work_ns - phase.lag_ns) / phase.own_ns)

    def is_at_most(limit_ns: float, factor: float) -> bool:
        return median_or_zero([_lasts_ns(calls, phase.lag_ns, factor) for calls in phase.calls]) <= limit_ns

    most = phase.clean_ns / phase.own_ns
    least = _largest(partial(is_at_most, phase.clean_ns - 1), most)
    shortest_ns = median_or_zero([_lasts_ns(calls, phase.lag_ns, least) for calls in phase.calls])
    limit_ns = max((1 + LEAST_NOISE) * phase.clean_ns, shortest_ns + 1)
    return min(max(usual, least), _largest(partial(is_at_most, limit_ns), most))


def _largest(is_possible: Callable[[float], bool], most: float) -> float:
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_possible(middle) else (low, middle)
    return high


def _fitted_cost(phases: Sequence[ComparedPhase], was_recorded: Column) -> ProfilerCost:
    # see Note [The profiler's cost per event]; `was_recorded` is True for the kinds of events in profiled steps
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
    costs_ns *= _affordable_share(known, costs_ns) * was_recorded
    return ProfilerCost(*(round(cost_ns) for cost_ns in costs_ns.tolist()))


def _affordable_share(phases: Sequence[ComparedPhase], costs_ns: Column) -> float:
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


def _scales(
    phases: Sequence[ComparedPhase], labels: PhaseLabels, clean_ns: float, corrected_ns: Callable[[Mapping[str, float]], float]
) -> dict[str, float]:
    # see Note [The clean steps decide]
    scaled = [phase for phase in phases if phase.own_ns > 0]
    sure = [phase for phase in scaled if not phase.waits]
    own_ns = sum(phase.own_ns for phase in sure)
    usual = sum(phase.clean_ns for phase in sure) / own_ns if own_ns else 1.0
    rest_ns = sum(phase.clean_ns for phase in phases)
    scales: dict[str, float] = {}
    sums_ns: dict[str, tuple[float, float]] = {}
    for phase in scaled:
        target_ns = phase.clean_ns
        if phase.waits:
            target_ns = min(_factor(phase, usual) * phase.own_ns, phase.clean_ns - phase.wait_ns)
        if target_ns > 0:
            rest_ns -= target_ns
            scales |= dict.fromkeys(phase.names, target_ns / phase.own_ns)
            for name in dict.fromkeys(labels.names[labels.ids[text]] for text in phase.names):
                target_sum_ns, own_sum_ns = sums_ns.get(name, (0.0, 0.0))
                sums_ns[name] = target_sum_ns + target_ns, own_sum_ns + phase.own_ns
    scales = {name: target_ns / own_ns for name, (target_ns, own_ns) in sums_ns.items()} | scales
    step_ns = corrected_ns(scales) + rest_ns
    whole = clean_ns / step_ns if step_ns and clean_ns else 1.0
    return {name: whole * scale for name, scale in scales.items()}


def _corrected_step_ns(
    trace: Trace, rank: int, waits: Intervals, run: Run, steps: ProfiledSteps, profiled: Column, host_scale: Mapping[str, float]
) -> float:
    pace, phases = CleanPace(trace, rank, waits, replace(run, host_scale=host_scale)), trace.phases
    corrected_ns = (pace.own_ns(phases.end_ns) - pace.own_ns(phases.start_ns)) * pace.scale
    corrected_ns[steps.rows[steps.unseen]] = 0.0
    return _step_ns(trace, corrected_ns, profiled)


def _step_ns(trace: Trace, phase_ns: Column, steps: Column) -> float:
    counted_ns = phase_ns * (trace.phases.name != trace.strings.find(LOADER))
    return median_or_zero(np.bincount(trace.phases.step, counted_ns, len(trace.steps))[steps])
