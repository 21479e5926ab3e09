"""Defines blocks of GPU memory, and pools that sort free blocks by size.

    pool = Pool(stats, stream=0, min_split_bytes=512)
    pool.add(Block(0x7F0000000000, 2 << 20, pool))
    pool.blocks[pool.best_fit(3000)]

Note [Free blocks of the same size]
    The allocator uses the smallest free block that is large enough. PyTorch releases choose differently among free blocks of
    the same size:

    * up to 2.11: the lowest address
    * 2.12: the block that was created first (pytorch/pytorch#178362)
    * since 2.13: the lowest address in the segment that was created first (pytorch/pytorch#183591)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Protocol

from replayer.memory.device.settings import BLOCK_BYTES
from replayer.memory.device.stats import PoolStats
from traces.model.machine import Machine

_ADDRESS_BITS, _AGE_BITS = 48, 32
_SIZE_SHIFT = _ADDRESS_BITS + _AGE_BITS


class TieRule(Enum):
    # see Note [Free blocks of the same size]

    ADDRESS = "address"
    BLOCK_AGE = "block age"
    SEGMENT_AGE = "segment age"


def tie_rule_of(machine: Machine) -> TieRule:
    if machine.is_before(2, 12):
        return TieRule.ADDRESS
    return TieRule.BLOCK_AGE if machine.is_before(2, 13) else TieRule.SEGMENT_AGE


class Ages:
    def __init__(self, rule: TieRule) -> None:
        self._next = count(1).__next__
        self._counts_segments = rule is not TieRule.ADDRESS
        self.counts_blocks = rule is TieRule.BLOCK_AGE

    def of_segment(self) -> int:
        return self._next() if self._counts_segments else 0

    def of_part(self, whole: Block) -> int:
        return self._next() if self.counts_blocks else whole.age


_STREAMS_OF_A_POOL = 1 << 20


def stream_in_pool(pool: int, stream: int) -> int:
    """Return a unique number for each pair of a memory pool and a CUDA stream. Pool 0 is PyTorch's default pool."""
    return pool * _STREAMS_OF_A_POOL + stream_of(stream)


def pool_of(stream: int) -> int:
    return stream // _STREAMS_OF_A_POOL


def stream_of(stream: int) -> int:
    return stream % _STREAMS_OF_A_POOL


class UsedStream(Protocol):
    @property
    def own_number(self) -> int: ...

    @property
    def ready_ns(self) -> int:
        """Return the virtual time in ns at which all work on the stream ends."""


@dataclass(slots=True, eq=False, repr=False)
class Block:
    address: int
    size_bytes: int
    pool: Pool
    in_use: bool = False
    in_pool: bool = False
    prev: Block | None = None
    next: Block | None = None
    users: dict[int, UsedStream] | None = None
    requested_bytes: int = 0
    freed_at: int = 0
    age: int = 0  # a number that `Ages` has assigned

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None


class Unmapped(Block):
    __slots__ = ()


class Pool:
    """Stores free memory blocks of one CUDA stream. Small blocks (up to 1 MiB) and large blocks have separate pools."""

    __slots__ = ("blocks", "expandable", "keys", "min_split_bytes", "small", "stats", "stream")

    def __init__(self, stats: PoolStats, stream: int, min_split_bytes: int, *, small: bool = False) -> None:
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.stats = stats
        self.stream = stream
        self.small = small
        self.min_split_bytes = min_split_bytes
        self.expandable: ExpandablePool | None = None

    def best_fit(self, size_bytes: int) -> int:
        """Return the index of the smallest block with at least `size_bytes`, or `len(blocks)` if no block is large enough."""
        return bisect_left(self.keys, size_bytes << _SIZE_SHIFT)

    def add(self, block: Block) -> None:
        key = (block.size_bytes << _AGE_BITS | block.age) << _ADDRESS_BITS | block.address
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.blocks.insert(at, block)
        block.in_pool = True

    def remove(self, block: Block) -> None:
        at = bisect_left(self.keys, (block.size_bytes << _AGE_BITS | block.age) << _ADDRESS_BITS | block.address)
        del self.keys[at], self.blocks[at]
        block.in_pool = False

    def merge(self, block: Block) -> int:
        merged = 0
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.in_pool:
                self.remove(neighbour)
                absorb(block, neighbour)
                merged += 1
        return merged

    def whole_segments(self) -> list[Block]:
        return [block for block in self.blocks if not block.is_split]


@dataclass(slots=True)
class Reservation:
    address: int
    page_bytes: int
    tail: Block

    def page_end(self, address: int) -> int:
        return self.address - (self.address - address) // self.page_bytes * self.page_bytes

    def page_start(self, address: int) -> int:
        return self.address + (address - self.address) // self.page_bytes * self.page_bytes


class ExpandablePool(Pool):
    __slots__ = ("reservations", "unmapped")

    def __init__(self, plain: Pool) -> None:
        super().__init__(plain.stats.of_expandable(), plain.stream, BLOCK_BYTES, small=plain.small)
        self.reservations: list[Reservation] = []
        self.unmapped: list[Unmapped] = []

    def reservation_of(self, block: Block) -> Reservation:
        at = bisect_right(self.reservations, block.address, key=lambda reservation: reservation.address) - 1
        return self.reservations[at]


def link(before: Block | None, after: Block | None) -> None:
    if before is not None:
        before.next = after
    if after is not None:
        after.prev = before


def absorb(block: Block, neighbour: Block) -> None:
    if neighbour is block.prev:
        block.address = neighbour.address
        link(neighbour.prev, block)
    else:
        link(block, neighbour.next)
    block.size_bytes += neighbour.size_bytes
