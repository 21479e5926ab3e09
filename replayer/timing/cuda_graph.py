"""What a CUDA graph captured, to be played again at every replay.

    capture = GraphCapture(stream, thread, everywhere=True, refuse=error)
    capture.note(simulator.play_node, stream, signature, None)      # in place of playing it
    graph = capture.end()
    for call, args in graph.calls: ...

Nothing that is captured takes time on the device. Phases that the script enters while it captures are noted too, and entered
again at each replay: so the nodes are matched where the recorded program, without a graph, called the same ops.

Note [A pool of its own]
    While a stream captures, its memory comes from the graph's private pool. The allocator keeps its free blocks by stream, so a
    capturing stream simply has another number: that of the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replayer.timing.host_threads import HostThread
from replayer.timing.stream import VirtualEvent, VirtualStream
from replayer.torch_types import TorchAny

Call = tuple[Callable[..., TorchAny], tuple[TorchAny, ...]]

_POOLS_FROM = 1 << 20  # private pools are numbered beyond what streams reach
_STREAMS_OF_A_POOL = 64


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """`calls` are made in order at each replay, on `origin`'s place in whatever stream replays; `others` joined the capture.
    `computing` is what the host computes at each replay, or forgets where tensors have no numbers."""

    origin: VirtualStream
    others: tuple[VirtualStream, ...]
    calls: tuple[Call, ...]
    computing: tuple[Callable[[], None], ...]


class GraphCapture:
    """A capture under way.

    Args:
        stream: on which it began.
        everywhere: calls that would break it are refused in all threads ("global"), not in the capturing one only.
        refuse: makes CUDA's error for such a call.
    """

    def __init__(
        self, stream: VirtualStream, thread: HostThread, pool: int, *, everywhere: bool, refuse: Callable[[], BaseException]
    ) -> None:
        self.origin = stream
        self.thread = thread
        self.is_broken = False
        self._everywhere, self._refuse = everywhere, refuse
        self._pool = _POOLS_FROM + pool * _STREAMS_OF_A_POOL
        self._numbers: dict[VirtualStream, int] = {}  # the streams that capture, and their numbers before
        self._unjoined: set[VirtualStream] = set()
        self._events: set[VirtualEvent] = set()
        self._calls: list[Call] = []
        self._computing: list[Callable[[], None]] = []
        self._as_before: dict[int, Callable[[], None]] = {}  # by what they put back
        self._add(stream)

    def __contains__(self, stream: VirtualStream) -> bool:
        return stream in self._numbers

    def note(self, call: Callable[..., TorchAny], *args: TorchAny) -> None:
        self._calls.append((call, args))

    def note_computing(self, call: Callable[[], None]) -> None:
        """`call` computes the numbers of an op that was captured, or forgets what they were."""
        self._computing.append(call)

    def put_back(self, key: int, undo: Callable[[], Callable[[], None]]) -> None:
        """At the end the call that `undo` gives puts back what the memory `key` holds now; the first time counts."""
        if key not in self._as_before:
            self._as_before[key] = undo()

    def record(self, event: VirtualEvent, stream: VirtualStream) -> bool:
        """Whether `event`, recorded on `stream`, belongs to the capture."""
        if stream in self:
            self._events.add(event)
            event.device = stream.device
            self._unjoined.discard(stream)
        else:
            self._events.discard(event)
        return stream in self

    def has_event(self, event: VirtualEvent) -> bool:
        return event in self._events

    def join(self, stream: VirtualStream, other: VirtualStream | None = None) -> None:
        """`stream` waits for work of the capture (that of `other`), and so is part of it from now on."""
        if stream not in self:
            self._add(stream)
        if other is not None:
            self._unjoined.discard(other)
        if stream is not self.origin:
            self._unjoined.add(stream)

    def refuse(self, thread: HostThread) -> None:
        """A call that waits, or asks how far the device is: raises CUDA's error, and the capture has failed."""
        if self._everywhere or thread is self.thread:
            self.is_broken = True
            raise self._refuse()

    @property
    def is_joined(self) -> bool:
        """Whether every stream that joined has been waited for by one that leads to the origin."""
        return not self._unjoined

    def end(self) -> CapturedGraph:
        """Give the streams their numbers back, and memory the contents that it had."""
        for undo in self._as_before.values():
            undo()
        for stream, number in self._numbers.items():
            stream.number = number
        others = tuple(stream for stream in self._numbers if stream is not self.origin)
        return CapturedGraph(self.origin, others, tuple(self._calls), tuple(self._computing))

    def _add(self, stream: VirtualStream) -> None:
        self._numbers[stream] = stream.number
        stream.number = self._pool + len(self._numbers) - 1  # Note [A pool of its own]


def pool_numbers(pool: int) -> range:
    """The numbers that streams have while they capture into a private pool."""
    return range(_POOLS_FROM + pool * _STREAMS_OF_A_POOL, _POOLS_FROM + (pool + 1) * _STREAMS_OF_A_POOL)
