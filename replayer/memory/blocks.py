"""Blocks of device memory, and the pools that keep the free ones in order of best fit.

    pool = Pool(stats, stream=0, split_from_bytes=512)
    pool.add(Block(0x7F0000000000, 2 << 20, pool))

A segment is what the driver gave: a chain of blocks (`prev`, `next`) without gaps. A block is handed out (`in_use`),
waits for other streams (neither), or is free (`in_pool`); free neighbours are merged. Expandable segments have a fourth
kind, `Unmapped`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Protocol

from replayer.memory.stats import PoolStats

if TYPE_CHECKING:
    from replayer.memory.expandable_segments import ExpandablePool

ADDRESS_BITS = 48


class UsedStream(Protocol):
    """What `record_stream` needs to know of a stream."""

    @property
    def number(self) -> int: ...

    @property
    def ready_ns(self) -> int:
        """When the work queued on it so far will have ended."""


class Block:
    """A piece of a segment. `address` is stable while the block is handed out."""

    __slots__ = (
        "address",
        "freed_at",
        "in_pool",
        "in_use",
        "next",
        "pool",
        "prev",
        "requested_bytes",
        "size_bytes",
        "users",
    )

    def __init__(self, address: int, size_bytes: int, pool: Pool) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self.pool = pool
        self.in_use = self.in_pool = False
        self.prev: Block | None = None
        self.next: Block | None = None
        self.users: dict[int, UsedStream] | None = None  # other streams that used it, by number
        self.requested_bytes = 0
        self.freed_at = 0  # by the count of searches in the large pools: its age when garbage is collected


class Unmapped(Block):
    """A range of an expandable segment that has addresses but no memory: whole pages, in no list of free blocks."""

    __slots__ = ()


class Pool:
    """The free blocks of one stream, all small (up to 1 MiB) or all large.

    `blocks[i]` is filed under `keys[i]`, size and address in one integer: the first large enough is the best fit.
    """

    __slots__ = ("blocks", "expandable", "keys", "small", "split_from_bytes", "stats", "stream")

    def __init__(self, stats: PoolStats, stream: int, split_from_bytes: int, *, small: bool = False) -> None:
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.stats = stats
        self.stream = stream
        self.small = small
        self.split_from_bytes = split_from_bytes  # the least remainder that is split off
        self.expandable: ExpandablePool | None = None  # the free blocks of this stream's expandable segments, once it has any

    def add(self, block: Block) -> int:
        """File a free block; returns its index."""
        key = block.size_bytes << ADDRESS_BITS | block.address
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.blocks.insert(at, block)
        block.in_pool = True
        return at

    def index(self, block: Block) -> int:
        """Where a free block is filed."""
        return bisect_left(self.keys, block.size_bytes << ADDRESS_BITS | block.address)

    def remove(self, block: Block) -> None:
        at = self.index(block)
        del self.keys[at], self.blocks[at]
        block.in_pool = False

    def whole_segments(self) -> list[Block]:
        """The free blocks that are all of their segment."""
        return [block for block in self.blocks if block.prev is None and block.next is None]
