"""Records collectives that the script calls from Python, and collectives that PyTorch starts in C++.

    begin = communication.event_on(stream)
    ...                                             # the script's call
    communication.communicated(call, begin, stream)
"""

from __future__ import annotations

from typing import Any

from tracer.device.boundary_events import BoundaryEvent
from tracer.own_cost import counted_as_cost
from tracer.recording_writer import RecorderParts, RecordingWriter
from tracer.writing.collectives import CollectiveCall, PendingCollective
from traces.model.trace import NONE, Ending


class CommunicationRecorder:
    """Records collectives. Any thread may call the public methods."""

    def __init__(self, writer: RecordingWriter, parts: RecorderParts) -> None:
        self.cost = parts.cost
        self.has_flight = False  # True after the flight recorder may have received entries
        self._writer, self._events, self._access = writer, parts.events, parts.events.access
        self._facts, self._flight = parts.facts, parts.flight

    @counted_as_cost
    def joined_group(self, rank: int) -> None:
        self._writer.joined_group(rank)
        if self._flight is not None:
            self._flight.joined_group()
            self.has_flight = True

    @counted_as_cost
    def distributes(self, model: object) -> None:
        self._facts.distributes(model)

    @counted_as_cost
    def group_ends(self, is_all: bool) -> None:
        self._facts.read_reducers()
        if is_all:
            self.read_flight_recorder(last=True)

    def called(self, began_ns: int) -> None:
        if self._flight is not None:
            self._flight.called(began_ns)

    @counted_as_cost
    def event_on(self, stream: Any) -> BoundaryEvent | None:
        return self._events.take_on(stream)

    @counted_as_cost
    def communicated(
        self, call: CollectiveCall, begin: BoundaryEvent | None = None, stream: Any = None, ending: Ending = Ending.SEEN
    ) -> None:
        end = None if begin is None else self._events.take_on(stream)
        self._writer.collectives.add(call, begin, end, ending)
        self._write_done()

    @counted_as_cost
    def communicates(self, call: CollectiveCall, begin: BoundaryEvent, works: int) -> PendingCollective:
        return self._writer.collectives.open(call, begin, works)

    @counted_as_cost
    def waited_for(self, pending: PendingCollective, before: BoundaryEvent | None, stream: Any) -> None:
        self._writer.collectives.waited(pending, before, None if before is None else self._events.take_on(stream))
        self._write_done()

    def give_up_call(self, pending: PendingCollective) -> None:
        """Stop timing a collective when the script has deleted the Work object of the collective."""
        self._writer.collectives.give_up(pending)

    def read_flight_recorder_if_due(self) -> bool:
        if self._flight is None or not self._flight.is_due() or self._access.is_capturing:
            return False
        self.read_flight_recorder()
        return True

    def read_flight_recorder(self, last: bool = False) -> None:
        if self._flight is None or (self._access.is_used and self._access.closed is not None):
            return
        began_ns = self.cost.clock.perf_ns()
        write = self._writer.collectives.write
        for call, duration_ns in self._flight.read(last):
            if duration_ns == NONE:
                write(call, 0, Ending.UNSEEN)
            else:
                write(call, duration_ns, Ending.SEEN, self._facts.current_device_row())
        self._flight.spent_ns += self.cost.clock.perf_ns() - began_ns

    def _write_done(self) -> None:
        if not self._writer.has_steps and self._events.read_finished(self._events.taken):
            self._events.taken.clear()
        self._writer.collectives.write_done()
