"""The virtual GPU: devices, streams, events and host threads as a script sees them through torch.

`tensor.py` calls `launch`, `copy` and `read` for what the script does; the surfaces call the rest. Time is the player's.

    gpu = VirtualGpu(score, clock, timeline, ...)
    gpu.launch(site, device=0)
    gpu.synchronize_device(0)       # returns when the device's recorded time has passed

Streams and events follow CUDA: work on one stream runs in order, an event is the end of what its stream held when it was
recorded, and the host waits only in the calls in which CUDA would.

Note [Played in batches]
    A launch only notes the op, its stream and the time; some dozens of them are played together, or as soon as anything
    looks at the device or the phase changes. Nobody can tell, for nothing on the timeline depends on when it is worked out;
    but playing them one after another, with the interpreter's caches warm, takes a third of the time.
"""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replayer.allocator import DeviceMemory
from replayer.clock import Clock
from replayer.ledger import Ledger
from replayer.player import Player
from replayer.score import Score
from replayer.sites import Site
from replayer.streams import VirtualEvent, VirtualStream
from replayer.tracks import HostThread
from replayer.transfers import Transfers
from replayer.values import RecordedValues
from traces.model import Device, Thread, Trace

if TYPE_CHECKING:
    from replayer.timeline import Timeline

# Ops noted before they are played: a few milliseconds of a script, less than the host may run ahead anyway.
_BATCH = 64

# Used where a recording does not tell how much memory its device had (old formats list no properties).
UNKNOWN_MEMORY_BYTES = 16 << 30


@dataclass(slots=True, eq=False)
class VirtualDevice:
    """One virtual CUDA device."""

    index: int
    name: str
    properties: dict[str, Any]  # under the recorder's own names
    ledger: Ledger  # by which tensors use the memory
    default_stream: VirtualStream
    _memory: DeviceMemory

    @property
    def memory(self) -> DeviceMemory:
        """The device's memory with all allocations and frees so far done."""
        self.ledger.settle()
        return self._memory


class VirtualGpu:
    """All virtual devices of this process."""

    def __init__(
        self, trace: Trace, rank: int, clock: Clock, timeline: Timeline, *, strict: bool, pad_loader: bool
    ) -> None:
        self.score = Score.of(trace, rank)
        self.player = Player(self.score, clock, timeline, strict=strict, pad_loader=pad_loader)
        self.clock = clock
        self._now_ns = clock.now_ns
        self.timeline = timeline
        self.provenance = trace.provenance
        self.threads: list[Thread] = []
        self._transfers = Transfers.of(trace, self.score.speed)
        self._values = RecordedValues.of(trace, rank)
        self._values.begin_step(self.player.course.step.step.row)
        self._settled_in = False
        self._local = threading.local()
        self._lock = threading.RLock()
        self._stream_count = 0
        self._pending: deque[tuple[HostThread, VirtualStream, Site, int]] = deque()
        self._batch = 1 if strict else _BATCH  # under --strict the op that does not match must be the one that fails
        self.devices = [self._device(i, device) for i, device in enumerate(self.score.devices)]

    def _device(self, index: int, device: Device) -> VirtualDevice:
        capacity_bytes = device.total_memory_bytes if device.total_memory_bytes > 0 else UNKNOWN_MEMORY_BYTES
        thread = self.thread()

        def wait_until(time_ns: int) -> None:
            self.player.tracks.block(thread, time_ns)

        memory = DeviceMemory(index, capacity_bytes, host_now_ns=lambda: thread.host_ns, wait_until_ns=wait_until)
        ledger = Ledger(memory, lambda: thread.host_ns, self.timeline.memory)
        stream = self.player.tracks.stream(index, 0)
        return VirtualDevice(index, device.name, device.properties, ledger, stream, memory)

    def device_count(self) -> int:
        return len(self.devices)

    # --- what tensors do

    def launch(self, site: Site, device: int) -> None:
        """The op's kernels go on this thread's current stream of `device`; see Note [Played in batches]."""
        if site.launches:
            try:
                thread = self._local.thread
                stream = thread.streams[device]
            except (AttributeError, KeyError):  # this thread's first use
                thread = self.thread()
                stream = self._current(thread, device)
            pending = self._pending
            pending.append((thread, stream, site, self._now_ns()))
            if len(pending) >= self._batch:
                self.flush()

    def flush(self) -> None:
        """Play what has been launched."""
        with self._lock:
            pending, play = self._pending, self.player.play
            while pending:
                thread, stream, site, now_ns = pending.popleft()
                play(thread, stream, site, now_ns)
            for device in self.devices:
                device.ledger.settle()
            self.timeline.relieve()

    @contextmanager
    def _looking(self) -> Iterator[HostThread]:
        """Alone with all that was launched played: for whatever looks at the device or moves the script on."""
        with self._lock:
            self.flush()
            yield self.thread()

    def copy(self, site: Site, kind: str, size_bytes: int, device: int, blocking: bool, pinned: bool = False) -> None:
        """A copy of kind "h2d", "d2h", "d2d" or "p2p"; if blocking, the host waits for its end."""
        with self._looking() as thread:
            if kind == "h2d":
                self.player.course.enter(thread, "h2d")
            cost = self._transfers.duration_ns(kind, pinned, size_bytes)
            end_ns = self.player.play(thread, self._current(thread, device), site, self.clock.now_ns(), cost)
            if kind == "d2h" and blocking:
                self.player.course.settle(thread)
                end_ns = max(end_ns, self._current(thread, device).ready_ns)
            if blocking:
                self.player.tracks.block(thread, end_ns)
            if kind == "h2d":
                self.player.course.leave(thread, "h2d")

    def read(self, site: Site, device: int, dtype: str, count: int) -> list[float] | None:
        """The host reads `count` elements: it waits for the stream, then gets what was recorded, or None."""
        with self._looking() as thread:
            stream = self._current(thread, device)
            cost = self._transfers.duration_ns("d2h", False, count * 8)
            self.player.play(thread, stream, site, self.clock.now_ns(), cost)
            self.player.course.settle(thread)
            self.player.tracks.block(thread, stream.ready_ns)
            values = self._values.next(count)
            if values is None:
                self.player.tally.reads_unrecorded += 1
            return values

    # --- threads, devices and streams

    def thread(self) -> HostThread:
        """The calling host thread, made at first use."""
        thread: HostThread | None = getattr(self._local, "thread", None)
        if thread is None:
            main = threading.current_thread() is threading.main_thread()
            self.threads.append(Thread(0, len(self.threads), threading.current_thread().name, "main" if main else "other"))
            thread = self._local.thread = HostThread(len(self.threads) - 1, self.clock.now_ns())
        return thread

    def _current(self, thread: HostThread, device: int) -> VirtualStream:
        stream = thread.streams.get(device)
        if stream is None:
            stream = thread.streams[device] = self.devices[device].default_stream
        return stream

    def current_device(self) -> int:
        return self.thread().device

    def set_device(self, index: int) -> None:
        self.thread().device = index

    def current_stream(self, device: int) -> VirtualStream:
        try:
            stream: VirtualStream = self._local.thread.streams[device]
        except (AttributeError, KeyError):  # this thread's first use
            stream = self._current(self.thread(), device)
        return stream

    def set_stream(self, stream: VirtualStream) -> None:
        """Make `stream` the current one of its device, and its device the current one."""
        thread = self.thread()
        thread.device = stream.device
        thread.streams[stream.device] = stream

    def new_stream(self, device: int, priority: int = 0) -> VirtualStream:
        with self._lock:
            self._stream_count += 1
            return self.player.tracks.stream(device, self._stream_count, priority)

    # --- events and waiting

    def record_event(self, event: VirtualEvent, stream: VirtualStream) -> None:
        with self._looking() as thread:
            self.player.course.settle(thread)
            event.device = stream.device
            event.time_ns = max(stream.ready_ns, self._now(thread))

    def stream_wait_event(self, stream: VirtualStream, event: VirtualEvent) -> None:
        """Later work on `stream` starts no earlier than the event; one that was never recorded is no wait, as in CUDA."""
        self.flush()
        if event.time_ns is not None:
            stream.wait(event.time_ns)

    def stream_wait_stream(self, stream: VirtualStream, other: VirtualStream) -> None:
        self.flush()
        stream.wait(other.ready_ns)

    def query_event(self, event: VirtualEvent) -> bool:
        return event.time_ns is None or event.time_ns <= self.clock.now_ns()

    def query_stream(self, stream: VirtualStream) -> bool:
        self.flush()
        return stream.ready_ns <= self.clock.now_ns()

    def synchronize_event(self, event: VirtualEvent) -> None:
        if event.time_ns is not None:
            self.player.tracks.block(self.thread(), event.time_ns)

    def synchronize_stream(self, stream: VirtualStream) -> None:
        with self._looking() as thread:
            self.player.course.settle(thread)
            self.player.tracks.block(thread, stream.ready_ns)

    def synchronize_device(self, device: int) -> None:
        with self._looking() as thread:
            self.player.course.settle(thread)
            streams = [s.ready_ns for s in self.player.tracks.streams.values() if s.device == device]
            self.player.tracks.block(thread, max(streams, default=0))

    def elapsed_ms(self, start: VirtualEvent, end: VirtualEvent) -> float:
        if start.time_ns is None or end.time_ns is None:
            raise ValueError("both events must be recorded before their time is taken")
        return (end.time_ns - start.time_ns) / 1e6

    # --- phases of the script

    def enter_phase(self, name: str) -> None:
        with self._looking() as thread:
            self.player.course.enter(thread, name)

    def leave_phase(self, name: str) -> None:
        with self._looking() as thread:
            self.player.course.leave(thread, name)

    def end_step(self) -> None:
        """The first optimizer's step() has returned."""
        with self._looking() as thread:
            self.player.course.end_step(thread)
            if not self._settled_in:
                # What there is of ours by now, a hundred thousand objects of score and plans, stays; full collections in the
                # midst of a step need not visit it again and again.
                self._settled_in = True
                gc.collect()
                gc.freeze()
            self._values.begin_step(self.player.course.step.step.row)

    def stop(self) -> None:
        """The script has ended."""
        with self._looking() as thread:
            self.player.course.stop(thread)
            gc.unfreeze()  # or what the interpreter frees at its end would count as leaked

    def host_now_ns(self) -> int:
        """The calling thread's virtual present."""
        self.flush()
        return self._now(self.thread())

    def _now(self, thread: HostThread) -> int:
        return max(thread.host_ns, self.clock.now_ns())

