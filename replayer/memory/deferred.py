"""Allocations and frees noted now and done in batches: the way in which tensors use a device's memory.

    deferred = DeferredAllocator(memory)
    ticket = deferred.malloc(4096, stream=0)
    deferred.free(ticket)
    deferred.settle()         # both are done, in this order

Which block a tensor gets depends on the order of mallocs and frees alone, not on when they are worked out, so nobody can tell;
but done one after another they cost a third, for the allocator's code and lists stay in the processor's caches; and what
is done in every step alike need not be done at all (allocation_cycles.py). Whoever wants to see the memory asks for it here
(`look`; `VirtualDevice.memory` does). Only running out of memory must happen at its own call: so a malloc is put off only
while even the worst case of all that is put off fits on the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np

from replayer.memory.allocation_cycles import AllocationCycle, AllocationCycleCache
from replayer.memory.caching_allocator import Block, DeviceMemory, UsedStream
from traces.model import Column

_BATCH = 256
# What one put-off malloc can reserve beyond its own size: a whole segment for small requests, rounding for large ones.
_SEGMENT_BYTES = 20 << 20


class AllocationHandle:
    """One allocation: `at` is its address as far as that has been worked out, else 0. Made by `DeferredAllocator.malloc`.

    When it is freed it may be handed out again; `used` says that somebody has it.
    """

    __slots__ = ("at", "deferred", "size_bytes", "stream", "used")

    deferred: DeferredAllocator
    size_bytes: int
    stream: int
    at: int
    used: bool

    @property
    def address(self) -> int:
        self.deferred.settle()
        return self.at


class DeferredAllocator:
    """What is put off for one device's memory.

    `note` gets rows of a trace's memory table (device, 0, bytes, address, total, reserved) and their time, as `now_ns` tells.
    """

    def __init__(
        self, memory: DeviceMemory, now_ns: Callable[[], int] = int, note: Callable[[Column, int], None] | None = None
    ) -> None:
        self._memory = memory
        self._now_ns = now_ns
        self._note = note
        self._pending: list[AllocationHandle] = []  # a ticket's first entry is its malloc, the second its free
        self.note_free: Callable[[AllocationHandle], None] = self._pending.append  # the first half of `free`
        self._lock = threading.RLock()
        self._room_bytes = 0  # what is certainly left for mallocs to be put off
        self._blocks: dict[int, Block] = {}  # in use, by address
        self._rounds = AllocationCycleCache()
        self._round: AllocationCycle | None = None  # under way instead of the memory: see Note [Allocation cycles]
        self._coming: Iterator[AllocationHandle] = iter(())  # what the round's next requests get

    def malloc(self, size_bytes: int, stream: int) -> AllocationHandle | None:
        """Device memory for `stream`; None for 0 bytes. Raises OutOfMemory."""
        if size_bytes <= 0:
            return None
        ticket = next(self._coming, None)
        if ticket is None or ticket.used or ticket.size_bytes != size_bytes or ticket.stream != stream:
            return self._made(size_bytes, stream)
        ticket.used = True
        pending = self._pending
        pending.append(ticket)
        if len(pending) > _BATCH:
            self.settle()
        return ticket

    def _made(self, size_bytes: int, stream: int) -> AllocationHandle:
        """A request that is no part of a round: it may be the one that does not fit."""
        if self._round is not None:
            with self._lock:
                self.settle()
                self._catch_up()
        ticket = AllocationHandle()  # no __init__: it would double what a ticket costs
        ticket.deferred = self
        ticket.size_bytes = size_bytes
        ticket.stream = stream
        ticket.at = 0
        ticket.used = True
        pending = self._pending
        pending.append(ticket)
        self._room_bytes = room_bytes = self._room_bytes - size_bytes - _SEGMENT_BYTES
        if room_bytes < 0 or len(pending) > _BATCH:
            self.settle()
        return ticket

    def free(self, ticket: AllocationHandle) -> None:
        """Give the memory back. May be called from anywhere, a garbage collection included, for it only notes."""
        self.note_free(ticket)
        ticket.used = False  # last: another thread may be handed the ticket from here on

    def record_stream(self, ticket: AllocationHandle, stream: UsedStream) -> None:
        """`stream` uses the memory too, so its end is waited for before it is used again."""
        with self._lock:
            self.look().record_stream(self.block_of(ticket), stream)

    def block_of(self, ticket: AllocationHandle) -> Block:
        """The allocator's block behind a ticket that was not freed."""
        with self._lock:
            self.look()
            return self._blocks[ticket.at]

    def look(self) -> DeviceMemory:
        """The memory with all of it done. Its limits may be changed, so nothing is put off before they are known again."""
        with self._lock:
            self.settle()
            self._catch_up()
            self._rounds.spoil()
            self._room_bytes = 0
            return self._memory

    def note_frees(self, let_go: Callable[[int], None] | None) -> None:
        """Tell `let_go` the address of each block at the moment in which it is freed; None: no longer."""
        append = self._pending.append

        def told(ticket: AllocationHandle) -> None:
            if let_go is not None and ticket.at:
                let_go(ticket.at)
            append(ticket)

        self.note_free = append if let_go is None else told

    def end_step(self) -> None:
        """A step of the script has ended, after which another one like it may come."""
        with self._lock:
            self.settle()
            if self._round is None:
                self._round = self._rounds.end_step(self._memory)
                if self._round is not None:
                    self._coming = self._round.coming
            elif not self._round.end_step():
                self._catch_up()

    def _catch_up(self) -> None:
        if self._round is not None:
            done, self._round, self._coming = self._round, None, iter(())
            self._rounds.spoil()
            done.catch_up(self._memory, self._blocks)
            self._room_bytes = 0  # until `_do` has reckoned it

    def settle(self) -> None:
        """Do all that was put off. Raises OutOfMemory, which can only be the last malloc's."""
        pending = self._pending
        if not pending:
            return
        with self._lock:
            if self._round is not None:
                rows = self._round.follow(pending)
                if self._note is not None:
                    self._note(rows, self._now_ns())
                if not pending:
                    return
                self._catch_up()
            self._do(pending)

    def _do(self, pending: list[AllocationHandle]) -> None:
        memory, blocks = self._memory, self._blocks
        malloc, free = memory.malloc, memory.free
        asked: list[int] = []
        tickets: list[AllocationHandle] = []
        rows: list[tuple[int, int, int]] = []  # bytes, address, reserved bytes
        held_bytes, reserved_bytes, calls = memory.allocated_bytes, memory.reserved_bytes, memory.driver_calls
        done = 0
        try:
            while done < len(pending):  # a garbage collection may note more of them
                ticket = pending[done]
                done += 1
                address = ticket.at
                if address:
                    block = blocks.pop(address)
                    rows.append((-block.size_bytes, address, reserved_bytes))
                    asked.append(-address)
                    ticket.at = 0
                    free(block)
                else:
                    made = malloc(ticket.size_bytes, ticket.stream)
                    assert made is not None
                    ticket.at = address = made.address
                    blocks[address] = made
                    if memory.driver_calls != calls:
                        calls, reserved_bytes = memory.driver_calls, memory.reserved_bytes
                    asked.append(ticket.size_bytes)
                    rows.append((made.size_bytes, address, reserved_bytes))
                tickets.append(ticket)
        finally:
            del pending[:done]
            self._room_bytes = memory.sure_bytes
            if rows:
                table = np.empty((len(rows), 6), np.int64)
                table[:, 0], table[:, 1] = memory.device, 0
                table[:, [2, 3, 5]] = rows
                table[:, 4] = held_bytes + np.cumsum(table[:, 2])
                self._rounds.log.note(asked, tickets, table)
                if self._note is not None:
                    self._note(table, self._now_ns())
