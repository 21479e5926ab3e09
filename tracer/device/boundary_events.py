"""Records CUDA events at phase boundaries and reads the events without waiting.

    events = BoundaryEvents(torch.cuda, clock, access)
    boundary = events.take()     # an event on the current stream, or None if CUDA must not be called now
    events.read_finished([boundary])    # True if the event is done, then boundary.time_ns is when the GPU passed the event

Note [One clock out of many events]
    CUDA only gives the time between two events, as floats in milliseconds. Each event is measured against the previous event on
    the same device, so differences stay short and exact. The sum of the differences since the device's first event is kept in
    whole nanoseconds. Each event also gives bounds for the host time of the first event. An event is not done before the host
    records it, nor when the host finds it unfinished. An event is done when the host finds it done. The clock uses the earliest
    host time that satisfies all bounds. After the first boundary with an idle GPU, this time is exact to some microseconds. All
    times of a step use the same offset, so the offset does not change durations within a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tracer.device.clock import EpochClock
from tracer.device.device_access import DeviceAccess
from traces.model.trace import NONE

# The recorder sleeps for this time between two queries of an event. The time is short compared with the end of a process.
_LOOK_AGAIN_NS = 500_000


@dataclass(slots=True, eq=False)
class DeviceClock:
    """Maps the events of one device to host time. See Note [One clock out of many events]."""

    offset_ns: int  # best estimate of the host time of the device's first event
    last: BoundaryEvent | None = None  # the reference for measuring the next event

    def narrow(self, ticks_ns: int, not_before_ns: int, found_ns: int) -> None:
        """Narrows the clock offset with an event at `ticks_ns`. The event was not done before `not_before_ns` and was found
        done at `found_ns` (host times).
        """
        self.offset_ns = max(min(self.offset_ns, found_ns - ticks_ns), not_before_ns - ticks_ns)


@dataclass(slots=True, eq=False)
class BoundaryEvent:
    event: Any
    device: int
    stream: int
    host_ns: int  # host time at which the event was recorded
    clock: DeviceClock
    not_before_ns: int  # host time at which the event was last found unfinished
    ticks_ns: int = NONE  # time since the device's first event, NONE until read

    @property
    def time_ns(self) -> int:
        """Returns when the GPU passed the event, in host time. Returns NONE until the event was read."""
        return NONE if self.ticks_ns == NONE else self.clock.offset_ns + self.ticks_ns


class CurrentStream:
    """Returns the calling thread's current stream on the thread's current device.

    `torch.cuda.current_stream()` takes 3 to 9 us, mostly to find the device and to create the object. This class queries the
    stream's id, which takes 0.2 us, and caches one object per id.
    """

    def __init__(self, torch: Any) -> None:
        self._cuda, self._bindings = torch.cuda, torch._C
        self._known: dict[tuple[int, ...], Any] = {}  # keyed by stream id, device index and device type

    def __call__(self) -> Any:
        device = self._cuda.current_device()
        key = self._bindings._cuda_getCurrentStream(device)
        stream = self._known.get(key)
        if stream is None:
            stream = self._known[key] = self._cuda.current_stream(device)
        return stream


class BoundaryEvents:
    """Takes events at boundaries and reads the events in order. CUDA events are reused."""

    def __init__(
        self, cuda: Any, clock: EpochClock, access: DeviceAccess, current_stream: Callable[[], Any] | None = None
    ) -> None:
        self._cuda = cuda
        self._current_stream = current_stream or cuda.current_stream
        self._clock = clock
        self._access = access
        self._free: dict[int, list[Any]] = {}  # keyed by device, because an event cannot change its device once recorded
        self._clocks: dict[int, DeviceClock] = {}  # by device

    @property
    def devices(self) -> Iterable[int]:
        return list(self._clocks)

    def take(self, stream: Any = None) -> BoundaryEvent | None:
        """Records an event on `stream` (default: current stream). Returns None if CUDA must not be called now
        (device_access.py).
        """
        access = self._access
        if access.closed is not None:
            return None
        access.is_calling = True
        try:
            if stream is None:
                stream = self._current_stream()
            device = stream.device_index
            free = self._free.get(device)
            event = free.pop() if free else self._cuda.Event(enable_timing=True)
            host_ns = self._clock.now_ns()
            event.record(stream)
        except RuntimeError as error:
            access.lose(error)
            return None
        finally:
            access.is_calling = False
        clock = self._clocks.get(device)
        if clock is None:
            clock = self._clocks[device] = DeviceClock(host_ns)
        return BoundaryEvent(event, device, stream.stream_id, host_ns, clock, host_ns)

    def read_finished(self, events: list[BoundaryEvent]) -> bool:
        """Reads finished events in the order in which they were taken. Returns whether all events are done."""
        unread = [boundary for boundary in events if boundary.ticks_ns == NONE]
        if not unread:
            return True
        access = self._access
        if access.closed is not None:
            return False
        access.is_calling = True
        try:
            return all(self._read(boundary) for boundary in unread)
        except RuntimeError as error:
            access.lose(error)
            return False
        finally:
            access.is_calling = False

    def read_finished_within(self, events: list[BoundaryEvent], patience_ns: int) -> bool:
        """Repeats `read_finished` while the device passes at least one event every `patience_ns`."""
        clock = self._clock
        left, since_ns = len(events) + 1, clock.now_ns()
        while not self.read_finished(events):
            unread = sum(boundary.ticks_ns == NONE for boundary in events)
            if unread < left:
                left, since_ns = unread, clock.now_ns()
            if self._access.closed is not None or clock.now_ns() - since_ns > patience_ns:
                return False
            clock.sleep(_LOOK_AGAIN_NS)
        return True

    def _read(self, boundary: BoundaryEvent) -> bool:
        clock, event = boundary.clock, boundary.event
        asked_ns = self._clock.now_ns()
        if not event.query():
            boundary.not_before_ns = asked_ns
            return False
        last = clock.last
        boundary.ticks_ns = 0 if last is None else last.ticks_ns + round(last.event.elapsed_time(event) * 1e6)
        clock.narrow(boundary.ticks_ns, boundary.not_before_ns, self._clock.now_ns())
        clock.last = boundary
        if last is not None:
            self._free.setdefault(boundary.device, []).append(last.event)
        return True
