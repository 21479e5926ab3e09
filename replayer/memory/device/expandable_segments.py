"""Emulates PyTorch's expandable segments, which map memory into a reserved address range page by page.

See Note [Expandable Segments] in PyTorch's c10/cuda/CUDACachingAllocator.cpp.

    expandable = ExpandableSegments(segments, note)
    block = expandable.allocate(pool, 30 << 20)     # a free block of at least this size, or None if there is no room
    expandable.release(pool.expandable)             # return the empty pages
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from heapq import merge
from operator import attrgetter, itemgetter

from replayer.memory.device.blocks import Block, ExpandablePool, Pool, Reservation, Unmapped, absorb, link
from replayer.memory.device.segments import Segments

_ADDRESS = attrgetter("address")
Note = Callable[[str, int, int, int], None]  # arguments: action, address, bytes, stream


def best_fit(plain: Pool, size: int) -> Block | None:
    candidates = _by_size(plain, size)
    found = next(candidates, None)
    if found is None:
        return None
    for other in candidates:
        if _reach_bytes(other) >= _reach_bytes(found):
            break
        found = other
    return found


def expandable_fits_first(plain: Pool, size: int) -> bool:
    if plain.expandable is None:
        return False
    first = next(_by_size(plain, size), None)
    return first is not None and first.pool is not plain


def _by_size(plain: Pool, size: int) -> Iterator[Block]:
    expandable = plain.expandable
    assert expandable is not None
    found = (zip(pool.keys[at:], pool.blocks[at:], strict=True) for pool in (plain, expandable) for at in [pool.best_fit(size)])
    return (block for _, block in merge(*found, key=itemgetter(0)))


def _reach_bytes(block: Block) -> int:
    after = block.next
    return block.size_bytes + after.size_bytes if type(after) is Unmapped else block.size_bytes


class ExpandableSegments:
    def __init__(self, segments: Segments, note: Note) -> None:
        self._segments = segments
        self._note = note
        self._pools: list[ExpandablePool] = []

    def tails(self) -> list[Block]:
        return [reservation.tail for pool in self._pools for reservation in pool.reservations]

    def allocate(self, plain: Pool, size: int, page_bytes: int) -> Block | None:
        pool = plain.expandable
        if pool is None:
            pool = plain.expandable = ExpandablePool(plain)
            self._pools.append(pool)
        block: Block | None = self._first_fit(pool, size, page_bytes)
        if isinstance(block, Unmapped):
            block = self._map(pool, block, min(block.size_bytes, size))
        while block is not None and block.size_bytes < size:
            after = block.next
            assert isinstance(after, Unmapped)
            block = self._map(pool, after, min(size - block.size_bytes, after.size_bytes))
        return block

    def release(self, pool: ExpandablePool) -> None:
        for block in list(pool.blocks):
            unmapped = self._unmap(pool, block)
            if unmapped is not None and unmapped.prev is None and unmapped.next is None:
                pool.unmapped.remove(unmapped)
                pool.reservations.remove(pool.reservation_of(unmapped))
                self._segments.unreserve(unmapped.address, unmapped.size_bytes)

    def _first_fit(self, pool: ExpandablePool, size: int, page_bytes: int) -> Block:
        """See find_expandable_block in PyTorch's CUDACachingAllocator.cpp."""
        for unmapped in pool.unmapped:
            first = unmapped.prev if unmapped.prev is not None and unmapped.prev.in_pool else unmapped
            room_bytes, block = 0, first
            while block is not None and room_bytes < size and (block.in_pool or type(block) is Unmapped):
                room_bytes += block.size_bytes
                block = block.next  # type: ignore[assignment]
            if room_bytes >= size:
                return first
        return self._reserve(pool, page_bytes)

    def _reserve(self, pool: ExpandablePool, page_bytes: int) -> Unmapped:
        capacity_bytes = self._segments.capacity_bytes
        size_bytes = -(-(capacity_bytes + capacity_bytes // 8) // page_bytes) * page_bytes
        whole = Unmapped(self._segments.reserve(size_bytes), size_bytes, pool, age=self._segments.ages.of_segment())
        insort(pool.reservations, Reservation(whole.address, page_bytes, whole), key=_ADDRESS)
        insort(pool.unmapped, whole, key=_ADDRESS)
        return whole

    def _map(self, pool: ExpandablePool, unmapped: Unmapped, size: int) -> Block | None:
        """See map_block in PyTorch's CUDACachingAllocator.cpp."""
        reservation = pool.reservation_of(unmapped)
        size_bytes = reservation.page_end(unmapped.address + size) - unmapped.address
        if not self._segments.map(size_bytes, pool.stats):
            return None
        self._note("segment_map", unmapped.address, size_bytes, pool.stream)
        block = Block(unmapped.address, size_bytes, pool, age=unmapped.age)
        if size_bytes < unmapped.size_bytes:
            unmapped.age = self._segments.ages.of_part(unmapped)
            link(unmapped.prev, block)
            link(block, unmapped)
            unmapped.address += size_bytes
            unmapped.size_bytes -= size_bytes
        else:
            link(unmapped.prev, block)
            link(block, unmapped.next)
            pool.unmapped.remove(unmapped)
        pool.merge(block)
        pool.add(block)
        return block

    def _unmap(self, pool: ExpandablePool, block: Block) -> Unmapped | None:
        """See unmap_block in PyTorch's CUDACachingAllocator.cpp."""
        reservation = pool.reservation_of(block)
        start, end = reservation.page_end(block.address), reservation.page_start(block.address + block.size_bytes)
        if start >= end:
            return None
        pool.remove(block)
        ages = self._segments.ages
        unmapped = Unmapped(start, end - start, pool, age=block.age)
        before, after = block.prev, block.next
        if start > block.address:
            before = Block(block.address, start - block.address, pool, age=ages.of_part(block))
            link(block.prev, before)
            pool.add(before)
        if block.address + block.size_bytes > end:
            after = Block(end, block.address + block.size_bytes - end, pool, age=ages.of_part(block))
            link(after, block.next)
            pool.add(after)
        link(before, unmapped)
        link(unmapped, after)
        self._segments.unmap(unmapped.size_bytes, pool.stats)
        self._note("segment_unmap", unmapped.address, unmapped.size_bytes, pool.stream)
        for neighbour in (unmapped.prev, unmapped.next):
            if isinstance(neighbour, Unmapped):
                pool.unmapped.remove(neighbour)
                absorb(unmapped, neighbour)
                if neighbour is reservation.tail:
                    reservation.tail = unmapped
        insort(pool.unmapped, unmapped, key=_ADDRESS)
        return unmapped
