"""Defines the dataclasses that contain the results of a comparison. `trace diff --json` prints the field names as keys.

    comparison = compare(load("v100.msgpack"), load("replay.msgpack"))
    comparison.steps.error, comparison.phases["forward"].error, comparison.memory["cuda:0"].compared_bytes
    comparison.to_json()              # the keys that scripts rely on
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, TypeVar

from traces.analyses.analyse import Analyses
from traces.analyses.communication import Communication
from traces.comparison.changed_ops import Changes
from traces.comparison.fused_ops import FusedOps
from traces.comparison.program.verdict import Evidence, Verdict
from traces.compiled.region_figures import CompiledFigures
from traces.figures.bottleneck import PaceLimit
from traces.figures.pace import StepPace
from traces.figures.spread import Spread
from traces.figures.stage_times import StageError
from traces.model.json_facts import OMITTED_IF_EMPTY, Json, as_json, extended
from traces.model.run import HostFigures, MissingOp
from traces.model.workload import Sameness
from traces.rates.estimate_errors import EstimateError

VERSION = 1

Figure = TypeVar("Figure")


@dataclass(frozen=True, slots=True)
class Both(Generic[Figure]):
    """Contains a value, such as the step time, for each of two traces."""

    recorded: Figure  # value of the first trace
    replayed: Figure  # the second recording's value if two recordings are compared

    def __iter__(self) -> Iterator[Figure]:
        return iter((self.recorded, self.replayed))


@dataclass(frozen=True, slots=True)
class PhaseError(StageError):
    """Compares the median times of one training phase, such as "backward", in two traces. The times are medians or, if step
    times vary a lot, means."""

    recorded_median_ns: int  # median host time
    replayed_median_ns: int  # median host time
    busy_recorded_median_ns: int | None  # median GPU busy time
    busy_replayed_median_ns: int | None  # median GPU busy time
    busy_error: float | None  # relative difference of these medians
    wait_recorded_median_ns: int | None  # median time in which the host waits for its GPUs; None if no wait was recorded
    wait_replayed_median_ns: int | None  # like `wait_recorded_median_ns`, for the second trace


@dataclass(frozen=True, slots=True)
class StreamShare:
    """Compares the busy time of a CUDA stream in two traces, as a fraction of the step time."""

    device: str  # device label, such as "cuda:0"
    recorded_stream: int | None  # number of the stream in the first trace
    replayed_stream: int | None  # number of the stream in the second trace
    recorded_busy: float | None  # busy time divided by step time
    replayed_busy: float | None  # busy time divided by step time


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Compares the evaluation steps of two traces."""

    steps_compared: Both[int]  # number of compared steps
    steps: Spread  # step times
    compute_side: Spread  # step times without waits for data


@dataclass(frozen=True, slots=True)
class ValueReads:
    """Counts how often a replayed script read tensor values that were not recorded."""

    unrecorded_reads: int | None  # number of values that the script read although they were not recorded
    computed: bool | None  # whether the replay computed values (`--values compute`)
    sizes_assumed: int | None = None  # counts op outputs with an assumed size, such as those of `nonzero`


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """Compares the peak memory of one device in two traces. The memory rise of a step is its peak memory minus the memory at
    its start."""

    recorded_peak_bytes: int | None  # memory peak in the first trace; None if unknown or perhaps the peak of a compilation
    replayed_peak_bytes: int | None  # memory peak in the second trace
    recorded_source: str | None  # "recorded", "summed" or "run", see `source` of MemoryPeak
    replayed_source: str | None  # like `recorded_source`, for the second trace
    recorded_step_rise_bytes: int | None  # median over steps, first trace
    replayed_step_rise_bytes: int | None  # median over steps, second trace
    replayed_run_peak_bytes: int | None = None  # includes the steps that are not compared
    capacity_bytes: int | None = None  # memory of the virtual GPU
    capacity_given: bool | None = None  # whether --gpu-memory set the capacity
    outside_bytes: int | None = None  # GPU memory taken by anything other than PyTorch's allocator
    reserved_peak_bytes: int | None = None  # peak of the memory that the allocator reserved in the replay
    ooms: int | None = None  # number of out-of-memory errors in the replay
    fits: bool | None = None  # False if the replay ran out of memory, None if unknown

    @property
    def rises_compared(self) -> bool:
        rises = self.recorded_step_rise_bytes, self.replayed_step_rise_bytes
        return None not in rises and "summed" in (self.recorded_source, self.replayed_source)

    @property
    def compared_bytes(self) -> tuple[int | None, int | None]:
        if self.rises_compared:
            return self.recorded_step_rise_bytes, self.replayed_step_rise_bytes
        return self.recorded_peak_bytes, self.replayed_peak_bytes


@dataclass(frozen=True, slots=True)
class Reason:
    """Describes one reason for a time difference between two traces."""

    what: str  # what takes longer or shorter, such as "backward" or "communication"
    delta_ns: int  # positive if the second trace is slower
    before_ns: int | None  # value in the first trace; None if unknown
    after_ns: int | None  # value in the second trace; None if unknown
    phase: str  # a phase or op, or ""
    text: str  # the reason as a sentence
    names: tuple[str, ...] = ()  # kernels and ops that `text` mentions


@dataclass(frozen=True, kw_only=True)
class ComparedFigures:
    """Contains the result of comparing two traces."""

    replay: bool  # whether the second trace is a replay of the first
    steps_compared: Both[int]  # number of compared steps
    ranks: Both[int]  # number of ranks; step times are those of one rank
    gpus: Both[int]  # GPUs that one rank uses; if the numbers differ, `changes` are those of one GPU
    gpu_names: Both[str]  # "" if no GPU was recorded
    paces: Both[StepPace | None]
    bottlenecks: Both[PaceLimit | None]  # what limits each trace
    steps: Spread  # step times
    host_pace: Spread  # the step time on the host
    device_pace: Spread  # the step time on the slowest GPU
    compute_side: Spread  # the step time without waits for data
    gpu_busy: Spread  # GPU busy time per step
    phases: dict[str, PhaseError]  # comparison of each phase
    host_phases_comparable: bool  # False if only one script waited for the GPU after each phase
    streams: list[StreamShare]
    coverage: dict[str, float] | None  # share of the GPU time from recorded, scaled, estimated and other operations
    host: HostFigures
    values: ValueReads
    events_never_recorded: int | None  # events that the script of a replay waited for but never recorded
    memory: dict[str, MemoryComparison]  # comparison for each device label
    missing: list[MissingOp]  # ops that were called in the replay but not in the recording
    missing_in_steps: list[MissingOp]  # ops missing from at least half of the compared steps that call them
    changes: Changes  # kernels and ops with another number of calls or another time
    clock: str | None  # the replay's clock: "wall", or "virtual" (GPU waits took no time, so loading times are not realistic)
    speed: float | None  # 2 if a replay runs twice as fast as the recording; all times here are recorded time
    tolerance: float  # largest allowed difference of step times, as a fraction
    judged: str  # the key of a figure outside the tolerance, or else of the step time, such as "compute_side"
    # figures that must be within tolerance: a step time and, if both traces have them, GPU time and `rarer_steps`
    judged_figures: tuple[str, ...]
    # False for another program or another time; None if undecided: much GPU work is missing, or the difference may be noise
    within_tolerance: bool | None
    analyses: Both[Analyses]
    # the time of steps that run other kernels than most steps, such as the prefill steps of an inference server
    rarer_steps: Spread | None = field(default=None, metadata=OMITTED_IF_EMPTY)
    # number of replayed steps with recorded GPU times to compare, if some replayed steps have no recorded GPU times
    gpu_time_steps: int | None = field(default=None, metadata=OMITTED_IF_EMPTY)
    evaluation: Evaluation | None = field(default=None, metadata=OMITTED_IF_EMPTY)
    parts: dict[str, StageError] = field(default_factory=dict, metadata=OMITTED_IF_EMPTY)
    # time that the GPUs spend on communication
    communication: Both[Communication | None] | None = field(default=None, metadata=OMITTED_IF_EMPTY)
    compiled: Both[CompiledFigures] | None = field(default=None, metadata=OMITTED_IF_EMPTY)  # if a trace has compiled code
    # eager ops and fused kernels of one step, if only one of the two traces has fused kernels
    fused: tuple[FusedOps, ...] = field(default=(), metadata=OMITTED_IF_EMPTY)
    # samples per step, if the inputs differ only in the batch size
    batch_sizes: Both[int] | None = field(default=None, metadata=OMITTED_IF_EMPTY)
    # backward passes per step, if their numbers differ, for example because gradients are accumulated over more batches
    passes: Both[int] | None = field(default=None, metadata=OMITTED_IF_EMPTY)
    # what explains most of the difference between two recordings
    largest_reason: Reason | None = field(default=None, metadata=OMITTED_IF_EMPTY)
    problems: Both[list[str]] = Both([], [])  # sentences about problems that make the figures of a trace unreliable
    estimates: list[str] = field(default_factory=list, metadata=OMITTED_IF_EMPTY)  # traces ("A", "B") that `trace predict` made
    # likely error of the step time, for each trace in `estimates`
    expected_errors: dict[str, float] = field(default_factory=dict, metadata=OMITTED_IF_EMPTY)
    # likely error of a replay's estimated times
    estimate_error: EstimateError | None = field(default=None, metadata=OMITTED_IF_EMPTY)
    version: int = VERSION  # version of the JSON keys


@dataclass(frozen=True, kw_only=True)
class VerdictFacts:
    """Says whether two traces were recorded from the same program."""

    same_program: bool | None  # null if unknown
    reason: str  # the reason for the verdict, in words
    verdict: Sameness  # whether and how the programs differ
    evidence: Evidence  # what the verdict is based on
    not_compared: tuple[str, ...]  # facts that only one trace has, such as "shapes"


@dataclass(frozen=True, kw_only=True)
class ComparisonFacts(ComparedFigures, VerdictFacts):
    """Contains the comparison of a recording and a replay, which `trace replay --report` writes to a file."""

    pace: Spread  # equal to `steps`
    gpu_time: Spread  # equal to `gpu_busy`
    # of all ranks together, if the inputs differ only in the batch size
    samples_per_s: Both[float] | None = field(default=None, metadata=OMITTED_IF_EMPTY)


@dataclass(frozen=True, kw_only=True)
class Comparison(ComparedFigures):
    verdict: Verdict
    work_is_hidden: Both[bool]  # whether a trace lacks GPU work, so that its steps may take longer than the trace shows
    copies_ns: Both[int]  # the time per step that the host or other GPU work waits for copies from or to the host

    @property
    def words(self) -> tuple[str, str]:
        return ("recorded", "replayed") if self.replay else ("A", "B")

    @property
    def names(self) -> tuple[str, str]:
        return ("the recording", "the replay") if self.replay else ("A", "B")

    @property
    def figures(self) -> dict[str, Spread]:
        found = {"steps": self.steps, "compute_side": self.compute_side, "gpu_busy": self.gpu_busy}
        return found if self.rarer_steps is None else {**found, "rarer_steps": self.rarer_steps}

    @property
    def samples_per_s(self) -> Both[float] | None:
        sizes, before_ns, after_ns = self.batch_sizes, self.steps.recorded_ns, self.steps.replayed_ns
        if sizes is None or not before_ns or not after_ns:
            return None
        samples = Both(sizes.recorded * self.ranks.recorded, sizes.replayed * self.ranks.replayed)
        return Both(1e9 * samples.recorded / before_ns, 1e9 * samples.replayed / after_ns)

    @cached_property
    def unfused_changes(self) -> Changes:
        """Return the changed kernels and ops that no row of `fused` contains."""
        shown = {name for row in self.fused for name in (*row.kernels, *row.ops)}
        return Changes(self.changes.kernels.without(shown), self.changes.ops.without(shown))

    @property
    def have_gpu_times(self) -> bool:
        """Return False if the GPU work of a trace was not recorded. The ops of such traces are not compared."""
        return None not in (self.gpu_busy.recorded_ns, self.gpu_busy.replayed_ns)

    @property
    def unmeasured_phases_ns(self) -> dict[str, int]:
        """Return the GPU times of the phases that a published study did not measure, but that its replay contains."""
        times_ns = {name: of.device_replayed_median_ns or 0 for name, of in self.phases.items() if not of.recorded_median_ns}
        is_study = self.replay and not self.host_phases_comparable
        return {name: ns for name, ns in times_ns.items() if ns and name != "loader"} if is_study else {}

    @property
    def waits_for_data(self) -> bool:
        """Return True if a step waits for data in at least one trace."""
        steps, without = self.steps, self.compute_side
        return (steps.recorded_ns, steps.replayed_ns) != (without.recorded_ns, without.replayed_ns)

    def estimate_sentences(self) -> list[str]:
        of = {name: f"; expected error {error:.0%}" for name, error in self.expected_errors.items()}
        return [f"{name} is an ESTIMATE by `trace predict`, not a recording{of.get(name, '')}." for name in self.estimates]

    def facts(self) -> ComparisonFacts:
        """Return the dictionary that `trace diff --json` prints."""
        of = self.verdict
        return extended(
            ComparisonFacts, self, same_program=of.same, reason=of.reason, verdict=of.sameness, evidence=of.evidence,
            not_compared=of.not_compared, pace=self.steps, gpu_time=self.gpu_busy,
        )  # fmt: skip

    def to_json(self) -> Json:
        return as_json(self.facts())

    def __repr__(self) -> str:
        lines = [f"Comparison with {'a replay' if self.replay else 'another recording'}: {self.verdict.sameness.value}"]
        lines[0] += f" ({self.verdict.reason})"
        data = [("step without data loading", self.compute_side)] * self.waits_for_data
        for words, figure in (("step", self.steps), *data, ("GPU time", self.gpu_busy)):
            a_ns, b_ns = figure.recorded_ns, figure.replayed_ns
            if a_ns is not None and b_ns is not None:
                error = "" if figure.error is None else f" ({figure.error:+.1%})"
                lines.append(f"{words} {a_ns / 1e6:.3f} -> {b_ns / 1e6:.3f} ms{error}")
        within = {True: "within", False: "not within", None: "not judged against"}[self.within_tolerance]
        lines.append(f"{within} {self.tolerance:.1%} of {self.judged}")
        return "\n  ".join(lines)

    def without_an_end(self) -> Comparison:
        """Mark the result of a crashed script. A crashed script does not show how much memory the whole script needs."""
        memory = {device: replace(of, fits=of.fits and None) for device, of in self.memory.items()}
        return replace(self, memory=memory)
