"""Reimplements PyTorch's caching allocator for one GPU without allocating real memory.

See c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.6 to 2.15.

    memory = DeviceMemory(device=0, capacity_bytes=16 << 30)
    block = memory.malloc(3 << 20, stream=0)
    block.size_bytes, memory.usage.reserved_bytes  # (3145728, 20971520): a segment of 20 MiB, split
    memory.free(block)
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from replayer.errors import NotEmulatedWarning, require
from replayer.memory.device.blocks import Ages, Block, Pool, TieRule, UsedStream, link, pool_of, stream_of
from replayer.memory.device.expandable_segments import ExpandableSegments, best_fit, expandable_fits_first
from replayer.memory.device.history import History
from replayer.memory.device.oom import DEFAULT_OOM_TEXT, EXABYTE, Figures, OomObserver, OutOfMemory
from replayer.memory.device.request_log import RequestKind, RequestLog
from replayer.memory.device.segments import AddressSource, Segments
from replayer.memory.device.settings import BLOCK_BYTES, MIB, UNLIMITED, AllocatorSettings, settings_of_environment
from replayer.memory.device.snapshot import SegmentDict, mapped_ranges, segment_dict
from replayer.memory.device.stats import MemoryStats
from replayer.memory.device.usage import DeviceUsage

SMALL_BYTES = MIB  # maximum size of blocks in the small pools
SMALL_SEGMENT_BYTES = 2 * MIB
OWN_SEGMENT_BYTES = 10 * MIB  # blocks of at least this size have their own segment
_FROM_FINALIZER = "a finalizer requested GPU memory while the memory allocator was working"

Layout = tuple[tuple[int, int, bool, int, int], ...]


class DeviceMemory:
    """Emulates the memory of one GPU. `outside_bytes` is the memory that the CUDA context and NCCL use."""

    def __init__(
        self,
        device: int,
        capacity_bytes: int,
        outside_bytes: int = 0,
        oom_text: str = DEFAULT_OOM_TEXT,
        tie_rule: TieRule = TieRule.SEGMENT_AGE,
        *,
        host_now_ns: Callable[[], int] = lambda: UNLIMITED,
        wait_until_ns: Callable[[int], None] = lambda time_ns: None,
        settings: AllocatorSettings | None = None,
        addresses: AddressSource | None = None,
    ) -> None:
        self.device = device
        self.history: History | None = None
        self.requests: RequestLog | None = None
        self.oom_observers: list[OomObserver] = []
        self._oom_text = oom_text
        self._host_now_ns = host_now_ns
        self._wait_until_ns = wait_until_ns
        self.counts = MemoryStats()
        self._outside_bytes = outside_bytes
        self._segments = Segments(device, capacity_bytes, outside_bytes, Ages(tie_rule), addresses)
        self._expandable = ExpandableSegments(self._segments, self._note_segment)
        self.private: set[int] = set()  # pools of CUDA graphs and torch.cuda.MemPool objects
        # called before the allocator reserves memory for a pool that is not in `private`
        self.before_reserving: Callable[[], None] | None = None
        self._small: dict[int, Pool] = {}
        self._large: dict[int, Pool] = {}
        self._waiting: list[tuple[int, Block]] = []
        self._first_ready_ns = 0
        self._collects_garbage = False
        self._large_searches = 0
        self._lock: Any = threading.RLock()
        self.usage = DeviceUsage(self.counts, self._segments, self._lock, lambda: self._max_split_bytes)
        self._settings: AllocatorSettings | None = None
        self._expands = False
        self._min_split_bytes = SMALL_BYTES + BLOCK_BYTES  # applies to large blocks
        self._max_split_bytes = UNLIMITED
        self.returns_pieces = False  # Note [Batches that are known to fit], in recording/library_pace.py
        if settings is not None:
            self.apply(settings)

    # --- allocating and freeing

    def malloc(self, size_bytes: int, stream: int) -> Block | None:
        """Allocate a memory block. Return None for 0 bytes. Raises OutOfMemory."""
        if size_bytes <= 0:
            return None
        if self._lock._is_owned():
            raise RuntimeError(_FROM_FINALIZER)
        with self._lock:  # if a signal handler raises an exception between `acquire` and `try`, the lock would stay locked
            if self._waiting:
                self._free_waiting(self._host_now_ns())
            size = (self._settings or self.settings).round_up(size_bytes)
            pool = (self._small if size <= SMALL_BYTES else self._large).get(stream) or self._new_pool(size, stream)
            if not pool.small and self._collects_garbage:
                self._large_searches += 1
            block = self._cut(self._find_free(pool, size) or self._reserve(pool, size), size)
            block.in_use = True
            block.requested_bytes = size_bytes
            stats = pool.stats
            stats.blocks.add(1)
            stats.blocks_bytes.add(block.size_bytes)
            stats.requested_bytes.add(size_bytes)
            if self._waiting:
                self.counts.note_active()
            if block.size_bytes >= self._max_split_bytes:
                self.counts.oversize_blocks.add(1)
            if self.history is not None:
                self.history.alloc(block)
            if self.requests is not None:
                self.requests.request(block)
            return block

    def free(self, block: Block) -> None:
        """Free a block after all CUDA streams have finished with it."""
        if self._lock._is_owned():
            raise RuntimeError(_FROM_FINALIZER)
        with self._lock:
            if not block.in_use:
                raise ValueError(f"device memory at {block.address:#x} was freed twice")
            block.in_use = False
            stats = block.pool.stats
            stats.blocks.now -= 1
            stats.blocks_bytes.now -= block.size_bytes
            if block.size_bytes >= self._max_split_bytes:
                self.counts.oversize_blocks.now -= 1
            if self.history is not None:
                self.history.free_requested(block)
            if block.users:
                self._wait_for_users(block)
            else:
                self._put_back(block)

    def record_stream(self, block: Block, stream: UsedStream) -> None:
        if stream.own_number != stream_of(block.pool.stream):
            if block.users is None:
                block.users = {}
            block.users[stream.own_number] = stream

    def _find_free(self, pool: Pool, size: int) -> Block | None:
        """See get_free_block in PyTorch's CUDACachingAllocator.cpp."""
        if self._expands and pool.expandable is not None:
            block = best_fit(pool, size)
        else:
            at = pool.best_fit(size)
            block = pool.blocks[at] if at < len(pool.blocks) else None
        if block is None:
            return None
        if size < self._max_split_bytes:
            return block if block.size_bytes < self._max_split_bytes else None
        return block if block.size_bytes < size + self.settings.max_non_split_rounding_bytes else None

    def _cut(self, block: Block, size: int) -> Block:
        """See should_split and alloc_found_block in PyTorch's CUDACachingAllocator.cpp."""
        pool, stats = block.pool, block.pool.stats
        was_split = block.prev is not None or block.next is not None
        pool.remove(block)
        left_bytes = block.size_bytes - size
        if left_bytes < pool.min_split_bytes or (size >= self._max_split_bytes and not self._expands):
            if was_split:
                stats.split_free.now -= 1
                stats.split_free_bytes.now -= block.size_bytes
            return block
        rest, block = block, Block(block.address, size, pool, age=block.age)
        if self._segments.ages.counts_blocks:
            block.age = self._segments.ages.of_part(rest)
        rest.address += size
        rest.size_bytes = left_bytes
        link(rest.prev, block)
        link(block, rest)
        pool.add(rest)
        if was_split:
            stats.split_free_bytes.now -= size
        else:
            stats.split_free.add(1)
            stats.split_free_bytes.add(left_bytes)
        return block

    def _put_back(self, block: Block) -> None:
        """See free_block in PyTorch's CUDACachingAllocator.cpp."""
        if self.history is not None:
            self.history.free_completed(block)
        if self.requests is not None:
            self.requests.free(block)
        pool, stats = block.pool, block.pool.stats
        stats.requested_bytes.now -= block.requested_bytes
        freed_bytes, merged = block.size_bytes, pool.merge(block)
        if block.next is None:
            self._segments.tails[block.address + block.size_bytes] = block
        pool.add(block)
        block.freed_at = self._large_searches
        if block.is_split:
            stats.split_free.change(1 - merged)
            stats.split_free_bytes.add(freed_bytes)
        else:
            stats.split_free.now -= merged
            stats.split_free_bytes.now -= block.size_bytes - freed_bytes

    def _new_pool(self, size: int, stream: int) -> Pool:
        if size <= SMALL_BYTES:
            pool = self._small[stream] = Pool(self.counts.small, stream, BLOCK_BYTES, small=True)
        else:
            pool = self._large[stream] = Pool(self.counts.large, stream, self._min_split_bytes)
        return pool

    # --- blocks that other streams use

    def _wait_for_users(self, block: Block) -> None:
        ready_ns = max(stream.ready_ns for stream in (block.users or {}).values())
        block.users = None
        self._first_ready_ns = min(self._first_ready_ns, ready_ns) if self._waiting else ready_ns
        self._waiting.append((ready_ns, block))
        block.pool.stats.waiting.now += 1
        block.pool.stats.waiting_bytes.now += block.size_bytes

    def _free_waiting(self, now_ns: int) -> None:
        if now_ns < self._first_ready_ns:
            return
        waiting, self._waiting = self._waiting, []
        for ready_ns, block in waiting:
            if ready_ns > now_ns:
                self._waiting.append((ready_ns, block))
                continue
            block.pool.stats.waiting.now -= 1
            block.pool.stats.waiting_bytes.now -= block.size_bytes
            self._put_back(block)
        self._first_ready_ns = min((ready_ns for ready_ns, _ in self._waiting), default=0)

    # --- taking memory from the device, and returning it

    def _reserve(self, pool: Pool, size: int) -> Block:
        settings = self.settings
        if size >= EXABYTE:
            raise self._out_of_memory(size)
        if self.before_reserving is not None and pool_of(pool.stream) not in self.private:
            self.before_reserving()
        if size <= SMALL_BYTES:
            segment = SMALL_SEGMENT_BYTES
        elif size < OWN_SEGMENT_BYTES:
            segment = settings.large_segment_bytes
        else:
            segment = (size + SMALL_SEGMENT_BYTES - 1) // SMALL_SEGMENT_BYTES * SMALL_SEGMENT_BYTES
        if self._collects_garbage:
            self._collect_garbage(settings.garbage_collection_threshold)
        block = self._take(pool, size, segment)
        if block is None and self._release_oversize(pool, size):
            block = self._take(pool, size, segment)
        if block is None:
            self._release_cached()
            self.counts.retries += 1
            block = self._take(pool, size, segment)
        if block is None and self.returns_pieces:
            self._release_pieces()
            block = self._take(pool, size, segment)
        if block is None:
            self.counts.ooms += 1
            if self.history is not None:
                self.history.oom(size, pool.stream, self.usage.free_bytes)
            raise self._out_of_memory(segment)
        return block

    def _take(self, pool: Pool, size: int, segment: int) -> Block | None:
        if not self._segments.allows(segment):
            return None
        if self._expands:
            page_bytes = SMALL_SEGMENT_BYTES if pool.small else self.settings.large_segment_bytes
            return self._expandable.allocate(pool, size, page_bytes)
        block = self._segments.allocate(segment, pool)
        if block is not None:
            if segment >= self._max_split_bytes:
                self.counts.oversize_segments.add(1)
            self._note_segment("segment_alloc", block.address, segment, pool.stream)
            pool.add(block)
        return block

    def _release(self, block: Block) -> None:
        self._note_segment("segment_free", block.address, block.size_bytes, block.pool.stream)
        self._segments.give_back(block)
        if block.size_bytes >= self._max_split_bytes:
            self.counts.oversize_segments.now -= 1

    def _release_cached(self) -> None:
        """See release_cached_blocks in PyTorch's CUDACachingAllocator.cpp."""
        self.counts.stream_syncs += 1
        if self._waiting:
            last_ns = max(ready_ns for ready_ns, _ in self._waiting)
            self._wait_until_ns(last_ns)
            self._free_waiting(last_ns)
        self._release_pools(pool for pool in self._pools() if pool_of(pool.stream) not in self.private)

    def _pools(self) -> list[Pool]:
        return [*self._large.values(), *self._small.values()]

    def _release_pools(self, pools: Iterable[Pool]) -> None:
        for pool in pools:
            for block in pool.whole_segments():
                self._release(block)
            if pool.expandable is not None:
                self._expandable.release(pool.expandable)

    def _release_pieces(self) -> None:
        """Free the unused parts of memory segments. CUDA can free only whole segments."""
        # see Note [Batches that are known to fit] in library_pace.py
        for pool in self._pools():
            if pool_of(pool.stream) not in self.private:
                for block in pool.blocks[:]:
                    pool.stats.split_free.now -= 1
                    pool.stats.split_free_bytes.now -= block.size_bytes
                    self._note_segment("segment_free", block.address, block.size_bytes, pool.stream)
                    self._segments.give_back(block)

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """See release_available_cached_blocks in PyTorch's CUDACachingAllocator.cpp."""
        if self._max_split_bytes == UNLIMITED:
            return False
        size = max(size, self._max_split_bytes)
        at = pool.best_fit(size)
        if at < len(pool.blocks) and not expandable_fits_first(pool, size):
            self._release(pool.blocks[at])
            return True
        released_bytes = 0
        for block in reversed(pool.blocks[:at]):
            if released_bytes >= size or block.size_bytes < self._max_split_bytes:
                break
            released_bytes += block.size_bytes
            self._release(block)
        return released_bytes >= size

    def _collect_garbage(self, threshold: float) -> None:
        """See garbage_collect_cached_blocks in PyTorch's CUDACachingAllocator.cpp."""
        surplus_bytes = self._segments.reserved_bytes - int(threshold * (self._segments.allowed_bytes or 0))
        cached = [block for pool in self._large.values() for block in pool.whole_segments()]
        while surplus_bytes > 0 and cached:
            average_age = sum(self._large_searches - block.freed_at for block in cached) / len(cached)
            young = []
            for block in cached:
                if self._large_searches - block.freed_at >= average_age:
                    surplus_bytes -= block.size_bytes
                    self._release(block)
                else:
                    young.append(block)
            cached = young

    def _out_of_memory(self, segment: int) -> OutOfMemory:
        segments = self._segments
        process_bytes = segments.outside_bytes + segments.reserved_bytes
        figures = Figures(
            self.device, segment, segments.capacity_bytes, segments.free_bytes, process_bytes, segments.allowed_bytes,
            self.usage.allocated_bytes, segments.reserved_bytes,
        )  # fmt: skip
        return OutOfMemory(figures, self._oom_text, self.oom_observers)

    def _note_segment(self, action: str, address: int, size_bytes: int, stream: int) -> None:
        if self.history is not None:
            self.history.segment(action, address, size_bytes, stream)

    # --- settings

    @property
    def settings(self) -> AllocatorSettings:
        return self._settings or self.apply(settings_of_environment())

    def apply(self, settings: AllocatorSettings) -> AllocatorSettings:
        self._settings = settings
        self._expands = settings.expandable_segments
        self._min_split_bytes = BLOCK_BYTES if self._expands else SMALL_BYTES + BLOCK_BYTES
        self._max_split_bytes = settings.max_split_bytes
        for pool in self._large.values():
            pool.min_split_bytes = self._min_split_bytes
        for line in settings.not_emulated:
            warnings.warn(line, NotEmulatedWarning, stacklevel=2)
        if settings.memory_fraction is not None:
            self.set_memory_fraction(settings.memory_fraction)
        self._collects_garbage = settings.garbage_collection_threshold > 0 and self._segments.allowed_bytes is not None
        return settings

    def limit_to(self, size_bytes: int | None) -> None:
        """Limit the memory that PyTorch may reserve. None restores the initial limit."""
        segments = self._segments
        if size_bytes is not None and size_bytes < segments.reserved_bytes:
            self.empty_cache()
        outside = self._outside_bytes if size_bytes is None else segments.capacity_bytes - size_bytes
        segments.outside_bytes = max(outside, self._outside_bytes)

    def set_memory_fraction(self, fraction: float) -> None:
        require(0 <= fraction <= 1, f"invalid fraction:{fraction:g}. Please set within [0, 1].")
        self._segments.allowed_bytes = int(fraction * self.usage.capacity_bytes)
        self._collects_garbage = self._settings is not None and self._settings.garbage_collection_threshold > 0

    def empty_cache(self) -> None:
        with self._lock:
            if self.requests is not None:
                self.requests.add_event(RequestKind.EMPTY_CACHE)
            self._release_cached()

    def empty_pool(self, number: int) -> None:
        with self._lock:
            self._release_pools(pool for pool in self._pools() if pool_of(pool.stream) == number)

    # --- blocks

    def snapshot(self) -> list[SegmentDict]:
        with self._lock:
            ranges = [blocks for tail in self._tails() for blocks in mapped_ranges(tail)]
            ranges.sort(key=lambda blocks: blocks[0].address)
            return [segment_dict(blocks, self.device, self.history) for blocks in ranges]

    def layout(self) -> Layout | None:
        """Return the address, size, state and age of each memory block."""
        with self._lock:
            if self.history is not None or self.requests is not None or not self.settings.has_stateless_fit:
                return None
            found = [block for tail in self._tails() for blocks in mapped_ranges(tail) for block in blocks]
            if any(block.users or not (block.in_use or block.in_pool) for block in found):
                return None
            ranks = {age: rank for rank, age in enumerate(sorted({block.age for block in found}))}
            states = ((of.address, of.size_bytes, of.in_use, of.in_use * of.requested_bytes, ranks[of.age]) for of in found)
            return tuple(sorted(states))

    def _tails(self) -> list[Block]:
        return [*self._segments.tails.values(), *self._expandable.tails()]
