"""Segments: what the allocator takes from the driver and returns to it, within the device's capacity.

    segments = Segments(device=0, capacity_bytes=16 << 30, outside_bytes=400 << 20, tallies=MemoryStats())
    block = segments.take(20 << 20, pool)  # one whole block, or None if there is no room
    segments.give_back(block)

Expandable segments take addresses and memory apart: `reserve` and `map`.

They are what `nvidia-smi` would count; what lies inside them is the allocator's matter.
"""

from __future__ import annotations

from replayer.memory.address_space import AddressSpace
from replayer.memory.blocks import Block, Pool
from replayer.memory.stats import MemoryStats, PoolStats


class Segments:
    """`outside_bytes` is what the process holds on the device beside PyTorch's segments."""

    def __init__(self, device: int, capacity_bytes: int, outside_bytes: int, tallies: MemoryStats) -> None:
        self.capacity_bytes = capacity_bytes
        self.outside_bytes = outside_bytes
        self.allowed_bytes: int | None = None  # what set_per_process_memory_fraction allows
        self.taken = self.returned = 0  # calls of cudaMalloc and cuMemMap that succeeded, and of cudaFree and cuMemUnmap
        self.tails: dict[int, Block] = {}  # by the segment's end: its last block, from which its chain hangs
        self._space, self._reserved_space = AddressSpace(device), AddressSpace(device, reserved=True)
        self._reserved = tallies.of["reserved_bytes"]

    @property
    def reserved_bytes(self) -> int:
        return self._reserved.now

    @property
    def free_bytes(self) -> int:
        """What cudaMemGetInfo calls free."""
        return max(0, self.capacity_bytes - self.outside_bytes - self.reserved_bytes)

    def allows(self, size_bytes: int) -> bool:
        """Whether the script's own limit leaves room for a segment of this size."""
        return self.allowed_bytes is None or self.reserved_bytes + size_bytes <= self.allowed_bytes

    def take(self, size_bytes: int, pool: Pool) -> Block | None:
        if size_bytes > self.free_bytes:
            return None
        pool.stats.segments.add(1)
        pool.stats.reserved_bytes.add(size_bytes)
        self.taken += 1
        block = Block(self._space.take(size_bytes), size_bytes, pool)
        self.tails[block.address + size_bytes] = block
        return block

    def give_back(self, block: Block) -> None:
        """`block` is free and all that its segment holds."""
        stats = block.pool.stats
        block.pool.remove(block)
        del self.tails[block.address + block.size_bytes]
        self._space.give_back(block.address, block.size_bytes)
        stats.segments.now -= 1
        stats.reserved_bytes.now -= block.size_bytes
        self.returned += 1

    def reserve(self, size_bytes: int) -> int:
        """Addresses without memory. Raises RuntimeError if there are no more of them."""
        return self._reserved_space.take(size_bytes)

    def unreserve(self, address: int, size_bytes: int) -> None:
        self._reserved_space.give_back(address, size_bytes)

    def map(self, size_bytes: int, stats: PoolStats) -> bool:
        """Take memory for reserved addresses, if the device has so much."""
        if size_bytes > self.free_bytes:
            return False
        stats.reserved_bytes.add(size_bytes)
        self.taken += 1
        return True

    def unmap(self, size_bytes: int, stats: PoolStats) -> None:
        stats.reserved_bytes.now -= size_bytes
        self.returned += 1
