"""How far apart two traces are: a recording and its replay, or two recordings. What `trace diff` and replays end with.

    comparison = compare(load("v100.msgpack"), load("replay.msgpack"))
    comparison.verdict.sameness, comparison.verdict.evidence, comparison.verdict.reason
    comparison.steps.error            # 0.004: the replay's median step is 0.4 % longer
    comparison.to_json()              # the keys that scripts rely on

What is compared. `steps` is the pace, as `traces.figures.pace` defines it: the larger of the host's and the slowest device's
time per step. `gpu_busy` is the GPU time of a step: of the work launched in it, whenever it ran. The verdict needs both within
tolerance; neither stands in for the other.

Which steps are compared. A replayed step names the recorded step that drove it, so a replay is compared with exactly
those recorded steps, each as often as it was replayed; two recordings are compared over all their steps. Warm-up steps
are left out, unless there are no others, and evaluation steps are compared apart. A profiler makes steps slower: where
a recording has clean steps besides profiled ones, its times are those of the clean ones, and its kernels those of the
profiled ones. `error` is replayed / recorded - 1, or null where the recorded figure is 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any, Generic, TypeVar

import numpy as np

from traces.analyses.analyse import Analyses, analyse
from traces.analyses.communication import Communication, communication
from traces.comparison.changed_ops import TOP, Changes, called_in, changes
from traces.comparison.same_program import Evidence, Verdict, same_program
from traces.figures.bottleneck import PaceLimit, bottleneck
from traces.figures.measure import (
    busy_by_stream,
    busy_ns,
    device_time_by_origin,
    evaluation_steps,
    memory_peaks,
    passes_of_steps,
    profiled_steps,
    steady_steps,
)
from traces.figures.pace import (
    HOST,
    PaceSeries,
    StepPace,
    StepTimes,
    device_series,
    device_windows,
    host_series,
    pace_of,
    pace_series,
    step_times,
)
from traces.figures.phase_medians import PhaseMedians, phase_medians
from traces.figures.spread import NOTHING, Spread, relative_error, spread
from traces.figures.stage_times import PartError, part_errors
from traces.figures.step_memory import step_rises
from traces.model.json_facts import OMITTED_IF_EMPTY, as_json
from traces.model.run import HostFigures, MissingOp, ReplayNotes
from traces.model.trace import NONE, PHASES, Column, StepKind, Trace

VERSION = 1
DEFAULT_TOLERANCE = 0.05
_IN_A_RUN = 500  # steps of a trace in which runs of steps of several kinds are looked for
_COVERAGE = ("exact", "equivalent", "scaled", "phase", "roofline", "published", "unmatched")


Figure = TypeVar("Figure")


@dataclass(frozen=True, slots=True)
class Both(Generic[Figure]):
    """One figure of each trace. Of two recordings `replayed` is the second."""

    recorded: Figure
    replayed: Figure

    def __iter__(self) -> Iterator[Figure]:
        return iter((self.recorded, self.replayed))


@dataclass(frozen=True, slots=True)
class PhaseError(PartError):
    """A phase's medians per step: on the host, where the phases add up to the step; elapsed between two CUDA events, waiting
    included; and of the GPU being busy with what the phase launched. `error` is None also where the host's times of both
    traces are of different kinds, see `Comparison.host_phases_comparable`."""

    recorded_median_ns: int
    replayed_median_ns: int
    busy_recorded_median_ns: int | None
    busy_replayed_median_ns: int | None
    busy_error: float | None


@dataclass(frozen=True, slots=True)
class StreamShare:
    """The share of the steps' time for which a stream is busy. None: the trace has no such stream."""

    device: str
    recorded_stream: int | None
    replayed_stream: int | None
    recorded_busy: float | None
    replayed_busy: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation steps of both traces. Of a replay whose recording has none, only its own are told."""

    steps_compared: Both[int]
    steps: Spread
    compute_side: Spread


@dataclass(frozen=True, slots=True)
class ValueReads:
    """Of a replay: how often the host read values that the recording does not have, whether values were computed, and how many
    results had a size that depends on values which nobody knew."""

    unrecorded_reads: int | None
    computed: bool | None
    sizes_assumed: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """Peaks of one device in both traces; of a device that a replay used also how much memory there was.

    Sources are those of `measure.MemoryPeak`. A step's rise is over what was held when it began. `fits` is False if the
    replay ran out of memory, and None where nobody can say (see `without_an_end`).
    """

    recorded_peak_bytes: int | None
    replayed_peak_bytes: int | None
    recorded_source: str | None
    replayed_source: str | None
    recorded_step_rise_bytes: int | None
    replayed_step_rise_bytes: int | None
    capacity_bytes: int | None = None
    capacity_given: bool | None = None  # by --gpu-memory
    outside_bytes: int | None = None  # of the capacity, taken by others than PyTorch's allocator
    reserved_peak_bytes: int | None = None
    ooms: int | None = None
    fits: bool | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """See the module. `judged` names the figure that decides about `within_tolerance`: "steps", "compute_side" or "gpu_busy".

    Where a step's time and its GPU time are both known, both must be within tolerance; `judged` is then the step's time, unless
    GPU time alone is beyond. `within_tolerance` is False for another program, whatever its times. It is None where there is
    nothing to judge: where it is not known whether this is the same program, or where no figure is in both traces. Identical
    traces are alike.
    """

    verdict: Verdict
    replay: bool  # the second trace is a replay, not a second recording
    steps_compared: Both[int]
    paces: Both[StepPace | None]  # None: that trace has no steps
    bottlenecks: Both[PaceLimit | None]
    steps: Spread  # the pace
    host_pace: Spread
    device_pace: Spread
    compute_side: Spread  # the pace without waits for data
    gpu_busy: Spread  # GPU time
    phases: dict[str, PhaseError]
    host_phases_comparable: bool  # False: one trace's are synchronized with the device, the other's are not (PhaseTiming)
    streams: list[StreamShare]
    coverage: dict[str, float] | None
    host: HostFigures
    values: ValueReads
    events_never_recorded: int | None  # of a replay: events that its script waited for
    memory: dict[str, MemoryComparison]
    missing: list[MissingOp]
    missing_in_steps: list[MissingOp]  # without those that only other steps call than the compared ones
    changes: Changes
    clock: str | None  # of a replay: "wall", or "virtual": waits for the GPU took no time, so loading data was not real
    speed: float | None  # of a replay: how fast recorded time went; all times here are recorded time
    tolerance: float
    judged: str
    judged_figures: tuple[str, ...]  # those that must be within tolerance: a step's time, and GPU time where both know it
    within_tolerance: bool | None
    analyses: Both[Analyses]
    evaluation: Evaluation | None = field(default=None, metadata=OMITTED_IF_EMPTY)  # of traces that hold evaluation steps
    parts: dict[str, PartError] = field(default_factory=dict, metadata=OMITTED_IF_EMPTY)  # of nn.DataParallel
    communication: Both[Communication | None] | None = field(default=None, metadata=OMITTED_IF_EMPTY)  # between ranks
    estimates: list[str] = field(default_factory=list, metadata=OMITTED_IF_EMPTY)  # "A", "B": of `trace predict`, not recorded
    version: int = VERSION

    @property
    def judged_error(self) -> float | None:
        """The error of the figure that is judged."""
        return self.figures[self.judged].error

    @property
    def figures(self) -> dict[str, Spread]:
        """What may be judged, by name."""
        return {"steps": self.steps, "compute_side": self.compute_side, "gpu_busy": self.gpu_busy}

    def estimate_sentences(self) -> list[str]:
        """A sentence for each side that nobody recorded."""
        return [f"{name} is an ESTIMATE by `trace predict`, not a recording." for name in self.estimates]

    def to_json(self) -> dict[str, Any]:
        """The dict that `trace diff --json` and `trace replay --report` print; keys are added to it, never renamed.

        `evaluation` is there only where either trace has evaluation steps, `parts` only where one has parts.
        """
        facts: dict[str, Any] = as_json(self)
        verdict = facts.pop("verdict")
        said = {"same_program": self.verdict.same, "reason": self.verdict.reason}
        said |= {"verdict": verdict["sameness"], "evidence": verdict["evidence"], "not_compared": verdict["not_compared"]}
        return {**said, **facts, "pace": facts["steps"], "gpu_time": facts["gpu_busy"]}

    def __repr__(self) -> str:
        """A few lines, for a notebook."""
        lines = [f"Comparison with {'a replay' if self.replay else 'another recording'}: {self.verdict.sameness.value}"]
        lines[0] += f" ({self.verdict.reason})"
        for words, figure in (
            ("step", self.steps),
            ("step without data loading", self.compute_side),
            ("GPU time", self.gpu_busy),
        ):
            a_ns, b_ns = figure.recorded_median_ns, figure.replayed_median_ns
            if a_ns is not None and b_ns is not None:
                error = "" if figure.error is None else f" ({figure.error:+.1%})"
                lines.append(f"{words} {a_ns / 1e6:.3f} -> {b_ns / 1e6:.3f} ms{error}")
        within = {True: "within", False: "not within", None: "nothing to judge:"}[self.within_tolerance]
        lines.append(f"{within} {self.tolerance:.1%} of {self.judged}")
        return "\n  ".join(lines)

    def without_an_end(self) -> Comparison:
        """Of a script that failed: what had not run out of memory by then is not known to fit."""
        memory = {device: replace(of, fits=of.fits and None) for device, of in self.memory.items()}
        return replace(self, memory=memory)


def compare(
    recorded: Trace,
    other: Trace,
    tolerance: float = DEFAULT_TOLERANCE,
    *,
    top: int = TOP,
    analyses: Both[Analyses] | None = None,
) -> Comparison:
    """Compare `other`, a replay of `recorded` or another recording, with it; each list of `changes` has up to `top` rows.

    `analyses` are given where they have been made already: of large traces they take seconds.
    """
    ours, theirs = _steps_to_compare(recorded, other)
    timed = _clean(recorded, ours)  # whose times are compared; of `ours` and `theirs` the kernels
    timed_other = _clean(other, theirs)
    verdict = same_program(recorded, other, *_same_numbers(recorded, ours, other, theirs))
    notes = other.run_of(other.ranks[0]).replay
    config = notes.config if notes is not None else None
    times = Both(step_times(recorded), step_times(other))
    paces = Both(pace_of(times.recorded, timed, ours), pace_of(times.replayed, timed_other, theirs))
    steady = steady_steps(recorded)
    steps = _spread(times, timed, timed_other, steady, pace_series)
    # Data loading in a replay is this machine's own, unless it was padded to the recorded one: not the replay's error.
    whole = not other.is_replay or (config is not None and config.loader == "recorded")
    compute_side = _without_data(times, timed, timed_other, steady, paces, loads_otherwise=not whole)
    # A phase-grained trace does not tell when within a phase the device was busy.
    gpu_busy = NOTHING if "phase" in (recorded.grain, other.grain) else _busy_spread(recorded, ours, other, theirs, times)
    judged = _judged({"steps": steps} if whole else {"compute_side": compute_side}, gpu_busy, tolerance)
    analyses = analyses or Both(analyse(recorded), analyse(other))
    between_ranks = _communication(recorded, other)
    return Comparison(
        verdict=verdict,
        replay=other.is_replay,
        steps_compared=Both(len(timed), len(timed_other)),
        paces=paces,
        bottlenecks=Both(
            bottleneck(paces.recorded, analyses.recorded.idle, between_ranks.recorded if between_ranks else None),
            bottleneck(paces.replayed, analyses.replayed.idle, between_ranks.replayed if between_ranks else None),
        ),
        steps=steps,
        host_pace=_spread(times, timed, timed_other, steady, host_series),
        device_pace=_spread(times, timed, timed_other, steady, device_series),
        compute_side=compute_side,
        gpu_busy=gpu_busy,
        phases=_phases(recorded, Both(timed, timed_other), other, Both(ours, theirs)),
        host_phases_comparable=recorded.phase_timing is other.phase_timing,
        streams=_streams(recorded, ours, other, theirs),
        coverage=_coverage(other, notes) if other.is_replay else None,
        host=notes.host if notes is not None else HostFigures(),
        values=ValueReads(
            unrecorded_reads=notes.reads_unrecorded if notes is not None else None,
            computed=(config is not None and config.values == "compute") if other.is_replay else None,
            sizes_assumed=notes.sizes_assumed if notes is not None else None,
        ),
        events_never_recorded=notes.events_never_recorded if notes is not None else None,
        memory=_memory(recorded, other, notes),
        missing=list(notes.missing) if notes is not None else [],
        missing_in_steps=called_in(other, theirs, notes.missing) if notes is not None else [],
        changes=changes(recorded, other, ours, theirs, tolerance, top),
        clock=config.clock if config is not None else None,
        speed=config.speed if config is not None else None,
        tolerance=tolerance,
        judged=judged.figure,
        judged_figures=judged.required,
        within_tolerance=_within(judged, verdict),
        analyses=analyses,
        estimates=[name for name, side in (("A", recorded), ("B", other)) if side.run_of(side.ranks[0]).predicted],
        evaluation=_evaluation(recorded, other, times),
        parts=part_errors(recorded, timed, other, timed_other),
        communication=between_ranks,
    )


@dataclass(frozen=True, slots=True)
class _Judgement:
    """The figure that decides, and whether all that are known are within tolerance; None: none is known."""

    figure: str
    required: tuple[str, ...]
    is_within: bool | None


def _judged(steps: Mapping[str, Spread], gpu_time: Spread, tolerance: float) -> _Judgement:
    """`steps` is the one figure of a step's time that counts here; GPU time must be within tolerance beside it."""
    known = [(name, _differs(of, tolerance)) for name, of in {**steps, "gpu_busy": gpu_time}.items()]
    known = [(name, differs) for name, differs in known if differs is not None]
    beyond = [name for name, differs in known if differs]
    name = next(iter([*beyond, *(name for name, _ in known), *steps]))
    return _Judgement(name, tuple(name for name, _ in known), not beyond if known else None)


def _differs(of: Spread, tolerance: float) -> bool | None:
    """Whether the figure differs by more than the tolerance; None where a trace lacks it, or both are 0."""
    if of.recorded_median_ns == 0 and of.replayed_median_ns:
        return True
    return None if of.error is None else abs(of.error) > tolerance


def _within(judged: _Judgement, verdict: Verdict) -> bool | None:
    if verdict.same is None or verdict.same is False:
        return verdict.same
    return True if verdict.evidence is Evidence.IDENTICAL else judged.is_within


_NO_STEPS = PaceSeries(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), NONE)


def _spread(
    times: Both[StepTimes], ours: Column, theirs: Column, steady: Column, of: Callable[[StepTimes, Column], PaceSeries | None]
) -> Spread:
    """Intervals of these steps of both traces: those that `of` chooses on each side. `steady`: the steps whose noise counts."""
    a, b = of(times.recorded, ours) or _NO_STEPS, of(times.replayed, theirs) or _NO_STEPS
    noisy = steady[np.isin(times.recorded.rank[steady], times.recorded.rank[a.rows])]
    noisy = noisy[a.interval_ns[noisy] != NONE] if len(a.rows) else noisy[:0]
    return spread(a.rows, a.interval_ns, b.rows, b.interval_ns, noisy)


def _without_data(
    times: Both[StepTimes],
    ours: Column,
    theirs: Column,
    steady: Column,
    paces: Both[StepPace | None],
    *,
    loads_otherwise: bool,
) -> Spread:
    """The pace without waits for data.

    A replay that loads its own data (`loads_otherwise`) waits longer or shorter than the recording did, so the devices' queues
    cover another part of its waits. If the recording's host is the limit, waits are therefore left out whole on both sides.
    """
    if loads_otherwise and paces.recorded is not None and paces.recorded.limit == HOST:
        return _spread(times, ours, theirs, steady, _host_without_loader)
    return _spread(times, ours, theirs, steady, _series_without_data)


def _host_without_loader(times: StepTimes, rows: Column) -> PaceSeries | None:
    of = host_series(times, rows)
    return None if of is None else replace(of, interval_ns=of.interval_ns - times.loader_ns)


def _series_without_data(times: StepTimes, rows: Column) -> PaceSeries | None:
    of = pace_series(times, rows)
    return None if of is None else replace(of, interval_ns=of.without_data_ns)


def _steps_to_compare(recorded: Trace, other: Trace) -> tuple[Column, Column]:
    """Rows of both traces' steps; empty for both where one has none, which means: compare the traces as wholes."""
    if not len(recorded.steps) or not len(other.steps):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    source = other.steps.recorded_step
    driven = (source >= 0) & (source < len(recorded.steps))
    if not driven.any():
        return _same_kinds(recorded, profiled_steps(recorded), other, profiled_steps(other))
    trained = driven & (other.steps.kind != StepKind.EVALUATION)
    steady = trained & (other.steps.kind != StepKind.WARMUP)
    # A batch evaluated by times of a training step is not that step: where there is nothing else, nothing is compared.
    like = np.isin(source, evaluation_steps(recorded))
    rows = np.flatnonzero(next((chosen for chosen in (steady, trained) if chosen.any()), driven & like))
    return source[rows].astype(np.int64), rows


def _same_numbers(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> tuple[Column, Column]:
    """Of a replay the steps with the numbers of the recorded ones, where it has them all and they hold as many passes.

    Steps of a script are not all alike (some begin with an epoch's metrics), and a profile holds but a few. Else `_same_kinds`.
    """
    rows = np.unique(ours)
    row_of = {int(other.steps.number[row]): row for row in theirs.tolist()}
    same = np.array([row_of.get(number, NONE) for number in recorded.steps.number[rows].tolist()], np.int64)
    if other.is_replay and (same != NONE).all() and (passes_of_steps(recorded)[rows] == passes_of_steps(other)[same]).all():
        return rows, same
    return _same_kinds(recorded, ours, other, theirs)


def _same_kinds(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> tuple[Column, Column]:
    """Of these rows of steps the longest run of each trace in which the same numbers of passes follow each other.

    Only where both traces have steps of several kinds (`passes_of_steps`), and the run holds them all.
    """
    rows = [np.unique(one)[-_IN_A_RUN:] for one in (ours, theirs)]
    kinds = [passes_of_steps(trace)[of].tolist() for trace, of in zip((recorded, other), rows, strict=True)]
    if len(set(kinds[0])) < 2 or set(kinds[0]) != set(kinds[1]):
        return ours, theirs
    at, there, count = SequenceMatcher(a=kinds[0], b=kinds[1], autojunk=False).find_longest_match()
    if set(kinds[0][at : at + count]) != set(kinds[0]):
        return ours, theirs
    return rows[0][at : at + count], rows[1][there : there + count]


def _clean(trace: Trace, rows: Column) -> Column:
    """Rows of steps; of a trace that has clean steps, those in the place of steps that were profiled.

    Where not all hold as many passes, each profiled step is stood for by clean ones of its kind, as often as it is there.
    """
    clean = np.flatnonzero(trace.steps.kind == StepKind.STEADY)
    if not len(clean) or not (trace.steps.kind[rows] == StepKind.PROFILED).any():
        return rows
    passes = passes_of_steps(trace)
    kinds, counts = np.unique(passes[rows], return_counts=True)
    if len(kinds) == 1 or not np.isin(kinds, passes[clean]).all():
        return clean
    return np.concatenate([np.resize(clean[passes[clean] == kind], count) for kind, count in zip(kinds, counts, strict=True)])


def _communication(recorded: Trace, other: Trace) -> Both[Communication | None] | None:
    ours, theirs = (communication(trace) if len(trace.collectives) else None for trace in (recorded, other))
    return Both(ours, theirs) if ours or theirs else None


def _evaluation(recorded: Trace, other: Trace, times: Both[StepTimes]) -> Evaluation | None:
    """The evaluation steps by themselves; of a replay with recorded ones, those that drove it, as often as they did."""
    ours, theirs = evaluation_steps(recorded), evaluation_steps(other)
    if not len(ours) and not len(theirs):
        return None
    source = other.steps.recorded_step[theirs]
    drove = source[np.isin(source, ours)].astype(np.int64)
    rows = drove if len(drove) else ours
    return Evaluation(
        steps_compared=Both(len(rows), len(theirs)),
        steps=_spread(times, rows, theirs, ours, pace_series),
        compute_side=_spread(times, rows, theirs, ours, _series_without_data),
    )


def _busy_spread(recorded: Trace, ours: Column, other: Trace, theirs: Column, times: Both[StepTimes]) -> Spread:
    """GPU time of the steps, all devices of a rank together; without steps, of the whole trace."""
    if not len(ours):
        a, b = busy_ns(recorded), busy_ns(other)
        return Spread(a, b, relative_error(a, b), None, None, None, None, None)
    return spread(ours, times.recorded.gpu_time_ns, theirs, times.replayed.gpu_time_ns, profiled_steps(recorded))


def _phases(recorded: Trace, timed: Both[Column], other: Trace, with_kernels: Both[Column]) -> dict[str, PhaseError]:
    """`timed` are the steps whose times are compared, `with_kernels` those whose device work is."""
    if not len(timed.recorded):
        return {}
    a = phase_medians(recorded, timed.recorded, with_kernels.recorded)
    b = phase_medians(other, timed.replayed, with_kernels.replayed)
    found = {}
    for name in sorted(a.keys() | b.keys(), key=lambda n: (PHASES.index(n) if n in PHASES else len(PHASES), n)):
        ours, theirs = a.get(name, PhaseMedians()), b.get(name, PhaseMedians())
        host = ours.median_ns or 0, theirs.median_ns or 0
        device = ours.device_median_ns, theirs.device_median_ns
        busy = ours.busy_median_ns, theirs.busy_median_ns
        host_error = relative_error(*host) if recorded.phase_timing is other.phase_timing else None
        found[name] = PhaseError(*host, host_error, *device, relative_error(*device), *busy, relative_error(*busy))
    return found


def _streams(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> list[StreamShare]:
    """The streams of both traces, device by device."""
    a, b = _stream_shares(recorded, ours), _stream_shares(other, theirs)
    rows = []
    for device in sorted(a.keys() | b.keys()):
        left, right = a.get(device, {}), b.get(device, {})
        rows += [
            StreamShare(device, p, q, None if p is None else left[p], None if q is None else right[q])
            for p, q in pair_streams(left, right)
        ]
    return rows


def pair_streams(left: Mapping[int, float], right: Mapping[int, float]) -> list[tuple[int | None, int | None]]:
    """Which stream of one trace's device is which of the other's: those of one number, then the busiest with the busiest.

    Both sides say how busy each stream is, in any unit.
    """
    pairs: list[tuple[int | None, int | None]] = [(number, number) for number in sorted(left.keys() & right.keys())]
    only_left = sorted(left.keys() - right.keys(), key=lambda number: -left[number])
    only_right = sorted(right.keys() - left.keys(), key=lambda number: -right[number])
    return [*pairs, *itertools.zip_longest(only_left, only_right)]


def _stream_shares(trace: Trace, steps: Column) -> dict[str, dict[int, float]]:
    """Per device label and stream: the busy share over the chosen steps (`device_windows`); without steps, over the trace."""
    shares: dict[str, dict[int, float]] = {}
    windows = device_windows(trace, np.unique(steps)) if len(steps) else device_windows(trace)
    for (device, stream), busy in busy_by_stream(trace).items():
        window = windows.get(device)
        busy_ns_ = int(busy.within(window.start_ns, window.end_ns).sum()) if window is not None else 0
        share = busy_ns_ / window.total_ns if window is not None and window.total_ns else 0.0
        shares.setdefault(trace.device_label(device), {})[stream] = share
    return shares


def _coverage(replay: Trace, notes: ReplayNotes | None) -> dict[str, float] | None:
    """Where the times of the replayed device work come from, as shares that add up to 1.

    "unmatched" is recorded device time of phases that the script never entered: no part of the replay.
    """
    times = {origin.name.lower(): ns for origin, ns in device_time_by_origin(replay).items()}
    times["unmatched"] = notes.uncharged_ns if notes is not None else 0
    kinds = (*_COVERAGE, "curve") if times.get("curve") else _COVERAGE
    total = sum(times.get(kind, 0) for kind in kinds)
    return {kind: times.get(kind, 0) / total for kind in kinds} if total else None


def _memory(recorded: Trace, other: Trace, notes: ReplayNotes | None) -> dict[str, MemoryComparison]:
    """Peaks by device; of a replay's devices that were used also how much memory there was, and whether it was enough."""
    a, b = ({t.device_label(row): peak for row, peak in memory_peaks(t).items()} for t in (recorded, other))
    rises_a, rises_b = ({t.device_label(row): rise for row, rise in step_rises(t).items()} for t in (recorded, other))
    room: dict[str, dict[str, Any]] = {}
    for row, use in enumerate(notes.memory if notes is not None else ()):
        if row < len(other.devices) and (use.most_reserved_bytes or use.ooms):
            room[other.device_label(row)] = {
                "capacity_bytes": use.capacity_bytes,
                "capacity_given": use.given,
                "outside_bytes": use.outside_bytes,
                "reserved_peak_bytes": use.most_reserved_bytes,
                "ooms": use.ooms,
                "fits": not use.ooms,
            }
    return {
        device: MemoryComparison(
            recorded_peak_bytes=a[device].peak_allocated_bytes if device in a else None,
            replayed_peak_bytes=b[device].peak_allocated_bytes if device in b else None,
            recorded_source=a[device].source if device in a else None,
            replayed_source=b[device].source if device in b else None,
            recorded_step_rise_bytes=rises_a.get(device),
            replayed_step_rise_bytes=rises_b.get(device),
            **room.get(device, {}),
        )
        for device in sorted(a.keys() | b.keys() | room.keys())
    }
