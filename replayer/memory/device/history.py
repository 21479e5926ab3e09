"""Records allocations and frees for scripts that call `torch.cuda.memory._record_memory_history`.

    memory.history = history = History("all")
    memory.malloc(3 << 20, stream=0)
    list(history.entries)   # [{"action": "segment_alloc", ...}, {"action": "alloc", "size": 3145728, "frames": [...], ...}]
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Container
from pathlib import Path
from traceback import walk_stack
from types import CodeType
from typing import TypedDict

from replayer.memory.device.blocks import Block, stream_of


class StackFrame(TypedDict):
    filename: str
    line: int
    name: str


class HistoryEntry(TypedDict, total=False):
    action: str
    addr: int  # this key is missing if the action is "oom"
    device_free: int  # free memory in bytes, only if the action is "oom"
    size: int
    stream: int
    time_us: int
    compile_context: str
    user_metadata: str
    frames: list[StackFrame]


ACTIONS = frozenset(
    {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"}
    | {"oom", "snapshot"}
)
_FREES = frozenset({"segment_free", "segment_unmap"})
_OURS = f"{Path(__file__).parents[2]}/"


class History:
    """See `torch.cuda.memory._record_memory_history`."""

    def __init__(self, context: str | None, max_entries: int = sys.maxsize, skipped: Container[str] = ()) -> None:
        self.context = context
        self.skipped = skipped
        self.metadata = ""
        self.entries: deque[HistoryEntry] = deque(maxlen=min(max_entries, sys.maxsize))
        self._of_block: dict[int, list[StackFrame]] = {}
        self._of_free: dict[int, list[StackFrame]] = {}
        self._known: dict[tuple[CodeType, int], StackFrame] = {}

    def carry_on(self, before: History, *, with_entries: bool) -> None:
        self.metadata = before.metadata
        self._of_block = before._of_block
        if with_entries:
            self.entries.extend(before.entries)

    def alloc(self, block: Block) -> None:
        frames = self._frames()
        if frames:
            self._of_block[block.address] = frames
        self._note("alloc", block.address, block.requested_bytes, block.pool.stream, frames)

    def free_queued(self, address: int) -> None:
        self._of_free[address] = self._frames()

    def free_requested(self, block: Block) -> None:
        frames = self._of_free.pop(block.address, [])
        self._of_block.pop(block.address, None)
        self._note("free_requested", block.address, block.requested_bytes, block.pool.stream, frames)

    def free_completed(self, block: Block) -> None:
        self._note("free_completed", block.address, block.requested_bytes, block.pool.stream, [])

    def segment(self, action: str, address: int, size_bytes: int, stream: int) -> None:
        frames = [] if action in _FREES and self.context != "all" else self._frames()
        self._note(action, address, size_bytes, stream, frames)

    def oom(self, size_bytes: int, stream: int, free_bytes: int) -> None:
        self._note("oom", free_bytes, size_bytes, stream, self._frames())

    def snapshot(self) -> None:
        self._note("snapshot", 0, 0, 0, self._frames())

    def frames_at(self, address: int) -> list[StackFrame]:
        return self._of_block.get(address, [])

    def _note(self, action: str, address: int, size_bytes: int, stream: int, frames: list[StackFrame]) -> None:
        if action in self.skipped:
            return
        where: HistoryEntry = {"device_free": address} if action == "oom" else {"addr": address}
        self.entries.append(
            {
                "action": action,
                **where,
                "size": size_bytes,
                "stream": stream_of(stream),
                "time_us": time.time_ns() // 1000,
                "compile_context": "N/A",
                "user_metadata": self.metadata,
                "frames": frames if self.context in ("alloc", "all") else [],
            }
        )

    def _frames(self) -> list[StackFrame]:
        if self.context is None:
            return []
        frames = []
        for frame, line in walk_stack(sys._getframe(1)):
            code = frame.f_code
            if not code.co_filename.startswith(_OURS):
                known = self._known.get((code, line))
                if known is None:
                    known = {"filename": code.co_filename, "line": line, "name": code.co_name}
                    self._known[code, line] = known
                frames.append(known)
        return frames
