"""Holds the boundary events of the current step in order, and the reason if some events could not be taken.

begin = taken.take()            # on the current stream
events, untimed = taken.handed_out()        # the step has ended
"""

from __future__ import annotations

from typing import Any

from tracer.device.boundary_events import BoundaryEvent, BoundaryEvents
from tracer.device.device_access import DeviceAccess
from traces.model.trace import Untimed


class TakenEvents:
    def __init__(self, events: BoundaryEvents, access: DeviceAccess) -> None:
        self.taken: list[BoundaryEvent] = []
        self.untimed = Untimed.NO  # why some events could not be taken
        self._events, self._access = events, access

    def take(self, stream: Any = None) -> BoundaryEvent | None:
        """Takes an event on `stream` (default: current stream). Returns None if CUDA must not be called."""
        event = self._events.take(stream)
        if event is not None:
            self.taken.append(event)
        elif self.untimed == Untimed.NO:
            self.untimed = self._access.closed or Untimed.NO
        return event

    def forget_read(self) -> None:
        """Drops the events if all were read. Otherwise events would accumulate in scripts without steps."""
        if self._events.read_finished(self.taken):
            self.taken.clear()

    def handed_out(self) -> tuple[list[BoundaryEvent], Untimed]:
        """Returns and clears the events of the step that has ended."""
        out = self.taken, self.untimed
        self.taken, self.untimed = [], Untimed.NO
        return out
