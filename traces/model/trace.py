"""What a recording is: columnar tables of what the GPUs and the host did.

Every event kind is a table of equally long numpy columns; text is an index into one shared string table. A `Trace`
holds one or several ranks. All times are integer nanoseconds since the Unix epoch where the recording knew it, else since
the recording's own zero (`Run.clock` says which).

    trace = Trace()
    name = trace.strings.add("aten::relu_")
    trace.host = HostSpans.of(name=[name], start_ns=[100], duration_ns=[50])
    trace.host.end_ns  # array([150])

How the tables hang together:

    steps <-- phases            a step is tiled, without gap or overlap, by its phases
    phases <-- parts            what goes on within a phase, perhaps at the same time: the parts of nn.DataParallel
    threads <-- host            host spans nest by time on one thread; `parent` is the index of the enclosing span
    host <-- device.launch      a device span points at the host span that launched it: the runtime call where it was
                                recorded (its parent is the op), else the op itself
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from traces.model.layouts import Shape
from traces.model.machine import UNKNOWN_PROPERTIES, DeviceProperties, Machine
from traces.model.run import UNKNOWN_RUN, Run
from traces.model.workload import WorkloadSignature

Column = npt.NDArray[Any]
READ_LIMIT = 4096  # elements of a tensor whose way to the host counts as reading values; larger ones are data
NONE = -1  # an absent index, count or size in any signed column

# The phases of a training step, in the order in which a plain loop goes through them. `other` is what no rule names.
PHASES = ("loader", "h2d", "forward", "loss", "zero_grad", "backward", "optimizer", "other")


class TraceError(Exception):
    """The root of every error that this package raises on purpose; its text is one line for a person.

    TraceError
    +-- TraceFormatError    a trace file (or a file given as one) that cannot be read
    +-- TraceWriteError     a trace file that cannot be written; an OSError too
    +-- TraceImportError    a foreign recording that cannot be imported
    +-- TraceLibraryError   a name that is neither a file nor in the library
    """


class TraceFormatError(TraceError):
    """A file that is not a readable trace: names the file, the offset in bytes, and the reason."""

    def __init__(self, path: object, offset_bytes: int, reason: str) -> None:
        super().__init__(f"{path}: not a readable trace at byte {offset_bytes}: {reason}")
        self.offset_bytes = offset_bytes
        self.reason = reason


class TraceWriteError(TraceError, OSError):
    """A trace file that could not be written: names the file and the reason."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: not written: {reason}")
        self.reason = reason


class TraceImportError(TraceError):
    """A foreign recording of which nothing can be imported."""


class TraceLibraryError(TraceError):
    """A trace name that is neither a file nor an entry of the library."""


class HostKind(IntEnum):
    """What a host span is."""

    OP = 0  # a PyTorch operator, autograd node or anything else the profiler calls an op
    RUNTIME = 1  # a call into the GPU runtime or driver (cudaLaunchKernel, cudaStreamSynchronize, hipMemcpy...)
    ANNOTATION = 2  # record_function ranges: ProfilerStep, DataLoader, Optimizer.step, the user's own
    PYTHON = 3  # a Python function, from stacks
    OTHER = 4  # profiler overhead and whatever else had a duration


class DeviceKind(IntEnum):
    """What a device span is. KERNEL, MEMCPY and MEMSET are work and make a device busy; the others are not."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    SYNC = 3  # a synchronisation row that some profilers write on the device's tracks
    ANNOTATION = 4  # a user range projected onto the device's timeline


class Origin(IntEnum):
    """Where a device span's time comes from. In a replayed trace this is the coverage; see DESIGN of matching."""

    MEASURED = 0  # a profiler or a CUDA event measured it on this run
    EXACT = 1  # replayed: the same op, shapes and dtype were recorded
    EQUIVALENT = 2  # replayed: recorded under another name of the same op
    SCALED = 3  # replayed: same op and dtype at another shape, scaled
    PHASE = 4  # replayed: what was left of the recorded phase when it ended
    ROOFLINE = 5  # replayed: estimated from bytes, FLOPs and the device's speed
    PUBLISHED = 6  # taken from a published table
    CURVE = 7  # estimated by a curve that was learned from published measurements of other sizes or GPUs


class StepKind(IntEnum):
    """How a step was recorded."""

    STEADY = 0  # timed without a profiler, or by one where that is all there is (imported recordings)
    WARMUP = 1  # the first steps as they are: context creation and tuning are part of the truth
    EVALUATION = 2  # a batch without backward and optimizer: validation, inference
    PROFILED = 3  # under the profiler, in a recording that also has clean steps: kernels are known, times are slower
    INCOMPLETE = 4  # cut by the recording's end: it has a part of what the others have, or nothing; no figure counts it


# Columns of a table: the numpy dtype, and what stands where nobody told a value.
U1 = Annotated[Column, "u1", 0, None]
I4 = Annotated[Column, "i4", 0, None]
I8 = Annotated[Column, "i8", 0, None]
U8 = Annotated[Column, "u8", 0, None]
F8 = Annotated[Column, "f8", 0, None]
I4_OR_NONE = Annotated[Column, "i4", NONE, None]
I8_OR_NONE = Annotated[Column, "i8", NONE, None]
# Last, what the numbers are: members of an enumeration, or rows of a table or of the `strings`, `threads` or `devices`.
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


@dataclass
class Table:
    """Base of the tables: equally long columns, one numpy array each, of types as I4 and I8_OR_NONE."""

    DTYPES: ClassVar[dict[str, str]] = {}  # by column
    DEFAULTS: ClassVar[dict[str, int]] = {}
    MEANINGS: ClassVar[dict[str, str | type[IntEnum] | None]] = {}

    def __init_subclass__(cls) -> None:
        hints = get_annotations(cls, eval_str=True).items()
        told = {name: hint.__metadata__ for name, hint in hints if hasattr(hint, "__metadata__")}
        cls.DTYPES = {name: dtype for name, (dtype, _, _) in told.items()}
        cls.DEFAULTS = {name: default for name, (_, default, _) in told.items()}
        cls.MEANINGS = {name: meaning for name, (_, _, meaning) in told.items()}
        cls.__repr__ = Table.__repr__  # type: ignore[method-assign]  # before `dataclass` makes one that writes all columns out

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows)"

    @classmethod
    def of(cls, **columns: Any) -> Self:
        """Make a table; a column that is not given takes its default (NONE for indices, else 0)."""
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

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def columns(self) -> dict[str, Column]:
        return {name: getattr(self, name) for name in self.DTYPES}

    def take(self, rows: Any) -> Self:
        """The chosen rows (an index array, a mask or a slice), as a new table."""
        return type(self)(**{name: column[rows] for name, column in self.columns().items()})

    @classmethod
    def concatenated(cls, tables: Sequence[Self]) -> Self:
        """The rows of all tables, in order; the one table itself where there is only one."""
        if len(tables) == 1:
            return tables[0]
        return cls.of(**{name: np.concatenate([getattr(table, name) for table in tables]) for name in cls.DTYPES if tables})


class _Spans(Table):
    """What tables with a start and a duration share."""

    start_ns: Column
    duration_ns: Column

    @property
    def end_ns(self) -> Column:
        return np.asarray(self.start_ns + self.duration_ns)


class Untimed(IntEnum):
    """Why a recorded step has phases without device times although the script uses a device."""

    NO = 0  # it has none such
    CAPTURE = 1  # a CUDA graph was captured at one of its boundaries
    LOST = 2  # the device failed, or had not finished the step when the script ended
    PROFILE = 3  # the script profiled itself


@dataclass
class Steps(_Spans):
    """One row per training step and rank, in order of time. `number` is the script's own count where known."""

    rank: I4
    number: I8
    start_ns: I8
    duration_ns: I8
    kind: Annotated[Column, "u1", 0, StepKind]
    untimed: Annotated[Column, "u1", 0, Untimed]  # why device times are missing
    recorded_step: I4_OR_NONE  # in a replayed trace: the row of the recording's `steps` that drove this step, else NONE


@dataclass
class Phases(_Spans):
    """The phases of each step, in order of time; together they tile their step on the host.

    `device_start_ns` and `device_end_ns` are what a pair of CUDA events recorded at the host's start and end of the
    phase would read: the end event completes when all work launched before it has completed. NONE where no device was used.
    """

    step: STEP
    name: TEXT  # one of PHASES
    start_ns: I8
    duration_ns: I8
    device: DEVICE_OR_NONE  # row of `devices` whose stream the events would sit on, or NONE
    device_start_ns: I8_OR_NONE
    device_end_ns: I8_OR_NONE
    origin: Annotated[Column, "u1", 0, Origin]


@dataclass
class Parts(_Spans):
    """What goes on within a phase, nested in it and perhaps at the same time: the parts of nn.DataParallel, by start.

    Names: "scatter", "replicate", "parallel_apply" (a row per replica, with its device), "gather" in the forward pass;
    "gather_backward" (gradients scattered to the replicas) and "broadcast_backward" (ReduceAddCoalesced) in the backward pass.
    The device times are those of CUDA events as in `Phases`, on the part's own device.
    """

    phase: PHASE_OR_NONE  # row of `phases`, or NONE outside any step
    name: TEXT
    thread: THREAD_OR_NONE
    start_ns: I8
    duration_ns: I8
    device: DEVICE_OR_NONE
    device_start_ns: I8_OR_NONE
    device_end_ns: I8_OR_NONE
    origin: Annotated[Column, "u1", 0, Origin]


@dataclass
class HostSpans(_Spans):
    """Ops, runtime calls, annotations and Python frames, ordered by (thread, start, longest first)."""

    thread: THREAD
    kind: Annotated[Column, "u1", 0, HostKind]
    name: TEXT
    start_ns: I8
    duration_ns: I8
    parent: HOST_SPAN_OR_NONE  # the enclosing one
    shapes: TEXT_OR_NONE  # see `shapes_text`, or NONE if not recorded
    dtypes: TEXT_OR_NONE  # torch dtype names of the same arguments, ';' between them ("float32;int64"), or NONE
    sequence: I8_OR_NONE  # autograd sequence number that ties a backward node to its forward op, or NONE
    forward_thread: I4_OR_NONE  # on backward nodes: the profiler's logical id (> 0) of the forward thread, else NONE
    stack: TEXT_OR_NONE  # the Python frames around an op, innermost first, ';' between them, or NONE if not recorded
    # how the images among an op's inputs lie in memory, see layouts.py; NONE without strides or images
    layout: TEXT_OR_NONE


@dataclass
class DeviceSpans(_Spans):
    """Kernels, copies, memsets (and synchronisation and annotation rows), ordered by (device, stream, start)."""

    device: DEVICE
    stream: I8  # the profiler's number of the stream
    kind: Annotated[Column, "u1", 0, DeviceKind]
    name: TEXT
    start_ns: I8
    duration_ns: I8
    launch: HOST_SPAN_OR_NONE  # row of `host` that launched it, or NONE (launched before the window)
    bytes: I8_OR_NONE  # of copies and memsets, or NONE
    origin: Annotated[Column, "u1", 0, Origin]
    config: TEXT_OR_NONE  # how a kernel was launched (grid, block, registers...), see launch_configs.py, or NONE
    graph: I8_OR_NONE  # the id of the CUDA graph that it is a part of, or NONE
    graph_node: I8_OR_NONE  # the id of its node there, or NONE

    @property
    def is_work(self) -> Column:
        """A mask of the rows that keep a device busy: kernels, copies and memsets."""
        return np.isin(self.kind, (DeviceKind.KERNEL, DeviceKind.MEMCPY, DeviceKind.MEMSET))


@dataclass
class MemoryEvents(Table):
    """Allocations (positive) and frees (negative) of host and device memory, ordered by time."""

    thread: THREAD_OR_NONE
    device: DEVICE_OR_NONE  # row of `devices`, or NONE for host memory
    time_ns: I8
    bytes: I8
    address: U8  # 0 where not recorded
    allocated_bytes: I8_OR_NONE  # device total after the event, or NONE where not recorded
    reserved_bytes: I8_OR_NONE


@dataclass
class Values(Table):
    """What the host read from a device, element by element, in order. Rows of one read share `read`."""

    rank: I4
    step: STEP_OR_NONE  # row of `steps`, or NONE outside any
    read: I8
    op: TEXT
    dtype: TEXT  # torch dtype name
    value: F8


@dataclass
class Sizes(Table):
    """Output sizes of ops with data-dependent shapes (nonzero, boolean masks, unique...): one row per call, in order."""

    rank: I4
    step: STEP_OR_NONE  # row of `steps`, or NONE outside any
    op: TEXT  # every search for what is not zero, by whichever function, is "aten::nonzero"
    shapes: TEXT  # see `shapes_text`: the shape of the tensor whose values tell
    size: I8_OR_NONE  # elements, rows... of what was found, or NONE where that could not be seen


class BatchKind(IntEnum):
    """What a row of `batches` is."""

    WAIT = 0  # the script waited for a batch in a loader's `__next__`
    PIN = 1  # a loader's pin-memory thread copied a batch into pinned memory


@dataclass
class Batches(_Spans):
    """The input pipeline, ordered by (rank, start): one row per batch waited for, and one per batch pinned.

    `Run.loaders` describes the loaders.
    """

    rank: I4
    loader: I4  # the loader's place in `Run.loaders` of its rank
    kind: Annotated[Column, "u1", 0, BatchKind]
    start_ns: I8
    duration_ns: I8
    bytes: I8_OR_NONE  # of all tensors in the batch, or NONE where they could not be found


class Ending(IntEnum):
    """What is known of when an operation between ranks ended."""

    SEEN = 0  # its duration was measured
    BY = 1  # it had ended when its stream got to where it was waited for: it lasted at most so long
    UNSEEN = 2  # nothing: its duration is that of the call that began it, or 0


@dataclass
class Collectives(_Spans):
    """Communication between ranks, one row per operation and rank, ordered by (rank, start)."""

    rank: I4
    name: TEXT  # "all_reduce", "broadcast", "all_gather_into_tensor"...
    dtype: TEXT_OR_NONE  # torch dtype name, or NONE
    group: TEXT_OR_NONE  # the group's name, or NONE
    group_size: I4_OR_NONE  # ranks in the group, or NONE
    backend: TEXT_OR_NONE  # "nccl", "gloo", or NONE
    bytes: I8_OR_NONE  # of this rank's input, or NONE
    start_ns: I8  # when its kernels began where they are known, else when it was called on the host
    duration_ns: I8  # of its kernels where they are known, else of the call, else until it was seen to be done
    device: DEVICE_OR_NONE  # row of `devices` if CUDA events there took the duration, or NONE
    ending: Annotated[Column, "u1", 0, Ending]  # what the duration is worth
    called_ns: I8_OR_NONE  # when it was called on the host, where that is not `start_ns`; else NONE
    communicator: TEXT_OR_NONE  # the backend's id of the communicator, the same on all its ranks, or NONE
    sequence: I8_OR_NONE  # the operation's number in its communicator, the same on all its ranks, or NONE

    @property
    def call_ns(self) -> Column:
        """When each was called on the host."""
        return np.where(self.called_ns == NONE, self.start_ns, self.called_ns)


@dataclass(frozen=True)
class Device:
    """One GPU of one rank. `outside_bytes` of its memory were taken beside PyTorch: CUDA context, NCCL's buffers."""

    rank: int
    index: int
    name: str
    total_memory_bytes: int = NONE
    properties: DeviceProperties = UNKNOWN_PROPERTIES
    outside_bytes: int = 0


@dataclass(frozen=True)
class Thread:
    """One host thread of one rank. `role` is "main", "backward", "loader" or "other"."""

    rank: int
    tid: int
    name: str = ""
    role: str = "other"


class Strings:
    """The shared string table: text to index and back. Indices are stable; text is never removed."""

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
        """The index of `text`, or NONE if it is not in the table."""
        return self._index.get(text, NONE)

    def __getitem__(self, index: int) -> str:
        return self.texts[index] if index >= 0 else ""

    def __len__(self) -> int:
        return len(self.texts)


class PhaseTiming(StrEnum):
    """What the host's boundaries of phases are; times of two kinds cannot be compared."""

    ASYNCHRONOUS = "asynchronous"  # when the script got there: the device may be far behind
    SYNCHRONIZED = "synchronized"  # the script waited for the device at each boundary, so a phase holds its device work


@dataclass
class Trace:
    """One recording. `grain` is "kernel" (torch.profiler) or "phase" (CUDA events or published tables)."""

    grain: str = "kernel"
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
    machines: dict[int, Machine] = field(default_factory=dict)  # by rank
    runs: dict[int, Run] = field(default_factory=dict)  # by rank; a part that is to be merged tells its rank by this
    provenance: dict[str, Any] = field(default_factory=dict)  # JSON values that people read, and no code
    problems: dict[str, int] = field(default_factory=dict)  # kind (kebab-case words) -> count
    workload: WorkloadSignature | None = None
    phase_timing: PhaseTiming = PhaseTiming.ASYNCHRONOUS
    lacks: list[str] = field(default_factory=list)  # what a reader may miss: "shapes", "memory addresses", ...

    def __repr__(self) -> str:
        rows = ", ".join(f"{len(getattr(self, name))} {name}" for name in TABLES if len(getattr(self, name)))
        return f"Trace({self.grain} grain, {len(self.devices)} devices, {rows or 'no rows'})"

    @property
    def ranks(self) -> list[int]:
        return sorted({d.rank for d in self.devices} | {t.rank for t in self.threads}) or [0]

    def device_label(self, row: int) -> str:
        """What a row of `devices` is called: "cuda:0", and "rank 1 cuda:0" where there are several ranks."""
        device = self.devices[row]
        return f"cuda:{device.index}" if len(self.ranks) == 1 else f"rank {device.rank} cuda:{device.index}"

    def machine_of(self, rank: int) -> Machine:
        """What a rank's process ran on: its own where that was told, else that of the first rank that tells."""
        return self.machines.get(rank) or next((machine for _, machine in sorted(self.machines.items())), Machine())

    def run_of(self, rank: int) -> Run:
        """How the rows of a rank came about: its own where that was told, else that of the first rank that tells."""
        return self.runs.get(rank) or next((run for _, run in sorted(self.runs.items())), UNKNOWN_RUN)

    @property
    def is_replay(self) -> bool:
        """Also of one that was cut before it could note anything: its steps name the recorded ones that drove them."""
        return any(run.replay is not None for run in self.runs.values()) or bool((self.steps.recorded_step != NONE).any())


TABLES: dict[str, type[Table]] = {
    "steps": Steps,
    "phases": Phases,
    "host": HostSpans,
    "device": DeviceSpans,
    "memory": MemoryEvents,
    "values": Values,
    "parts": Parts,
    "batches": Batches,
    "collectives": Collectives,
    "sizes": Sizes,
}


UNTOLD_LIST = "?"  # among the shapes of an op: a list of tensors of which the profiler wrote neither shapes nor dtypes


def shapes_text(shapes: Iterable[Shape]) -> str:
    """Tensor shapes as stored: "32,3,224,224;64,3,7,7". 0-dim tensors and non-tensors are left out, for profilers
    write both as `[]`; tensor lists are flattened, and what is not known of one is UNTOLD_LIST."""
    return ";".join(",".join(map(str, shape)) for shape in shapes if shape)


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """The inverse of `shapes_text`, without lists that were not told: ask `UNTOLD_LIST in text` for those.

    Raises TraceError for any other text.
    """
    try:
        return tuple(tuple(map(int, part.split(","))) for part in text.split(";") if part != UNTOLD_LIST) if text else ()
    except ValueError:
        raise TraceError(f"shapes that are no numbers: {text[:40]!r}") from None
