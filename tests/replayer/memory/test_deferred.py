"""Putting allocations off must not be seen: the same blocks as at once, and out of memory at its own call."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.memory.caching_allocator import Block, DeviceMemory, OutOfMemory
from replayer.memory.deferred import AllocationHandle, DeferredAllocator
from replayer.memory.history import History
from replayer.memory.settings import Settings, parse_settings

MIB = 1 << 20

# (size, None): a malloc; (None, n): the n-th of the live allocations is freed
moves = st.lists(
    st.one_of(st.tuples(st.integers(1, 30 * MIB), st.none()), st.tuples(st.none(), st.integers(0, 40))), max_size=60
)


@given(moves, st.integers(0, 5))
def test_blocks_and_statistics_are_those_of_doing_everything_at_once(
    program: list[tuple[int | None, int | None]], look_every: int
) -> None:
    at_once, behind = DeviceMemory(0, 1 << 30), DeviceMemory(0, 1 << 30)
    allocator = DeferredAllocator(behind)
    blocks: list[Block] = []
    tickets: list[AllocationHandle] = []
    for i, (size, which) in enumerate(program):
        if size is not None:
            try:
                block = at_once.malloc(size, 0)
            except OutOfMemory:
                with pytest.raises(OutOfMemory):
                    allocator.malloc(size, 0)
                continue
            ticket = allocator.malloc(size, 0)
            assert block is not None and ticket is not None
            blocks.append(block)
            tickets.append(ticket)
        elif which is not None and which < len(blocks):
            at_once.free(blocks.pop(which))
            allocator.free(tickets.pop(which))
        if look_every and i % look_every == 0 and tickets:
            assert tickets[-1].address == blocks[-1].address
    allocator.settle()
    assert [ticket.address for ticket in tickets] == [block.address for block in blocks]
    assert behind.stats() == at_once.stats()


def test_out_of_memory_comes_at_the_allocation_that_does_not_fit() -> None:
    allocator = DeferredAllocator(DeviceMemory(0, 100 * MIB))
    held = [allocator.malloc(40 * MIB, 0), allocator.malloc(40 * MIB, 0)]
    with pytest.raises(OutOfMemory):
        allocator.malloc(40 * MIB, 0)
    assert held[0] is not None
    allocator.free(held[0])
    assert allocator.malloc(40 * MIB, 0) is not None


def test_most_allocations_are_put_off_while_the_device_has_room() -> None:
    memory = DeviceMemory(0, 16 << 30)
    allocator = DeferredAllocator(memory)
    allocator.malloc(MIB, 0)  # the first finds out how much room there is
    tickets = [allocator.malloc(MIB, 0) for _ in range(50)]
    assert memory.allocated_bytes == MIB
    allocator.settle()
    assert memory.allocated_bytes == 51 * MIB
    del tickets
    gc.collect()


def test_a_stream_that_uses_the_memory_too_is_waited_for() -> None:
    class Stream:
        number = 7
        ready_ns = 1_000

    memory = DeviceMemory(0, 1 << 30, host_now_ns=lambda: 0)
    allocator = DeferredAllocator(memory)
    ticket = allocator.malloc(MIB, 0)
    assert ticket is not None
    allocator.record_stream(ticket, Stream())
    address = ticket.address
    allocator.free(ticket)
    other = allocator.malloc(MIB, 0)
    assert other is not None and other.address != address


def test_a_limit_set_in_between_holds_at_the_very_next_call() -> None:
    """GIVEN much room WHEN the script limits its share of it THEN the allocation beyond fails at its own call, not later."""
    allocator = DeferredAllocator(DeviceMemory(0, 1 << 30, settings=Settings()))
    allocator.malloc(MIB, 0)
    allocator.look().set_memory_fraction(0.1)
    with pytest.raises(OutOfMemory):
        allocator.malloc(200 * MIB, 0)
    kept = [allocator.malloc(20 * MIB, 0) for _ in range(4)]  # 80 of the 102 MiB, and 2 for the first
    with pytest.raises(OutOfMemory):
        allocator.malloc(21 * MIB, 0)
    assert len(kept) == 4


def test_roundings_that_need_more_than_asked_are_reckoned_with() -> None:
    """Half as much again: GIVEN room for the sizes asked for but not for the rounded ones THEN the call fails itself."""
    allocator = DeferredAllocator(DeviceMemory(0, 1 << 30, settings=parse_settings("roundup_power2_divisions:2")))
    kept = [allocator.malloc(260 * MIB, 0), allocator.malloc(260 * MIB, 0)]  # 384 MiB each
    with pytest.raises(OutOfMemory):
        allocator.malloc(260 * MIB, 0)
    assert len(kept) == 2


def test_with_a_history_each_allocation_is_done_at_its_own_call() -> None:
    allocator = DeferredAllocator(DeviceMemory(0, 1 << 30, settings=Settings()))
    memory = allocator.look()
    memory.history = history = History(context=None)
    allocator.note_frees(history.let_go)
    ticket = allocator.malloc(MIB, 0)
    assert [entry["action"] for entry in history.entries] == ["segment_alloc", "alloc"]
    assert ticket is not None
    allocator.free(ticket)
    allocator.settle()
    assert [entry["action"] for entry in history.entries][2:] == ["free_requested", "free_completed"]
