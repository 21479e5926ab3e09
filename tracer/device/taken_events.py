"""The boundary events of the step under way, in the order of taking, and why some could not be taken.

begin = taken.take()            # on the current stream
events, untimed = taken.handed_out()        # the step has ended
"""

from __future__ import annotations

from typing import Any

from tracer.device.boundary_events import BoundaryEvent, BoundaryEvents
from tracer.device.device_access import DeviceAccess
from traces.model.trace import Untimed


class TakenEvents:
    """Events taken since the last step ended, in order."""

    def __init__(self, events: BoundaryEvents, access: DeviceAccess) -> None:
        self.taken: list[BoundaryEvent] = []
        self.untimed = Untimed.NO  # why some could not be taken
        self._events, self._access = events, access

    def take(self, stream: Any = None) -> BoundaryEvent | None:
        """An event on this stream, or on the current one; None where CUDA must not be called."""
        event = self._events.take(stream)
        if event is not None:
            self.taken.append(event)
        elif self.untimed == Untimed.NO:
            self.untimed = self._access.closed or Untimed.NO
        return event

    def forget_read(self) -> None:
        """Between steps of a script that has none, events would pile up: drop them if all were read."""
        if self._events.settle(self.taken):
            self.taken.clear()

    def handed_out(self) -> tuple[list[BoundaryEvent], Untimed]:
        """What was taken, for a step that has ended; the next one begins with nothing."""
        out = self.taken, self.untimed
        self.taken, self.untimed = [], Untimed.NO
        return out
