"""Logs a script's requests for one device's memory, to find out whether it fits on another card.

    memory.requests = log = RequestLog()    # DeviceMemory notes what it executes
    ...
    log.note(RequestKind.STEP)
    RequestLog.from_json(log.to_json())

An allocator's behaviour depends only on the requests (sizes, streams, order) and the frees between them. So one run of the
script is enough for any memory size, and two runs are enough for any batch size (memory/rerun_requests.py).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from replayer.memory.device.blocks import Block

REQUESTS = "requests"  # what the files begin with that hold the logs of a process's devices


class RequestKind(IntEnum):
    """What an entry is, and its value."""

    REQUEST = 0  # bytes
    OPTIONAL = 1  # bytes, of a workspace that the op can do without; see Note [A convolution that found no workspace]
    FREE = 2  # number of the request, counted from 0
    EMPTY_CACHE = 3  # 0
    STEP = 4  # 0: a training step has ended
    LOOK = 5  # 0: the script asks how much is allocated


class LogEntry(NamedTuple):
    """One request of the allocator or event beside it; `value` is what RequestKind says, `stream` the stream that it is for."""

    kind: RequestKind
    value: int
    stream: int = 0
    use: int = 0  # of an optional request: equal ones serve the same convolution


@dataclass
class RequestLog:
    """The entries of one device, in the order in which its allocator executed them."""

    entries: list[LogEntry] = field(default_factory=list)
    _made: int = 0  # requests so far
    _last: int = -1  # the entry of the last one
    _live: dict[int, int] = field(default_factory=dict)  # the number of a request by the address it got
    _uses: dict[Hashable, int] = field(default_factory=dict)  # numbered as they came

    def request(self, block: Block) -> None:
        self._live[block.address] = self._made
        self._made += 1
        self._last = len(self.entries)
        self.entries.append(LogEntry(RequestKind.REQUEST, block.requested_bytes, block.pool.stream))

    def last_was_optional(self, use: Hashable) -> None:
        """Mark the last request as optional: its op can run without it. `use` identifies the workspace and its convolution."""
        number = self._uses.setdefault(use, len(self._uses))
        self.entries[self._last] = self.entries[self._last]._replace(kind=RequestKind.OPTIONAL, use=number)

    def free(self, block: Block) -> None:
        """Log a free. Blocks that were requested before the log began are left out."""
        number = self._live.pop(block.address, None)
        if number is not None:
            self.entries.append(LogEntry(RequestKind.FREE, number))

    def note(self, kind: RequestKind) -> None:
        """Log an entry without a value: an emptied cache, a finished training step, or a query of allocated memory."""
        self.entries.append(LogEntry(kind, 0))

    @property
    def steps(self) -> int:
        """How many training steps have ended."""
        return sum(entry.kind == RequestKind.STEP for entry in self.entries)

    def sizes_by_step(self) -> list[list[int]]:
        """The sizes in bytes that each step requested, in order; what came after the last step is left out."""
        found: list[list[int]] = []
        of_step: list[int] = []
        for kind, value, _, _ in self.entries:
            if kind in (RequestKind.REQUEST, RequestKind.OPTIONAL):
                of_step.append(value)
            elif kind == RequestKind.STEP:
                found.append(of_step)
                of_step = []
        return found

    def to_json(self) -> list[list[int]]:
        return [list(entry) for entry in self.entries]

    @classmethod
    def from_json(cls, stored: Any) -> RequestLog:
        """The inverse of `to_json`."""
        return cls([LogEntry(RequestKind(kind), value, stream, use) for kind, value, stream, use in stored])
