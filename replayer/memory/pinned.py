"""Pinned host memory: PyTorch's caching host allocator over memory that is really allocated and really page-locked.

What studies of data loading measure is real here: the first batches pay for getting and locking pages, later ones find
a free block; sizes are rounded up to powers of two; and a block that an asynchronous copy reads is not handed out again
before that copy's virtual end. The rules are those of ATen/core/CachingHostAllocator.h.

    memory = HostMemory(PageLocks(), is_done=gpu.query_event)
    lease = memory.allocate(77_070_336)        # a memoryview of it; 128 MiB are locked
    del lease                                  # the block is free, and stays locked for the next one

Note [Leases]
    A block's lease is the object that a tensor's storage keeps alive. When the last storage, view or numpy array on it is
    gone, Python finalizes the lease, in whatever thread and in the midst of whatever. So a finalizer only notes; what it
    noted is settled when the allocator is next asked for anything, as CUDA's events are.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable
from typing import Any

from replayer.memory.page_locks import PageLocks
from replayer.memory.pinned_stats import HostStats
from replayer.timing.stream import VirtualEvent, VirtualStream


class HostBlock:
    """One piece of host memory from the system; `size_bytes` is rounded, `locked` says whether its pages are."""

    __slots__ = ("address", "event", "locked", "memory", "size_bytes", "streams")

    def __init__(self, size_bytes: int) -> None:
        # Private: a forked worker must not write into its parent's batches.
        self.memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.size_bytes = size_bytes
        self.locked = False
        self.streams: set[VirtualStream] = set()  # whose asynchronous copies use it
        self.event: VirtualEvent | None = None  # after which it may be handed out again


class HostMemory:
    """The pinned memory of one process.

    `is_done` tells of an event whether the device has passed it.
    """

    def __init__(self, locks: PageLocks, is_done: Callable[[VirtualEvent], bool]) -> None:
        self.locks = locks
        self._is_over = is_done
        self._lock = threading.Lock()
        self._returned: deque[HostBlock] = deque()  # freed, perhaps still in use by a copy; oldest first
        self._free: dict[int, list[HostBlock]] = {}  # by size
        self._ranges: dict[int, tuple[int, HostBlock | None]] = {}  # address -> size, block; None: registered by the script
        self._addresses: list[int] = []  # the keys of `_ranges`, sorted
        self.stats = HostStats()

    # --- memory of our own

    def allocate(self, size_bytes: int) -> memoryview:
        """Pinned memory of exactly this size, writable; given back when nothing refers to it. See Note [Leases].

        Raises OSError if the system has no such memory.
        """
        rounded_bytes = 1 << (size_bytes - 1).bit_length()
        with self._lock:
            self._settle()
            free = self._free.get(rounded_bytes)
            block = free.pop() if free else None
            if block is not None:
                self.stats.handed_out(rounded_bytes)
        if block is None:
            block = self._new(rounded_bytes)
        lease = memoryview(block.memory)[:size_bytes]
        weakref.finalize(lease, self._give_back, block).atexit = False
        return lease

    def _new(self, size_bytes: int) -> HostBlock:
        """A block from the system. Without the lock: other threads need not wait until its pages are there."""
        began_ns = time.perf_counter_ns()
        block = HostBlock(size_bytes)
        block.locked = self.locks.lock(block.address, size_bytes)
        took_ns = time.perf_counter_ns() - began_ns
        with self._lock:
            self._add_range(block.address, size_bytes, block)
            self.stats.grown(size_bytes, took_ns, block.locked)
            self.stats.handed_out(size_bytes)
        return block

    def _give_back(self, block: HostBlock) -> None:
        """The finalizer of a lease."""
        if block.streams:
            # Work that was noted but not yet played may be missing here; the copies themselves never are.
            block.event = VirtualEvent()
            block.event.time_ns = max(stream.ready_ns for stream in block.streams)
            block.streams = set()
        self._returned.append(block)

    def _settle(self) -> None:
        """Make free what has been given back, up to the first block that a copy still uses. Under the lock."""
        returned = self._returned
        while returned and ((event := returned[0].event) is None or self._is_over(event)):
            block = returned.popleft()
            block.event = None
            self._free.setdefault(block.size_bytes, []).append(block)
            self.stats.taken_back(block.size_bytes)

    def empty_cache(self) -> None:
        """Give free blocks back to the system (torch.accelerator.empty_host_cache)."""
        with self._lock:
            self._settle()
            blocks = [block for free in self._free.values() for block in free]
            self._free.clear()
            for block in blocks:
                self._remove_range(block.address)
        for block in blocks:
            began_ns = time.perf_counter_ns()
            if block.locked:
                self.locks.unlock(block.address, block.size_bytes)
            took_ns = time.perf_counter_ns() - began_ns
            with self._lock:
                self.stats.shrunk(block.size_bytes, took_ns, block.locked)
        # The memory goes with the last reference to it, for a lease may still be in the midst of its end.

    # --- memory that the script brings (cudaHostRegister)

    def register(self, address: int, size_bytes: int) -> bool:
        """Lock memory of the script's own and call it pinned. False if some of it is pinned already."""
        with self._lock:
            i = bisect_right(self._addresses, address + size_bytes - 1)
            if i and self._addresses[i - 1] + self._ranges[self._addresses[i - 1]][0] > address:
                return False
            self._add_range(address, size_bytes, None)
        self.locks.lock(address, size_bytes)
        return True

    def unregister(self, address: int) -> bool:
        """Undo `register`. False if nothing was registered there."""
        with self._lock:
            size_bytes, block = self._ranges.get(address, (0, None))
            if not size_bytes or block is not None:
                return False
            self._remove_range(address)
        self.locks.unlock(address, size_bytes)
        return True

    # --- questions

    def holds(self, address: int) -> bool:
        """Whether this address lies in pinned memory."""
        return self._find(address) is not None

    def use(self, address: int, stream: VirtualStream) -> None:
        """An asynchronous copy on `stream` uses the memory there: its block is not handed out again before that is over."""
        found = self._find(address)
        if found is not None and found[1] is not None:
            found[1].streams.add(stream)

    def statistics(self) -> dict[str, Any]:
        """What `torch.cuda.host_memory_stats_as_nested_dict` gives."""
        with self._lock:
            self._settle()
            return self.stats.as_dict()

    def _find(self, address: int) -> tuple[int, HostBlock | None] | None:
        if not self._addresses:
            return None
        with self._lock:
            i = bisect_right(self._addresses, address)
            start = self._addresses[i - 1] if i else address
            size_bytes, block = self._ranges.get(start, (0, None))
            return (size_bytes, block) if address < start + size_bytes else None

    def _add_range(self, address: int, size_bytes: int, block: HostBlock | None) -> None:
        insort(self._addresses, address)
        self._ranges[address] = size_bytes, block

    def _remove_range(self, address: int) -> None:
        del self._addresses[bisect_right(self._addresses, address) - 1]
        del self._ranges[address]
