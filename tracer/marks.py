"""Where the GPU was when the host passed a boundary: CUDA events, recorded without waiting and read when they are done.

    marks = Marks(torch.cuda, clock)
    mark = marks.take()         # an event on the current stream, or None where the script does not use CUDA
    marks.settle([mark])        # True once it is done; then mark.time_ns says when the GPU got there

Note [One clock out of many events]
    Events give only differences, as floats of milliseconds. Each event is measured against the one before it on its
    device, so the differences stay short and exact, and the sum is kept in whole nanoseconds. The first event of a device
    is waited for and set to the host's time; that is the only time the recorder makes the host wait. An event cannot be
    done before the host has recorded it: where the sum says so, the GPU's clock has run slower, and it is set forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracer.clock import Clock
from traces.model import NONE


@dataclass(slots=True, eq=False)
class Mark:
    """One boundary on one device. `time_ns` is NONE until the event was read."""

    event: Any
    device: int
    host_ns: int
    time_ns: int = NONE


class Marks:
    """Takes marks and reads them, in order; events are used again."""

    def __init__(self, cuda: Any, clock: Clock) -> None:
        self._cuda = cuda
        self._clock = clock
        self._free: dict[int, list[Any]] = {}  # by device, which an event keeps once it was recorded
        self._last: dict[int, Mark] = {}  # by device: the mark that the next one is measured against

    def take(self, stream: Any = None) -> Mark | None:
        """A mark on `stream`, or on the current one; None before the script has used CUDA, or while it captures a graph."""
        cuda = self._cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return None
        device = cuda.current_device() if stream is None else stream.device_index
        free = self._free.get(device)
        event = free.pop() if free else cuda.Event(enable_timing=True)
        mark = Mark(event, device, self._clock.now_ns())
        event.record() if stream is None else event.record(stream)
        if device not in self._last:
            event.synchronize()
            mark.time_ns = mark.host_ns = self._clock.now_ns()
            self._last[device] = mark
        return mark

    def settle(self, marks: list[Mark], wait: bool = False) -> bool:
        """Read the marks' times, which must come in the order of taking. False if one is not done yet and `wait` is not."""
        for mark in marks:
            if mark.time_ns == NONE:
                if wait:
                    mark.event.synchronize()
                elif not mark.event.query():
                    return False
                self._read(mark)
        return True

    def _read(self, mark: Mark) -> None:
        last = self._last[mark.device]
        passed_ns = round(last.event.elapsed_time(mark.event) * 1e6)
        mark.time_ns = max(last.time_ns + passed_ns, mark.host_ns)
        self._last[mark.device] = mark
        self._free.setdefault(mark.device, []).append(last.event)  # nothing is measured against it any more
