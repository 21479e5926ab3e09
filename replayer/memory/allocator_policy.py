"""What the caching allocator does rarely: apply settings, keep a history, wait for streams.

`AllocatorSegments` adds how it comes to memory, `AllocatorAnswers` what a script asks, and `DeviceMemory` the
two calls that every tensor makes.

    memory = DeviceMemory(device=0, capacity_bytes=16 << 30, outside_bytes=400 << 20)
    memory.apply(parse_settings("max_split_size_mb:128"))
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from replayer.errors import NotEmulatedWarning
from replayer.memory.blocks import Block, Pool
from replayer.memory.expandable_segments import ExpandableSegments
from replayer.memory.history import History
from replayer.memory.oom import OomObserver
from replayer.memory.oom_text import TODAY
from replayer.memory.segments import Segments
from replayer.memory.settings import BLOCK_BYTES, MIB, UNLIMITED, Settings, settings_of_environment
from replayer.memory.stats import MemoryStats, Quantity

SMALL_BYTES = MIB  # the largest block of the small pools
_TURN_LIMIT_NS = 10 * 10**9


def _always_done() -> int:
    return UNLIMITED


def _wait_for_nothing(time_ns: int) -> None:
    pass


class AllocatorPolicy:
    """`outside_bytes` is what the process holds on the device beside PyTorch: CUDA context, NCCL buffers.

    `oom_text` is a message of the recorded PyTorch, by whose wording ours go (oom_text.py).
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
        self._tallies = MemoryStats()
        self._segments = Segments(device, capacity_bytes, outside_bytes, self._tallies)
        self._expandable = ExpandableSegments(self._segments, self._note_segment)
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
        self._history: History | None = None
        self.oom_observers: list[OomObserver] = []
        self._settings: Settings | None = None
        self._expands = False  # new memory comes in expandable segments
        self._plain = False  # nobody keeps a history, settings have been read, and they leave `malloc` to its fixed rules
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
        self._expands = settings.expandable_segments
        self._decide()
        for pool in self._large.values():
            pool.split_from_bytes = self._large_split_bytes()
        for line in settings.not_emulated:
            warnings.warn(line, NotEmulatedWarning, stacklevel=2)
        if settings.memory_fraction is not None:
            self.set_memory_fraction(settings.memory_fraction)
        return settings

    def _decide(self) -> None:
        self._plain = self._history is None and self._settings is not None and self._settings.are_plain

    @property
    def history(self) -> History | None:
        """What is told of everything that the allocator does, if anybody wants to know."""
        return self._history

    @history.setter
    def history(self, history: History | None) -> None:
        self._history = history
        self._decide()

    def _note_alloc(self, block: Block) -> None:
        if self._is_oversize(block.size_bytes):
            self._oversize_blocks.large.add(1)
        if self._history is not None:
            self._history.alloc(block)

    def _note_free(self, block: Block) -> None:
        if self._is_oversize(block.size_bytes):
            self._oversize_blocks.large.now -= 1
        if self._history is not None:
            self._history.free_requested(block)

    def _note_segment(self, action: str, address: int, size_bytes: int, stream: int) -> None:
        if self._history is not None:
            self._history.segment(action, address, size_bytes, stream)

    def set_memory_fraction(self, fraction: float) -> None:
        self._segments.allowed_bytes = int(fraction * self._segments.capacity_bytes)

    def _round_up(self, size_bytes: int) -> int:
        settings = self.settings
        size = settings.round_up(size_bytes)
        if size > SMALL_BYTES and self._collects_garbage(settings):
            self._large_searches += 1
        return size

    def _collects_garbage(self, settings: Settings) -> bool:
        return settings.garbage_collection_threshold > 0 and self._segments.allowed_bytes is not None

    def _is_oversize(self, size: int) -> bool:
        return self._settings is not None and size >= self._settings.max_split_bytes

    def _stays_whole(self, size: int) -> bool:
        """Whether a block may not be split for this request; with expandable segments all may. Reference: should_split."""
        return self._is_oversize(size) and not self._expands

    def _suits(self, block: Block, size: int) -> bool:
        """With max_split_size: no oversize block for a small request, and little waste for an oversize one."""
        if self._settings is None:
            return True
        if self._is_oversize(size):
            return block.size_bytes < size + self._settings.max_non_split_rounding_bytes
        return not self._is_oversize(block.size_bytes)

    def _new_pool(self, size: int, stream: int) -> Pool:
        if size <= SMALL_BYTES:
            pool = self._small[stream] = Pool(self._tallies.small, stream, BLOCK_BYTES, small=True)
        else:
            pool = self._large[stream] = Pool(self._tallies.large, stream, self._large_split_bytes())
        return pool

    def _large_split_bytes(self) -> int:
        """The least remainder of a large block that is split off: more than 1 MiB, unless there are expandable segments."""
        return BLOCK_BYTES if self._expands else SMALL_BYTES + BLOCK_BYTES

    # -- blocks that other streams use ---------------------------------------------------------------------------------

    def _wait_for_users(self, block: Block) -> None:
        ready_ns = max(stream.ready_ns for stream in (block.users or {}).values())
        block.users = None
        self._next_ready_ns = min(self._next_ready_ns, ready_ns) if self._waiting else ready_ns
        self._waiting.append((ready_ns, block))
        block.pool.stats.waiting.now += 1
        block.pool.stats.waiting_bytes.now += block.size_bytes

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
            block.pool.stats.waiting.now -= 1
            block.pool.stats.waiting_bytes.now -= block.size_bytes
            self._put_back(block)
        self._next_ready_ns = min((ready_ns for ready_ns, _ in self._waiting), default=0)
