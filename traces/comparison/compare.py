"""Compares the times, memory and kernels of two traces, for `trace diff` and the report of a replay.

    comparison = compare(load("v100.msgpack"), load("replay.msgpack"))
    comparison.verdict.sameness, comparison.verdict.evidence, comparison.verdict.reason
    comparison.steps.error            # 0.004: the replay's median step is 0.4 % longer
    comparison.to_json()              # the keys that scripts rely on

The step time is the larger of two times, the time on the host and the time on the slowest GPU. If the step times of both traces
vary strongly, the means are compared instead of the medians (see `traces.figures.spread`). GPU time does not include waits for
other ranks in collectives. Steps without the profiler are preferred, because the profiler slows a script.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf

import numpy as np

from traces.analyses.analyse import Analyses, analyse
from traces.analyses.communication import Communication, communicates, communication, copies_per_step, mean_of_ranks
from traces.analyses.idle import busy_times
from traces.analyses.stragglers import without_waits
from traces.comparison import compared_steps
from traces.comparison.changed_ops import TOP, changes, missing_in
from traces.comparison.comparison_figures import (
    Both,
    Comparison,
    Evaluation,
    MemoryComparison,
    PhaseError,
    StreamShare,
    ValueReads,
)  # fmt: skip
from traces.comparison.explain import largest_reason
from traces.comparison.fused_ops import FusedOps, fused_ops
from traces.comparison.program.same_program import same_program
from traces.comparison.program.verdict import Evidence, Verdict
from traces.comparison.thresholds import DEFAULT_TOLERANCE
from traces.compiled.compilations import compilations
from traces.compiled.region_figures import CompiledFigures, compiled_figures
from traces.figures import bottleneck, measure, pace
from traces.figures.bottleneck import bottleneck_of, slowdown_of
from traces.figures.phase_medians import PhaseMedians, phase_average, phase_medians, phase_waits_ns
from traces.figures.problems import serious_problems, why_work_is_hidden
from traces.figures.spread import NOTHING, Spread, relative_error, shared_period, spread
from traces.figures.stage_times import stage_errors
from traces.figures.step_memory import step_rises
from traces.model.result_cache import result_cache
from traces.model.run import KINETO, RECORDER, ReplayNotes, Run
from traces.model.trace import NONE, PHASES, Column, PhaseTiming, StepKind, Trace
from traces.model.workload import differ_in_batch_size_alone
from traces.rates.estimate_errors import EstimateError, expected_error

_UNDER_PROFILER = "All steps ran under torch.profiler, which slows the host. The steps of the other recording did not."


_COVERAGE = ("exact", "equivalent", "scaled", "phase", "roofline", "published", "unmatched")


@result_cache()
def compare(
    recorded: Trace,
    other: Trace,
    tolerance: float = DEFAULT_TOLERANCE,
    *,
    top: int = TOP,
    analyses: Both[Analyses] | None = None,
) -> Comparison:
    """Compare a recording with a replay or another recording. `analyses` are the results of `analyse` for both traces, if they
    are already known."""
    repeated, repeating = compared_steps.steps_to_compare(recorded, other)
    timed, timed_other = (compared_steps.without_profiler(*of) for of in ((recorded, repeated), (other, repeating)))
    timed, timed_other = compared_steps.shared_evaluations(recorded, timed, other, timed_other)
    verdict = same_program(recorded, other, *compared_steps.steps_of_verdict(recorded, repeated, other, repeating))
    ours, theirs = repeated, repeating
    if verdict.same:
        ours, theirs = compared_steps.steps_of_kernels(recorded, ours, other, theirs)
    replay = other.run_of(other.ranks[0]).replay
    notes = replay or ReplayNotes()
    times = Both(pace.step_times(recorded), pace.step_times(other))
    paces = Both(pace.pace_of(times.recorded, timed, ours), pace.pace_of(times.replayed, timed_other, theirs))
    if not len(timed) and not len(timed_other):
        paces = Both(pace.pace(recorded), pace.pace(other))
    spread_of = partial(_spread, times, timed, timed_other, measure.steady_steps(recorded))
    steps = spread_of(pace.pace_series)
    # Most replays load data at the speed of the replaying machine, not at the recorded speed.
    whole = not other.is_replay or notes.config.loader == "recorded"
    # If the host waits for the GPU after each phase, the recording does not show whether the host or the GPU limits the step
    # time.
    omits_loader = not whole and recorded.phase_timing is PhaseTiming.ASYNCHRONOUS
    omits_loader &= paces.recorded is not None and paces.recorded.limit == pace.HOST
    compute_side = spread_of(_host_without_loader if omits_loader else _series_without_data)
    worked = Both(without_waits(recorded), without_waits(other))
    hidden = Both(bool(why_work_is_hidden(recorded)), bool(why_work_is_hidden(other)))
    profiled = max(len(measure.profiled_steps(recorded)) // max(len(recorded.ranks), 1), 1)
    lacks_work = any(hidden) or "phase" in (recorded.grain, other.grain)
    gpu_busy = NOTHING if lacks_work else _busy_spread(worked, ours, theirs)
    figures = {"steps": steps} if whole else {"compute_side": compute_side}
    repeats = any(of is None or of.period > 1 for of in paces)  # the means over a period include all kinds of steps
    rarer_steps = _rarer_steps(recorded, other) if whole and not repeats else None
    figures |= {"gpu_busy": gpu_busy}
    if rarer_steps is not None:
        differs = not rarer_steps.overlaps and abs(rarer_steps.error or 0) > steps.noise
        figures |= {"rarer_steps": rarer_steps} if differs or rarer_steps.average_noise is not None else {}
    judged, known, is_within = _judged(figures, tolerance, verdict, hidden)
    analyses = analyses or Both(analyse(recorded), analyse(other))
    compiled = _compiled(recorded, ours, other, theirs)
    runs = {name: side.run_of(side.ranks[0]) for name, side in (("A", recorded), ("B", other))}
    found = Comparison(
        verdict=verdict,
        replay=other.is_replay_of(recorded),
        steps_compared=Both(len(timed), len(timed_other)),
        gpu_time_steps=len(theirs) if not lacks_work and len(theirs) < min(len(repeating), len(timed_other)) else None,
        ranks=Both(len(recorded.ranks), len(other.ranks)),
        gpus=Both(measure.gpus_per_rank(recorded), measure.gpus_per_rank(other)),
        gpu_names=Both(*(", ".join(sorted({gpu.name for gpu in trace.devices})) for trace in (recorded, other))),
        batch_sizes=_batch_sizes(recorded, other) or (Both(*verdict.batch_sizes) if verdict.batch_sizes else None),
        paces=paces,
        bottlenecks=Both(
            bottleneck_of(recorded, paces.recorded, analyses.recorded),
            bottleneck_of(other, paces.replayed, analyses.replayed),
        ),
        passes=_passes((recorded, timed), (other, timed_other)),
        problems=Both(
            _problems(recorded, other, paces.recorded, steps, expected_error(recorded)),
            _problems(other, recorded, paces.replayed, steps),
        ),
        steps=steps,
        host_pace=spread_of(pace.host_series),
        device_pace=spread_of(pace.device_series),
        compute_side=compute_side,
        gpu_busy=gpu_busy,
        rarer_steps=rarer_steps,
        phases=_phases(worked, Both(timed, timed_other), Both(ours, theirs), means=steps.has_means),
        host_phases_comparable=recorded.phase_timing is other.phase_timing,
        streams=_streams(recorded, ours, other, theirs),
        coverage=_coverage(worked.replayed, notes) if other.is_replay else None,
        host=notes.host,
        values=ValueReads(
            unrecorded_reads=notes.reads_unrecorded,
            computed=notes.config.values == "compute" if other.is_replay else None,
            sizes_assumed=notes.sizes_assumed,
        ),
        events_never_recorded=notes.events_never_recorded,
        memory=_memory(recorded, other, notes),
        missing=list(notes.missing),
        missing_in_steps=missing_in(other, repeating, notes.missing, profiled) if notes.missing else [],
        changes=changes(recorded, other, ours, theirs, tolerance, top),
        clock=None if replay is None else notes.config.clock,
        speed=None if replay is None else notes.config.speed,
        tolerance=tolerance,
        judged=judged,
        judged_figures=known,
        within_tolerance=is_within,
        work_is_hidden=hidden,
        copies_ns=Both(*(mean_of_ranks(trace, copies_per_step(trace))[0] for trace in (recorded, other))),
        analyses=analyses,
        estimates=[name for name, run in runs.items() if run.predicted],
        expected_errors={name: run.expected_error for name, run in runs.items() if run.expected_error is not None},
        estimate_error=expected_error(other),
        evaluation=_evaluation(recorded, timed, other, timed_other, times) if len(timed) or other.is_replay else None,
        parts=stage_errors(recorded, timed, other, timed_other),
        communication=_communication(recorded, other),
        compiled=compiled,
        fused=_fused(compiled, recorded, ours, other, theirs) if compiled is not None else (),
    )
    if found.within_tolerance is False and found.verdict.same:
        step, unmeasured_ns = found.figures[judged], sum(found.unmeasured_phases_ns.values())
        error = relative_error(step.recorded_ns, (step.replayed_ns or 0) - unmeasured_ns)
        if unmeasured_ns and judged != "gpu_busy" and error is not None and abs(error) <= tolerance:
            found = replace(found, within_tolerance=None)
    return replace(found, largest_reason=largest_reason(found))


def _passes(*sides: tuple[Trace, Column]) -> Both[int] | None:
    counts = [np.unique(measure.phases_per_step(trace, "backward")[rows]) for trace, rows in sides]
    if any(len(of) != 1 or not of[0] for of in counts) or counts[0] == counts[1]:
        return None
    return Both(*(int(of[0]) for of in counts))


def _rarer_steps(recorded: Trace, other: Trace) -> Spread | None:
    """Compare the steps that run different kernels than most other steps, such as the prefill steps of an inference server. If
    there are several kinds of less frequent steps, compare the kind that takes the most time in total."""
    # see Note [Steps with different kernels] in traces/figures/bottleneck.py
    ours, theirs = bottleneck.kinds_of_steps(recorded), bottleneck.kinds_of_steps(other)
    shared = [kind for kind in list(ours)[1:] if min(len(ours[kind]), len(theirs.get(kind, ()))) > 1]
    if not shared or next(iter(ours)) != next(iter(theirs)):
        return None
    a, b = (pace.pace_series(pace.step_times(of), measure.steady_steps(of)) or _NO_STEPS for of in (recorded, other))
    most = max(shared, key=lambda kind: int(a.interval_ns[ours[kind]].sum()))
    return spread(ours[most], a.interval_ns, theirs[most], b.interval_ns, ours[most])


def _batch_sizes(recorded: Trace, other: Trace) -> Both[int] | None:
    ours, theirs = (trace.workload.inputs if trace.workload is not None else None for trace in (recorded, other))
    if not ours or not theirs or ours == theirs or not differ_in_batch_size_alone(ours, theirs):
        return None
    sizes = {(one.shape[0], of.shape[0]) for one, of in zip(ours, theirs, strict=True) if one.shape}
    return Both(*sizes.pop()) if len(sizes) == 1 else None


def _compiled(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> Both[CompiledFigures] | None:
    sides = (compiled_figures(trace, trace.ranks[0], steps) for trace, steps in ((recorded, ours), (other, theirs)))
    both = Both(*sides)
    return both if any(of.is_compiled or of.graphs for of in both) else None


def _fused(
    compiled: Both[CompiledFigures], recorded: Trace, ours: Column, other: Trace, theirs: Column
) -> tuple[FusedOps, ...]:
    is_fused = [of.has_fused_kernels for of in compiled]
    if is_fused[0] == is_fused[1] or not len(ours):
        return ()
    steps = int(ours[len(ours) // 2]), int(theirs[len(theirs) // 2])
    return fused_ops(recorded, other, *steps) if is_fused[1] else fused_ops(other, recorded, *steps[::-1])


def _judged(
    figures: Mapping[str, Spread], tolerance: float, verdict: Verdict, hidden: Both[bool]
) -> tuple[str, tuple[str, ...], bool | None]:
    """Compare figures, such as step time and GPU time, with the tolerance. Return three results: the name of the figure that
    decides, the names of all known figures, and True if these figures are within the tolerance. The third result is None if it
    is uncertain."""
    # If the GPU worked only in the second trace, the relative difference of the GPU time is infinite.
    errors = {name: inf if of.recorded_ns == 0 and of.replayed_ns else of.error for name, of in figures.items()}
    known = {name: abs(error) for name, error in errors.items() if error is not None}
    beyond = [name for name, error in known.items() if error > tolerance]
    beyond_noise = [name for name in beyond if known[name] > (figures[name].average_noise or 0)]
    name = next(iter([*beyond_noise, *beyond, *known, *figures]))
    is_within = False if beyond_noise else None if beyond or not known else True
    is_unsure = any(hidden) if is_within else hidden.replayed if (figures[name].error or 0) < 0 else hidden.recorded
    if not verdict.same or verdict.evidence is Evidence.IDENTICAL:
        return name, tuple(known), verdict.same
    return name, tuple(known), None if is_unsure else is_within


_NO_STEPS = pace.PaceSeries(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), NONE)


def _spread(
    times: Both[pace.StepTimes], ours: Column, theirs: Column, steady: Column,
    of: Callable[[pace.StepTimes, Column], pace.PaceSeries | None],
) -> Spread:  # fmt: skip
    a, b = of(times.recorded, ours) or _NO_STEPS, of(times.replayed, theirs) or _NO_STEPS
    noisy = steady[np.isin(times.recorded.rank[steady], times.recorded.rank[a.rows])]
    noisy = noisy[a.interval_ns[noisy] != NONE] if len(a.rows) else noisy[:0]
    return spread(a.rows, a.interval_ns, b.rows, b.interval_ns, noisy)


def _host_without_loader(times: pace.StepTimes, rows: Column) -> pace.PaceSeries | None:
    of = pace.host_series(times, rows)
    return None if of is None else replace(of, interval_ns=of.interval_ns - times.loader_ns)


def _series_without_data(times: pace.StepTimes, rows: Column) -> pace.PaceSeries | None:
    of = pace.pace_series(times, rows)
    return None if of is None else replace(of, interval_ns=of.without_data_ns)


def _problems(
    trace: Trace, beside: Trace, of: pace.StepPace | None, steps: Spread, estimated: EstimateError | None = None
) -> list[str]:
    texts = [] if estimated is None else [f"At least some times are estimated. {estimated.sentence()}"]
    texts += [of.text for of in serious_problems(trace)]
    # All steps of an imported profile ran under the profiler, which slows steps. `trace record` also records steps without the
    # profiler.
    sources = [_paced_by(of) for of in (trace, beside)]
    if sources == [KINETO, RECORDER] and not measure.ran_under_profiler(beside)[measure.steady_steps(beside)].all():
        texts.append(_UNDER_PROFILER)
    longer = of.mean.pace_ns / of.pace_ns - 1 if of is not None and of.mean is not None and not steps.has_means else 0
    if abs(longer) > DEFAULT_TOLERANCE:
        word = "longer" if longer > 0 else "shorter"
        apart = f"{100 * abs(longer):.0f} % {word} than" if longer < 1 else f"{1 + longer:.1f} times as long as"
        texts.append(f"The average step is {apart} the median step.")
    if (slowdown := slowdown_of(trace)) is not None:
        texts.append(f"{slowdown.sentence()}.")
    return texts


def _paced_by(trace: Trace) -> str:
    run = trace.run_of(trace.ranks[0]) if trace.ranks else Run()
    return run.source if run.replay is None else run.replay.recording_source


def _communication(recorded: Trace, other: Trace) -> Both[Communication | None] | None:
    ours, theirs = (communication(trace) if communicates(trace) else None for trace in (recorded, other))
    return Both(ours, theirs) if ours or theirs else None


def _evaluation(
    recorded: Trace, timed: Column, other: Trace, timed_other: Column, times: Both[pace.StepTimes]
) -> Evaluation | None:
    ours, theirs = _evaluation_steps(recorded, timed), _evaluation_steps(other, timed_other)
    if not len(ours) and not len(theirs):
        return None
    source = other.steps.recorded_step[theirs]
    drove = source[np.isin(source, ours)].astype(np.int64)
    rows = compared_steps.without_profiler(recorded, drove) if len(drove) and other.is_replay_of(recorded) else ours
    rows, theirs = compared_steps.shared_evaluations(recorded, rows, other, theirs)
    return Evaluation(
        steps_compared=Both(len(rows), len(theirs)),
        steps=_spread(times, rows, theirs, ours, pace.pace_series),
        compute_side=_spread(times, rows, theirs, ours, _series_without_data),
    )


def _evaluation_steps(trace: Trace, compared: Column) -> Column:
    found = measure.evaluation_steps(trace)
    is_inference = len(compared) and np.isin(compared, found).all()
    return compared if is_inference else found


def _busy_spread(worked: Both[Trace], ours: Column, theirs: Column) -> Spread:
    if not len(ours):
        a, b = map(measure.busy_ns, worked)
        return Spread(a, b, relative_error(a, b), None, None, None, None, None)
    times = Both(pace.step_times(worked.recorded), pace.step_times(worked.replayed))
    return _spread(times, ours, theirs, measure.profiled_steps(worked.recorded), _gpu_time_series)


def _gpu_time_series(times: pace.StepTimes, rows: Column) -> pace.PaceSeries | None:
    gpu_ns = times.gpu_time_ns
    of_ranks = [rows[times.rank[rows] == rank] for rank in np.unique(times.rank[rows]).tolist()]
    busiest = max(of_ranks, key=lambda own: float(np.median(gpu_ns[own])), default=None)
    return None if busiest is None else pace.PaceSeries(busiest, gpu_ns, gpu_ns, NONE)


def _phases(
    worked: Both[Trace], timed: Both[Column], with_kernels: Both[Column], *, means: bool
) -> dict[str, PhaseError]:
    recorded, other = worked
    if not len(timed.recorded):
        return {}
    series = [pace.pace_series(pace.step_times(of), rows) or _NO_STEPS for of, rows in zip(worked, timed, strict=True)]
    period = shared_period(*(of.interval_ns[of.rows] for of in series))
    a = phase_medians(recorded, timed.recorded, with_kernels.recorded, period, means=means)
    b = phase_medians(other, timed.replayed, with_kernels.replayed, period, means=means)
    waits_ns = phase_waits_ns(recorded), phase_waits_ns(other)
    averages = [phase_average(of, rows, period, means=means) for of, rows in zip(worked, with_kernels, strict=True)]
    found = {}
    for name in sorted(a.keys() | b.keys(), key=lambda n: (PHASES.index(n) if n in PHASES else len(PHASES), n)):
        ours, theirs = a.get(name, PhaseMedians()), b.get(name, PhaseMedians())
        host = ours.median_ns or 0, theirs.median_ns or 0
        device = ours.device_median_ns, theirs.device_median_ns
        busy = ours.busy_median_ns, theirs.busy_median_ns
        host_error = relative_error(*host) if recorded.phase_timing is other.phase_timing else None
        waits = (average(of[name]) if name in of else None for average, of in zip(averages, waits_ns, strict=True))
        found[name] = PhaseError(*host, host_error, *device, relative_error(*device), *busy, relative_error(*busy), *waits)
    return found


def _streams(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> list[StreamShare]:
    a, b = _stream_shares(recorded, ours), _stream_shares(other, theirs)
    same_numbers = have_same_stream_numbers(recorded, other)
    rows = []
    for device in sorted(a.keys() | b.keys()):
        left, right = a.get(device, {}), b.get(device, {})
        rows += [
            StreamShare(device, p, q, None if p is None else left[p], None if q is None else right[q])
            for p, q in pair_streams(left, right, same_numbers=same_numbers)
        ]
    return rows


def have_same_stream_numbers(first: Trace, second: Trace) -> bool:
    """Return True if both traces number CUDA streams in the same way. Until June 2026, profiles of AMD GPUs contained ids of
    hardware queues instead of ids of streams."""
    kinds = [{run.stream_numbers for run in trace.runs.values()} - {""} for trace in (first, second)]
    return not all(kinds) or kinds[0] == kinds[1]


def pair_streams(
    left: Mapping[int, float], right: Mapping[int, float], *, same_numbers: bool = True
) -> list[tuple[int | None, int | None]]:
    """Pair each CUDA stream of the first trace with a stream of the second. Streams that have the same CUDA stream number in
    both traces form a pair. The other streams are paired in order of decreasing busy time."""
    both = left.keys() & right.keys() if same_numbers else set()
    pairs: list[tuple[int | None, int | None]] = [(number, number) for number in sorted(both)]
    only_left = sorted(left.keys() - both, key=lambda number: -left[number])
    only_right = sorted(right.keys() - both, key=lambda number: -right[number])
    return [*pairs, *itertools.zip_longest(only_left, only_right)]


def _stream_shares(trace: Trace, steps: Column) -> dict[str, dict[int, float]]:
    # see Note [Idle time of clean steps] in traces/analyses/idle.py
    shares: dict[str, dict[int, float]] = {}
    steps = pace.step_times(trace).comparable(np.unique(steps)) if len(steps) else pace.counted_steps(trace)
    windows, busy_of, timed = pace.device_windows(trace, steps), measure.busy_by_device(trace), busy_times(trace)
    for (device, stream), busy in measure.busy_by_stream(trace).items():
        share = 0.0
        if (window := windows.get(device)) is not None and device in timed:
            own_ns, busy_ns_ = (int(of.within(window.start_ns, window.end_ns).sum()) for of in (busy, busy_of[device]))
            count = int((trace.steps.rank[steps] == trace.devices[device].rank).sum())
            share = own_ns / replace(timed[device], windows=window, busy_ns=busy_ns_, steps=count).window_ns
        shares.setdefault(trace.device_label(device), {})[stream] = share
    return shares


def _coverage(replay: Trace, notes: ReplayNotes) -> dict[str, float] | None:
    times = {origin.name.lower(): ns for origin, ns in measure.device_time_by_origin(replay).items()}
    times["unmatched"] = notes.uncharged_ns
    kinds = (*_COVERAGE, "curve") if times.get("curve") else _COVERAGE
    total = sum(times.get(kind, 0) for kind in kinds)
    return {kind: times.get(kind, 0) / total for kind in kinds} if total else None


def _memory(recorded: Trace, other: Trace, notes: ReplayNotes) -> dict[str, MemoryComparison]:
    rows = _steps_with_memory(recorded)
    kinds = _are_evaluations(recorded, rows) & _are_evaluations(other, _steps_with_memory(other))
    numbers = recorded.steps.number[rows if other.is_replay_of(recorded) else rows[:0]]
    sides = (recorded, _memory_steps(recorded, rows[:0], kinds)), (other, _memory_steps(other, numbers, kinds))
    a, b = (measure.by_label(trace, measure.memory_peaks(trace, steps)) for trace, steps in sides)
    both = ((trace, measure.memory_peaks(trace) | measure.run_peaks(trace)) for trace in (recorded, other))
    runs_a, runs = (measure.by_label(trace, peaks) for trace, peaks in both)
    rises_a, rises_b = (measure.by_label(trace, step_rises(trace)) for trace in (recorded, other))
    uses = {
        other.device_label(row): use
        for row, use in enumerate(notes.memory)
        if row < len(other.devices) and (use.most_reserved_bytes or use.ooms)
    }
    found = {}
    for device in sorted(a.keys() | b.keys() | uses.keys()):
        ours, theirs, use = a.get(device), b.get(device), uses.get(device)
        if ours and theirs and "run" in (ours.source, theirs.source):
            ours, theirs = runs_a[device], runs[device]
        found[device] = MemoryComparison(
            recorded_peak_bytes=_program_peak(recorded, ours),
            replayed_peak_bytes=_program_peak(other, theirs),
            recorded_source=ours.source if ours else None,
            replayed_source=theirs.source if theirs else None,
            recorded_step_rise_bytes=rises_a.get(device),
            replayed_step_rise_bytes=rises_b.get(device),
            replayed_run_peak_bytes=runs[device].peak_allocated_bytes if device in runs else None,
            capacity_bytes=use.capacity_bytes if use else None,
            capacity_given=use.given if use else None,
            outside_bytes=use.outside_bytes if use else None,
            reserved_peak_bytes=use.most_reserved_bytes if use else None,
            ooms=use.ooms if use else None,
            fits=not use.ooms if use else None,
        )
    return found


def _program_peak(trace: Trace, peak: measure.MemoryPeak | None) -> int | None:
    if peak is None or (peak.source == "run" and any(run.compiled for run in trace.runs.values())):
        return None  # the memory peak of a whole run may occur during a compilation
    return peak.peak_allocated_bytes


def _steps_with_memory(trace: Trace) -> Column:
    of_device = trace.memory.device != NONE
    ranks = np.array([device.rank for device in trace.devices], dtype=np.int64)[trace.memory.device[of_device]]
    steps = measure.step_windows(trace).holding(trace.memory.time_ns[of_device], ranks)
    return np.unique(steps[steps != NONE])


def _are_evaluations(trace: Trace, steps: Column) -> set[bool]:
    return set((trace.steps.kind[steps] == StepKind.EVALUATION).tolist())


def _memory_steps(trace: Trace, numbers: Column, kinds: set[bool]) -> Column:
    """Return the steps with the given numbers, because other steps may have larger batches. If the trace has no such steps,
    return all steps."""
    compiling = [one.step for rank in trace.ranks for one in compilations(trace, rank) if one.step is not None]
    chosen = ~np.isin(trace.steps.number, compiling)
    if kinds:
        chosen &= np.isin(trace.steps.kind == StepKind.EVALUATION, list(kinds))
    same = chosen & np.isin(trace.steps.number, numbers)
    return np.flatnonzero(same if same.any() else chosen)
