"""Collective operations that the script called: written at once, or when the GPU has passed the marks around them.

    calls.add(Call("all_reduce", "float32", "0", 2, "nccl", 400, start_ns, end_ns), rank, begin, end)
    under_way = calls.open(call, rank, begin, works=1)      # it goes on beside the script
    calls.waited(under_way, before, after)                  # a stream waits for it
    calls.write_done()      # those whose marks have been read

Without marks the time is the call's. With them it is what lay between them on the stream that waited for the operation: from
when this rank's input was ready until the result was.

Note [Whether a stream stood still]
    The mark after a wait tells when the operation had ended, and that it ended just then only if the stream really stood still
    for it. A stream that does not passes from the mark before the wait to the one after it at once if it is behind the host,
    else when the host has recorded the latter. So it stood still if the GPU was longer on the way than the host; both are
    differences on one clock. Otherwise the operation lasted at most until then: `Ending.BY`.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tracer.marks import Mark
from tracer.output import Output
from tracer.provenance import Facts
from traces.model import NONE, Ending

# From one event to the next one a stream that has nothing to wait for needs less, and hosts and GPUs measure more finely.
_AT_ONCE_NS = 5_000


class Call(NamedTuple):
    """One operation as this rank called it; times of the host."""

    name: str
    dtype: str  # "" if not of one
    group: str
    group_size: int
    backend: str
    size_bytes: int  # of this rank's input, or NONE
    start_ns: int
    end_ns: int


class UnderWay:
    """An operation that goes on beside the script. It holds neither works nor tensors, which must not live longer for it."""

    def __init__(self, call: Call, rank: int, begin: Mark, works: int) -> None:
        self.call, self.rank, self.begin = call, rank, begin
        self.works = works  # that make it up and were not waited for yet
        self.waits: list[tuple[Mark | None, Mark]] = []

    @property
    def is_passed(self) -> bool:
        """Whether the GPU has passed all its marks, as far as those have been read."""
        return all(after.time_ns != NONE for _, after in self.waits)

    def duration(self) -> tuple[int, Ending]:
        """See Note [Whether a stream stood still]; of several works the last one counts."""
        before, after = max(self.waits, key=lambda wait: wait[1].time_ns)
        stood_still = before is None or (
            after.time_ns - before.time_ns > after.host_ns - before.host_ns + _AT_ONCE_NS
        )
        return max(after.time_ns - self.begin.time_ns, 0), Ending.SEEN if stood_still else Ending.BY


class Calls:
    """Rows of `collectives`, in the order in which they are known."""

    def __init__(self, output: Output, facts: Facts) -> None:
        self._output = output
        self._facts = facts
        self._open: set[UnderWay] = set()
        self._ended: deque[UnderWay] = deque()
        self._given_up: deque[UnderWay] = deque()

    def add(self, call: Call, rank: int, begin: Mark | None, end: Mark | None, ending: Ending = Ending.SEEN) -> None:
        """A call has returned, and with it, or with the mark after it, the operation has ended unless `ending` says other."""
        if begin is None or end is None or begin.device != end.device:
            self.write(call, rank, call.end_ns - call.start_ns, ending)
        else:
            under_way = UnderWay(call, rank, begin, works=0)
            under_way.waits.append((None, end))
            self._ended.append(under_way)

    def open(self, call: Call, rank: int, begin: Mark, works: int) -> UnderWay:
        """A call has returned, and so many works will tell when the operation has ended."""
        under_way = UnderWay(call, rank, begin, works)
        self._open.add(under_way)
        return under_way

    def waited(self, under_way: UnderWay, before: Mark | None, after: Mark | None) -> None:
        """One of the works was waited for between these marks, if there could be any."""
        if before is None or after is None or not before.device == after.device == under_way.begin.device:
            self.give_up(under_way)
            return
        under_way.waits.append((before, after))
        under_way.works -= 1
        if not under_way.works and under_way in self._open:
            self._open.discard(under_way)
            self._ended.append(under_way)

    def give_up(self, under_way: UnderWay) -> None:
        """Nobody will tell when it has ended. May be called at any moment of any thread, even within another call of ours."""
        self._given_up.append(under_way)

    def write_done(self) -> None:
        """Write the calls, in order, whose marks were read, and those that nothing more will be known of."""
        while self._given_up:
            self._write_unseen(self._given_up.popleft())
        while self._ended and self._ended[0].is_passed:
            ended = self._ended.popleft()
            device = self._facts.device_row(ended.begin.device)
            self.write(ended.call, ended.rank, *ended.duration(), device=device)

    def write_open(self) -> None:
        """The recording ends: write what was never waited for."""
        for under_way in list(self._open):
            self._write_unseen(under_way)

    def _write_unseen(self, under_way: UnderWay) -> None:
        if under_way in self._open:
            self._open.discard(under_way)
            call = under_way.call
            self.write(call, under_way.rank, call.end_ns - call.start_ns, Ending.UNSEEN)

    def write(self, call: Call, rank: int, duration_ns: int, ending: Ending, device: int = NONE) -> None:
        """Write a row; `device` is that of the events which took the duration."""
        text = self._output.text
        self._output.add(
            "collectives",
            rank=rank,
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
