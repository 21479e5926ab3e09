"""How the rows of one rank came about: the source, the clock, loaders, what recording cost, and what a replay noted.

The recorder, the importer, merges and the replayer fill these; a trace's header holds one `Run` per rank beside its
`Machine`. What nobody but a person reads (arguments, dates, folders) is in `Trace.provenance` instead.

    trace.run_of(0).loaders[0].batch_size       # 32
    trace.run_of(0).profiler_cost.op_ns         # 480: what torch.profiler took of the host for each op with shapes
    trace.run_of(0).replay.config.speed         # 2.0, of a replay; `replay` is None of a recording
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from traces.model.typed_json import fitting, to_json
from traces.script.configuration import RecordConfig, ReplayConfig

RECORDER, KINETO, REPLAY = "trace record", "kineto", "replay"  # the sources of rows that code tells apart
STREAMS, QUEUES = "streams", "queues"  # what a profiler of AMD GPUs numbers: the program's streams or the hardware's queues


@dataclass(frozen=True)
class Script:
    """What was recorded."""

    name: str = ""  # of the file, without its folder
    module: str | None = None  # of `python -m MODULE`
    sha256: str | None = None


@dataclass(frozen=True)
class LoaderSettings:
    """What of a DataLoader decides how fast it is, under the names of its arguments; `workers` is `num_workers`."""

    workers: int | None = None
    batch_size: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    samples: int | None = None  # of the dataset, where it has a length


@dataclass(frozen=True)
class RecorderNotes:
    """What the recorder noted about its run, and what `trace record` itself took of the steps."""

    version: str | None = None  # the release that recorded
    overhead_ns_per_step: int = 0
    overhead_share: float = 0.0
    config: RecordConfig | None = None
    virtual_gpu: str = ""  # the recording whose times these are, if no real GPU took them
    device_lost: str = ""  # why device times are missing from some step on: a CUDA error, or work that did not end


@dataclass(frozen=True)
class ProfilerUse:
    """What torch.profiler saw of a run that was recorded."""

    steps: tuple[int, ...] = ()  # `Steps.number` of those under the profiler
    failed: str | None = None  # why there are none
    warnings: tuple[str, ...] = ()  # what Kineto warned of when a profile began or ended, without its time and place


@dataclass(frozen=True)
class CleanSteps:
    """Steps without the profiler beside those under it."""

    steps: int = 0  # clean ones
    step_median_ns: int = 0
    profiled_step_median_ns: int = 0
    slowdown: float = 1.0  # how many times as long a profiled step took


@dataclass(frozen=True)
class ProfilerCost:
    """Host time that torch.profiler took for each event that it recorded; see traces/combining/profiler_cost.py."""

    op_ns: int = 0  # an op with the shapes of its inputs
    plain_op_ns: int = 0  # an op without shapes
    range_ns: int = 0
    module_ns: int = 0  # the range around a module's call
    runtime_ns: int = 0  # a call of the GPU runtime that launches nothing
    launch_ns: int = 0
    memory_ns: int = 0  # an allocation or a free


@dataclass(frozen=True)
class ProcessGroup:
    """One process group of torch.distributed, under Kineto's names in `pg_config`."""

    pg_name: str = ""
    pg_desc: str = ""
    backend_config: str = ""
    pg_size: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Distributed:
    """What a rank knows of torch.distributed, under Kineto's names in `distributedInfo`."""

    backend: str | None = None
    world_size: int | None = None
    pg_count: int | None = None
    pg_config: tuple[ProcessGroup, ...] = ()


@dataclass(frozen=True)
class HostFigures:
    """What a replay cost the replaying host; None of a recording."""

    lag_ns_per_step: int | None = None  # how far it fell behind the recorded host's pace, median per step
    lag_ns_of_worst_step: int | None = None  # which the median does not show
    us_per_op: float | None = None
    ops_per_step: int | None = None


@dataclass(frozen=True)
class MissingOp:
    """A call that a replay made and its recording does not hold."""

    op: str
    shapes: str  # as in model.shapes_text
    count: int


@dataclass(frozen=True)
class MemoryUse:
    """What a replay used of one device's memory in the whole run."""

    capacity_bytes: int = 0
    outside_bytes: int = 0  # of the capacity, taken by others than PyTorch's allocator
    most_allocated_bytes: int = 0
    most_reserved_bytes: int = 0
    ooms: int = 0
    given: bool = False  # the capacity, by --gpu-memory


@dataclass(frozen=True)
class CellCall:
    """A call of the script's model whose time came from a cell of the library."""

    cell: str  # "v100/resnet50"
    batch: int
    trains: bool
    how: str  # "measured", "interpolated"...


@dataclass(frozen=True)
class CellSteps:
    """Steps of a replay on cells that were made of the same calls."""

    steps: int
    phases_ns: Mapping[str, int]
    calls: tuple[CellCall, ...]


@dataclass(frozen=True)
class ReplayNotes:
    """What the replayer noted about its run."""

    recording: str = ""  # the file's name
    config: ReplayConfig = field(default_factory=ReplayConfig)
    host: HostFigures = field(default_factory=HostFigures)
    uncharged_ns: int = 0  # recorded device time of phases that the script never entered
    missing: tuple[MissingOp, ...] = ()  # most calls first
    missing_not_listed: int = 0
    cells: tuple[CellSteps, ...] = ()  # of a replay on cells, in the order of `Steps.recorded_step`
    reads_unrecorded: int | None = None  # None where values were computed
    sizes_assumed: int | None = None  # results whose size depends on values that nobody knew
    events_never_recorded: int | None = None  # but waited for
    memory: tuple[MemoryUse, ...] = ()  # by row of `Trace.devices`


@dataclass(frozen=True)
class Run:
    """See the module. A field that nobody told has its default."""

    source: str = ""  # RECORDER, KINETO, REPLAY, or what a table of figures calls itself
    clock: str = ""  # "unix": times count from 1970; else what they count from
    script: Script | None = None
    argv: tuple[str, ...] | None = None  # of the script, without paths
    loaders: tuple[LoaderSettings, ...] = ()
    recorder: RecorderNotes | None = None
    profiler: ProfilerUse = field(default_factory=ProfilerUse)
    clean: CleanSteps | None = None
    # By phase, the host's clean time over its profiled time, from which `profiler_cost` has been subtracted where it is known.
    host_scale: Mapping[str, float] = field(default_factory=dict)
    distributed: Distributed | None = None
    replay: ReplayNotes | None = None
    stream_numbers: str = ""  # of AMD's GPUs: STREAMS, or QUEUES until June 2026; numbers of two kinds cannot be compared
    predicted: bool = False  # nobody recorded these times: `trace predict` made them, or a replay of what it made
    profiler_cost: ProfilerCost | None = None

    @property
    def virtual_gpu(self) -> str:
        """The recording whose times these are, if no real GPU took them; else ""."""
        return "" if self.recorder is None else self.recorder.virtual_gpu

    @property
    def is_epochal(self) -> bool:
        """Whether times count from 1970, so that those of other recordings can be compared with them."""
        return self.clock == "unix"


UNKNOWN_RUN = Run()


def distributed_of(facts: object) -> Distributed | None:
    """What Kineto's `distributedInfo` tells of all ranks; None where it tells nothing."""
    groups = facts.get("pg_config") if isinstance(facts, Mapping) else None
    groups = tuple(fitting(ProcessGroup, group) for group in groups) if isinstance(groups, list) else ()
    told = replace(fitting(Distributed, facts), pg_config=groups)
    return told if told != Distributed() else None


def distributed_info(told: Distributed, rank: int, nccl: str | None) -> dict[str, Any]:
    """As Kineto writes it."""
    return {"rank": rank, **to_json(told)} | ({"nccl_version": nccl} if nccl else {})
