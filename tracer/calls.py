"""Collective operations that the script called: written at once, or when the GPU has passed the marks around them.

    calls.add(Call("all_reduce", "float32", "0", 2, "nccl", 400, start_ns, end_ns), rank, begin, end)
    calls.write_done()      # those whose marks have been read

Without marks the time is the call's. With them it is what lay between them on the stream that waited for the operation: from
when this rank's input was ready until the result was.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tracer.marks import Mark
from tracer.output import Output
from tracer.provenance import Facts
from traces.model import NONE


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


class Calls:
    """Rows of `collectives`, in the order of the calls."""

    def __init__(self, output: Output, facts: Facts) -> None:
        self._output = output
        self._facts = facts
        self._waiting: deque[tuple[Call, int, Mark, Mark]] = deque()

    def add(self, call: Call, rank: int, begin: Mark | None, end: Mark | None) -> None:
        """A call has returned."""
        if begin is None or end is None or begin.device != end.device:
            self._write(call, rank, NONE, call.end_ns - call.start_ns)
        else:
            self._waiting.append((call, rank, begin, end))

    def write_done(self) -> None:
        """Write the calls, in order, whose marks were read."""
        while self._waiting and self._waiting[0][-1].time_ns != NONE:
            call, rank, begin, end = self._waiting.popleft()
            self._write(call, rank, self._facts.device_row(begin.device), end.time_ns - begin.time_ns)

    def _write(self, call: Call, rank: int, device: int, duration_ns: int) -> None:
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
        )
