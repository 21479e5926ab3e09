"""Reimplements PyTorch's ATen/core/CachingHostAllocator.h with real page-locked memory.

    memory = HostMemory(PageLocks(), has_passed=gpu_has_passed)
    view = memory.allocate(77_070_336)         # a memoryview; 128 MiB are locked
    del view                                   # the block is free, and stays locked for the next request

Note [Frees of pinned blocks]
    Python may free a block at any time and in any thread. The block's finalizer therefore only queues the block. The next
    request for pinned memory processes the queue.
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

from replayer.memory.device.blocks import UsedStream
from replayer.memory.pinned.page_locks import PageLocks
from replayer.memory.pinned.pinned_stats import HostStats, HostStatsDict


class HostBlock:
    __slots__ = ("address", "locked", "memory", "ready_ns", "size_bytes", "streams")

    def __init__(self, size_bytes: int) -> None:
        # forked DataLoader workers must not write to this memory
        self.memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.size_bytes = size_bytes
        self.locked = False
        self.streams: set[UsedStream] = set()
        self.ready_ns = 0


class HostMemory:
    def __init__(self, locks: PageLocks, has_passed: Callable[[int], bool]) -> None:
        self.locks = locks
        self._has_passed = has_passed
        self._lock = threading.Lock()
        self._returned: deque[HostBlock] = deque()
        self._free: dict[int, list[HostBlock]] = {}
        self._ranges: dict[int, tuple[int, HostBlock | None]] = {}  # address -> size, block (None if the script registered it)
        self._addresses: list[int] = []
        self.stats = HostStats()

    # --- allocated memory

    def allocate(self, size_bytes: int) -> memoryview:
        """Return writable pinned memory. Raises OSError if the machine has too little memory."""
        rounded_bytes = 1 << (size_bytes - 1).bit_length()
        with self._lock:
            self._process_returned()
            free = self._free.get(rounded_bytes)
            block = free.pop() if free else None
            if block is not None:
                self.stats.allocated(rounded_bytes)
        if block is None:
            block = self._new(rounded_bytes)
        view = memoryview(block.memory)[:size_bytes]
        weakref.finalize(view, self._give_back, block).atexit = False
        return view

    def _new(self, size_bytes: int) -> HostBlock:
        began_ns = time.perf_counter_ns()
        block = HostBlock(size_bytes)
        block.locked = self.locks.lock(block.address, size_bytes)
        took_ns = time.perf_counter_ns() - began_ns
        with self._lock:
            self._add_range(block.address, size_bytes, block)
            self.stats.block_added(size_bytes, took_ns)
            self.stats.allocated(size_bytes)
        return block

    def _give_back(self, block: HostBlock) -> None:
        if block.streams:
            block.ready_ns = max(stream.ready_ns for stream in block.streams)
            block.streams = set()
        self._returned.append(block)

    def _process_returned(self) -> None:
        """Make blocks in the queue available again. The caller must hold the lock."""
        returned = self._returned
        while returned and (not returned[0].ready_ns or self._has_passed(returned[0].ready_ns)):
            block = returned.popleft()
            block.ready_ns = 0
            self._free.setdefault(block.size_bytes, []).append(block)
            self.stats.freed(block.size_bytes)

    def empty_cache(self) -> None:
        with self._lock:
            self._process_returned()
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
                self.stats.block_removed(block.size_bytes, took_ns)

    # --- memory of the script (cudaHostRegister)

    def register(self, address: int, size_bytes: int) -> bool:
        """Pin memory of the script. Return False if it is already pinned."""
        with self._lock:
            i = bisect_right(self._addresses, address + size_bytes - 1)
            if i and self._addresses[i - 1] + self._ranges[self._addresses[i - 1]][0] > address:
                return False
            self._add_range(address, size_bytes, None)
        self.locks.lock(address, size_bytes)
        return True

    def unregister(self, address: int) -> bool:
        with self._lock:
            size_bytes, block = self._ranges.get(address, (0, None))
            if not size_bytes or block is not None:
                return False
            self._remove_range(address)
        self.locks.unlock(address, size_bytes)
        return True

    # --- queries

    def holds(self, address: int) -> bool:
        return self._find(address) is not None

    def use(self, address: int, stream: UsedStream) -> None:
        found = self._find(address)
        if found is not None and found[1] is not None:
            found[1].streams.add(stream)

    def statistics(self) -> HostStatsDict:
        with self._lock:
            self._process_returned()
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
