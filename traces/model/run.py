"""Describes how one rank was recorded, imported or replayed.

    trace.run_of(0).loaders[0].batch_size       # 32
    trace.run_of(0).profiler_cost.op_ns         # 480: host time that torch.profiler takes per op with shapes
    trace.run_of(0).replay.config.speed         # 2.0; `replay` is None for a recording
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from traces.model.typed_json import fitting
from traces.script.configuration import RecordConfig, ReplayConfig

RECORDER, KINETO, REPLAY = "trace record", "kineto", "replay"
STREAMS, QUEUES = "streams", "queues"  # whether stream numbers of an AMD recording denote streams or hardware queues


@dataclass(frozen=True)
class Script:
    name: str = ""  # file name of the script
    module: str | None = None  # name of the module, if the script was started with `-m`
    sha256: str | None = None  # hash of the script's file


@dataclass(frozen=True)
class LoaderSettings:
    """Stores the DataLoader arguments that affect loading speed."""

    workers: int | None = None  # DataLoader's `num_workers`
    batch_size: int | None = None  # DataLoader's argument of this name
    prefetch_factor: int | None = None  # DataLoader's argument of this name
    pin_memory: bool | None = None  # DataLoader's argument of this name
    persistent_workers: bool | None = None  # DataLoader's argument of this name
    samples: int | None = None  # length of the data set


@dataclass(frozen=True)
class RecorderNotes:
    """Stores what `trace record` knows about a recording, such as the recording's overhead."""

    version: str | None = None  # version of trace-replay
    overhead_ns_per_step: int = 0  # time that the recorder adds to a step
    overhead_share: float = 0.0  # fraction of the step time
    set_up_ns: int = 0  # overhead that occurs once, such as opening the file; not part of `overhead_ns_per_step`
    config: RecordConfig | None = None  # options of `trace record`
    virtual_gpu: str = ""  # GPU of a virtual recording, "" for a real one
    device_lost: str = ""  # why GPU times are missing at the end, such as a CUDA error


@dataclass(frozen=True)
class ProfilerUse:
    steps: tuple[int, ...] = ()  # numbers of the profiled steps
    failed: str | None = None  # why the profiler recorded nothing
    warnings: tuple[str, ...] = ()  # warnings that Kineto logged, without timestamps


@dataclass(frozen=True)
class CleanSteps:
    """Compares steps that ran without the profiler (clean steps) with profiled steps."""

    steps: int = 0  # number of clean steps
    step_median_ns: int = 0  # median time of a clean step
    profiled_step_median_ns: int = 0  # median time of a profiled step
    slowdown: float = 1.0  # profiled step time / clean step time


@dataclass(frozen=True)
class ProfilerCost:
    """Stores the CPU time that torch.profiler needs to record one event."""

    op_ns: int = 0  # an op with recorded shapes
    plain_op_ns: int = 0  # an op without recorded shapes
    range_ns: int = 0  # a range of `record_function`
    module_ns: int = 0  # the call of a module
    runtime_ns: int = 0  # a CUDA runtime call that launches nothing
    launch_ns: int = 0  # a launch call
    memory_ns: int = 0  # an allocation or a free
    compiled_range_ns: int = 0  # a range that PyTorch puts around compiled code, such as `CompiledFunction`
    triton_kernel_ns: int = 0  # the call of a Triton kernel in compiled code, without its launch


@dataclass(frozen=True)
class ProcessGroup:
    """Describes one process group of torch.distributed. Field names are those of Kineto's `pg_config`."""

    pg_name: str = ""  # name of the group
    pg_desc: str = ""  # PyTorch's description of the group
    backend_config: str = ""  # backend of each device type, such as "cuda:nccl"
    pg_size: int | None = None  # number of ranks in the group
    ranks: tuple[int, ...] = ()  # the ranks in the group


@dataclass(frozen=True)
class Distributed:
    """Describes a rank's view of torch.distributed. Field names are those of Kineto's `distributedInfo`."""

    backend: str | None = None  # such as "nccl"
    world_size: int | None = None  # number of ranks
    pg_count: int | None = None  # number of process groups
    pg_config: tuple[ProcessGroup, ...] = ()


@dataclass(frozen=True)
class HostFigures:
    """Stores how much CPU time the replayer itself needed. For a recording, all fields are None."""

    lag_ns_per_step: int | None = None  # median
    lag_ns_of_worst_step: int | None = None  # the largest lag of a step
    us_per_op: float | None = None  # median host time per op in microseconds
    ops_per_step: int | None = None  # median


@dataclass(frozen=True)
class MissingOp:
    """Describes an op that was called in a replay, but not in the recording."""

    op: str  # name of the op
    shapes: str  # shapes of the op's inputs
    count: int  # number of calls


@dataclass(frozen=True)
class MemoryUse:
    """Stores the memory use of one device during a whole replay."""

    capacity_bytes: int = 0  # memory of the virtual GPU
    outside_bytes: int = 0  # memory taken by anything other than PyTorch's allocator
    most_allocated_bytes: int = 0  # peak of the memory in tensors
    most_reserved_bytes: int = 0  # peak of the memory that the allocator reserved
    ooms: int = 0  # number of out-of-memory errors
    given: bool = False  # True if `--gpu-memory` set the capacity


@dataclass(frozen=True)
class LibraryCall:
    cell: str  # name in the library, such as "v100/resnet50"
    batch: int  # batch size
    trains: bool  # False for a forward pass without gradients
    how: str  # "measured", "interpolated", "training's forward pass", or "estimated: " and a reason


@dataclass(frozen=True)
class LibrarySteps:
    """Describes the steps of a replay that call the same models with the same batch sizes."""

    steps: int  # number of steps
    phases_ns: Mapping[str, int]  # time of each phase
    calls: tuple[LibraryCall, ...]  # the models that a step calls


@dataclass(frozen=True)
class EagerRegion:
    """Describes a function that ran eagerly, because torch.compile could not trace it."""

    region: str  # name of the function, with file and line
    reason: str  # why torch.compile could not trace it


@dataclass(frozen=True)
class CompiledCode:
    """Counts torch.compile's compilations in a run, including recompilations."""

    regions: int = 0  # number of compiled functions
    graph_breaks: int = 0  # number of graph breaks
    recompiles: int = 0  # number of repeated compilations of a function
    compile_ns: int = 0  # host time of all compilations; in a replay, on the machine that ran the replay
    eager: tuple[EagerRegion, ...] = ()  # functions that ran eagerly
    break_reasons: Mapping[str, int] = field(default_factory=dict)  # number by reason, with file and line
    recompile_reasons: Mapping[str, str] = field(default_factory=dict)  # the guard that failed, by region
    functions: Mapping[str, str] = field(default_factory=dict)  # Dynamo's name of the code with file and line, by region
    # numbers of the evaluation steps that compiled code; training steps that compile code are warm-up steps
    compiling_evaluations: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReplayNotes:
    """Contains facts about a replay, such as its options and its recording."""

    recording: str = ""  # name of the recording
    recording_source: str = ""  # "trace record", "kineto", or the name of a study
    config: ReplayConfig = field(default_factory=ReplayConfig)  # options of `trace replay`
    host: HostFigures = field(default_factory=HostFigures)
    uncharged_ns: int = 0  # recorded GPU time of phases that did not occur in the replayed script
    missing: tuple[MissingOp, ...] = ()  # ops that were not recorded
    missing_not_listed: int = 0  # number of other kinds of unrecorded calls, which `missing` does not list
    # only in a replay of published step times; `Steps.recorded_step` contains indices of this list
    cells: tuple[LibrarySteps, ...] = ()
    reads_unrecorded: int | None = None  # None if the replay computed the values
    sizes_assumed: int | None = None  # number of output sizes that were neither known nor recorded
    events_never_recorded: int | None = None  # events that the script waited for without recording them
    memory: tuple[MemoryUse, ...] = ()
    library_messages: tuple[str, ...] = ()  # messages on how the library entries were chosen
    fingerprint: str = ""  # of the recording (`Trace.fingerprint`); "" in replays of earlier versions


@dataclass(frozen=True)
class Run:
    """Describes how one rank was recorded or replayed. Unknown fields have their defaults."""

    source: str = ""  # "trace record", "kineto", "replay", or the name of a study
    clock: str = ""  # "unix", or "recording" if times begin at 0
    script: Script | None = None  # the script that ran
    argv: tuple[str, ...] | None = None  # arguments of the script
    loaders: tuple[LoaderSettings, ...] = ()
    recorder: RecorderNotes | None = None
    profiler: ProfilerUse = field(default_factory=ProfilerUse)  # what torch.profiler recorded
    clean: CleanSteps | None = None
    # Factors that correct the host times of profiled steps, because the profiler slows the script. A key names a phase:
    # "backward#2/3" is the second of three backward passes in a training step, and "evaluation forward" is the forward pass of
    # evaluation steps. The factors apply after `profiler_cost` is subtracted.
    host_scale: Mapping[str, float] = field(default_factory=dict)
    distributed: Distributed | None = None
    replay: ReplayNotes | None = None
    compiled: CompiledCode | None = None  # None if the script compiled nothing, or if the counts are unknown
    # AMD only: STREAMS, or QUEUES until June 2026 (not comparable)
    stream_numbers: str = ""
    predicted: bool = False  # True for the output of `trace predict`, and for a replay of this output
    expected_error: float | None = None  # expected error of the predicted step time, as a fraction
    profiler_cost: ProfilerCost | None = None

    @property
    def virtual_gpu(self) -> str:
        return "" if self.recorder is None else self.recorder.virtual_gpu

    @property
    def is_epochal(self) -> bool:
        return self.clock == "unix"


UNKNOWN_RUN = Run()


def distributed_of(facts: object) -> Distributed | None:
    groups = facts.get("pg_config") if isinstance(facts, Mapping) else None
    groups = tuple(fitting(ProcessGroup, group) for group in groups) if isinstance(groups, list) else ()
    distributed = replace(fitting(Distributed, facts), pg_config=groups)
    return distributed if distributed != Distributed() else None
