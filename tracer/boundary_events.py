"""Where the GPU was when the host passed a boundary: CUDA events, recorded without waiting and read when they are done.

    events = BoundaryEvents(torch.cuda, clock)
    boundary = events.take()     # an event on the current stream, or None where the script does not use CUDA
    events.settle([boundary])    # True once it is done; then boundary.time_ns says when the GPU got there

Note [One clock out of many events]
    Events give only differences, as floats of milliseconds. Each event is measured against the one before it on its
    device, so the differences stay short and exact, and the sum is kept in whole nanoseconds. The first event of a device
    is waited for and set to the host's time; that is the only time the recorder makes the host wait. An event cannot be
    done before the host has recorded it: where the sum says so, the GPU's clock has run slower, and it is set forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracer.clock import EpochClock
from traces.model import NONE


@dataclass(slots=True, eq=False)
class BoundaryEvent:
    """One boundary on one device. `time_ns` is NONE until the event was read."""

    event: Any
    device: int
    host_ns: int
    time_ns: int = NONE


class BoundaryEvents:
    """Takes events at boundaries and reads them, in order; CUDA events are used again."""

    def __init__(self, cuda: Any, clock: EpochClock) -> None:
        self._cuda = cuda
        self._clock = clock
        self._free: dict[int, list[Any]] = {}  # by device, which an event keeps once it was recorded
        self._last: dict[int, BoundaryEvent] = {}  # by device: the one that the next one is measured against

    def take(self, stream: Any = None) -> BoundaryEvent | None:
        """An event on `stream`, or on the current one; None before the script has used CUDA, or while it captures a graph."""
        cuda = self._cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return None
        device = cuda.current_device() if stream is None else stream.device_index
        free = self._free.get(device)
        event = free.pop() if free else cuda.Event(enable_timing=True)
        boundary = BoundaryEvent(event, device, self._clock.now_ns())
        event.record() if stream is None else event.record(stream)
        if device not in self._last:
            event.synchronize()
            boundary.time_ns = boundary.host_ns = self._clock.now_ns()
            self._last[device] = boundary
        return boundary

    def settle(self, events: list[BoundaryEvent], wait: bool = False) -> bool:
        """Read the times, which must come in the order of taking. False if one is not done yet and `wait` is not."""
        for boundary in events:
            if boundary.time_ns == NONE:
                if wait:
                    boundary.event.synchronize()
                elif not boundary.event.query():
                    return False
                self._read(boundary)
        return True

    def _read(self, boundary: BoundaryEvent) -> None:
        last = self._last[boundary.device]
        passed_ns = round(last.event.elapsed_time(boundary.event) * 1e6)
        boundary.time_ns = max(last.time_ns + passed_ns, boundary.host_ns)
        self._last[boundary.device] = boundary
        self._free.setdefault(boundary.device, []).append(last.event)  # nothing is measured against it any more
