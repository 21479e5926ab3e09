"""Allocations and frees noted now and done in batches: the way in which tensors use a device's memory.

    ledger = Ledger(memory)
    ticket = ledger.malloc(4096, stream=0)
    ledger.free(ticket)
    ledger.settle()         # both are done, in this order

Which block a tensor gets depends on the order of mallocs and frees alone, not on when they are worked out, so nobody can tell;
but done one after another they cost a third, for the allocator's code and lists stay in the processor's caches. Whoever wants
to see the memory settles the ledger first (`VirtualDevice.memory` does). Only running out of memory must happen at its
own call: so a malloc is put off only while even the worst case of all that is put off fits on the device.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from replayer.allocator import Block, DeviceMemory, UsedStream

_BATCH = 256
# What one put-off malloc can reserve beyond its own size: a whole segment for small requests, rounding for large ones.
_SEGMENT_BYTES = 20 << 20


class Ticket:
    """One allocation: `block` is None until it has been worked out."""

    __slots__ = ("block", "ledger", "size_bytes", "stream")

    def __init__(self, ledger: Ledger, size_bytes: int, stream: int) -> None:
        self.ledger = ledger
        self.size_bytes = size_bytes
        self.stream = stream
        self.block: Block | None = None

    @property
    def address(self) -> int:
        if self.block is None:
            self.ledger.settle()
        assert self.block is not None
        return self.block.address


class Ledger:
    """What is put off for one device's memory.

    `note` gets rows of a trace's memory table, flat: device, time (`now_ns` tells), bytes, address, total, reserved.
    """

    def __init__(
        self, memory: DeviceMemory, now_ns: Callable[[], int] = int, note: Callable[[list[int]], None] | None = None
    ) -> None:
        self._memory = memory
        self._now_ns = now_ns
        self._note = note
        self._rows: list[int] = []
        self._pending: deque[Ticket] = deque()  # a ticket's first entry is its malloc, the second its free
        # Frees a ticket. May be called from anywhere, a garbage collection included, for it only notes.
        self.free: Callable[[Ticket], None] = self._pending.append
        self._lock = threading.RLock()
        self._room_bytes = 0  # what is certainly left for mallocs to be put off

    def malloc(self, size_bytes: int, stream: int) -> Ticket | None:
        """Device memory for `stream`; None for 0 bytes. Raises OutOfMemory."""
        if size_bytes <= 0:
            return None
        ticket = Ticket(self, size_bytes, stream)
        pending = self._pending
        pending.append(ticket)
        self._room_bytes = room_bytes = self._room_bytes - size_bytes - _SEGMENT_BYTES
        if room_bytes < 0 or len(pending) > _BATCH:
            self.settle()
        return ticket

    def record_stream(self, ticket: Ticket, stream: UsedStream) -> None:
        """`stream` uses the memory too, so its end is waited for before it is used again."""
        self.settle()
        if ticket.block is not None:
            self._memory.record_stream(ticket.block, stream)

    def settle(self) -> None:
        """Do all that was put off. Raises OutOfMemory, which can only be the last malloc's."""
        pending = self._pending
        if not pending:
            return
        with self._lock:
            memory, rows = self._memory, self._rows
            malloc, free, extend, index, now_ns = memory.malloc, memory.free, rows.extend, memory.device, self._now_ns()
            held_bytes, reserved_bytes = memory.allocated_bytes, memory.reserved_bytes
            drivers_calls = memory.driver_calls
            try:
                while pending:
                    ticket = pending.popleft()
                    block = ticket.block
                    if block is None:
                        ticket.block = block = malloc(ticket.size_bytes, ticket.stream)
                        assert block is not None
                        size_bytes, address = block.size_bytes, block.address
                        if memory.driver_calls != drivers_calls:
                            drivers_calls, reserved_bytes = memory.driver_calls, memory.reserved_bytes
                    else:
                        size_bytes, address = -block.size_bytes, block.address
                        free(block)
                    held_bytes += size_bytes
                    extend((index, now_ns, size_bytes, address, held_bytes, reserved_bytes))
            finally:
                self._room_bytes = memory.free_bytes
                if self._note is not None:
                    self._note(rows)
                rows.clear()
