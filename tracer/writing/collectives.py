"""Writes the times of collectives to the recording, after their CUDA events have completed.

    calls.add(CollectiveCall("all_reduce", "float32", "0", 2, "nccl", 400, start_ns, end_ns), rank, begin, end)
    pending = calls.open(call, rank, begin, works=1)      # for an asynchronous collective
    calls.waited(pending, before, after)                  # a stream waits for the collective
    calls.write_done()      # write the collectives whose CUDA events have completed

A collective on a GPU begins when the rank's input is ready, and ends when the rank's result is ready.

Note [Whether a stream stalled]
    The time of the CUDA event after a wait is an upper bound for the end of the collective. The bound is exact only if the
    stream really had to wait for the collective. The recorder compares the times between the events around the wait. If this
    time is longer on the GPU than on the host, the stream had to wait. If the stream did not wait, the end of the collective is
    marked `Ending.BY`.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tracer.device.boundary_events import BoundaryEvent
from tracer.provenance import ProcessFacts
from tracer.writing.output import RecordingFile
from traces.model.trace import NONE, Ending

# longest time between two consecutive CUDA events if no work runs between them
_AT_ONCE_NS = 5_000


class CollectiveCall(NamedTuple):
    """Describes one rank's call of a collective. All times are host times."""

    name: str
    dtype: str  # "" if the call has no dtype, or several dtypes
    group: str
    group_size: int
    backend: str
    size_bytes: int  # size of this rank's input, or NONE
    start_ns: int
    end_ns: int


class PendingCollective:
    """Represents an asynchronous collective. The class stores no tensors or Work objects, because they would keep GPU memory
    allocated."""

    def __init__(self, call: CollectiveCall, begin: BoundaryEvent, works: int) -> None:
        self.call, self.begin = call, begin
        self.works = works  # number of Work objects for which the script has not waited yet
        self.waits: list[tuple[BoundaryEvent | None, BoundaryEvent]] = []

    def duration(self) -> tuple[int, Ending]:
        # see Note [Whether a stream stalled]
        before, after = max(self.waits, key=lambda wait: wait[1].time_ns)
        stalled = before is None or (after.time_ns - before.time_ns > after.host_ns - before.host_ns + _AT_ONCE_NS)
        return max(after.time_ns - self.begin.time_ns, 0), Ending.SEEN if stalled else Ending.BY


class CollectiveWriter:
    def __init__(self, output: RecordingFile, facts: ProcessFacts) -> None:
        self._output = output
        self._facts = facts
        self._open: set[PendingCollective] = set()
        self._ended: deque[PendingCollective] = deque()
        self._given_up: deque[PendingCollective] = deque()

    def add(
        self,
        call: CollectiveCall,
        begin: BoundaryEvent | None,
        end: BoundaryEvent | None,
        ending: Ending = Ending.SEEN,
    ) -> None:
        if begin is None or end is None or begin.device != end.device:
            self.write(call, call.end_ns - call.start_ns, ending)
        else:
            pending = PendingCollective(call, begin, works=0)
            pending.waits.append((None, end))
            self._ended.append(pending)

    def open(self, call: CollectiveCall, begin: BoundaryEvent, works: int) -> PendingCollective:
        pending = PendingCollective(call, begin, works)
        self._open.add(pending)
        return pending

    def waited(self, pending: PendingCollective, before: BoundaryEvent | None, after: BoundaryEvent | None) -> None:
        if before is None or after is None or not before.device == after.device == pending.begin.device:
            self.give_up(pending)
            return
        pending.waits.append((before, after))
        pending.works -= 1
        if not pending.works and pending in self._open:
            self._open.discard(pending)
            self._ended.append(pending)

    def give_up(self, pending: PendingCollective) -> None:
        """Stop timing a collective. Any thread may call this method, even during garbage collection."""
        self._given_up.append(pending)

    def write_done(self, at_end: bool = False) -> None:
        while self._given_up:
            self._write_unseen(self._given_up.popleft())
        while self._ended and all(after.time_ns != NONE for _, after in self._ended[0].waits):
            ended = self._ended.popleft()
            device = self._facts.device_row(ended.begin.device)
            self.write(ended.call, *ended.duration(), device=device)
        for pending in list(self._open) if at_end else ():
            self._write_unseen(pending)

    def _write_unseen(self, pending: PendingCollective) -> None:
        if pending in self._open:
            self._open.discard(pending)
            call = pending.call
            self.write(call, call.end_ns - call.start_ns, Ending.UNSEEN)

    def write(self, call: CollectiveCall, duration_ns: int, ending: Ending, device: int = NONE) -> None:
        text = self._output.text
        self._output.add(
            "collectives",
            rank=self._facts.rank,
            name=text(call.name),
            dtype=text(call.dtype) if call.dtype else NONE,
            group=text(call.group),
            group_size=call.group_size,
            backend=text(call.backend),
            bytes=call.size_bytes,
            start_ns=call.start_ns,
            duration_ns=duration_ns,
            device=device,
            ending=ending,
        )
