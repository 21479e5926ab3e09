"""Defines the tables of a trace, which contain the events of the host and the GPUs.

    trace = Trace()
    name = trace.strings.add("aten::relu_")
    trace.host = HostSpans.of(name=[name], start_ns=[100], duration_ns=[50])
    trace.host.end_ns  # array([150])

Each kind of event has a table. A table's columns are numpy arrays of equal length. Text is stored as an index into a shared
table of strings. All times are integer nanoseconds.

References between tables:

    steps <-- phases            the phases of a step cover the step without gaps or overlaps
    phases <-- parts            stages of an nn.DataParallel call within a phase; stages may run concurrently
    threads <-- host            host spans nest by time within a thread; `parent` is the index of the enclosing span
    host <-- device.launch      the host span that launched a device span: the runtime call (a child of the op) if recorded,
                                otherwise the op
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import partial
from inspect import get_annotations
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, dataclass_transform

import numpy as np
import numpy.typing as npt

from traces.drawing.timeline_html import BarLane, timeline_html
from traces.model.json_facts import Json
from traces.model.layouts import Shape
from traces.model.machine import UNKNOWN_PROPERTIES, DeviceProperties, Machine
from traces.model.run import UNKNOWN_RUN, Run
from traces.model.workload import WorkloadSignature

Column = npt.NDArray[Any]
READ_LIMIT = 4096  # elements; a larger copy to the host moves data and does not count as reading a value
NONE = -1
_PIECE_ROWS = 1 << 19  # a multiple of the rows in a frame of a trace file

# Phases of a training step in the usual order, then "other" for unassigned time
PHASES = ("loader", "h2d", "forward", "loss", "zero_grad", "backward", "optimizer", "other")
STEP_MARKS = "marks of steps"  # entry of `Trace.lacks` if no steps were found; the recording then has one step or none


class TraceError(Exception):
    """The base class of this package's errors. Each message is a single line.

        TraceError
        +-- TraceFormatError    a file cannot be read as a trace
        +-- TraceWriteError     a trace file cannot be written; also an OSError
        +-- TraceImportError    a recording in another format cannot be imported
        +-- TraceLibraryError   a name is neither a file nor published step times
    """


class TraceFormatError(TraceError):
    def __init__(self, path: object, offset_bytes: int, reason: str) -> None:
        at = f" at byte {offset_bytes}" if offset_bytes else ""
        super().__init__(f"{path}: not a readable trace{at}: {reason}")
        self.offset_bytes = offset_bytes
        self.reason = reason


class TraceWriteError(TraceError, OSError):
    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: not written: {reason}")
        self.reason = reason


class TraceImportError(TraceError):
    """Raised if a recording from another tool cannot be imported."""


class TraceLibraryError(TraceError):
    """Raised if the given name is neither a file nor a name in the tool's library."""


class HostKind(IntEnum):
    OP = 0  # a PyTorch operator, an autograd node, or anything else that the profiler calls an op
    RUNTIME = 1  # a call into the GPU runtime or driver (cudaLaunchKernel, cudaStreamSynchronize, hipMemcpy...)
    ANNOTATION = 2  # a record_function range: ProfilerStep, DataLoader, Optimizer.step, or a range in user code
    PYTHON = 3
    OTHER = 4  # profiler overhead and all other host events with a duration


class DeviceKind(IntEnum):
    """Names the kind of a device span. A GPU counts as busy only during kernels, copies and memsets."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    SYNC = 3
    ANNOTATION = 4  # a user range that the profiler projected onto the device's timeline


class Origin(IntEnum):
    """Says whether the duration of a GPU event was recorded or estimated."""

    MEASURED = 0  # a profiler or a CUDA event measured the time in this run
    EXACT = 1  # the recording has an op with the same name, shapes and dtype
    EQUIVALENT = 2  # the recording has the same op under another name
    SCALED = 3  # scaled from the same op and dtype with another shape
    PHASE = 4  # part of the time of the recorded phase, not of a single op
    ROOFLINE = 5  # computed from bytes, FLOPs and the GPU's data sheet
    PUBLISHED = 6
    CURVE = 7  # computed from a curve fitted to published measurements


class StepKind(IntEnum):
    STEADY = 0  # training step without the profiler; in an imported recording also with the profiler
    WARMUP = 1  # the slow first steps, and steps that capture a CUDA graph or compile code
    EVALUATION = 2  # a step without backward pass and optimizer
    PROFILED = 3  # a step with the profiler, in a recording that also has steps without the profiler
    INCOMPLETE = 4  # the recording lacks the start or the end of the step; such steps are not used in any statistic

    # CUDA calls are slower after a profile, so these steps do not count in median step times (Note [Steps after a profile] in
    # tracer/profile.py)
    AFTER_PROFILE = 5


WITHOUT_PROFILER = (StepKind.STEADY, StepKind.AFTER_PROFILE)  # training steps after the warm-up


# numpy dtype, default value, meaning
U1 = Annotated[Column, "u1", 0, None]
I4 = Annotated[Column, "i4", 0, None]
I8 = Annotated[Column, "i8", 0, None]
U8 = Annotated[Column, "u8", 0, None]
F8 = Annotated[Column, "f8", 0, None]
I4_OR_NONE = Annotated[Column, "i4", NONE, None]
I8_OR_NONE = Annotated[Column, "i8", NONE, None]
# The meaning is an enumeration, a table, `strings`, `threads` or `devices`
TEXT = Annotated[Column, "i4", 0, "strings"]
TEXT_OR_NONE = Annotated[Column, "i4", NONE, "strings"]
STEP = Annotated[Column, "i4", 0, "steps"]
STEP_OR_NONE = Annotated[Column, "i4", NONE, "steps"]
PHASE_OR_NONE = Annotated[Column, "i4", NONE, "phases"]
HOST_SPAN_OR_NONE = Annotated[Column, "i4", NONE, "host"]
THREAD = Annotated[Column, "i4", 0, "threads"]
THREAD_OR_NONE = Annotated[Column, "i4", NONE, "threads"]
DEVICE = Annotated[Column, "i4", 0, "devices"]
DEVICE_OR_NONE = Annotated[Column, "i4", NONE, "devices"]


@dataclass_transform(kw_only_default=True)
class Table:
    DTYPES: ClassVar[dict[str, str]] = {}
    DEFAULTS: ClassVar[dict[str, int]] = {}
    MEANINGS: ClassVar[dict[str, str | type[IntEnum] | None]] = {}

    def __init_subclass__(cls) -> None:
        hints = get_annotations(cls, eval_str=True).items()
        columns = {name: hint.__metadata__ for name, hint in hints if hasattr(hint, "__metadata__")}
        cls.DTYPES = {name: dtype for name, (dtype, _, _) in columns.items()}
        cls.DEFAULTS = {name: default for name, (_, default, _) in columns.items()}
        cls.MEANINGS = {name: meaning for name, (_, _, meaning) in columns.items()}
        dataclass(cls, init=False, repr=False, eq=False)  # required for `dataclasses.replace`

    def __init__(self, **columns: Any) -> None:
        self.__dict__.update(columns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows)"

    @classmethod
    def of(cls, **columns: Any) -> Self:
        """Create a table. Missing columns are filled with default values."""
        unknown = columns.keys() - cls.DTYPES.keys()
        if unknown:
            raise ValueError(f"{cls.__name__} has no column {sorted(unknown)[0]!r}")
        rows = len(next(iter(columns.values()))) if columns else 0
        arrays = {}
        for name, dtype in cls.DTYPES.items():
            if name in columns:
                arrays[name] = np.asarray(columns[name], dtype=dtype)
                if arrays[name].shape != (rows,):
                    raise ValueError(f"{cls.__name__}.{name} has shape {arrays[name].shape}, not ({rows},)")
            else:
                arrays[name] = np.full(rows, cls.DEFAULTS[name], dtype=dtype)
        return cls(**arrays)

    @classmethod
    def empty(cls) -> Self:
        return cls.of()

    @classmethod
    def deferred(
        cls, rows: int, decode: Callable[[str], dict[str, Column]], take: Callable[[Any], Self] | None = None
    ) -> Self:
        """Create a table with columns that are decoded when they are first read."""
        table = object.__new__(cls)
        table.__dict__.update(_rows=rows, _decode=decode, _take=take or partial(cls.taken_later, table))
        return table

    def taken_later(self, rows: Any) -> Self:
        """Like `take`, but rows of a column are copied when the column is first read."""
        count = len(np.empty(len(self), dtype=bool)[rows])
        return self.deferred(count, lambda name: {name: getattr(self, name)[rows]})

    if not TYPE_CHECKING:  # otherwise, mypy would accept the name of any column

        def __getattr__(self, name: str) -> Column:
            decode = self.__dict__.get("_decode")
            if name in type(self).DTYPES and decode is not None:
                for column, values in decode(name).items():
                    self.__dict__.setdefault(column, values)
                if self.DTYPES.keys() <= self.__dict__.keys():
                    self.__dict__.pop("_decode", None)
            try:
                column_values = self.__dict__[name]  # another thread may have decoded the column
            except KeyError:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self) from None
            return column_values

    def __len__(self) -> int:
        rows = self.__dict__.get("_rows")
        return len(getattr(self, next(iter(self.DTYPES)))) if rows is None else rows

    @property
    def is_lazy(self) -> bool:
        return "_decode" in self.__dict__

    def columns(self) -> dict[str, Column]:
        return {name: getattr(self, name) for name in self.DTYPES}

    def take(self, rows: Any) -> Self:
        if self.is_lazy:
            taken: Self = self.__dict__["_take"](rows)
            taken.__dict__.update({name: self.__dict__[name][rows] for name in self.DTYPES if name in self.__dict__})
            return taken
        return type(self)(**{name: column[rows] for name, column in self.columns().items()})

    def pieces(self) -> Iterator[Self]:
        """Yield the table in pieces, because loading all rows of a large table at once takes more memory."""
        for first in range(0, len(self), _PIECE_ROWS):
            yield self.take(slice(first, first + _PIECE_ROWS))

    @classmethod
    def concatenated(cls, tables: Sequence[Self]) -> Self:
        """Join several tables of the same kind."""
        if len(tables) == 1:
            return tables[0]
        if tables and all(table.is_lazy for table in tables):
            whole = cls.deferred(
                sum(map(len, tables)),
                lambda name: {name: np.concatenate([getattr(table, name) for table in tables])},
                lambda rows: cls._taken_from_parts(tables, rows, whole),
            )
            return whole
        return cls.of(**{name: np.concatenate([getattr(table, name) for table in tables]) for name in cls.DTYPES if tables})

    @classmethod
    def _taken_from_parts(cls, tables: Sequence[Self], rows: Any, whole: Self) -> Self:
        first_rows = np.cumsum([0, *map(len, tables)]).tolist()
        if isinstance(rows, slice) and rows.step is None:
            begin, end, _ = rows.indices(len(whole))
            own_rows = [slice(max(begin - first, 0), max(end - first, 0)) for first in first_rows]
        else:
            index = np.asarray(rows)
            if index.dtype.kind != "i":
                index = np.arange(len(whole))[rows]
            if (index[1:] < index[:-1]).any():
                return whole.taken_later(rows)
            cuts = np.searchsorted(index, first_rows).tolist()
            own_rows = [index[begin:end] - first for first, (begin, end) in zip(first_rows, pairwise(cuts), strict=False)]
        parts = [part for table, own in zip(tables, own_rows, strict=False) if len(part := table.take(own))]
        return cls.concatenated(parts) if parts else cls.of()


class _Spans(Table):
    start_ns: Column
    duration_ns: Column

    @property
    def end_ns(self) -> Column:
        return np.asarray(self.start_ns + self.duration_ns)


class _SpansOnDevice(_Spans):
    device: Column
    device_start_ns: Column
    device_end_ns: Column

    @property
    def is_timed(self) -> Column:
        """Return a mask of the rows with a known start and end on the device."""
        return np.asarray((self.device_start_ns != NONE) & (self.device_end_ns != NONE))


class Untimed(IntEnum):
    NO = 0
    CAPTURE = 1  # a CUDA graph was being captured at a phase boundary
    DEVICE_LOST = 2  # the GPU failed, or the script ended before the GPU had finished the step
    PROFILE = 3


class Steps(_Spans):
    rank: I4
    number: I8  # the script's own number of a step, if known
    start_ns: I8
    duration_ns: I8
    kind: Annotated[Column, "u1", 0, StepKind]
    untimed: Annotated[Column, "u1", 0, Untimed]
    recorded_step: I4_OR_NONE  # row of the recorded step that this step of a replay followed, or NONE


class Phases(_SpansOnDevice):
    """Stores the phases of training steps. Between the phases of a step, there are no gaps. Without a GPU, the GPU times are
    NONE (-1)."""

    step: STEP
    name: TEXT
    start_ns: I8
    duration_ns: I8
    device: DEVICE_OR_NONE  # NONE if the phase used no device
    device_start_ns: I8_OR_NONE
    device_end_ns: I8_OR_NONE
    origin: Annotated[Column, "u1", 0, Origin]


class Parts(_SpansOnDevice):
    """Stores the times of the stages in which nn.DataParallel runs a forward or backward pass. Stages may run concurrently. The
    stages of the forward pass are "scatter", "replicate", "parallel_apply" and "gather". The stages of the backward pass are
    "gather_backward" and "broadcast_backward"."""

    phase: PHASE_OR_NONE
    name: TEXT
    thread: THREAD_OR_NONE
    start_ns: I8
    duration_ns: I8
    device: DEVICE_OR_NONE
    device_start_ns: I8_OR_NONE
    device_end_ns: I8_OR_NONE
    origin: Annotated[Column, "u1", 0, Origin]


class HostSpans(_Spans):
    """Stores CPU events: ops, CUDA runtime calls, annotations and Python calls."""

    thread: THREAD
    kind: Annotated[Column, "u1", 0, HostKind]
    name: TEXT
    start_ns: I8
    duration_ns: I8
    parent: HOST_SPAN_OR_NONE
    shapes: TEXT_OR_NONE  # text made by `shapes_text`
    dtypes: TEXT_OR_NONE  # torch dtypes of the arguments ("float32;int64")
    sequence: I8_OR_NONE  # autograd sequence number, the same for a backward node and its forward op
    forward_thread: I4_OR_NONE  # for a backward node: the profiler's id (> 0) of the forward thread
    stack: TEXT_OR_NONE  # frames separated by ';', innermost first
    # memory layout of image inputs, see layouts.py
    layout: TEXT_OR_NONE

    @property
    def earlier_parent(self) -> Column:
        return np.where(self.parent < np.arange(len(self)), self.parent, NONE)

    def outward(self, row: int) -> Iterator[int]:
        while row >= 0:
            yield row
            above = int(self.parent[row])
            row = above if above < row else NONE


class DeviceSpans(_Spans):
    """Stores GPU events, such as kernels and copies."""

    device: DEVICE
    stream: I8
    kind: Annotated[Column, "u1", 0, DeviceKind]
    name: TEXT
    start_ns: I8
    duration_ns: I8
    launch: HOST_SPAN_OR_NONE  # the launching call
    bytes: I8_OR_NONE
    origin: Annotated[Column, "u1", 0, Origin]
    config: TEXT_OR_NONE
    graph: I8_OR_NONE  # id of the CUDA graph that launched the work, or NONE
    graph_node: I8_OR_NONE  # id of the work's node in the CUDA graph, or NONE

    @property
    def is_work(self) -> Column:
        return np.asarray(self.kind <= DeviceKind.MEMSET)


class MemoryEvents(Table):
    """Stores allocations (positive bytes) and frees (negative bytes) of memory."""

    thread: THREAD_OR_NONE
    device: DEVICE_OR_NONE
    time_ns: I8
    bytes: I8
    address: U8
    allocated_bytes: I8_OR_NONE
    reserved_bytes: I8_OR_NONE


class Values(Table):
    """Stores values that the host has read from GPU memory, such as losses."""

    rank: I4
    step: STEP_OR_NONE
    read: I8
    op: TEXT
    dtype: TEXT
    value: F8


class Sizes(Table):
    """Stores the output sizes of ops with data-dependent shapes, such as `nonzero`."""

    rank: I4
    step: STEP_OR_NONE
    op: TEXT
    shapes: TEXT  # the input shape that determines the output size
    size: I8_OR_NONE  # number of elements or rows found, or NONE if unknown


class BatchKind(IntEnum):
    WAIT = 0  # the script waited for a batch in a DataLoader's `__next__`
    PIN = 1  # a DataLoader's pin-memory thread copied a batch into pinned memory


class Batches(_Spans):
    """Lists the script's waits for batches, and the copies of batches to pinned memory."""

    rank: I4
    loader: I4
    kind: Annotated[Column, "u1", 0, BatchKind]
    start_ns: I8
    duration_ns: I8
    bytes: I8_OR_NONE  # total size of all tensors in the batch, or NONE if unknown


class Ending(IntEnum):
    """Says whether the duration of a collective is exact, an upper bound or unknown."""

    SEEN = 0
    BY = 1  # upper bound: the time until a stream's wait for the operation ended
    UNSEEN = 2  # unknown; the launching call's duration or 0 is stored


class Collectives(_Spans):
    rank: I4
    name: TEXT
    dtype: TEXT_OR_NONE
    group: TEXT_OR_NONE
    group_size: I4_OR_NONE
    backend: TEXT_OR_NONE
    bytes: I8_OR_NONE
    start_ns: I8  # start of the kernels if known, otherwise start of the host call
    # duration of the kernels if known, otherwise the time until the call returned or the collective was seen to have ended
    duration_ns: I8
    device: DEVICE_OR_NONE  # the device on which CUDA events measured the duration
    ending: Annotated[Column, "u1", 0, Ending]
    called_ns: I8_OR_NONE  # start of the host call, NONE if equal to `start_ns`
    communicator: TEXT_OR_NONE  # same on all ranks of the communicator
    # sequence number within the communicator, equal on all ranks
    sequence: I8_OR_NONE

    @property
    def call_ns(self) -> Column:
        return np.where(self.called_ns == NONE, self.start_ns, self.called_ns)


@dataclass(frozen=True)
class Device:
    rank: int
    index: int
    name: str
    total_memory_bytes: int = NONE
    properties: DeviceProperties = UNKNOWN_PROPERTIES
    outside_bytes: int = 0  # the GPU memory that PyTorch does not manage, such as the CUDA context
    peak_bytes: int = 0  # the largest torch.cuda.max_memory_allocated() of the whole run, 0 if unknown


@dataclass(frozen=True)
class Thread:
    rank: int
    tid: int
    name: str = ""
    role: str = "other"


class Strings:
    """Stores each text of a trace once, and converts between texts and their indices. Indices never change."""

    def __init__(self, texts: list[str] | None = None) -> None:
        self.texts: list[str] = texts if texts is not None else []
        self._index = {text: i for i, text in enumerate(self.texts)}

    def add(self, text: str) -> int:
        index = self._index.get(text)
        if index is None:
            index = self._index[text] = len(self.texts)
            self.texts.append(text)
        return index

    def find(self, text: str) -> int:
        return self._index.get(text, NONE)

    def matching(self, column: Column, is_wanted: Callable[[str], object]) -> Column:
        wanted = np.zeros(len(self.texts) + 1, bool)
        is_long = len(column) > len(self.texts)  # for long columns, counting is faster than sorting
        indices = np.flatnonzero(np.bincount(column + 1)) - 1 if is_long else np.unique(column)
        for index in indices.tolist():
            wanted[index] = index >= 0 and bool(is_wanted(self.texts[index]))
        return np.asarray(wanted[column])

    def __getitem__(self, index: int) -> str:
        return self.texts[index] if index >= 0 else ""

    def __len__(self) -> int:
        return len(self.texts)


class PhaseTiming(StrEnum):
    """Says whether the host waited for the GPU at each phase boundary."""

    ASYNCHRONOUS = "asynchronous"  # host time; the device may be far behind
    SYNCHRONIZED = "synchronized"  # the host waited for the device at each boundary


@dataclass
class Trace:
    """Stores one recording."""

    grain: str = "kernel"  # "kernel" for a trace with kernels, or "phase" for a trace with phase times only
    strings: Strings = field(default_factory=Strings)
    devices: list[Device] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    steps: Steps = field(default_factory=Steps.empty)
    phases: Phases = field(default_factory=Phases.empty)
    host: HostSpans = field(default_factory=HostSpans.empty)
    device: DeviceSpans = field(default_factory=DeviceSpans.empty)
    memory: MemoryEvents = field(default_factory=MemoryEvents.empty)
    values: Values = field(default_factory=Values.empty)
    parts: Parts = field(default_factory=Parts.empty)
    batches: Batches = field(default_factory=Batches.empty)
    collectives: Collectives = field(default_factory=Collectives.empty)
    sizes: Sizes = field(default_factory=Sizes.empty)
    machines: dict[int, Machine] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)
    provenance: dict[str, Json] = field(default_factory=dict)  # JSON for people; no code reads these values
    problems: dict[str, int] = field(default_factory=dict)  # number of problems of each kind; kinds are in kebab-case
    workload: WorkloadSignature | None = None
    phase_timing: PhaseTiming = PhaseTiming.ASYNCHRONOUS
    # data that a reader may expect, but that were not recorded: "shapes", "memory addresses"
    lacks: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        rows = ", ".join(f"{len(getattr(self, name))} {name}" for name in TABLES if len(getattr(self, name)))
        return f"Trace({self.grain} grain, {len(self.devices)} devices, {rows or 'no rows'})"

    def _repr_html_(self) -> str:
        texts, device, phases = self.strings.texts, self.device, self.phases
        lanes = []
        for rank in self.ranks:
            rows = np.flatnonzero(self.steps.rank[phases.step] == rank)
            names = [texts[name] for name in phases.name[rows].tolist()]
            label = "phases" if len(self.ranks) == 1 else f"rank {rank} phases"
            lanes.append(BarLane(label, "host", names, phases.start_ns[rows], phases.duration_ns[rows]))
        for row in range(len(self.devices)):
            work = device.is_work & (device.device == row)
            for stream in np.unique(device.stream[work]).tolist():
                rows = np.flatnonzero(work & (device.stream == stream))
                names = [texts[name] for name in device.name[rows].tolist()]
                label = f"{self.device_label(row)} stream {stream}"
                lanes.append(BarLane(label, "gpu", names, device.start_ns[rows], device.duration_ns[rows]))
        return timeline_html(repr(self), lanes)

    @property
    def ranks(self) -> list[int]:
        return sorted({d.rank for d in self.devices} | {t.rank for t in self.threads}) or [0]

    def device_label(self, row: int) -> str:
        device = self.devices[row]
        is_alone = all(of.rank == device.rank for of in self.devices) and all(of.rank == device.rank for of in self.threads)
        return f"cuda:{device.index}" if is_alone else f"rank {device.rank} cuda:{device.index}"

    def machine_of(self, rank: int) -> Machine:
        """Return the machine of a rank, or the first recorded machine if this rank's machine is unknown."""
        return self.machines.get(rank) or next((machine for _, machine in sorted(self.machines.items())), Machine())

    def run_of(self, rank: int) -> Run:
        return self.runs.get(rank) or next((run for _, run in sorted(self.runs.items())), UNKNOWN_RUN)

    @property
    def is_replay(self) -> bool:
        return any(run.replay is not None for run in self.runs.values()) or bool((self.steps.recorded_step != NONE).any())

    @property
    def fingerprint(self) -> str:
        """Return a hash of the step times, or "" without step times. Copies of a recording have the same hash."""
        steps = self.steps
        if not steps.duration_ns.any():
            return ""
        times_ns = np.array([steps.start_ns - steps.start_ns.min(), steps.duration_ns], dtype="<i8")
        return hashlib.sha256(times_ns.tobytes()).hexdigest()[:16]

    def is_replay_of(self, recorded: Trace) -> bool:
        notes, run = self.run_of(self.ranks[0]).replay, recorded.run_of(recorded.ranks[0])
        if notes is None:
            return self.is_replay
        if notes.fingerprint:
            return notes.fingerprint == recorded.fingerprint
        if notes.recording_source != run.source:  # estimates and library cells have no source
            return False
        return run.replay is None or notes.recording != run.replay.recording


TABLES: dict[str, type[Table]] = {
    name: kind
    for name, kind in get_annotations(Trace, eval_str=True).items()
    if isinstance(kind, type) and issubclass(kind, Table)
}


UNKNOWN_LIST = "?"  # stands for a list of tensors if the profiler did not write their shapes


def shapes_text(shapes: Iterable[Shape]) -> str:
    """Convert tensor shapes to text, such as "32,3,224,224;64,3,7,7". Empty shapes are left out, because profilers also write
    `[]` for arguments that are not tensors."""
    return ";".join(",".join(map(str, shape)) for shape in shapes if shape)


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Parse the output of `shapes_text`. Raises TraceError for invalid text."""
    try:
        return tuple(tuple(map(int, part.split(","))) for part in text.split(";") if part != UNKNOWN_LIST) if text else ()
    except ValueError:
        raise TraceError(f"shapes that are not numbers: {text[:40]!r}") from None
