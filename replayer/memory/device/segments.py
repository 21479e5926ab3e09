"""Allocates and frees segments of GPU memory as the CUDA driver does.

    segments = Segments(device=0, capacity_bytes=16 << 30, outside_bytes=400 << 20)
    block = segments.allocate(20 << 20, pool)  # one whole block, or None if there is no room
    segments.give_back(block)

Note [Addresses]
    PyTorch up to 2.11 compares addresses to choose among free blocks of the same size. NVIDIA does not document addresses.
    These rules describe the addresses that an H200 with driver 580 returned:

    * The driver reserves ranges of addresses. A range is the first segment's size, rounded up to a multiple of 32 MiB.
    * A segment gets the lowest free addresses of the newest range that has room.
    * A new range gets the highest possible address. The gap for the range must be at least 32 MiB larger than the range.
    * A range without segments is returned.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from replayer.memory.device.blocks import Ages, Block, Pool, link
from replayer.memory.device.stats import PoolStats

_TOP = 0x7F80_0000_0000
_SPAN = 1 << 40  # each device has an address range of this size
_RANGE_BYTES = 32 << 20  # Note [Addresses]
_RESERVED_BASE = 0x1000_0000_0000
_RESERVED_SPAN = 5 << 40  # address range for expandable segments


class AddressSource(Protocol):
    def allocate(self, size_bytes: int) -> int:
        """Return the address of a new memory segment."""

    def give_back(self, address: int, size_bytes: int) -> None: ...


class Holes:
    """Stores free address ranges: range i begins at `starts[i]` and has `sizes[i]` bytes."""

    def __init__(self, start: int, size_bytes: int) -> None:
        self.starts, self.sizes = [start], [size_bytes]

    def allocate(self, size_bytes: int) -> int | None:
        hole = next((i for i, size in enumerate(self.sizes) if size >= size_bytes), None)
        if hole is None:
            return None
        address = self.starts[hole]
        if self.sizes[hole] == size_bytes:
            del self.starts[hole], self.sizes[hole]
        else:
            self.starts[hole] += size_bytes
            self.sizes[hole] -= size_bytes
        return address

    def give_back(self, address: int, size_bytes: int) -> None:
        hole = bisect_left(self.starts, address)
        if hole < len(self.starts) and address + size_bytes == self.starts[hole]:
            size_bytes += self.sizes[hole]
            del self.starts[hole], self.sizes[hole]
        if hole and self.starts[hole - 1] + self.sizes[hole - 1] == address:
            self.sizes[hole - 1] += size_bytes
        else:
            self.starts.insert(hole, address)
            self.sizes.insert(hole, size_bytes)


@dataclass(slots=True)
class _AddressRange:
    start: int
    size_bytes: int
    number: int
    holes: Holes = field(init=False)

    def __post_init__(self) -> None:
        self.holes = Holes(self.start, self.size_bytes)


class DriverAddresses:
    # see Note [Addresses]

    def __init__(self, device: int) -> None:
        self._top = _TOP - device * _SPAN
        self._ranges: list[_AddressRange] = []  # ranges in the order of their addresses
        self._with_holes: list[_AddressRange] = []  # ranges in the order of their numbers
        self._made = 0

    def allocate(self, size_bytes: int) -> int:
        for range_ in reversed(self._with_holes):
            address = range_.holes.allocate(size_bytes)
            if address is not None:
                break
        else:
            range_ = self._new_range(size_bytes)
            address = range_.holes.allocate(size_bytes)
            assert address is not None
        if not range_.holes.starts:
            self._with_holes.remove(range_)
        return address

    def give_back(self, address: int, size_bytes: int) -> None:
        at = bisect_left(self._ranges, address + 1, key=attrgetter("start")) - 1
        range_ = self._ranges[at]
        if not range_.holes.starts:
            insort(self._with_holes, range_, key=attrgetter("number"))
        range_.holes.give_back(address, size_bytes)
        if range_.holes.sizes == [range_.size_bytes]:
            del self._ranges[at]
            self._with_holes.remove(range_)

    def _new_range(self, size_bytes: int) -> _AddressRange:
        size_bytes = -(-size_bytes // _RANGE_BYTES) * _RANGE_BYTES
        end = self._top
        for above in reversed(self._ranges):
            if end - (above.start + above.size_bytes) >= size_bytes + _RANGE_BYTES:
                break
            end = above.start
        range_ = _AddressRange(end - size_bytes, size_bytes, self._made)
        self._made += 1
        insort(self._ranges, range_, key=attrgetter("start"))
        self._with_holes.append(range_)
        return range_


class Segments:
    def __init__(
        self, device: int, capacity_bytes: int, outside_bytes: int, ages: Ages, addresses: AddressSource | None = None
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.outside_bytes = outside_bytes
        self.allowed_bytes: int | None = None  # limit from `set_per_process_memory_fraction`
        self.taken = self.returned = 0  # numbers of successful calls of the driver
        self.tails: dict[int, Block] = {}
        self.ages = ages
        self._addresses = addresses or DriverAddresses(device)
        self._reserved_addresses = Holes(_RESERVED_BASE + device * _RESERVED_SPAN, _RESERVED_SPAN)
        self.reserved_bytes = 0

    @property
    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.outside_bytes - self.reserved_bytes)

    def allows(self, size_bytes: int) -> bool:
        return self.allowed_bytes is None or self.reserved_bytes + size_bytes <= self.allowed_bytes

    def allocate(self, size_bytes: int, pool: Pool) -> Block | None:
        if size_bytes > self.free_bytes:
            return None
        pool.stats.segments.add(1)
        pool.stats.reserved_bytes.add(size_bytes)
        self.reserved_bytes += size_bytes
        self.taken += 1
        block = Block(self._addresses.allocate(size_bytes), size_bytes, pool, age=self.ages.of_segment())
        self.tails[block.address + size_bytes] = block
        return block

    def give_back(self, block: Block) -> None:
        stats, end = block.pool.stats, block.address + block.size_bytes
        block.pool.remove(block)
        if block.next is None:
            del self.tails[end]
        if block.prev is not None:
            self.tails[block.address] = block.prev
        sides = (block.prev is not None) + (block.next is not None)
        link(block.prev, None)
        link(None, block.next)
        self._addresses.give_back(block.address, block.size_bytes)
        stats.segments.change(sides - 1)
        stats.reserved_bytes.now -= block.size_bytes
        self.reserved_bytes -= block.size_bytes
        self.returned += 1

    def reserve(self, size_bytes: int) -> int:
        """Reserve a range of addresses, and return the first address. Raises RuntimeError if no addresses are left."""
        address = self._reserved_addresses.allocate(size_bytes)
        if address is None:
            raise RuntimeError(f"CUDA driver error: out of memory: no range of {size_bytes:,} free addresses is left")
        return address

    def unreserve(self, address: int, size_bytes: int) -> None:
        self._reserved_addresses.give_back(address, size_bytes)

    def map(self, size_bytes: int, stats: PoolStats) -> bool:
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
