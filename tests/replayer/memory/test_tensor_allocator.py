"""Tests that allocations of tensors have the blocks and figures of the underlying allocator, whenever tensors are freed."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.blocks import Block
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.history import History
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.device.settings import AllocatorSettings, parse_settings
from replayer.memory.tensor_allocator import TensorAllocator

MIB = 1 << 20

# (size, None) allocates memory, and (None, n) frees the n-th live allocation.
moves = st.lists(
    st.one_of(st.tuples(st.integers(1, 30 * MIB), st.none()), st.tuples(st.none(), st.integers(0, 40))), max_size=60
)


@given(moves, st.integers(0, 5))
def test_delayed_requests_give_the_same_blocks_and_statistics_as_immediate_requests(
    program: list[tuple[int | None, int | None]], read_every: int
) -> None:
    at_once, behind = DeviceMemory(0, 1 << 30), DeviceMemory(0, 1 << 30)
    allocator = TensorAllocator(behind)
    blocks: list[Block] = []
    handles: list[AllocationHandle] = []
    for i, (size, which) in enumerate(program):
        if size is not None:
            try:
                block = at_once.malloc(size, 0)
            except OutOfMemory:
                with pytest.raises(OutOfMemory):
                    allocator.malloc(size, 0)
                continue
            handle = allocator.malloc(size, 0)
            assert block is not None and handle is not None
            blocks.append(block)
            handles.append(handle)
        elif which is not None and which < len(blocks):
            at_once.free(blocks.pop(which))
            allocator.free(handles.pop(which))
        if read_every and i % read_every == 0 and handles:
            assert handles[-1].address == blocks[-1].address
    allocator.execute_pending()
    assert [handle.address for handle in handles] == [block.address for block in blocks]
    assert behind.usage.stats() == at_once.usage.stats()


@given(st.lists(st.lists(st.integers(0, 30 * MIB), max_size=4), max_size=6))
def test_a_batch_of_memory_requests_gives_the_same_result_as_single_requests(batches: list[list[int]]) -> None:
    """GIVEN steps that repeat and become a cycle, and one additional request in the last step THEN the addresses agree."""
    at_once, single = (TensorAllocator(DeviceMemory(0, 8 << 30)) for _ in range(2))
    for step in range(5):
        for sizes in [*batches, [step // 4 * MIB]]:
            ours = at_once.malloc_several(sizes, 0)
            theirs = [single.malloc(size, 0) for size in sizes]
            assert [one and one.address for one in ours] == [one and one.address for one in theirs]
            for allocator, handles in ((at_once, ours), (single, theirs)):
                for handle in filter(None, handles):
                    allocator.free(handle)
        at_once.end_step()
        single.end_step()
    assert at_once.flush().usage.stats() == single.flush().usage.stats()


def test_all_requests_of_a_call_are_undone_if_one_fails() -> None:
    allocator = TensorAllocator(DeviceMemory(0, 100 * MIB))
    with pytest.raises(OutOfMemory):
        allocator.malloc_several([40 * MIB, 40 * MIB, 40 * MIB], 0)
    assert allocator.flush().usage.allocated_bytes == 0


def test_out_of_memory_is_raised_at_the_allocation_that_does_not_fit() -> None:
    allocator = TensorAllocator(DeviceMemory(0, 100 * MIB))
    held = [allocator.malloc(40 * MIB, 0), allocator.malloc(40 * MIB, 0)]
    with pytest.raises(OutOfMemory):
        allocator.malloc(40 * MIB, 0)
    assert held[0] is not None
    allocator.free(held[0])
    assert allocator.malloc(40 * MIB, 0) is not None


def test_a_tensor_can_be_freed_during_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN an allocation WHEN a garbage collection frees a block during this allocation THEN the allocator takes the block
    back after the allocation."""
    memory = DeviceMemory(0, 16 << 30)
    allocator = TensorAllocator(memory)
    dying = allocator.malloc(512, 0)
    assert dying is not None
    reserve = memory._reserve

    def reserve_with_a_collection(*args: object) -> Block:
        allocator.free(dying)
        assert dying.block.in_use
        return reserve(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(memory, "_reserve", reserve_with_a_collection)
    allocator.malloc(5 * MIB, 0)
    assert allocator.flush().usage.stats()["allocation"]["all"]["current"] == 1
    assert not dying.block.in_use


def test_an_allocation_by_a_finalizer_during_an_allocation_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocation while the free lists are being changed raises an error instead of a deadlock."""
    memory = DeviceMemory(0, 16 << 30)
    allocator = TensorAllocator(memory)
    monkeypatch.setattr(memory, "_reserve", lambda *_: allocator.malloc(512, 0))
    with pytest.raises(RuntimeError, match="a finalizer requested GPU memory"):
        allocator.malloc(5 * MIB, 0)


def test_an_exception_of_a_signal_handler_leaves_the_allocator_unlocked() -> None:
    """Python may run a signal handler just after the allocator was locked."""
    allocator = TensorAllocator(DeviceMemory(0, 16 << 30))

    def interrupt(_frame: FrameType, event: str, called: Any) -> None:
        if event == "c_return" and called.__name__ == "acquire":
            raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(interrupt)
    with suppress(KeyboardInterrupt):
        allocator.malloc(512, 0)
    sys.setprofile(before)
    thread = threading.Thread(target=allocator.malloc, args=(512, 0), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_memory_used_by_a_second_stream_is_not_reused_before_it_ends() -> None:
    class Stream:
        own_number = 7
        ready_ns = 1_000

    memory = DeviceMemory(0, 1 << 30, host_now_ns=lambda: 0)
    allocator = TensorAllocator(memory)
    handle = allocator.malloc(MIB, 0)
    assert handle is not None
    allocator.record_stream(handle, Stream())
    address = handle.address
    allocator.free(handle)
    other = allocator.malloc(MIB, 0)
    assert other is not None and other.address != address


def test_a_memory_limit_applies_from_the_next_allocation() -> None:
    """GIVEN much free memory WHEN the script limits its share THEN the allocation that exceeds the limit fails."""
    allocator = TensorAllocator(DeviceMemory(0, 1 << 30, settings=AllocatorSettings()))
    allocator.malloc(MIB, 0)
    allocator.flush().set_memory_fraction(0.1)
    with pytest.raises(OutOfMemory):
        allocator.malloc(200 * MIB, 0)
    # These blocks have 80 of the allowed 102 MiB. The first block needed a segment of 2 MiB.
    kept = [allocator.malloc(20 * MIB, 0) for _ in range(4)]
    with pytest.raises(OutOfMemory):
        allocator.malloc(21 * MIB, 0)
    assert len(kept) == 4


def test_a_request_fits_if_its_rounded_size_fits() -> None:
    """GIVEN room for the requested size but not for its rounded size THEN the request fails."""
    allocator = TensorAllocator(DeviceMemory(0, 1 << 30, settings=parse_settings("roundup_power2_divisions:2")))
    kept = [allocator.malloc(260 * MIB, 0), allocator.malloc(260 * MIB, 0)]  # Each request is rounded to 384 MiB.
    with pytest.raises(OutOfMemory):
        allocator.malloc(260 * MIB, 0)
    assert len(kept) == 2


def test_allocations_are_not_delayed_while_a_memory_history_is_recorded() -> None:
    allocator = TensorAllocator(DeviceMemory(0, 1 << 30, settings=AllocatorSettings()))
    memory = allocator.flush()
    memory.history = history = History(context=None)
    allocator.report_frees(history.free_queued)
    handle = allocator.malloc(MIB, 0)
    assert [entry["action"] for entry in history.entries] == ["segment_alloc", "alloc"]
    assert handle is not None
    allocator.free(handle)
    allocator.execute_pending()
    assert [entry["action"] for entry in history.entries][2:] == ["free_requested", "free_completed"]


def test_a_thread_uses_its_private_memory_pool_until_it_leaves_the_pool() -> None:
    """GIVEN a thread's own pool inside a pool of all threads THEN this thread gets memory from its own pool."""
    memory = DeviceMemory(0, 16 << 30)
    allocator = TensorAllocator(memory)
    assert allocator.begin_pool(1, None) and allocator.begin_pool(2, threading.get_ident())
    assert not allocator.begin_pool(1, None) and not allocator.begin_pool(2, None)
    inner = allocator.malloc(MIB, 0)
    assert allocator.end_pool(2) and not allocator.end_pool(2)
    assert not allocator.begin_pool(1, None)  # This pool is still in use.
    outer = allocator.malloc(MIB, 0)
    assert allocator.end_pool(1) and not allocator.end_pool(1)
    usual = allocator.malloc(MIB, 0)
    assert inner is not None and outer is not None and usual is not None
    # Each pool has a separate segment of 2 MiB.
    assert len({handle.block.address >> 21 for handle in (inner, outer, usual)}) == 3
