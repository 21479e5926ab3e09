"""Device memory that notes every allocation and free on the replay's timeline.

    memory = TracedMemory(0, 16 << 30, timeline.memory, thread, wait_until)
    memory.malloc(4096, stream=0)       # as DeviceMemory, and one row: device, time, bytes, address, totals
"""

from __future__ import annotations

from collections.abc import Callable

from replayer.allocator import Block, DeviceMemory
from replayer.tracks import HostThread

Row = tuple[int, int, int, int, int, int]


class TracedMemory(DeviceMemory):
    """`note` takes the rows of the timeline's memory table; `thread` is the host thread by whose present they are dated;
    `wait_until` blocks it until a time, where an allocation must wait for work on another stream."""

    def __init__(
        self,
        device: int,
        capacity_bytes: int,
        note: Callable[[Row], None],
        thread: HostThread,
        wait_until: Callable[[int], None],
    ) -> None:
        super().__init__(device, capacity_bytes, host_now_ns=lambda: thread.host_ns, wait_until_ns=wait_until)
        self._note = note
        self._thread = thread
        self._index = device
        self._held_bytes = 0

    def malloc(self, size_bytes: int, stream: int) -> Block | None:
        block = super().malloc(size_bytes, stream)
        if block is not None:
            self._note_change(block.address)
        return block

    def free(self, block: Block) -> None:
        address = block.address
        super().free(block)
        self._note_change(address)

    def _note_change(self, address: int) -> None:
        """Nothing to note if the free was postponed; a call that also does postponed frees notes their sum."""
        held_bytes = self.allocated_bytes
        change_bytes = held_bytes - self._held_bytes
        if change_bytes:
            self._held_bytes = held_bytes
            now_ns = self._thread.host_ns
            self._note((self._index, now_ns, change_bytes, address, held_bytes, self.reserved_bytes))
