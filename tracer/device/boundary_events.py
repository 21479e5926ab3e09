"""Where the GPU was when the host passed a boundary: CUDA events, recorded without waiting and read when they are done.

    events = BoundaryEvents(torch.cuda, clock, access)
    boundary = events.take()     # an event on the current stream, or None where CUDA must not be called now
    events.settle([boundary])    # True once it is done; then boundary.time_ns says when the GPU got there

The host never waits for an event.

Note [One clock out of many events]
    Events give only differences, as floats of milliseconds. Each event is measured against the one before it on its
    device, so the differences stay short and exact, and their sum since the device's first event is kept in whole nanoseconds.
    The host's time of that first event is narrowed down by every event that is read. An event cannot be done before the host
    records it, nor before the host last found it not done; and it is done when the host finds it done. The clock takes the
    earliest time that agrees with all of this. It is exact to some microseconds from the first boundary on at which the GPU
    was idle. A step's times are made when the step is written, all with the same offset, so differences within a step are
    always those of the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tracer.device.clock import EpochClock
from tracer.device.device_access import DeviceAccess
from traces.model.trace import NONE

# How long to sleep between two looks at an event that is not done: short beside what the end of a process takes.
_LOOK_AGAIN_NS = 500_000


@dataclass(slots=True, eq=False)
class DeviceClock:
    """When events of one device happened on the host's clock. See Note [One clock out of many events]."""

    offset_ns: int  # the host's time of the device's first event, as far as it is known
    last: BoundaryEvent | None = None  # the one that the next one is measured against

    def narrow(self, ticks_ns: int, not_before_ns: int, found_ns: int) -> None:
        """An event at `ticks_ns` was not done before one host time, and was found done at another."""
        self.offset_ns = max(min(self.offset_ns, found_ns - ticks_ns), not_before_ns - ticks_ns)


@dataclass(slots=True, eq=False)
class BoundaryEvent:
    """One boundary on one stream of a device."""

    event: Any
    device: int
    stream: int
    host_ns: int  # when the host recorded it
    clock: DeviceClock
    not_before_ns: int  # when the host last found it not done
    ticks_ns: int = NONE  # since the device's first event; NONE until it was read

    @property
    def time_ns(self) -> int:
        """When the GPU got there, on the host's clock; NONE until the event was read."""
        return NONE if self.ticks_ns == NONE else self.clock.offset_ns + self.ticks_ns


class CurrentStream:
    """Called without arguments, returns the calling thread's current stream on its current device.

    `torch.cuda.current_stream()` takes 3 to 9 us, most of it to find the device and to make the object. This one asks for the
    stream's id, which takes 0.2 us, and keeps an object for each id.
    """

    def __init__(self, torch: Any) -> None:
        self._cuda, self._bindings = torch.cuda, torch._C
        self._known: dict[tuple[int, ...], Any] = {}  # by id, device and type of the device

    def __call__(self) -> Any:
        device = self._cuda.current_device()
        key = self._bindings._cuda_getCurrentStream(device)
        stream = self._known.get(key)
        if stream is None:
            stream = self._known[key] = self._cuda.current_stream(device)
        return stream


class BoundaryEvents:
    """Takes events at boundaries and reads them, in order; CUDA events are used again."""

    def __init__(
        self, cuda: Any, clock: EpochClock, access: DeviceAccess, current_stream: Callable[[], Any] | None = None
    ) -> None:
        """`current_stream` finds the calling thread's stream; without it `cuda.current_stream` does."""
        self._cuda = cuda
        self._current_stream = current_stream or cuda.current_stream
        self._clock = clock
        self._access = access
        self._free: dict[int, list[Any]] = {}  # by device, which an event keeps once it was recorded
        self._clocks: dict[int, DeviceClock] = {}  # by device

    @property
    def devices(self) -> Iterable[int]:
        """The devices that events were taken on."""
        return list(self._clocks)

    def take(self, stream: Any = None) -> BoundaryEvent | None:
        """An event on `stream`, or on the current one; None where CUDA must not be called now (device_access.py)."""
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

    def settle(self, events: list[BoundaryEvent]) -> bool:
        """Read the events that are done, which must come in the order of taking. False if one is not done yet."""
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

    def settle_within(self, events: list[BoundaryEvent], patience_ns: int) -> bool:
        """As `settle`, but look again and again as long as the device passes an event every `patience_ns`."""
        clock = self._clock
        left, since_ns = len(events) + 1, clock.now_ns()
        while not self.settle(events):
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
            self._free.setdefault(boundary.device, []).append(last.event)  # nothing is measured against it any more
        return True
