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
        block = DeviceMemory.malloc(self, size_bytes, stream)
        if block is not None:
            self._held_bytes = held_bytes = self._held_bytes + block.size_bytes
            reserved_bytes = self._segments.reserved_bytes
            self._note((self._index, self._thread.host_ns, block.size_bytes, block.address, held_bytes, reserved_bytes))
        return block

    def free(self, block: Block) -> None:
        address, change_bytes = block.address, -block.size_bytes
        if self._postponed:  # theirs may be done as well: note the sum
            DeviceMemory.free(self, block)
            change_bytes = self.allocated_bytes - self._held_bytes
        else:
            DeviceMemory.free(self, block)
            if block.in_use:
                return  # postponed
        self._held_bytes = held_bytes = self._held_bytes + change_bytes
        self._note((self._index, self._thread.host_ns, change_bytes, address, held_bytes, self._segments.reserved_bytes))
