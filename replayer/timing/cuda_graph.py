"""Captures CUDA graphs: the ops of the script are stored, and executed each time the graph is replayed.

    capture = GraphCapture(stream, thread, everywhere=True, refuse=error)
    capture.note_work(simulator.play_node, stream, signature, None)      # instead of playing it
    graph = capture.end()
    for call, args in graph.calls: ...

While a CUDA graph is captured, its ops take no time on the GPU. The start of a phase, such as "backward", is captured too, so
the phase begins again each time the graph is replayed. The recording may therefore come from the same program without CUDA
graphs.

Note [Streams of a graph]
    While a stream is captured, it allocates memory from the graph's private pool. The stream gets the number of the pool during
    the capture, because the allocator keeps free blocks by stream number.

Note [Joined streams]
    As in CUDA, a stream that joined the capture is joined with the origin if all its captured work precedes the end of the
    origin. A wait is not work, so a stream may wait again after its last work. `_preceding` contains, for each stream of the
    capture, how many works of every stream come before the stream's next work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from replayer.timing.host_threads import HostThread
from replayer.timing.stream import VirtualEvent, VirtualStream
from replayer.torch_types import TorchAny

Call = tuple[Callable[..., TorchAny], tuple[TorchAny, ...]]
Works = Counter[VirtualStream]

_POOLS_FROM = 1 << 20  # first number of private pools, above all streams
_STREAMS_OF_A_POOL = 64


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """The ops of a captured CUDA graph as function calls.

    When the graph is replayed, its `calls` are executed in order. Calls on the stream `origin` run on the stream that replays
    the graph. `others` lists the streams besides `origin` that took part in the capture. `computing` lists functions that
    compute tensor values each time the graph is replayed. If tensor values are not computed in this replay, the functions in
    `computing` mark the values as unknown instead.
    """

    origin: VirtualStream
    others: tuple[VirtualStream, ...]
    calls: tuple[Call, ...]
    computing: tuple[Callable[[], None], ...]


class GraphCapture:
    """A capture that has not ended.

    The capture begins on `stream`. If `everywhere` is set (capture mode "global"), calls that CUDA forbids during a capture
    fail in all threads. If `everywhere` is not set, forbidden calls fail in the capturing thread only. `refuse` creates the
    exception for a call that CUDA forbids during a capture.
    """

    def __init__(
        self, stream: VirtualStream, thread: HostThread, pool: int, *, everywhere: bool, refuse: Callable[[], BaseException]
    ) -> None:
        self.origin = stream
        self.thread = thread
        self.is_broken = False
        self._everywhere, self._refuse = everywhere, refuse
        self._pool = _POOLS_FROM + pool * _STREAMS_OF_A_POOL
        self._preceding: dict[VirtualStream, Works] = {}
        self._events: dict[VirtualEvent, Works] = {}
        self._calls: list[Call] = []
        self._computing: list[Callable[[], None]] = []
        self._as_before: dict[int, Callable[[], None]] = {}
        self._add(stream)

    def __contains__(self, stream: VirtualStream) -> bool:
        return stream in self._preceding

    def note(self, call: Callable[..., TorchAny], *args: TorchAny) -> None:
        self._calls.append((call, args))

    def note_work(self, call: Callable[..., TorchAny], stream: VirtualStream, *args: TorchAny) -> None:
        self.note(call, stream, *args)
        self.begin_work(stream)

    def begin_work(self, stream: VirtualStream) -> None:
        self._preceding[stream][stream] += 1

    def note_computing(self, call: Callable[[], None]) -> None:
        """Store a function that computes the values of a captured op at each replay of the graph."""
        self._computing.append(call)

    def put_back(self, key: int, undo: Callable[[], Callable[[], None]]) -> None:
        """Save a state, such as the values of a tensor, and restore it when the capture of the CUDA graph ends.

        `undo` saves the state, and returns a function that restores it. Calls of `put_back` with a key that was already used
        are ignored.
        """
        if key not in self._as_before:
            self._as_before[key] = undo()

    def record(self, event: VirtualEvent, stream: VirtualStream) -> bool:
        """Handle `event.record(stream)`: if the stream is being captured, the event becomes part of the graph. Returns whether
        the stream is being captured."""
        if stream in self:
            self._events[event] = self._preceding[stream].copy()
            event.device = stream.device
        else:
            self._events.pop(event, None)
        return stream in self

    def has_event(self, event: VirtualEvent) -> bool:
        return event in self._events

    def join(self, stream: VirtualStream, awaited: VirtualStream | VirtualEvent) -> None:
        """Add a stream to the CUDA graph capture when the stream waits for captured work, as CUDA does. See
        Note [Joined streams]."""
        if stream not in self:
            self._add(stream)
        before = self._events[awaited] if isinstance(awaited, VirtualEvent) else self._preceding[awaited]
        self._preceding[stream] |= before

    def refuse(self, thread: HostThread) -> None:
        """Fail the capture and raise CUDA's error. This method is called when the script does something that CUDA forbids
        during a capture, such as waiting for the GPU.
        """
        if self._everywhere or thread is self.thread:
            self.is_broken = True
            raise self._refuse()

    @property
    def is_joined(self) -> bool:
        """Return whether the stream on which the capture began waits for all work captured on other streams. See
        Note [Joined streams]."""
        return all(works[stream] <= self._preceding[self.origin][stream] for stream, works in self._preceding.items())

    def end(self) -> CapturedGraph:
        """End the capture and return the graph. The stream numbers and memory contents from before the capture are restored."""
        for undo in self._as_before.values():
            undo()
        for stream in self._preceding:
            stream.number = stream.own_number
        others = tuple(stream for stream in self._preceding if stream is not self.origin)
        return CapturedGraph(self.origin, others, tuple(self._calls), tuple(self._computing))

    def _add(self, stream: VirtualStream) -> None:
        stream.number = self._pool + len(self._preceding)  # see Note [Streams of a graph]
        self._preceding[stream] = Works()


def pool_numbers(pool: int) -> range:
    """Return the range of stream numbers that is reserved for a private memory pool."""
    return range(_POOLS_FROM + pool * _STREAMS_OF_A_POOL, _POOLS_FROM + (pool + 1) * _STREAMS_OF_A_POOL)
