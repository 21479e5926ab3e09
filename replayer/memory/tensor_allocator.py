"""Allocates GPU memory for tensors.

    allocator = TensorAllocator(memory)
    handle = allocator.malloc(4096, stream=0)
    handle.address
    allocator.free(handle)
    allocator.flush().allocated_bytes     # the memory, with all frees executed

Note [Frees from finalizers]
    Python may free a tensor at any time, even during `malloc`. The method `free` therefore takes no lock and only queues the
    handle. The next call of `malloc` or `flush` frees the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch

from replayer.memory.allocation_cycles import NO_REQUEST, AllocationCycle, CycleDetector, Event, Expected, memory_rows
from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.blocks import UsedStream, stream_in_pool
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.device.request_log import RequestKind
from replayer.memory.op_rows import OpRows, UnresolvedOps
from traces.model.trace import Column

USE_CYCLES = True  # some tests and benchmarks set this constant to False
_MAX_STEP_EVENTS = 30_000  # only steps with at most this number of events are compared
_NO_CYCLE: list[Expected] = [([], NO_REQUEST, 0, None)]


class TensorAllocator:
    """Allocates memory for the tensors on one GPU. No other code may allocate from `memory`."""

    def __init__(
        self, memory: DeviceMemory, note: Callable[[Column, UnresolvedOps], None] | None = None, op_rows: OpRows | None = None
    ) -> None:
        self._memory = memory
        self._note = note
        self._op_rows = OpRows() if op_rows is None else op_rows
        self._begun = 0
        self._lock = threading.RLock()
        self._freed: list[AllocationHandle] = []  # Note [Frees from finalizers]
        self.free: Callable[[AllocationHandle], None] = self._freed.append
        self._events: list[Event] = []
        self._noted = 0  # number of events that were passed to `note`
        self._step_is_complete = True  # False if events are missing from `_events`
        self._detector = CycleDetector()
        self._cycle: AllocationCycle | None = None
        self._expected = _NO_CYCLE
        self._at = 0
        self._given_up: set[Hashable] = set()  # workspaces that did not fit into memory
        self._used_pools: list[tuple[int, int | None]] = []  # (private pool, thread that allocates from it)

    def malloc(self, size_bytes: int, stream: int) -> AllocationHandle | None:
        if self._used_pools:
            stream = self._in_pool(stream)
        with self._lock:
            frees, expected_bytes, expected_stream, handle = self._expected[self._at]
            if expected_bytes == size_bytes and expected_stream == stream and frees == self._freed:
                self._at += 1
                if frees:
                    del self._freed[: len(frees)]  # a finalizer may have appended more handles
                return handle
            return self._execute(size_bytes, stream) if size_bytes > 0 else None

    malloc_kept = malloc  # see region_memory.py

    def malloc_several(self, sizes_bytes: Sequence[int], stream: int) -> list[AllocationHandle | None]:
        """Allocate several sizes in order. If memory runs out, free them all."""
        made: list[AllocationHandle | None] = []
        with self._lock:
            try:
                for size_bytes in sizes_bytes:
                    made.append(self.malloc(size_bytes, stream))
            except OutOfMemory:
                for handle in filter(None, made):
                    self.free(handle)
                raise
        return made

    def _execute(self, size_bytes: int, stream: int) -> AllocationHandle:
        self._leave_cycle()
        if self._freed:
            self._execute_frees()
        memory = self._memory
        block = memory.malloc(size_bytes, stream)
        assert block is not None
        handle = AllocationHandle(self, size_bytes, stream, block)
        op = self._op_rows.launched_count() - self._begun
        self._events.append((handle, block.size_bytes, block.address, memory.usage.reserved_bytes, op))
        return handle

    def begin_pool(self, pool: int, thread: int | None) -> bool:
        """Let one thread, or all threads, allocate from a private memory pool. Return False if the pool is already in use."""
        if any(number == pool for number, _ in self._used_pools):
            return False
        self._used_pools.append((pool, thread))
        return True

    def end_pool(self, pool: int) -> bool:
        left = [used for used in self._used_pools if used[0] != pool]
        is_used, self._used_pools = len(left) < len(self._used_pools), left
        return is_used

    def _in_pool(self, stream: int) -> int:
        in_autograd = torch._C._current_graph_task_id() >= 0 and torch._C._is_multithreading_enabled()
        threads = (None, None if in_autograd else threading.get_ident())
        pools = (pool for pool, thread in reversed(self._used_pools) if thread in threads)
        return next((stream_in_pool(pool, stream) for pool in pools), stream)

    def try_malloc(self, size_bytes: int, stream: int, use: Hashable) -> AllocationHandle | None:
        # see Note [Failed convolution workspaces] in scratch_memory.py
        if use in self._given_up:
            return None
        try:
            handle = self.malloc(size_bytes, stream)
        except OutOfMemory:
            self.flush().counts.ignore_last_oom()  # cuDNN then uses a smaller workspace
            self._given_up.add(use)
            return None
        if self._memory.requests is not None:
            self._memory.requests.last_was_optional(use)
        return handle

    def report_frees(self, report: Callable[[int], None] | None) -> None:
        queue = self._freed.append

        def free(handle: AllocationHandle) -> None:
            if report is not None:
                report(handle.address)
            queue(handle)

        self.free = queue if report is None else free

    def record_stream(self, handle: AllocationHandle, stream: UsedStream) -> None:
        with self._lock:
            self.flush().record_stream(handle.block, stream)

    def flush(self) -> DeviceMemory:
        with self._lock:
            self.execute_pending()
            self._leave_cycle()
            self._forget_steps()
            return self._memory

    def execute_pending(self) -> None:
        with self._lock:
            if self._cycle is not None:
                done = self._cycle.events_so_far(self._at, self._freed)
                if done is not None:
                    self._note_rows(*self._cycle.take_rows(done))
                    return
                self._leave_cycle()
            self._execute_frees()
            self._note_events()

    def end_step(self) -> None:
        with self._lock:
            self.execute_pending()
            self._begun = self._op_rows.launched_count()
            if self._memory.requests is not None:
                self._memory.requests.add_event(RequestKind.STEP)
            if self._cycle is not None:
                if not self._cycle.is_step_end():
                    self._leave_cycle()
                elif self._cycle.repeat():
                    del self._freed[: len(self._expected[self._at][0])]
                    self._at = 0
                return
            if USE_CYCLES:
                self._cycle = self._detector.end_step(self._memory, self._events if self._step_is_complete else None)
                if self._cycle is not None:
                    self._expected = self._cycle.requests
            self._events, self._noted, self._step_is_complete = [], 0, True

    def _execute_frees(self) -> None:
        freed, memory, reserved_bytes = self._freed, self._memory, self._memory.usage.reserved_bytes
        op = self._op_rows.launched_count() - self._begun
        while freed:
            handle = freed.pop(0)
            block = handle.block
            self._events.append((handle, -block.size_bytes, block.address, reserved_bytes, op))
            memory.free(block)

    def _leave_cycle(self) -> None:
        if self._cycle is not None:
            cycle, at = self._cycle, self._at
            self._cycle, self._expected, self._at = None, _NO_CYCLE, 0
            frees = cycle.frees_taken(at)
            done = cycle.begins[at] + frees
            self._note_rows(*cycle.take_rows(done))
            cycle.catch_up(self._memory, done)
            del self._freed[:frees]
            self._forget_steps()

    def _forget_steps(self) -> None:
        self._detector.clear()
        self._events, self._noted, self._step_is_complete = [], 0, False

    def _note_events(self) -> None:
        events = self._events[self._noted :]
        self._noted = len(self._events)
        if self._note is not None and events:
            before_bytes = self._memory.usage.allocated_bytes - sum(event[1] for event in events)
            ops = np.array([event[4] for event in events], np.int64)
            self._note_rows(memory_rows(events, self._memory.device, before_bytes), ops)
        if self._noted > _MAX_STEP_EVENTS or not self._step_is_complete:
            self._events, self._noted, self._step_is_complete = [], 0, False

    def _note_rows(self, rows: Column, ops: Column) -> None:
        if self._note is not None and len(rows):
            self._note(rows, self._op_rows.with_offset(ops, self._begun))
