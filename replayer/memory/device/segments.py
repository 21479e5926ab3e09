"""Takes segments of memory from a device with limited capacity, and returns them, like the CUDA driver.

    segments = Segments(device=0, capacity_bytes=16 << 30, outside_bytes=400 << 20)
    block = segments.take(20 << 20, pool)  # one whole block, or None if there is no room
    segments.give_back(block)

For expandable segments, `reserve` takes addresses and `map` takes memory for these addresses.

Note [Addresses]
    Emulated addresses look like CUDA's addresses and are reused after a free. As with the real driver, segments are multiples
    of 2 MiB on 2 MiB boundaries. A new segment gets the lowest free address range that is large enough. Devices are 1 TiB
    apart, so addresses are unique. Expandable segments have separate address spaces of 5 TiB per device.
"""

from __future__ import annotations

from bisect import bisect_left

from replayer.memory.device.blocks import Block, Pool, link
from replayer.memory.device.stats import PoolStats

_BASE = 0x7F00_0000_0000
_SPAN = 1 << 40
_RESERVED_BASE = 0x1000_0000_0000
_RESERVED_SPAN = 5 << 40


class AddressSpace:
    """The free addresses of a device. See Note [Addresses].

    The list of free ranges is sorted. The free address range number i begins at `_starts[i]` and has `_sizes[i]` bytes.
    Neighboring ranges are joined.
    """

    def __init__(self, device: int, *, reserved: bool = False) -> None:
        self._starts = [_RESERVED_BASE + device * _RESERVED_SPAN if reserved else _BASE - device * _SPAN]
        self._sizes = [_RESERVED_SPAN if reserved else _SPAN]

    def take(self, size_bytes: int) -> int:
        """Return the address of a new segment.

        Raises RuntimeError if no free address range is large enough. Only expandable segments can run out of addresses, because
        they reserve addresses without memory.
        """
        hole = next((i for i, size in enumerate(self._sizes) if size >= size_bytes), None)
        if hole is None:
            raise RuntimeError(f"CUDA driver error: out of memory: no {size_bytes:,} bytes of addresses are left")
        address = self._starts[hole]
        if self._sizes[hole] == size_bytes:
            del self._starts[hole], self._sizes[hole]
        else:
            self._starts[hole] += size_bytes
            self._sizes[hole] -= size_bytes
        return address

    def give_back(self, address: int, size_bytes: int) -> None:
        hole = bisect_left(self._starts, address)
        if hole < len(self._starts) and address + size_bytes == self._starts[hole]:
            size_bytes += self._sizes[hole]
            del self._starts[hole], self._sizes[hole]
        if hole and self._starts[hole - 1] + self._sizes[hole - 1] == address:
            self._sizes[hole - 1] += size_bytes
        else:
            self._starts.insert(hole, address)
            self._sizes.insert(hole, size_bytes)


class Segments:
    """The segments of one device. `outside_bytes` is the memory that the process uses outside of PyTorch's allocator."""

    def __init__(self, device: int, capacity_bytes: int, outside_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.outside_bytes = outside_bytes
        self.allowed_bytes: int | None = None  # set by set_per_process_memory_fraction
        self.taken = self.returned = 0  # numbers of successful driver calls
        self.tails: dict[int, Block] = {}
        self._space, self._reserved_space = AddressSpace(device), AddressSpace(device, reserved=True)
        self.reserved_bytes = 0

    @property
    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.outside_bytes - self.reserved_bytes)

    def allows(self, size_bytes: int) -> bool:
        """Return whether a segment of this size would keep the process within its memory limit."""
        return self.allowed_bytes is None or self.reserved_bytes + size_bytes <= self.allowed_bytes

    def take(self, size_bytes: int, pool: Pool) -> Block | None:
        """Return a new segment as one block that belongs to no pool. Returns None if the device has too little free memory."""
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
        """Return a free block to the device.

        If a free block is only a part of a segment, the parts before and after it become separate segments.
        """
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
        """Reserve `size_bytes` of addresses without memory, and return the first address. Raises RuntimeError if no addresses
        are left."""
        return self._reserved_space.take(size_bytes)

    def unreserve(self, address: int, size_bytes: int) -> None:
        self._reserved_space.give_back(address, size_bytes)

    def map(self, size_bytes: int, stats: PoolStats) -> bool:
        """Take memory for reserved addresses. Returns False if the device has too little free memory."""
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
