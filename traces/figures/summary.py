"""Collects the statistics of a trace that `trace info` prints.

    summarize(load("v100.msgpack")).counts
    # Counts(kernels=8772, copies=324, host_ops=32124, memory_events=12838, steps=6)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from traces.analyses.analyse import Analyses, analyse
from traces.analyses.communication import CollectiveTotals, Communication, collective_totals, communicates, communication
from traces.analyses.idle import busy_times
from traces.comparison.thresholds import MUCH_SPREAD
from traces.figures import measure
from traces.figures.bottleneck import PaceLimit, Slowdown, StepsOfKernels, bottleneck_of, slowdown_of, steps_by_kernels
from traces.figures.input_pipeline import InputPipeline, input_pipeline
from traces.figures.pace import StepPace, StepTimes, device_windows, median_ns, pace_intervals, pace_of, step_times
from traces.figures.phase_medians import PhaseMedians, phase_medians
from traces.figures.problems import problems_of, why_work_is_hidden
from traces.figures.spread import median
from traces.figures.stage_times import StageMedians, stage_medians
from traces.model.intervals import Intervals
from traces.model.json_facts import OMITTED_IF_NONE, Json, as_json
from traces.model.machine import Machine
from traces.model.result_cache import result_cache
from traces.model.run import CleanSteps, ProfilerCost, RecorderNotes, Run
from traces.model.trace import NONE, StepKind, Trace
from traces.rates.estimate_errors import EstimateError, expected_error

VERSION = 1
TOP = 10  # number of rows in the tables of kernels and ops


@dataclass(frozen=True, slots=True)
class StepsOfKind:
    count: int  # number of steps of this kind
    median_ns: int  # median step time


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    name: str  # name of the GPU
    total_memory_bytes: int | None  # memory of the GPU
    rank: int  # rank that uses the GPU
    index: int  # PyTorch's device number


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Says how busy one GPU is."""

    name: str  # name of the GPU
    busy_ns: int  # busy time in the whole trace
    idle_share: float | None  # idle share of the training steps, or None for a GPU without kernels
    streams: dict[int, int]  # GPU busy time by stream


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Describes one step."""

    start_ns: int  # start time on the host
    duration_ns: int  # duration on the host
    number: int  # step number
    rank: int  # rank that ran the step
    kind: str  # such as "warmup", "steady" or "profiled"
    interval_ns: int  # the host or device interval, whichever determines the pace
    compute_side_ns: int  # `interval_ns` without the wait for data
    host_interval_ns: int  # step time on the host
    device_interval_ns: int | None  # the longest interval of the devices; None without device work
    gpu_time_ns: int  # GPU busy time, summed over GPUs


@dataclass(frozen=True, slots=True)
class Summary:
    """Contains the statistics of a trace. Medians exclude warm-up steps, and all times are in nanoseconds."""

    version: int  # version of the JSON keys
    grain: str  # "kernel", or "phase" if only the times of phases were recorded
    ranks: list[int]  # numbers of the recorded ranks
    devices: list[DeviceSummary]  # the GPUs of all ranks
    counts: measure.Counts  # numbers of rows in the trace
    window_ns: int  # time from the first to the last event
    gpu_busy_ns: int  # time in which GPUs run kernels, copies or memsets, summed over all GPUs
    without_op_ns: int  # device time that no recorded op launched
    work_ns: int  # sum of the durations of all kernels, copies and memsets
    gpus: dict[str, GpuUse]  # use of each GPU, by device label, such as "cuda:0"
    steps: list[StepSummary]
    step_median_ns: int | None  # the step time
    compute_side_median_ns: int | None  # the step time without waits for data
    pace: StepPace | None
    bottleneck: PaceLimit | None
    step_kinds: dict[str, StepsOfKind]  # steps of each kind, such as "steady"
    clean: CleanSteps | None
    host_scale: Mapping[str, float] | None  # correction factors for the host times of profiled phases
    profiler_cost: ProfilerCost | None
    recorder: RecorderNotes | None
    phases: dict[str, PhaseMedians]  # median times of each phase
    parts: list[StageMedians]  # stages of nn.DataParallel
    input_pipeline: InputPipeline | None
    collectives: list[CollectiveTotals]
    communication: Communication | None  # time that the GPUs spend on communication
    kernels: list[measure.WorkSum]
    ops: list[measure.WorkSum]  # innermost ops around kernel launches, at most TOP
    calls: list[measure.WorkSum]  # outermost ops around kernel launches, at most TOP
    host_ops: list[measure.HostOpSum]  # ops with the most time on the host, at most TOP; only for traces without GPU work
    host_ops_ns: int  # host time of all ops; the time of each op excludes the ops that it calls
    memory: dict[str, measure.MemoryPeak]  # memory peak of each device, by device label
    lacks: list[str]  # missing data, such as "shapes"
    problems: dict[str, int]  # number of problems of each kind
    machine: Machine  # the machine of the first rank
    run: Run
    provenance: dict[str, Json]  # where and how the trace was recorded
    analyses: Analyses
    estimate_error: EstimateError | None  # likely error of a replay's estimated times
    slowdown: Slowdown | None = field(default=None, kw_only=True, metadata=OMITTED_IF_NONE)
    # the steps that run the same kernels, if the median times of the kinds differ much; the most frequent kind is the first
    steps_by_kernels: list[StepsOfKernels] | None = field(default=None, kw_only=True, metadata=OMITTED_IF_NONE)
    # all kernels of the steps counted in `analyses.idle`, if these steps launched less than half of the GPU's work
    step_kernels: list[measure.WorkSum] | None = field(default=None, kw_only=True, metadata=OMITTED_IF_NONE)
    # if only one step is counted, and much of its GPU time was launched before the recording began: this GPU time
    earlier_work_ns: int | None = field(default=None, kw_only=True, metadata=OMITTED_IF_NONE)

    @property
    def gpu_names(self) -> str:
        return measure.gpu_names(device.name for device in self.devices)

    @property
    def busy_shares(self) -> dict[str, float]:
        return {device: of.busy_ns / of.window_ns for device, of in self.analyses.idle.items() if of.window_ns}

    def to_json(self) -> Json:
        """Return the dictionary that `trace info --json` prints."""
        return as_json(self)

    def __repr__(self) -> str:
        lines = [f"Summary: {self.grain} grain, {len(self.ranks)} rank(s), {len(self.devices)} device(s): {self.gpu_names}"]
        lines.append(", ".join(f"{count} {what.replace('_', ' ')}" for what, count in as_json(self.counts).items()))
        if self.step_median_ns is not None:
            lines.append(f"step {_ms(self.step_median_ns)}, without data loading {_ms(self.compute_side_median_ns)} (medians)")
            lines.append(", ".join(f"{name} {_ms(phase.median_ns)}" for name, phase in self.phases.items()))
        if self.grain != "phase":  # phase-grained traces have no busy times
            lines.append(f"GPU busy {_ms(self.gpu_busy_ns)} of {_ms(self.window_ns)}")
        lines += [f"lacks {text}" for text in self.lacks[:3]]
        lines += [problem.text for problem in problems_of(self.problems, self.counts.kernels)[:3]]
        return "\n  ".join(lines)


@dataclass(frozen=True, slots=True)
class Outline:
    """Contains the statistics that the timeline app shows at the top."""

    ranks: list[int]
    shown_ranks: list[int]  # the ranks that the median, the busy shares and the memory peaks cover
    devices: list[DeviceSummary]
    counts: measure.Counts
    step_median_ns: int | None
    busy_shares: dict[str, float]
    memory: dict[str, measure.MemoryPeak]
    problems: dict[str, int]
    run: Run


@result_cache()
def outline(trace: Trace, whole: Trace | None = None) -> Outline:
    """Return some of the statistics of `summarize`, in less time. If `trace` contains only some ranks, `whole` is the trace of
    all ranks."""
    busy = {} if why_work_is_hidden(trace) else busy_times(trace)
    return Outline(
        ranks=(whole or trace).ranks,
        shown_ranks=trace.ranks,
        devices=_devices(whole or trace),
        counts=measure.counts_of(whole or trace),
        step_median_ns=median_ns(step_times(trace), measure.steady_steps(trace)),
        busy_shares={trace.device_label(row): own.busy_ns / own.window_ns for row, own in busy.items() if own.window_ns},
        memory=measure.by_label(trace, measure.memory_peaks(trace)),
        problems=dict(trace.problems),
        run=trace.run_of(trace.ranks[0]),
    )


def _devices(trace: Trace) -> list[DeviceSummary]:
    return [
        DeviceSummary(d.name, d.total_memory_bytes if d.total_memory_bytes != NONE else None, d.rank, d.index)
        for d in trace.devices
    ]


def _ms(time_ns: int | None) -> str:
    return "-" if time_ns is None else f"{time_ns / 1e6:.3f} ms"


@result_cache()
def summarize(trace: Trace, *, details: bool = True) -> Summary:
    start_ns, end_ns = measure.window_ns(trace)
    times = step_times(trace)
    pace = pace_of(times, measure.steady_steps(trace), measure.profiled_steps(trace))
    analyses = analyse(trace, details=details)
    between_ranks = communication(trace) if communicates(trace) else None
    run = trace.run_of(trace.ranks[0])
    work = measure.work_rows(trace)
    durations_ns = trace.device.duration_ns[work]
    host_ops = [] if len(work) else measure.host_op_table(trace)
    of_steps = measure.kernel_table(trace, measure.profiled_steps(trace)) if analyses.idle and len(trace.steps) else []
    few = 0 < 2 * sum(row.device_ns for row in of_steps) < int(durations_ns.sum())
    return Summary(
        version=VERSION,
        grain=trace.grain,
        ranks=trace.ranks,
        devices=_devices(trace),
        counts=measure.counts_of(trace),
        window_ns=end_ns - start_ns,
        gpu_busy_ns=measure.busy_ns(trace),
        without_op_ns=int(durations_ns[measure.op_of(trace)[work] == NONE].sum()),
        work_ns=int(durations_ns.sum()),
        gpus=_gpus(trace, analyses),
        steps=_steps(trace, times),
        step_median_ns=None if pace is None else pace.pace_ns,
        compute_side_median_ns=None if pace is None else pace.without_data_ns,
        pace=pace,
        bottleneck=bottleneck_of(trace, pace, analyses),
        slowdown=slowdown_of(trace),
        steps_by_kernels=steps_by_kernels(trace),
        step_kinds=_step_kinds(trace),
        clean=run.clean,
        host_scale=run.host_scale or None,
        profiler_cost=run.profiler_cost,
        recorder=run.recorder,
        phases=phase_medians(trace, measure.steady_steps(trace), measure.profiled_steps(trace)),
        parts=stage_medians(trace),
        input_pipeline=input_pipeline(trace),
        collectives=collective_totals(trace),
        communication=between_ranks,
        kernels=measure.kernel_table(trace)[:TOP],
        step_kernels=of_steps if few else None,
        earlier_work_ns=_earlier_work_ns(trace) if pace is not None and pace.steps == 1 else None,
        ops=measure.op_table(trace)[:TOP] if details else [],
        calls=measure.op_table(trace, outermost=True)[:TOP] if details else [],
        host_ops=host_ops[:TOP],
        host_ops_ns=sum(row.self_ns for row in host_ops),
        memory=measure.by_label(trace, measure.memory_peaks(trace)),
        lacks=list(trace.lacks),
        problems=dict(trace.problems),
        machine=trace.machine_of(trace.ranks[0]),
        run=run,
        provenance=dict(trace.provenance),
        analyses=analyses,
        estimate_error=expected_error(trace),
    )


def _earlier_work_ns(trace: Trace) -> int | None:
    windows, device = device_windows(trace), trace.device
    earlier_ns = all_ns = 0
    for row, of in windows.items():
        mine = np.flatnonzero(measure.backlog(trace) & (device.device == row))
        earlier = Intervals(device.start_ns[mine], device.end_ns[mine])
        earlier_ns += int(earlier.within(of.start_ns, of.end_ns).sum())
        all_ns += of.total_ns
    return earlier_ns if all_ns and earlier_ns >= MUCH_SPREAD * all_ns else None


def _steps(trace: Trace, times: StepTimes) -> list[StepSummary]:
    steps, longest_ns, gpu_time_ns = trace.steps, times.longest_device_ns, times.gpu_time_ns
    interval_ns = pace_intervals(trace)
    return [
        StepSummary(
            start_ns=int(steps.start_ns[row]),
            duration_ns=int(steps.duration_ns[row]),
            number=int(steps.number[row]),
            rank=int(steps.rank[row]),
            kind=StepKind(int(steps.kind[row])).name.lower(),
            interval_ns=int(interval_ns[row]),
            compute_side_ns=int(interval_ns[row] - times.data_wait_ns[row]),
            host_interval_ns=int(times.host_interval_ns[row]),
            device_interval_ns=int(longest_ns[row]) if longest_ns[row] != NONE else None,
            gpu_time_ns=int(gpu_time_ns[row]),
        )
        for row in range(len(steps))
    ]


def _gpus(trace: Trace, analyses: Analyses) -> dict[str, GpuUse]:
    streams = measure.busy_by_stream(trace)
    found = {}
    for device, busy in measure.busy_by_device(trace).items():
        label = trace.device_label(device)
        idle = analyses.idle.get(label)
        found[label] = GpuUse(
            trace.devices[device].name,
            busy_ns=busy.total_ns,
            idle_share=idle.idle_ns / idle.window_ns if idle is not None and idle.window_ns else None,
            streams={stream: own.total_ns for (of, stream), own in streams.items() if of == device},
        )
    return found


def _step_kinds(trace: Trace) -> dict[str, StepsOfKind]:
    durations = {kind: trace.steps.duration_ns[trace.steps.kind == kind] for kind in StepKind}
    return {
        kind.name.lower(): StepsOfKind(len(duration_ns), middle_ns)
        for kind, duration_ns in durations.items()
        if (middle_ns := median(duration_ns)) is not None
    }
