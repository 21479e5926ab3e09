"""Records CUDA events at the start and end of phases, and reads the times of the events without waiting for the GPU.

    events = BoundaryEvents(TorchCuda(torch), clock, access)
    boundary = events.record(now_ns)     # an event on the current stream, or None if CUDA must not be called now
    events.hand_out()            # the events since the last call, and why some events could not be taken
    events.read_finished([boundary])    # True if the event is done, then boundary.time_ns is when the GPU passed the event

Note [Aligning the clocks of host and GPU]
    CUDA reports only the time between two events, as a float in milliseconds, which is exact only for short times. The recorder
    therefore adds up the times between consecutive events, in integer nanoseconds. Each query of an event shows whether the
    event completed before or after the query. The Unix time of a GPU's first event is the earliest time that agrees with the
    answers for all events.

Note [Only the last event is queried]
    CUDA events on one stream complete in order. If the last event of each stream has completed, all earlier events have
    completed too.

Note [Devices without a context]
    Recording an event on a device creates the device's CUDA context, which takes some hundred megabytes. The recorder therefore
    records no events on devices without a context. If exactly one device has a context, this device gets the events, even if
    another device is current.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from operator import sub
from typing import Any

from tracer.device.clock import EpochClock
from tracer.device.device_access import DEFAULT_STREAM, DeviceAccess
from tracer.device.torch_cuda import TorchCuda
from traces.model.trace import NONE, Untimed

# time between two checks whether the last CUDA events have completed, at the end of the script
_LOOK_AGAIN_NS = 500_000


class DeviceClock:
    # see Note [Aligning the clocks of host and GPU]

    __slots__ = ("free", "last", "offset_ns")

    def __init__(self, offset_ns: int) -> None:
        self.offset_ns = offset_ns  # best estimate of the host time of the first event
        self.last: BoundaryEvent | None = None  # the next event's time is measured from this event
        self.free: list[Any] = []  # CUDA events that can be used again on this device

    def narrow(self, ticks_ns: int, not_before_ns: int, found_ns: int) -> None:
        self.offset_ns = max(min(self.offset_ns, found_ns - ticks_ns), not_before_ns - ticks_ns)


class EventStream:
    __slots__ = ("clock", "device", "free", "handle", "is_default", "stream")

    def __init__(self, stream: Any, clock: DeviceClock) -> None:
        self.stream, self.clock, self.free = stream, clock, clock.free
        self.device = int(stream.device_index)
        self.handle = stream.cuda_stream
        self.is_default = self.handle == DEFAULT_STREAM


class BoundaryEvent:
    __slots__ = ("event", "host_ns", "not_before_ns", "of", "ticks_ns")
    event: Any  # torch's CUDA event
    of: EventStream
    host_ns: int  # host time just before the event was recorded
    not_before_ns: int  # host time of the last query that found the event unfinished
    ticks_ns: int  # time since the device's first event; NONE until the time is read

    @classmethod
    def at(cls, event: Any, of: EventStream, host_ns: int) -> BoundaryEvent:
        boundary = cls()
        boundary.event, boundary.of = event, of
        boundary.host_ns = boundary.not_before_ns = host_ns
        boundary.ticks_ns = NONE
        return boundary

    @property
    def device(self) -> int:
        return self.of.device

    @property
    def time_ns(self) -> int:
        """Return the time of the CUDA event (Unix time in ns). NONE means a time that is not yet known."""
        return NONE if self.ticks_ns == NONE else self.of.clock.offset_ns + self.ticks_ns


class BoundaryEvents:
    def __init__(self, cuda: TorchCuda, clock: EpochClock, access: DeviceAccess) -> None:
        self.taken: list[BoundaryEvent] = []  # events that were recorded since the last step ended
        self.untimed = Untimed.NO  # why some of these events could not be recorded
        self.cuda, self.clock, self.access = cuda, clock, access
        self._streams: dict[tuple[int, int], EventStream] = {}  # keys: device, and handle of the stream
        self._clocks: dict[int, DeviceClock] = {}  # keys: devices
        self._in_use: set[int] = set()  # devices that certainly have a context
        self._has_entered = False

    @property
    def devices(self) -> Iterable[int]:
        return list(self._clocks)

    def enter_thread(self) -> None:
        """Select a GPU that the script uses. CUDA calls on an unused GPU would allocate memory on that GPU."""
        if self._clocks and not self._has_entered:
            if self.access.attempt(self.cuda.current_device) not in self._clocks:
                self.access.attempt(self.cuda.set_device, next(iter(self._clocks)))
            self._has_entered = self.access.attempt(self.cuda.current_device) in self._clocks

    def _current(self) -> EventStream | None:
        # see Note [Devices without a context]
        cuda = self.cuda
        device = cuda.current_device()
        if device not in self._in_use:
            device = self._with_context(device)
            if device == NONE:
                return None
        return self._stream(cuda.current_stream(device))

    def take_on(self, stream: Any) -> BoundaryEvent | None:
        if stream is None or self.access.closed is not None:
            return self.record(self.clock.now_ns())
        return self.record(self.clock.now_ns(), self._stream(stream))

    def record(self, now_ns: int, of: EventStream | None = None) -> BoundaryEvent | None:
        access = self.access
        # `closed_to_all_streams` makes the same checks, but calling a property takes as long as all these checks
        if access.device_lost or access.captures or access.script_profiles or not access.was_used:
            closed = access.closed_to_all_streams
            if closed is not None:
                if self.untimed == Untimed.NO:
                    self.untimed = closed
                return None
        access.is_calling = True
        try:
            cuda = self.cuda
            if of is None:
                device = cuda.current_device()
                of = self._streams.get((device, cuda.current_handle(device))) or self._current()
                if of is None:
                    return None
            if not of.is_default and access.is_current_stream_capturing:
                self.untimed = self.untimed or Untimed.CAPTURE
                return None
            event = of.free.pop() if of.free else cuda.event()
            event.record(of.stream)
        except RuntimeError as error:
            why = access.failed(error)
            self.untimed = self.untimed or why
            return None
        finally:
            access.is_calling = False
        boundary = BoundaryEvent.at(event, of, now_ns)
        self.taken.append(boundary)
        return boundary

    def is_current(self, stream: EventStream) -> bool:
        try:
            device = self.cuda.current_device()
            return self._streams.get((device, self.cuda.current_handle(device))) is stream
        except RuntimeError as error:
            self.access.failed(error)
            return True

    def hand_out(self) -> tuple[list[BoundaryEvent], Untimed]:
        """Return the CUDA events of the last step. If events are missing, also return the reason."""
        out = self.taken, self.untimed
        self.taken, self.untimed = [], Untimed.NO
        return out

    def are_done(self, events: list[BoundaryEvent]) -> bool:
        return bool(events and events[-1].ticks_ns == NONE and self.access.attempt(events[-1].event.query))

    def read_finished(self, events: list[BoundaryEvent]) -> bool:
        if all(event.ticks_ns != NONE for event in events):
            return True
        access = self.access
        if access.closed is not None:
            return False
        access.is_calling = True
        try:
            return self._read(events)
        except RuntimeError as error:
            access.failed(error)
            return False
        finally:
            access.is_calling = False

    def read_in_order(
        self, of: EventStream, events: list[Any], host_ns: list[list[int]], asked_ns: int
    ) -> tuple[list[int], int]:
        """Read the CUDA events of consecutive steps, all recorded on one stream. Return the times of all completed CUDA events,
        and the time of the last query that found an uncompleted event.

        - `host_ns`: for each CUDA event of a step, a list with the Unix time before the event was recorded in each step
        - `asked_ns`: the time of the last unsuccessful query, or NONE
        """
        access, clock, in_step = self.access, of.clock, len(host_ns)
        last = clock.last
        if last is None:
            return [], asked_ns
        access.is_calling = True
        try:
            done, unfinished_ns = self._done(events[in_step - 1 :: in_step])
            found_ns = self.clock.now_ns()
            events = events[: done * in_step]
            if not events:
                return [], unfinished_ns
            passed_ms = self.cuda.elapsed_ms([last.event, *events], of.device)
        except RuntimeError as error:
            access.failed(error)
            return [], asked_ns
        finally:
            access.is_calling = False
        _, *ticks_ns = accumulate([last.ticks_ns, *[round(ms * 1e6) for ms in passed_ms]])
        not_before_ns = max(max(map(sub, at_ns, ticks_ns[event::in_step])) for event, at_ns in enumerate(host_ns))
        if asked_ns != NONE:
            not_before_ns = max(not_before_ns, asked_ns - ticks_ns[in_step - 1])
        clock.narrow(0, not_before_ns, found_ns - ticks_ns[-1])
        clock.free += [last.event, *events[:-1]]
        clock.last = BoundaryEvent.at(events[-1], of, host_ns[-1][done - 1])
        clock.last.ticks_ns = ticks_ns[-1]
        return ticks_ns, unfinished_ns

    def _done(self, last_events: list[Any]) -> tuple[int, int]:
        low, high, unfinished_ns = 0, len(last_events), NONE
        middle = high - 1  # usually, the GPU has finished all steps
        while low < high:
            asked_ns = self.clock.now_ns()
            if last_events[middle].query():
                low = middle + 1
            else:
                high, unfinished_ns = middle, asked_ns
            middle = (low + high) // 2
        return low, unfinished_ns

    def read_finished_within(self, events: list[BoundaryEvent], patience_ns: int) -> bool:
        """Wait for CUDA events. Give up if none completes within `patience_ns`."""
        clock = self.clock
        left, since_ns = len(events) + 1, clock.now_ns()
        while not self.read_finished(events):
            unread = sum(boundary.ticks_ns == NONE for boundary in events)
            if unread < left:
                left, since_ns = unread, clock.now_ns()
            if self.access.closed is not None or clock.now_ns() - since_ns > patience_ns:
                return False
            clock.sleep(_LOOK_AGAIN_NS)
        return True

    def _read(self, events: list[BoundaryEvent]) -> bool:
        # see Note [Only the last event is queried]
        now_ns = self.clock.now_ns
        last_of = events[-1:] if len(self._streams) == 1 else {id(boundary.of): boundary for boundary in events}.values()
        are_done = all(boundary.ticks_ns != NONE or boundary.event.query() for boundary in last_of)
        found_ns = now_ns()
        for boundary in events:
            if boundary.ticks_ns != NONE:
                continue
            event, clock = boundary.event, boundary.of.clock
            if not are_done:
                asked_ns = now_ns()
                if not event.query():
                    boundary.not_before_ns = asked_ns
                    return False
                found_ns = now_ns()
            last = clock.last
            if last is None:
                ticks_ns = 0
            else:
                ticks_ns = last.ticks_ns + round(last.event.elapsed_time(event) * 1e6)
                clock.free.append(last.event)
            boundary.ticks_ns, clock.last = ticks_ns, boundary
            if not boundary.not_before_ns <= clock.offset_ns + ticks_ns <= found_ns:
                clock.narrow(ticks_ns, boundary.not_before_ns, found_ns)
        return True

    def _stream(self, stream: Any) -> EventStream:
        device = int(stream.device_index)
        key = device, stream.cuda_stream
        known = self._streams.get(key)
        if known is None:
            clock = self._clocks.get(device)
            if clock is None:
                clock = self._clocks[device] = DeviceClock(self.clock.now_ns())
            known = self._streams[key] = EventStream(stream, clock)
        return known

    def _with_context(self, current: int) -> int:
        # see Note [Devices without a context]
        has_context = self.cuda.has_context
        if has_context(current):
            self._in_use.add(current)
            return current
        used = [device for device in range(self.cuda.device_count()) if has_context(device)]
        return used[0] if len(used) == 1 else NONE
