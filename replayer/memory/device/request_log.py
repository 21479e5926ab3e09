"""Records the memory requests of a script, to find out whether the script fits on another GPU.

    memory.requests = log = RequestLog()    # DeviceMemory logs each executed request
    ...
    log.add_event(RequestKind.STEP)
    RequestLog.from_json(log.to_json())
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from replayer.memory.device.blocks import Block


class RequestKind(IntEnum):
    """The kind of an entry in a request log. The comment behind a kind says what the entry's `value` is."""

    REQUEST = 0  # bytes
    OPTIONAL = 1  # bytes; Note [Failed convolution workspaces] in scratch_memory.py
    FREE = 2  # index of the request whose memory is freed
    EMPTY_CACHE = 3  # 0
    STEP = 4  # 0
    LOOK = 5  # 0: the script called `memory_allocated`


class LogEntry(NamedTuple):
    kind: RequestKind
    value: int
    stream: int = 0
    use: int = 0


@dataclass
class RequestLog:
    entries: list[LogEntry] = field(default_factory=list)
    _made: int = 0
    _last: int = -1
    _live: dict[int, int] = field(default_factory=dict)
    _uses: dict[Hashable, int] = field(default_factory=dict)

    def request(self, block: Block) -> None:
        self._live[block.address] = self._made
        self._made += 1
        self._last = len(self.entries)
        self.entries.append(LogEntry(RequestKind.REQUEST, block.requested_bytes, block.pool.stream))

    def last_was_optional(self, use: Hashable) -> None:
        number = self._uses.setdefault(use, len(self._uses))
        self.entries[self._last] = self.entries[self._last]._replace(kind=RequestKind.OPTIONAL, use=number)

    def free(self, block: Block) -> None:
        number = self._live.pop(block.address, None)
        if number is not None:
            self.entries.append(LogEntry(RequestKind.FREE, number))

    def add_event(self, kind: RequestKind) -> None:
        self.entries.append(LogEntry(kind, 0))

    @property
    def steps(self) -> int:
        return sum(entry.kind == RequestKind.STEP for entry in self.entries)

    def sizes_by_step(self) -> list[list[int]]:
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
        return cls([LogEntry(RequestKind(kind), value, stream, use) for kind, value, stream, use in stored])


@dataclass(frozen=True)
class RankRequests:
    rank: int
    ended: int  # number of steps that have ended
    devices: list[RequestLog]

    def write(self, folder: Path, pid: int) -> None:
        """Write the logs to a file in `folder`. Raises OSError."""
        values = vars(self) | {"devices": [log.to_json() for log in self.devices]}
        (folder / f"requests-{pid}.json").write_text(json.dumps(values), encoding="utf-8")

    @classmethod
    def read_all(cls, folder: Path) -> list[RankRequests]:
        stored = [json.loads(path.read_text(encoding="utf-8")) for path in cls.files(folder)]
        found = [cls(of["rank"], of["ended"], list(map(RequestLog.from_json, of["devices"]))) for of in stored]
        return sorted(found, key=lambda of: of.rank)

    @staticmethod
    def files(folder: Path) -> list[Path]:
        return list(folder.glob("requests-*.json"))
