"""What the caching allocator does rarely: take and return segments, wait for streams, apply settings.

`DeviceMemory` (allocator.py) adds the two calls that every tensor makes, `AllocatorAnswers` what a script asks.

    memory = DeviceMemory(device=0, capacity_bytes=16 << 30, outside_bytes=400 << 20)
    memory.apply(parse_settings("max_split_size_mb:128"))
"""

from __future__ import annotations

import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from replayer.allocator_counts import Quantity, Tallies
from replayer.allocator_errors import OomObserver, OutOfMemory
from replayer.allocator_history import History
from replayer.allocator_settings import BLOCK_BYTES, MIB, UNLIMITED, Settings, settings_of_environment
from replayer.allocator_text import TODAY, Figures
from replayer.blocks import ADDRESS_BITS, Block, Pool
from replayer.errors import NotEmulatedWarning
from replayer.segments import Segments

SMALL_BYTES = MIB  # the largest block of the small pools
SMALL_SEGMENT_BYTES = 2 * MIB
OWN_SEGMENT_BYTES = 10 * MIB  # blocks from here on get a segment of their own size
_TURN_LIMIT_NS = 10 * 10**9


def _always_done() -> int:
    return UNLIMITED


def _wait_for_nothing(time_ns: int) -> None:
    pass


class AllocatorPolicy:
    """`outside_bytes` is what the process holds on the device beside PyTorch: CUDA context, NCCL buffers.

    `oom_text` is a message of the recorded PyTorch, by whose wording ours go (allocator_text.py).
    `host_now_ns` is the calling thread's virtual present and `wait_until_ns` blocks it, as an event's synchronize does;
    both are asked only for blocks that a second stream used. By default such work has always ended. Settings are read
    from the environment at the first allocation, as PyTorch does, unless given.
    """

    def __init__(
        self,
        device: int,
        capacity_bytes: int,
        outside_bytes: int = 0,
        oom_text: str = TODAY,
        *,
        host_now_ns: Callable[[], int] = _always_done,
        wait_until_ns: Callable[[int], None] = _wait_for_nothing,
        settings: Settings | None = None,
    ) -> None:
        self.device = device
        self._oom_text = oom_text
        self._host_now_ns = host_now_ns
        self._wait_until_ns = wait_until_ns
        self._tallies = Tallies()
        self._segments = Segments(device, capacity_bytes, outside_bytes, self._tallies)
        self._small: dict[int, Pool] = {}  # by stream
        self._large: dict[int, Pool] = {}
        self._oversize_blocks, self._oversize_segments = Quantity(), Quantity()  # only their large pools' counts
        self._large_searches = 0  # counted only while garbage is collected
        self._retries = self._ooms = self._syncs = 0
        self._excused_ooms = 0
        self._earlier_ooms = self._most_allocated_bytes = self._most_reserved_bytes = 0  # before the script reset its figures
        self._turn = [1]  # Note [Frees that come at any time]
        self._postponed: list[Block] = []
        self._waiting: list[tuple[int, Block]] = []  # (when the other streams are done with it, block)
        self._next_ready_ns = 0  # the least of those times
        self.history: History | None = None
        self.oom_observers: list[OomObserver] = []
        self._settings: Settings | None = None
        self._plain = False  # settings have been read, and all of them leave `malloc` to its fixed rules
        if settings is not None:
            self.apply(settings)

    def free(self, block: Block) -> None:
        raise NotImplementedError

    def _put_back(self, block: Block) -> None:
        raise NotImplementedError

    # -- turns and settings --------------------------------------------------------------------------------------------

    def _wait_for_turn(self) -> None:
        deadline_ns = time.monotonic_ns() + _TURN_LIMIT_NS
        while time.monotonic_ns() < deadline_ns:
            time.sleep(0)  # let the other thread run
            if self._turn:
                try:
                    self._turn.pop()
                    return
                except IndexError:
                    continue  # a third thread was faster
        raise RuntimeError("device memory is stuck: did a finalizer ask for memory in the middle of an allocation?")

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Alone with the allocator, after all frees that had to be postponed."""
        while self._postponed:
            self.free(self._postponed.pop())
        self._wait_for_turn()
        try:
            yield
        finally:
            self._turn.append(1)

    @property
    def settings(self) -> Settings:
        """Those in force; read from the environment if nothing has been allocated yet."""
        return self._settings or self.apply(settings_of_environment())

    def apply(self, settings: Settings) -> Settings:
        """From now on; blocks that are handed out stay as they are."""
        self._settings = settings
        self._plain = settings.are_plain
        for line in settings.not_emulated:
            warnings.warn(line, NotEmulatedWarning, stacklevel=2)
        if settings.memory_fraction is not None:
            self.set_memory_fraction(settings.memory_fraction)
        return settings

    def set_memory_fraction(self, fraction: float) -> None:
        self._segments.allowed_bytes = int(fraction * self._segments.capacity_bytes)

    def _round_up(self, size_bytes: int) -> int:
        settings = self.settings
        size = settings.round_up(size_bytes)
        if size > SMALL_BYTES and self._collects_garbage(settings):
            self._large_searches += 1
        return size

    def _is_oversize(self, size: int) -> bool:
        return self._settings is not None and size >= self._settings.max_split_bytes

    def _suits(self, block: Block, size: int) -> bool:
        """With max_split_size: no oversize block for a small request, and little waste for an oversize one."""
        if self._settings is None:
            return True
        if self._is_oversize(size):
            return block.size_bytes < size + self._settings.max_non_split_rounding_bytes
        return not self._is_oversize(block.size_bytes)

    def _new_pool(self, size: int, stream: int) -> Pool:
        if size <= SMALL_BYTES:
            pool = self._small[stream] = Pool(self._tallies.small, stream, split_from_bytes=BLOCK_BYTES)
        else:  # the remainder must be more than 1 MiB
            pool = self._large[stream] = Pool(self._tallies.large, stream, split_from_bytes=SMALL_BYTES + BLOCK_BYTES)
        return pool

    # -- blocks that other streams use ---------------------------------------------------------------------------------

    def _wait_for_users(self, block: Block) -> None:
        ready_ns = max(stream.ready_ns for stream in (block.users or {}).values())
        block.users = None
        self._next_ready_ns = min(self._next_ready_ns, ready_ns) if self._waiting else ready_ns
        self._waiting.append((ready_ns, block))
        block.pool.tally.waiting.now += 1
        block.pool.tally.waiting_bytes.now += block.size_bytes

    def _free_waiting(self, now_ns: int | None = None) -> None:
        """Put back what other streams are done with, by now or by `now_ns`."""
        now_ns = self._host_now_ns() if now_ns is None else now_ns
        if now_ns < self._next_ready_ns:
            return
        waiting, self._waiting = self._waiting, []
        for ready_ns, block in waiting:
            if ready_ns > now_ns:
                self._waiting.append((ready_ns, block))
                continue
            block.pool.tally.waiting.now -= 1
            block.pool.tally.waiting_bytes.now -= block.size_bytes
            self._put_back(block)
        self._next_ready_ns = min((ready_ns for ready_ns, _ in self._waiting), default=0)

    # -- segments ------------------------------------------------------------------------------------------------------

    def _reserve(self, pool: Pool, size: int) -> int:
        """File a new segment for a request that fits nowhere, and say under which index. Raises OutOfMemory.

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
        block = self._segments.take(segment, pool)
        if block is None and self._release_oversize(pool, size, settings.max_split_bytes):
            block = self._segments.take(segment, pool)
        if block is None:
            self._release_cached()
            self._retries += 1
            block = self._segments.take(segment, pool)
        if block is None:
            self._ooms += 1
            if self.history is not None:
                self.history.oom(size, pool.stream, self._segments.free_bytes)
            raise self._out_of_memory(segment)
        if self._is_oversize(segment):
            self._oversize_segments.large.add(1)
        if self.history is not None:
            self.history.segment("segment_alloc", block.address, segment, pool.stream)
        return pool.add(block)

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
        if self.history is not None:
            self.history.segment("segment_free", block.address, block.size_bytes, block.pool.stream)
        self._segments.give_back(block)
        if self._is_oversize(block.size_bytes):
            self._oversize_segments.large.now -= 1

    def _release_cached(self) -> None:
        """Return all segments without a block in use, after waiting for the streams that still use let-go blocks."""
        self._syncs += 1
        if self._waiting:
            last_ns = max(ready_ns for ready_ns, _ in self._waiting)
            self._wait_until_ns(last_ns)
            self._free_waiting(last_ns)
        for pool in (*self._large.values(), *self._small.values()):
            for block in pool.whole_segments():
                self._release(block)

    def _release_oversize(self, pool: Pool, size: int, max_split_bytes: int) -> bool:
        """Return the least oversize block that is large enough, else the largest ones until they sum up to `size`."""
        if max_split_bytes == UNLIMITED:
            return False
        size = max(size, max_split_bytes)
        at = bisect_left(pool.keys, size << ADDRESS_BITS)
        if at < len(pool.blocks):
            self._release(pool.blocks[at])
            return True
        released_bytes = 0
        while released_bytes < size and pool.blocks and self._is_oversize(pool.blocks[-1].size_bytes):
            released_bytes += pool.blocks[-1].size_bytes
            self._release(pool.blocks[-1])
        return released_bytes >= size

    def _collects_garbage(self, settings: Settings) -> bool:
        return settings.garbage_collection_threshold > 0 and self._segments.allowed_bytes is not None

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
