"""Implements CUDA streams and events, and functions that make the host wait until they are done.

    side = streams.new(device=0)
    streams.record_event(event, side)
    streams.synchronize_event(event)        # returns when the event's virtual time has passed
"""

from __future__ import annotations

from replayer.gpu.launches import ScriptLaunches
from replayer.gpu.ranks import RankOperations
from replayer.timing.host_threads import HostThread
from replayer.timing.stream import VirtualEvent, VirtualStream


class Streams:
    def __init__(self, launches: ScriptLaunches, ranks: RankOperations) -> None:
        self._launches = launches
        self._ranks = ranks
        self._clock = launches.clock
        self._scheduler = launches.simulator.scheduler
        self._tracker = launches.simulator.tracker
        self._stats = launches.simulator.stats
        self._count = 0

    def new(self, device: int, priority: int = 0) -> VirtualStream:
        with self._launches.lock:
            self._count += 1
            return self._scheduler.stream(device, self._count, priority)

    def record_event(self, event: VirtualEvent, stream: VirtualStream) -> None:
        with self._launches.looking as thread:
            for capture in self._launches.captures:
                if capture.record(event, stream):
                    capture.add_call(_record, event, stream)
                    return
            self._tracker.add_gpu_work_so_far(thread)
            event.captured = False
            event.device = stream.device
            event.time_ns = max(stream.ready_ns, thread.host_ns, self._clock.now_ns())
            if event.awaited:
                event.awaited = False
                self._stats.events_never_recorded -= 1

    def wait_event(self, stream: VirtualStream, event: VirtualEvent) -> None:
        """Make the stream wait for the event. Events that were never recorded have no effect."""
        with self._launches.looking:
            capture = self._launches.capture_of(event)
            if capture is not None:
                capture.join(stream, event)
                capture.add_call(_wait, stream, event)
            elif (capture := self._launches.capture_of(stream)) is not None:
                capture.add_call(_wait, stream, event)
            elif event.time_ns is None:
                self._await_nothing(event)
            else:
                stream.wait(event.time_ns)

    def wait_stream(self, stream: VirtualStream, other: VirtualStream) -> None:
        with self._launches.looking as thread:
            capture = self._launches.capture_of(other)
            if capture is not None:
                capture.join(stream, other)
                capture.add_call(_wait, stream, other)
                return
            self._tracker.add_gpu_work_so_far(thread)
            stream.wait(other.ready_ns)

    def _await_nothing(self, event: VirtualEvent) -> None:
        # see Note [Waits on unrecorded events] in stream.py
        if not event.awaited:
            event.awaited = True
            self._stats.events_never_recorded += 1

    def query_event(self, event: VirtualEvent) -> bool:
        if self._is_unrecorded(event):
            return True
        self._launches.check_may_wait(event)
        return event.time_ns is None or self._clock.has_reached(event.time_ns)

    def query(self, stream: VirtualStream) -> bool:
        self._launches.check_may_wait(stream)
        self._launches.flush()
        return self._clock.has_reached(stream.ready_ns)

    def _is_unrecorded(self, event: VirtualEvent) -> bool:
        return event.time_ns is None and self._launches.capture_of(event) is None

    def synchronize_event(self, event: VirtualEvent) -> None:
        if not self._is_unrecorded(event):
            self._launches.check_may_wait(event)
        if event.time_ns is None:
            with self._launches.lock:
                self._await_nothing(event)
        else:
            self._scheduler.script_waits(self._launches.current.thread(), event.time_ns)

    def synchronize(self, stream: VirtualStream) -> None:
        self._launches.check_may_wait(stream)
        with self._launches.looking as thread:
            self._tracker.add_gpu_work_so_far(thread)
            self._scheduler.script_waits(thread, stream.ready_ns)

    def synchronize_device(self, device: int) -> None:
        self._launches.check_may_wait()
        self._ranks.finish(wait=True)
        with self._launches.looking as thread:
            self._tracker.add_gpu_work_so_far(thread)
            streams = [stream.ready_ns for stream in self._scheduler.streams.values() if stream.device == device]
            self._scheduler.script_waits(thread, max(streams, default=0))

    def elapsed_ms(self, start: VirtualEvent, end: VirtualEvent) -> float:
        if start.time_ns is None or end.time_ns is None:
            raise ValueError("both events must be recorded before the time between them is computed")
        return (end.time_ns - start.time_ns) / 1e6 / float(self._clock.speed)

    # --- the calling thread's virtual time

    def has_passed(self, time_ns: int) -> bool:
        return time_ns <= self._clock.now_ns()

    def host_now_ns(self) -> int:
        return max(self.present_ns(), self._clock.now_ns())

    def present_ns(self) -> int:
        self._launches.flush()
        return self._launches.current.thread().host_ns

    def wait_for_clock(self) -> None:
        thread = self._launches.current.known_thread()
        if thread is not None:
            self._launches.flush()
            self._scheduler.wait(thread.host_ns)


def _record(_thread: HostThread, event: VirtualEvent, stream: VirtualStream) -> None:
    event.time_ns = stream.ready_ns


def _wait(_thread: HostThread, stream: VirtualStream, until: VirtualStream | VirtualEvent) -> None:
    time_ns = until.ready_ns if isinstance(until, VirtualStream) else until.time_ns
    if time_ns is not None:
        stream.wait(time_ns)
