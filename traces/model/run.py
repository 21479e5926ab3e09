"""How the rows of one rank were made: source, clock, loaders, recording overhead, and a replay's notes.

The recorder, the importer, merges and the replayer fill these in. A trace's header stores one `Run` per rank next to its
`Machine`. Facts that only people read (arguments, dates, folders) are in `Trace.provenance`.

    trace.run_of(0).loaders[0].batch_size       # 32
    trace.run_of(0).profiler_cost.op_ns         # 480: host time that torch.profiler takes per op with shapes
    trace.run_of(0).replay.config.speed         # 2.0; `replay` is None for a recording
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from traces.model.typed_json import fitting, to_json
from traces.script.configuration import RecordConfig, ReplayConfig

RECORDER, KINETO, REPLAY = "trace record", "kineto", "replay"  # sources that code distinguishes
STREAMS, QUEUES = "streams", "queues"  # meaning of AMD stream numbers: the program's streams or hardware queues


@dataclass(frozen=True)
class Script:
    """The recorded script."""

    name: str = ""  # file name without its folder
    module: str | None = None  # for `python -m MODULE`
    sha256: str | None = None


@dataclass(frozen=True)
class LoaderSettings:
    """The DataLoader arguments that affect its speed, named as in DataLoader; `workers` is `num_workers`."""

    workers: int | None = None
    batch_size: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    samples: int | None = None  # length of the dataset, if it has one


@dataclass(frozen=True)
class RecorderNotes:
    """The recorder's notes about its run, including the overhead of `trace record`."""

    version: str | None = None  # the trace-replay release that made the recording
    overhead_ns_per_step: int = 0
    overhead_share: float = 0.0
    config: RecordConfig | None = None
    virtual_gpu: str = ""  # the recording that a virtual GPU replayed, or "" if a real GPU was measured
    device_lost: str = ""  # why device times are missing after some step: a CUDA error, or work that did not finish


@dataclass(frozen=True)
class ProfilerUse:
    """How torch.profiler was used during a recording."""

    steps: tuple[int, ...] = ()  # `Steps.number` of the profiled steps
    failed: str | None = None  # why no step was profiled
    warnings: tuple[str, ...] = ()  # Kineto's warnings at the start or end of a profile, without timestamp and source location


@dataclass(frozen=True)
class CleanSteps:
    """Clean steps (without the profiler) compared with the profiled ones."""

    steps: int = 0  # number of clean steps
    step_median_ns: int = 0
    profiled_step_median_ns: int = 0
    slowdown: float = 1.0  # profiled step time divided by clean step time


@dataclass(frozen=True)
class ProfilerCost:
    """Host time that torch.profiler takes per recorded event; see traces/combining/profiler_cost.py."""

    op_ns: int = 0  # an op with input shapes
    plain_op_ns: int = 0  # an op without shapes
    range_ns: int = 0
    module_ns: int = 0  # the range around a module call
    runtime_ns: int = 0  # a GPU runtime call that launches nothing
    launch_ns: int = 0
    memory_ns: int = 0  # an allocation or a free


@dataclass(frozen=True)
class ProcessGroup:
    """One process group of torch.distributed, with Kineto's names in `pg_config`."""

    pg_name: str = ""
    pg_desc: str = ""
    backend_config: str = ""
    pg_size: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Distributed:
    """What a rank knows about torch.distributed, with Kineto's names in `distributedInfo`."""

    backend: str | None = None
    world_size: int | None = None
    pg_count: int | None = None
    pg_config: tuple[ProcessGroup, ...] = ()


@dataclass(frozen=True)
class HostFigures:
    """Cost of a replay on the replaying host; None for a recording."""

    lag_ns_per_step: int | None = None  # median delay behind the recorded host's pace
    lag_ns_of_worst_step: int | None = None
    us_per_op: float | None = None
    ops_per_step: int | None = None


@dataclass(frozen=True)
class MissingOp:
    """A call made by a replay that is not in its recording."""

    op: str
    shapes: str  # as in model.shapes_text
    count: int


@dataclass(frozen=True)
class MemoryUse:
    """Device memory used during a whole replay, for one device."""

    capacity_bytes: int = 0
    outside_bytes: int = 0  # used outside of PyTorch's allocator
    most_allocated_bytes: int = 0
    most_reserved_bytes: int = 0
    ooms: int = 0
    given: bool = False  # whether --gpu-memory set the capacity


@dataclass(frozen=True)
class CellCall:
    """A model call timed from a library cell."""

    cell: str  # "v100/resnet50"
    batch: int
    trains: bool
    how: str  # "measured", "interpolated"...


@dataclass(frozen=True)
class CellSteps:
    """Steps of a replay on cells that consist of the same calls."""

    steps: int
    phases_ns: Mapping[str, int]
    calls: tuple[CellCall, ...]


@dataclass(frozen=True)
class ReplayNotes:
    """The replayer's notes about its run."""

    recording: str = ""  # the file's name
    config: ReplayConfig = field(default_factory=ReplayConfig)
    host: HostFigures = field(default_factory=HostFigures)
    uncharged_ns: int = 0  # recorded device time of phases that the script did not enter
    missing: tuple[MissingOp, ...] = ()  # most frequent first
    missing_not_listed: int = 0
    cells: tuple[CellSteps, ...] = ()  # for a replay on cells, ordered by `Steps.recorded_step`
    reads_unrecorded: int | None = None  # None if values were computed
    sizes_assumed: int | None = None  # data-dependent sizes that the replay had to assume
    events_never_recorded: int | None = None  # events that were waited for but never recorded
    memory: tuple[MemoryUse, ...] = ()  # by row of `Trace.devices`


@dataclass(frozen=True)
class Run:
    """How the rows of one rank were made. Unknown fields have their defaults."""

    source: str = ""  # RECORDER, KINETO, REPLAY, or the name of a table of published figures
    clock: str = ""  # "unix" if times count from 1970, otherwise a description of time zero
    script: Script | None = None
    argv: tuple[str, ...] | None = None  # the script's arguments, without paths
    loaders: tuple[LoaderSettings, ...] = ()
    recorder: RecorderNotes | None = None
    profiler: ProfilerUse = field(default_factory=ProfilerUse)
    clean: CleanSteps | None = None
    # By phase: clean host time divided by profiled host time. `profiler_cost`, if known, is subtracted from the latter first.
    host_scale: Mapping[str, float] = field(default_factory=dict)
    distributed: Distributed | None = None
    replay: ReplayNotes | None = None
    stream_numbers: str = ""  # AMD GPUs: STREAMS, or QUEUES until June 2026; the two kinds cannot be compared
    predicted: bool = False  # times come from `trace predict`, or from a replay of its output
    profiler_cost: ProfilerCost | None = None

    @property
    def virtual_gpu(self) -> str:
        """The recording that a virtual GPU replayed; "" if a real GPU was measured."""
        return "" if self.recorder is None else self.recorder.virtual_gpu

    @property
    def is_epochal(self) -> bool:
        """Whether times count from 1970 and can therefore be compared with those of other recordings."""
        return self.clock == "unix"


UNKNOWN_RUN = Run()


def distributed_of(facts: object) -> Distributed | None:
    """Convert the facts in Kineto's `distributedInfo` that are the same on all ranks; None if there are none."""
    groups = facts.get("pg_config") if isinstance(facts, Mapping) else None
    groups = tuple(fitting(ProcessGroup, group) for group in groups) if isinstance(groups, list) else ()
    told = replace(fitting(Distributed, facts), pg_config=groups)
    return told if told != Distributed() else None


def distributed_info(told: Distributed, rank: int, nccl: str | None) -> dict[str, Any]:
    """Convert to Kineto's `distributedInfo`."""
    return {"rank": rank, **to_json(told)} | ({"nccl_version": nccl} if nccl else {})
