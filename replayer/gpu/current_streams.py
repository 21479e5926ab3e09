"""Stores the current device of each host thread, and the thread's current stream on each device.

    current.device()            # torch.cuda.current_device()
    current.stream(0)           # torch.cuda.current_stream(0)
    current.caller(0).thread    # the host thread; `host_ns` is its virtual time
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable

import torch

from replayer.gpu.device import VirtualDevice
from replayer.timing.host_threads import Caller, HostThread, HostThreads
from replayer.timing.scheduler import StreamScheduler
from replayer.timing.stream import VirtualStream
from traces.model.trace import Thread

_RANGES = 1000
_next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


class NodeStreams(threading.local):
    """Stores the CUDA stream of each autograd node for the next backward pass."""

    def __init__(self) -> None:
        self._ranges: deque[tuple[int, int, VirtualStream]] = deque(maxlen=_RANGES)
        self._first = 0

    def leave(self, stream: VirtualStream) -> None:
        number = _next_number()
        if number > self._first:
            self._ranges.append((self._first, number, stream))
            self._first = number

    def of_backward(self, current: VirtualStream) -> Callable[[int], VirtualStream] | None:
        """Return a function that returns the CUDA stream of an autograd node, given the node's number. Return None if all nodes
        use the current stream."""
        ranges = list(self._ranges)
        self._ranges.clear()
        self._first = _next_number()
        if all(stream is current for _, _, stream in ranges):
            return None

        def stream_of(number: int) -> VirtualStream:
            at = bisect_right(ranges, number, key=lambda span: span[0]) - 1
            return ranges[at][2] if at >= 0 and number < ranges[at][1] else current

        return stream_of


class CurrentStreams:
    def __init__(self, devices: list[VirtualDevice], scheduler: StreamScheduler) -> None:
        # contains each thread's `HostThread`, and its `callers` by device
        self.local = threading.local()
        self.devices = devices
        self._scheduler = scheduler
        self._threads = HostThreads()
        self.nodes = NodeStreams()
        self._has_home = False
        scheduler.row_of = self._threads.row_of

    @property
    def threads(self) -> list[Thread]:
        return self._threads.rows

    def thread(self) -> HostThread:
        thread = self.known_thread()
        if thread is None:
            thread = self.local.thread = self._threads.begin(self._scheduler.clock.now_ns())
            self.local.callers = thread.callers
        return thread

    def known_thread(self) -> HostThread | None:
        thread: HostThread | None = getattr(self.local, "thread", None)
        return thread

    def begin_thread(self, name: str, maker: HostThread) -> None:
        """Register a new thread, which starts at the virtual time of its parent thread."""
        thread = self.thread()
        self._threads.use_shared_row(thread, name)
        thread.start_from(maker)

    def device(self) -> int:
        return self.thread().device

    def set_device(self, index: int) -> None:
        self.thread().device = index

    def caller(self, device: int) -> Caller:
        return self.caller_of(self.thread(), device)

    def caller_of(self, thread: HostThread, device: int) -> Caller:
        caller = thread.callers.get(device)
        if caller is None:
            if not self._has_home:
                self._has_home = True
                self._scheduler.home = self._scheduler.timeline.home = device
            caller = thread.call_on(self.devices[device].default_stream)
        return caller

    def stream(self, device: int) -> VirtualStream:
        return self.caller(device).stream

    def set_stream(self, stream: VirtualStream) -> None:
        thread = self.thread()
        self.nodes.leave(self.stream(thread.device))
        thread.device = stream.device
        thread.call_on(stream)
