"""Stores the ops that a script captures in a CUDA graph, and simulates the ops each time the graph is launched.

    capture = GraphCapture(stream, thread, mode="global", refuse=error)
    capture.add_work(simulator.play_node, stream, signature, None)      # the graph's launches simulate this op later
    graph = capture.end()
    for call, args in graph.calls: ...

Note [Stream numbers during a capture]
    During a capture, a stream allocates memory from the graph's private pool. The stream's number is therefore replaced by a
    number of the pool until the capture ends.

Note [Recorded graphs]
    A recorded launch of a CUDA graph does not list the captured ops. A script may launch several graphs in any order. A
    captured graph therefore takes the times of a recorded graph with a similar number of kernels and copies. It prefers graphs
    that no other captured graph has taken, and graphs that the recording launches in the same phase. On the recorded GPU, an op
    may launch several kernels. The script may launch as many graphs in a phase as the recording. In this case, both lists of
    graphs are sorted by number of kernels. The graphs are then paired in this order.

Note [Joined streams]
    A capture may include work on several streams. As in CUDA, the first stream must wait for the work on the other streams
    before the capture ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from replayer.memory.device.blocks import stream_in_pool
from replayer.op_signature import OpSignature
from replayer.timing.host_threads import HostThread
from replayer.timing.stream import VirtualEvent, VirtualStream
from replayer.torch_types import TorchAny, TorchFunction

Call = tuple[TorchFunction, tuple[TorchAny, ...]]
Works = Counter[VirtualStream]

# PyTorch writes the seeds of the random generators to GPU memory before each launch of a CUDA graph.
SEED_OR_OFFSET = OpSignature("aten::fill_", ((1,),), ("int64",))


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    origin: VirtualStream  # the CUDA stream on which the capture began
    others: tuple[VirtualStream, ...]  # all other streams
    calls: tuple[Call, ...]
    computing: tuple[Callable[[], object], ...]  # these functions compute tensor values
    generators: int = 0  # number of random generators that the captured ops use


class GraphCapture:
    """Collects the ops of a CUDA graph while a script captures the graph. The argument `mode` is the `capture_error_mode` of
    torch.cuda.graph."""

    def __init__(
        self, stream: VirtualStream, thread: HostThread, pool: int, *, mode: str, refuse: Callable[[], BaseException]
    ) -> None:
        self.origin = stream
        self.thread = thread
        self.is_broken = False
        self._mode, self._refuse = mode, refuse
        self._pool = pool
        self._preceding: dict[VirtualStream, Works] = {}
        self._events: dict[VirtualEvent, Works] = {}
        self._calls: list[Call] = []
        self._computing: list[Callable[[], object]] = []
        self.generators: set[object] = set()
        self.graph: TorchAny = None  # the script's torch.cuda.CUDAGraph
        # random generators that captured ops may use; None means any generator
        self.registered: frozenset[object] | None = None
        self._as_before: dict[int, Callable[[], None]] = {}
        self._add(stream)

    def __contains__(self, captured: VirtualStream | VirtualEvent) -> bool:
        return captured in self._events if isinstance(captured, VirtualEvent) else captured in self._preceding

    def add_call(self, call: TorchFunction, *args: TorchAny) -> None:
        self._calls.append((call, args))

    def add_work(self, call: TorchFunction, stream: VirtualStream, *args: TorchAny) -> None:
        self.add_call(call, stream, *args)
        self.begin_work(stream)

    def begin_work(self, stream: VirtualStream) -> None:
        self._preceding[stream][stream] += 1

    def add_computation(self, call: Callable[[], object]) -> None:
        self._computing.append(call)

    def put_back(self, key: int, undo: Callable[[], Callable[[], None]]) -> None:
        if key not in self._as_before:
            self._as_before[key] = undo()

    def record(self, event: VirtualEvent, stream: VirtualStream) -> bool:
        """Record an event in the captured graph. Return False if the stream is not part of the capture."""
        if stream in self:
            if event.external:
                self.begin_work(stream)  # an external event is a node of the graph
            self._events[event] = self._preceding[stream].copy()
            event.device = stream.device
        else:
            self._events.pop(event, None)
        event.captured = stream in self and not event.external
        return stream in self

    def join(self, stream: VirtualStream, awaited: VirtualStream | VirtualEvent) -> None:
        # see Note [Joined streams]
        if stream not in self:
            self._add(stream)
        before = self._events[awaited] if isinstance(awaited, VirtualEvent) else self._preceding[awaited]
        self._preceding[stream] |= before

    def refuse(self, thread: HostThread, of: VirtualStream | VirtualEvent | None = None) -> None:
        """Raise CUDA's error if the thread waits for the GPU while a CUDA graph is captured."""
        is_captured = of is None or of in self
        if self._mode == "global" or (thread is self.thread and (is_captured or self._mode != "relaxed")):
            raise self.break_off(self._refuse())

    def forbids_allocation(self, thread: HostThread) -> bool:
        return self._mode == "global" or (thread is self.thread and self._mode != "relaxed")

    def break_off(self, error: BaseException) -> BaseException:
        self.is_broken = True
        return error

    @property
    def is_empty(self) -> bool:
        """Return True if no work was captured."""
        return not any(self._preceding.values())

    @property
    def is_joined(self) -> bool:
        # see Note [Joined streams]
        return all(works[stream] <= self._preceding[self.origin][stream] for stream, works in self._preceding.items())

    def end(self) -> CapturedGraph:
        for undo in self._as_before.values():
            undo()
        for stream in self._preceding:
            stream.number = stream.own_number
        others = tuple(stream for stream in self._preceding if stream is not self.origin)
        return CapturedGraph(self.origin, others, tuple(self._calls), tuple(self._computing), len(self.generators))

    def _add(self, stream: VirtualStream) -> None:
        stream.number = stream_in_pool(self._pool, stream.own_number)  # see Note [Stream numbers during a capture]
        self._preceding[stream] = Works()
