"""Tests that expandable segments follow PyTorch's rules, with figures that were calculated by hand. The rules are in
c10/cuda/CUDACachingAllocator.cpp, Note [Expandable Segments]."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from replayer.memory.device.blocks import Block
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.history import History
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.device.settings import MIB, parse_settings
from replayer.memory.tensor_allocator import TensorAllocator
from replayer.timing.stream import VirtualStream

GIB = 1 << 30
ON, OFF = "expandable_segments:True", ""


def memory_of(capacity_bytes: int = 16 * GIB, settings: str = ON, outside_bytes: int = 0) -> DeviceMemory:
    return DeviceMemory(0, capacity_bytes, outside_bytes, settings=parse_settings(settings))


def take(memory: DeviceMemory, size_bytes: int, stream: int = 0) -> Block:
    block = memory.malloc(size_bytes, stream)
    assert block is not None
    return block


@pytest.mark.parametrize(
    ("request_bytes", "mapped_bytes"),
    [(512, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB, 20 * MIB), (20 * MIB + 1, 40 * MIB), (41 * MIB, 60 * MIB)],
)
def test_expandable_segments_grow_in_pages_of_2_and_20_mib(request_bytes: int, mapped_bytes: int) -> None:
    memory = memory_of()
    take(memory, request_bytes)
    assert memory.usage.reserved_bytes == mapped_bytes
    assert memory.usage.stats()["segment"]["all"]["current"] == 0  # cudaMalloc allocated no segment.


def test_adjacent_blocks_share_a_page_and_only_missing_pages_are_mapped() -> None:
    """GIVEN a page of 20 MiB with 5 MiB free WHEN 10 MiB are requested THEN the new block uses these 5 MiB and one new page."""
    memory = memory_of()
    first, second = take(memory, 15 * MIB), take(memory, 10 * MIB)
    assert second.address == first.address + 15 * MIB
    assert memory.usage.reserved_bytes == 40 * MIB
    assert memory.usage.stats()["num_device_alloc"] == 2


def test_large_blocks_are_split_down_to_512_bytes() -> None:
    memory = memory_of()
    block = take(memory, 20 * MIB - 512)
    assert block.size_bytes == 20 * MIB - 512
    assert memory_of(settings=OFF).malloc(20 * MIB - 512, 0).size_bytes == 20 * MIB  # type: ignore[union-attr]


def growing_lengths(settings: str) -> DeviceMemory:
    """Allocate sequences that get longer from batch to batch, so no freed block is large enough for the next sequence."""
    memory = memory_of(settings=settings)
    for length in range(100, 200, 5):
        batch = [take(memory, length * size) for size in (512 << 10, 128 << 10, 300 << 10)]
        for block in batch:
            memory.free(block)
    return memory


def test_growing_batches_reserve_less_memory_with_expandable_segments() -> None:
    """GIVEN growing batches WHEN each batch is freed before the next one THEN one expandable segment grows with the largest
    batch. Plain segments accumulate from batch to batch. The largest batch has 195 x 940 KiB, which is 180 MiB in pages of 20
    MiB."""
    expandable, plain = growing_lengths(ON), growing_lengths(OFF)
    assert expandable.usage.peak_allocated_bytes == 195 * (940 << 10) <= plain.usage.peak_allocated_bytes
    assert expandable.usage.reserved_bytes == 180 * MIB
    assert plain.usage.reserved_bytes > 5 * expandable.usage.reserved_bytes


def test_a_program_that_fragments_its_memory_fits_with_expandable_segments_only() -> None:
    """GIVEN two freed blocks of 20 MiB, and 2 MiB in use in the first WHEN 38 MiB are requested THEN the request fits in one
    expandable segment. With plain segments, the device can get back only one of the two segments."""
    for settings, fits in ((ON, True), (OFF, False)):
        memory = memory_of(capacity_bytes=60 * MIB, settings=settings)
        first, second, _ = (take(memory, 20 * MIB) for _ in range(3))
        memory.free(first)
        memory.free(second)
        take(memory, 2 * MIB)
        if fits:
            assert take(memory, 38 * MIB).size_bytes == 38 * MIB
        else:
            with pytest.raises(OutOfMemory, match=r"Tried to allocate 38\.00 MiB"):
                memory.malloc(38 * MIB, 0)


def test_the_best_fitting_block_is_chosen_by_how_far_it_can_grow() -> None:
    """GIVEN free memory of 1.5 MiB that can grow, and a free block of 3 MiB that cannot WHEN 1.2 MiB are requested THEN the
    allocator uses the block of 3 MiB. The memory that can grow is kept for larger requests."""
    memory = memory_of()
    first = take(memory, 3 * MIB)
    start = first.address
    take(memory, 15 * MIB + MIB // 2)
    memory.free(first)
    assert take(memory, MIB + MIB // 5).address == start
    assert memory.usage.reserved_bytes == 20 * MIB


def test_empty_pages_are_unmapped_singly_and_are_the_first_to_be_mapped_again() -> None:
    """GIVEN three pages, of which only the last is in use WHEN the cache is emptied THEN two pages are unmapped. Later, these
    pages are mapped again at the same place."""
    memory = memory_of()
    first, last = take(memory, 45 * MIB), take(memory, 10 * MIB)
    memory.free(first)
    memory.empty_cache()
    assert memory.usage.reserved_bytes == 20 * MIB  # The page from 40 to 60 MiB remains. Its first 5 MiB are free.
    parts = memory.snapshot()
    assert [(part["address"], part["total_size"]) for part in parts] == [(first.address + 40 * MIB, 20 * MIB)]
    assert take(memory, 41 * MIB).address == first.address
    assert memory.usage.reserved_bytes == 60 * MIB
    assert len(memory.snapshot()) == 1
    memory.free(last)


def test_an_address_range_without_mapped_pages_is_released() -> None:
    memory = memory_of()
    block = take(memory, 3 * MIB)
    address = block.address
    memory.free(block)
    memory.empty_cache()
    assert memory.usage.reserved_bytes == 0 and memory.snapshot() == []
    assert memory.usage.stats()["num_device_free"] == 1
    assert take(memory, 30 * MIB, stream=5).address == address


def test_each_stream_and_size_class_has_a_separate_address_range() -> None:
    memory = memory_of()
    blocks = [take(memory, size, stream) for size in (512, 2 * MIB) for stream in (0, 7)]
    assert memory.usage.reserved_bytes == 44 * MIB
    starts = sorted(block.address for block in blocks)
    # Each range is 9/8 as large as the memory of the device.
    assert all(after - before >= 18 * GIB for before, after in pairwise(starts))


def test_empty_pages_of_other_streams_are_reused_when_memory_runs_out() -> None:
    """GIVEN pages cached for one stream WHEN another stream needs memory THEN the pages are unmapped and mapped again. This
    counts as a retry."""
    memory = memory_of(capacity_bytes=100 * MIB)
    memory.free(take(memory, 70 * MIB))
    take(memory, 60 * MIB, stream=7)
    assert memory.usage.reserved_bytes == 60 * MIB
    assert memory.usage.stats()["num_alloc_retries"] == 1


def test_an_out_of_memory_error_keeps_mapped_pages_and_names_the_segment_size() -> None:
    """GIVEN a device of 100 MiB, of which other processes use 10 MiB WHEN a script requests more than 80 MiB THEN the
    allocation fails with the message of a plain segment."""
    memory = memory_of(capacity_bytes=100 * MIB, outside_bytes=10 * MIB)
    kept = take(memory, 78 * MIB)
    with pytest.raises(OutOfMemory, match=r"Tried to allocate 20.00 MiB"):
        memory.malloc(3 * MIB, 0)
    assert memory.usage.reserved_bytes == 80 * MIB and memory.usage.stats()["num_ooms"] == 1
    take(memory, 2 * MIB)
    memory.free(kept)
    assert memory.usage.reserved_bytes == 80 * MIB


def test_expandable_segments_grow_only_if_a_whole_segment_fits_in_the_memory_fraction() -> None:
    """GIVEN a limit of 30 MiB, and a mapped page of 20 MiB WHEN the segment has to grow by 1 MiB THEN the allocation fails,
    because a segment of 20 MiB would exceed the limit."""
    memory = memory_of(capacity_bytes=100 * MIB)
    memory.set_memory_fraction(0.3)
    take(memory, 19 * MIB)
    with pytest.raises(OutOfMemory, match=r"30.00 MiB allowed"):
        memory.malloc(2 * MIB, 0)
    assert take(memory, 512).size_bytes == 512  # A small segment of 2 MiB is within the limit.


def test_a_small_request_uses_the_free_end_of_an_oversize_expandable_segment() -> None:
    memory = memory_of(settings="expandable_segments:True,max_split_size_mb:40")
    memory.free(take(memory, 60 * MIB))
    before = memory.usage.reserved_bytes
    small = take(memory, 5 * MIB)
    # The segment can grow at its end, so the small request uses the free memory at the end.
    assert memory.usage.reserved_bytes == before
    assert small.size_bytes == 5 * MIB
    assert memory.usage.stats()["oversize_allocations"]["allocated"] == 1


def test_garbage_is_collected_from_plain_segments_only() -> None:
    memory = memory_of(capacity_bytes=100 * MIB, settings="expandable_segments:True,garbage_collection_threshold:0.1")
    memory.set_memory_fraction(1.0)
    memory.free(take(memory, 30 * MIB))
    take(memory, 50 * MIB)
    assert memory.usage.stats()["num_device_free"] == 0


def test_expandable_segments_can_be_switched_off_temporarily() -> None:
    """GIVEN a free expandable block WHEN the setting is off THEN requests get plain segments. WHEN the setting is on again
    THEN requests get the expandable block."""
    memory = memory_of()
    memory.free(take(memory, 5 * MIB))
    memory.apply(parse_settings("expandable_segments:False"))
    plain = take(memory, 5 * MIB)
    assert [part["is_expandable"] for part in memory.snapshot()] == [True, False]
    memory.apply(parse_settings("expandable_segments:True"))
    memory.free(plain)
    take(memory, 5 * MIB)
    assert memory.usage.reserved_bytes == 40 * MIB
    memory.empty_cache()
    assert memory.usage.reserved_bytes == 20 * MIB


def test_a_block_can_use_memory_up_to_the_first_unmapped_page() -> None:
    """GIVEN a free block that begins 5 MiB after the start of a page of 20 MiB WHEN the later pages are unmapped THEN 15 MiB
    of the first page are free."""
    memory = memory_of()
    kept, freed = take(memory, 5 * MIB), take(memory, 60 * MIB)
    memory.free(freed)
    memory.empty_cache()
    assert memory.usage.reserved_bytes == 20 * MIB
    assert take(memory, 15 * MIB).address == kept.address + 5 * MIB
    assert memory.usage.reserved_bytes == 20 * MIB
    take(memory, 15 * MIB)
    assert memory.usage.reserved_bytes == 40 * MIB


def test_the_memory_history_lists_mapped_and_unmapped_pages() -> None:
    memory = memory_of()
    memory.history = History(None)
    first = take(memory, 15 * MIB)
    second = take(memory, 10 * MIB)
    memory.free(second)
    memory.empty_cache()
    found = [(e["action"], e["addr"] - first.address, e["size"]) for e in memory.history.entries if "segment" in e["action"]]
    page = 20 * MIB
    assert found == [("segment_map", 0, page), ("segment_map", page, page), ("segment_unmap", page, page)]
    assert all(abs(e["time_us"] * 1000 - time.time_ns()) < 60e9 for e in memory.history.entries)


def test_repeated_steps_with_expandable_segments_get_the_same_addresses() -> None:
    """GIVEN an allocator with expandable segments WHEN a step repeats THEN each repetition gets the addresses of the first
    step, and the total counts rise."""
    memory = memory_of()
    allocator = TensorAllocator(memory)
    seen = []
    for _ in range(12):
        handles = [allocator.malloc(size, 0) for size in (3 * MIB, 700, 30 * MIB)]
        seen.append([handle.address for handle in handles if handle is not None])
        for handle in handles:
            assert handle is not None
            allocator.free(handle)
        allocator.end_step()
    assert allocator._cycle is not None
    assert seen == [seen[0]] * 12
    assert allocator.flush().usage.stats()["allocation"]["all"]["allocated"] == 36


def test_large_pages_are_reserved_at_the_call_that_needs_them() -> None:
    """GIVEN pages of 64 MiB on a device of 100 MiB WHEN two streams each request 2 MiB THEN the second request runs out of
    memory."""
    for settings in ("large_segment_size_mb:64", "expandable_segments:True,large_segment_size_mb:64"):
        allocator = TensorAllocator(memory_of(capacity_bytes=100 * MIB, settings=settings))
        assert allocator.malloc(2 * MIB, 0) is not None
        with pytest.raises(OutOfMemory):
            allocator.malloc(2 * MIB, 7)


def test_an_expandable_segment_does_not_reuse_a_block_still_used_by_a_stream() -> None:
    now = [0]
    memory = DeviceMemory(0, GIB, host_now_ns=lambda: now[0], settings=parse_settings(ON))
    side = VirtualStream(0, 1)
    side.push(0, 0, 0, 1_000)
    block = take(memory, 19 * MIB)
    start = block.address
    memory.record_stream(block, side)
    memory.free(block)
    assert take(memory, 19 * MIB).address == start + 19 * MIB
    now[0] = 2_000
    assert take(memory, 10 * MIB).address == start


def test_the_allocator_raises_an_error_if_all_addresses_are_used_up() -> None:
    memory = memory_of(capacity_bytes=1 << 40)
    with pytest.raises(RuntimeError, match="no range of 1,236,950,581,248 free addresses is left"):
        for stream in range(10):
            memory.malloc(512, stream)
