"""Blocks of device memory, and the pools that hold the free ones in order of size.

    pool = Pool(stats, stream=0, min_split_bytes=512)
    pool.add(Block(0x7F0000000000, 2 << 20, pool))
    pool.blocks[pool.best_fit(3000)]

A segment, as the driver returned it, is a doubly linked list of blocks (`prev`, `next`) without gaps. A block is allocated
(`in_use`), waiting for other streams (neither flag is set), or free (`in_pool`); free neighbours are merged. Expandable
segments have a fourth kind, `Unmapped`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Protocol

from replayer.memory.device.settings import BLOCK_BYTES
from replayer.memory.device.stats import PoolStats

ADDRESS_BITS = 48  # of a virtual address on x86-64 and on NVIDIA GPUs


class UsedStream(Protocol):
    """What the allocators need to know of a stream that uses another stream's block, or copies from or to pinned memory."""

    @property
    def number(self) -> int: ...

    @property
    def ready_ns(self) -> int:
        """When the work queued on it so far will have ended."""


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """A piece of a segment. `address` is stable while the block is allocated."""

    address: int
    size_bytes: int
    pool: Pool
    in_use: bool = False
    in_pool: bool = False
    prev: Block | None = None
    next: Block | None = None
    users: dict[int, UsedStream] | None = None  # other streams that used it, by number
    requested_bytes: int = 0
    freed_at: int = 0  # the number of searches in the large pools by then: tells its age when garbage is collected

    @property
    def is_split(self) -> bool:
        """Whether its segment has other blocks."""
        return self.prev is not None or self.next is not None


class Unmapped(Block):
    """A range of an expandable segment that has addresses but no memory: whole pages, in no list of free blocks."""

    __slots__ = ()


class Pool:
    """The free blocks of one stream, all small (up to 1 MiB) or all large.

    `keys[i]` is the size of `blocks[i]` and, in the lower 48 bits, its address: as one integer, because tuples compare slower.
    """

    __slots__ = ("blocks", "expandable", "keys", "min_split_bytes", "small", "stats", "stream")

    def __init__(self, stats: PoolStats, stream: int, min_split_bytes: int, *, small: bool = False) -> None:
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.stats = stats
        self.stream = stream
        self.small = small
        self.min_split_bytes = min_split_bytes  # the smallest remainder that is split off a block
        self.expandable: ExpandablePool | None = None  # the free blocks of this stream's expandable segments, once it has any

    def best_fit(self, size_bytes: int) -> int:
        """Index of the first block by (size, address) with at least `size_bytes`; `len(blocks)` if there is none."""
        return bisect_left(self.keys, size_bytes << ADDRESS_BITS)

    def add(self, block: Block) -> None:
        """File a free block."""
        key = block.size_bytes << ADDRESS_BITS | block.address
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.blocks.insert(at, block)
        block.in_pool = True

    def remove(self, block: Block) -> None:
        at = bisect_left(self.keys, block.size_bytes << ADDRESS_BITS | block.address)
        del self.keys[at], self.blocks[at]
        block.in_pool = False

    def merge(self, block: Block) -> int:
        """Take the free neighbours of a block out of the pool and make them a part of it; how many there were."""
        merged = 0
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.in_pool:
                self.remove(neighbour)
                absorb(block, neighbour)
                merged += 1
        return merged

    def whole_segments(self) -> list[Block]:
        """The free blocks that are all of their segment."""
        return [block for block in self.blocks if not block.is_split]


@dataclass(slots=True)
class Reservation:
    """A range of addresses. Pages are counted from its start."""

    address: int
    size_bytes: int
    page_bytes: int
    tail: Block  # its last block

    def page_end(self, address: int) -> int:
        """The first end of a page at or after `address`."""
        return self.address - (self.address - address) // self.page_bytes * self.page_bytes

    def page_start(self, address: int) -> int:
        """The last start of a page at or before `address`."""
        return self.address + (address - self.address) // self.page_bytes * self.page_bytes


class ExpandablePool(Pool):
    """The free blocks of one stream's ranges, and the unmapped parts of the ranges; the latter by address."""

    __slots__ = ("reservations", "unmapped")

    def __init__(self, plain: Pool) -> None:
        super().__init__(plain.stats.of_expandable(), plain.stream, BLOCK_BYTES, small=plain.small)
        self.reservations: list[Reservation] = []
        self.unmapped: list[Unmapped] = []

    def reservation_of(self, block: Block) -> Reservation:
        at = bisect_right(self.reservations, block.address, key=lambda reservation: reservation.address) - 1
        return self.reservations[at]


def link(before: Block | None, after: Block | None) -> None:
    """Make two blocks neighbours; None is the end of the segment."""
    if before is not None:
        before.next = after
    if after is not None:
        after.prev = before


def absorb(block: Block, neighbour: Block) -> None:
    """Extend `block` over the place of its neighbour, which is dropped from the segment."""
    if neighbour is block.prev:
        block.address = neighbour.address
        link(neighbour.prev, block)
    else:
        link(block, neighbour.next)
    block.size_bytes += neighbour.size_bytes
