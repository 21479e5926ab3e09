"""Segments: the memory that the allocator takes from the driver and returns to it, within the device's capacity.

    segments = Segments(device=0, capacity_bytes=16 << 30, outside_bytes=400 << 20)
    block = segments.take(20 << 20, pool)  # one whole block, or None if there is no room
    segments.give_back(block)

Expandable segments take addresses and memory separately: `reserve` and `map`.
"""

from __future__ import annotations

from replayer.memory.device.address_space import AddressSpace
from replayer.memory.device.blocks import Block, Pool, link
from replayer.memory.device.stats import PoolStats


class Segments:
    """The segments of one device. `outside_bytes` is what the process holds there outside of PyTorch's allocator."""

    def __init__(self, device: int, capacity_bytes: int, outside_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.outside_bytes = outside_bytes
        self.allowed_bytes: int | None = None  # the limit set by set_per_process_memory_fraction
        self.taken = self.returned = 0  # calls of cudaMalloc and cuMemMap that succeeded, and of cudaFree and cuMemUnmap
        self.tails: dict[int, Block] = {}  # the last block of each segment, by the segment's end address
        self._space, self._reserved_space = AddressSpace(device), AddressSpace(device, reserved=True)
        self.reserved_bytes = 0

    @property
    def free_bytes(self) -> int:
        """Free memory of the device, as cudaMemGetInfo returns it."""
        return max(0, self.capacity_bytes - self.outside_bytes - self.reserved_bytes)

    def allows(self, size_bytes: int) -> bool:
        """Whether the process's limit has room for a segment of this size."""
        return self.allowed_bytes is None or self.reserved_bytes + size_bytes <= self.allowed_bytes

    def take(self, size_bytes: int, pool: Pool) -> Block | None:
        """A new segment as one block, in no pool yet; None if the device has no room."""
        if size_bytes > self.free_bytes:
            return None
        pool.stats.segments.add(1)
        pool.stats.reserved_bytes.add(size_bytes)
        self.reserved_bytes += size_bytes
        self.taken += 1
        block = Block(self._space.take(size_bytes), size_bytes, pool)
        self.tails[block.address + size_bytes] = block
        return block

    def give_back(self, block: Block) -> None:
        """Return a segment that is one free block, or a free piece of one: what is left on its sides are segments then."""
        stats, end = block.pool.stats, block.address + block.size_bytes
        block.pool.remove(block)
        if block.next is None:
            del self.tails[end]
        if block.prev is not None:
            self.tails[block.address] = block.prev
        sides = (block.prev is not None) + (block.next is not None)
        link(block.prev, None)
        link(None, block.next)
        self._space.give_back(block.address, block.size_bytes)
        stats.segments.change(sides - 1)
        stats.reserved_bytes.now -= block.size_bytes
        self.reserved_bytes -= block.size_bytes
        self.returned += 1

    def reserve(self, size_bytes: int) -> int:
        """The start of a range of addresses without memory. Raises RuntimeError if no addresses are left."""
        return self._reserved_space.take(size_bytes)

    def unreserve(self, address: int, size_bytes: int) -> None:
        self._reserved_space.give_back(address, size_bytes)

    def map(self, size_bytes: int, stats: PoolStats) -> bool:
        """Take memory for reserved addresses; False if the device has no room."""
        if size_bytes > self.free_bytes:
            return False
        stats.reserved_bytes.add(size_bytes)
        self.reserved_bytes += size_bytes
        self.taken += 1
        return True

    def unmap(self, size_bytes: int, stats: PoolStats) -> None:
        stats.reserved_bytes.now -= size_bytes
        self.reserved_bytes -= size_bytes
        self.returned += 1
