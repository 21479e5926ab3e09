"""How the caching allocator comes to new memory, and what it gives back before it says that there is none.

    block = memory._reserve(pool, 3 << 20)      # free, of a new segment or of an expandable one; raises OutOfMemory

`DeviceMemory` (caching_allocator.py) inherits it; the rules are those of c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left

from replayer.memory.allocator_policy import SMALL_BYTES, AllocatorPolicy
from replayer.memory.blocks import ADDRESS_BITS, Block, Pool
from replayer.memory.expandable_segments import best_fit, grown_first
from replayer.memory.oom import OutOfMemory
from replayer.memory.oom_text import Figures
from replayer.memory.settings import MIB, UNLIMITED, Settings

SMALL_SEGMENT_BYTES = 2 * MIB
OWN_SEGMENT_BYTES = 10 * MIB  # blocks from here on get a segment of their own size


class AllocatorSegments(AllocatorPolicy):
    """Taking segments and returning them, by the settings in force."""

    def _fit(self, pool: Pool, size: int, at: int) -> tuple[Pool, int]:
        """Where the block for a request is filed, if not by the fixed rules under `at`, the first that is large enough.

        It is made of new memory if none suits. Raises OutOfMemory.
        """
        if self._expands and pool.expandable is not None:
            found = best_fit(pool, size)
        else:
            found = (pool, at) if at < len(pool.keys) else None
        if found is None or not self._suits(found[0].blocks[found[1]], size):
            block = self._reserve(pool, size)
            found = block.pool, block.pool.index(block)
        return found

    def _reserve(self, pool: Pool, size: int) -> Block:
        """A free block of new memory for a request that fits nowhere. Raises OutOfMemory.

        Cached segments are returned before it gives up.
        """
        settings = self._settings or Settings()
        if size <= SMALL_BYTES:
            segment = SMALL_SEGMENT_BYTES
        elif size < OWN_SEGMENT_BYTES:
            segment = settings.large_segment_bytes
        else:
            segment = (size + SMALL_SEGMENT_BYTES - 1) // SMALL_SEGMENT_BYTES * SMALL_SEGMENT_BYTES
        if self._collects_garbage(settings):
            self._collect_garbage(settings.garbage_collection_threshold)
        block = self._take(pool, size, segment)
        if block is None and self._release_oversize(pool, size, settings.max_split_bytes):
            block = self._take(pool, size, segment)
        if block is None:
            self._release_cached()
            self._retries += 1
            block = self._take(pool, size, segment)
        if block is None:
            self._ooms += 1
            if self._history is not None:
                self._history.oom(size, pool.stream, self._segments.free_bytes)
            raise self._out_of_memory(segment)
        return block

    def _take(self, pool: Pool, size: int, segment: int) -> Block | None:
        """New memory, if there is room. What is allowed is asked of a whole segment, also where only a page is mapped."""
        if not self._segments.allows(segment):
            return None
        if self._expands:
            page_bytes = SMALL_SEGMENT_BYTES if pool.small else self.settings.large_segment_bytes
            return self._expandable.allocate(pool, size, page_bytes)
        block = self._segments.take(segment, pool)
        if block is not None:
            if self._is_oversize(segment):
                self._oversize_segments.large.add(1)
            self._note_segment("segment_alloc", block.address, segment, pool.stream)
            pool.add(block)
        return block

    def _out_of_memory(self, segment: int) -> OutOfMemory:
        segments = self._segments
        figures = Figures(
            device=self.device,
            asked_bytes=segment,
            capacity_bytes=segments.capacity_bytes,
            free_bytes=segments.free_bytes,
            process_bytes=segments.outside_bytes + segments.reserved_bytes,
            allowed_bytes=segments.allowed_bytes,
            allocated_bytes=self._tallies.of["blocks_bytes"].now,
            reserved_bytes=segments.reserved_bytes,
        )
        return OutOfMemory(figures, self._oom_text, self.oom_observers)

    def _release(self, block: Block) -> None:
        self._note_segment("segment_free", block.address, block.size_bytes, block.pool.stream)
        self._segments.give_back(block)
        if self._is_oversize(block.size_bytes):
            self._oversize_segments.large.now -= 1

    def _release_cached(self) -> None:
        """Return all segments, and pages of expandable ones, without a block in use.

        Streams that still use blocks which were let go of are waited for.
        """
        self._syncs += 1
        if self._waiting:
            last_ns = max(ready_ns for ready_ns, _ in self._waiting)
            self._wait_until_ns(last_ns)
            self._free_waiting(last_ns)
        for pool in (*self._large.values(), *self._small.values()):
            for block in pool.whole_segments():
                self._release(block)
            if pool.expandable is not None:
                self._expandable.release(pool.expandable)

    def _release_oversize(self, pool: Pool, size: int, max_split_bytes: int) -> bool:
        """Return the least oversize block that is large enough, else the largest ones until they sum up to `size`.

        A block of an expandable segment, which cannot be returned alone, takes its turn in the first choice and is passed
        over in the second. Reference: release_available_cached_blocks.
        """
        if max_split_bytes == UNLIMITED:
            return False
        size = max(size, max_split_bytes)
        at = bisect_left(pool.keys, size << ADDRESS_BITS)
        if at < len(pool.blocks) and not grown_first(pool, size):
            self._release(pool.blocks[at])
            return True
        released_bytes = 0
        for block in reversed(pool.blocks[:at]):
            if released_bytes >= size or not self._is_oversize(block.size_bytes):
                break
            released_bytes += block.size_bytes
            self._release(block)
        return released_bytes >= size

    def _collect_garbage(self, threshold: float) -> None:
        """Return cached large segments, those of at least average age first, until reserved memory is below threshold.

        Reference: garbage_collect_cached_blocks. A round does not stop halfway.
        """
        surplus_bytes = self._segments.reserved_bytes - int(threshold * (self._segments.allowed_bytes or 0))
        cached = [block for pool in self._large.values() for block in pool.whole_segments()]
        while surplus_bytes > 0 and cached:
            total_age, left = sum(self._large_searches - block.freed_at for block in cached), len(cached)
            average_age, young = total_age / left, []
            for block in cached:
                if self._large_searches - block.freed_at >= average_age:
                    surplus_bytes -= block.size_bytes
                    self._release(block)
                else:
                    young.append(block)
            cached = young
