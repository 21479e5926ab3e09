"""Tests that the caching allocator follows each rule of PyTorch's c10/cuda/CUDACachingAllocator.cpp."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest

from replayer.memory.device.blocks import Block, TieRule
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.history import History
from replayer.memory.device.oom import OutOfMemory, size_text
from replayer.memory.device.settings import MIB, AllocatorSettings, parse_settings
from replayer.timing.stream import VirtualStream

GIB = 1 << 30
KIB = 1 << 10


def memory_of(capacity_bytes: int = 16 * GIB, settings: str = "", outside_bytes: int = 0) -> DeviceMemory:
    return DeviceMemory(0, capacity_bytes, outside_bytes, settings=parse_settings(settings))


def take(memory: DeviceMemory, size_bytes: int, stream: int = 0) -> Block:
    block = memory.malloc(size_bytes, stream)
    assert block is not None
    return block


@pytest.mark.parametrize(
    ("request_bytes", "block_bytes"), [(1, 512), (512, 512), (513, 1024), (MIB - 1, MIB), (MIB + 1, MIB + 512)]
)
def test_requests_are_rounded_up_to_512_bytes(request_bytes: int, block_bytes: int) -> None:
    assert take(memory_of(), request_bytes).size_bytes == block_bytes


def test_an_allocation_of_zero_bytes_returns_a_null_pointer() -> None:
    memory = memory_of()
    assert memory.malloc(0, 0) is None
    assert memory.usage.reserved_bytes == 0


@pytest.mark.parametrize(
    ("request_bytes", "segment_bytes"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_segment_sizes_depend_on_the_size_of_the_request(request_bytes: int, segment_bytes: int) -> None:
    memory = memory_of()
    assert take(memory, request_bytes).address % (2 * MIB) == 0
    assert memory.usage.reserved_bytes == segment_bytes


def test_small_and_large_blocks_never_share_a_segment() -> None:
    memory = memory_of()
    take(memory, 2 * MIB)
    take(memory, 512)
    assert memory.usage.reserved_bytes == 22 * MIB


def test_streams_never_share_a_segment() -> None:
    memory = memory_of()
    memory.free(take(memory, 512, stream=0))
    take(memory, 512, stream=7)
    assert memory.usage.reserved_bytes == 4 * MIB


@pytest.mark.parametrize(("left_bytes", "block_bytes"), [(MIB, 20 * MIB), (MIB + 512, 19 * MIB - 512)])
def test_large_blocks_are_split_only_if_more_than_1_mib_is_left(left_bytes: int, block_bytes: int) -> None:
    """GIVEN a cached segment of 20 MiB WHEN the script requests 19 MiB THEN the block keeps the last MiB."""
    memory = memory_of()
    memory.free(take(memory, 2 * MIB))
    block = take(memory, 20 * MIB - left_bytes)
    assert block.size_bytes == block_bytes
    assert memory.usage.allocated_bytes == block_bytes
    assert memory.usage.reserved_bytes == 20 * MIB


def test_small_blocks_are_split_down_to_512_bytes() -> None:
    memory = memory_of()
    first, last = take(memory, MIB), take(memory, MIB - 512)
    tail = take(memory, 512)
    assert (last.address, tail.address) == (first.address + MIB, first.address + 2 * MIB - 512)
    assert memory.usage.reserved_bytes == 2 * MIB


def test_the_smallest_sufficient_block_at_the_lowest_address_is_chosen() -> None:
    memory = memory_of()
    blocks = [take(memory, size) for size in (4096, 512, 2048, 512, 1024, 512, 1024, 512)]
    addresses = [block.address for block in blocks]
    for at in (6, 4, 2, 0):
        memory.free(blocks[at])
    assert take(memory, 1000).address == addresses[4]
    assert take(memory, 1024).address == addresses[6]
    assert take(memory, 513).address == addresses[2]


def test_free_neighbours_are_merged_on_both_sides() -> None:
    memory = memory_of()
    left, middle, right, _ = (take(memory, 512) for _ in range(4))
    for block in (left, right, middle):
        memory.free(block)
    assert take(memory, 1536).address == left.address
    assert memory.usage.stats()["inactive_split"]["all"]["current"] == 1


def test_free_blocks_of_a_segment_merge_into_one_block() -> None:
    memory = memory_of()
    blocks = [take(memory, 100 * KIB) for _ in range(5)]
    for at in (1, 3, 0, 4, 2):
        memory.free(blocks[at])
    assert memory.usage.stats()["inactive_split_bytes"]["all"]["current"] == 0
    memory.empty_cache()
    assert memory.usage.reserved_bytes == 0


def test_emptying_the_cache_keeps_segments_that_are_in_use() -> None:
    memory = memory_of()
    kept, dropped = take(memory, 4 * MIB), take(memory, 64 * MIB)
    take(memory, 4 * MIB)
    memory.free(kept)
    memory.free(dropped)
    memory.empty_cache()
    assert memory.usage.reserved_bytes == 20 * MIB
    assert memory.usage.driver_calls == 3  # The allocator took two segments and returned one.


def test_the_address_of_a_freed_segment_is_reused() -> None:
    memory = memory_of()
    first = take(memory, 10 * MIB)
    assert first.address == 0x7F7F_FE00_0000  # The segment begins 32 MiB below the top of the address space.
    memory.free(first)
    memory.empty_cache()
    assert take(memory, 10 * MIB).address == 0x7F7F_FE00_0000


@pytest.mark.parametrize(
    ("tie_rule", "of_segments", "of_parts"),
    [(TieRule.ADDRESS, "below", "below"), (TieRule.BLOCK_AGE, "above", "below"), (TieRule.SEGMENT_AGE, "above", "above")],
)
def test_the_pytorch_release_decides_which_of_two_free_blocks_is_used(
    tie_rule: TieRule, of_segments: str, of_parts: str
) -> None:
    """GIVEN two free blocks of equal size THEN the release decides by address or by age. CUDA places a second segment below
    the first."""
    memory = DeviceMemory(0, GIB, tie_rule=tie_rule, settings=AllocatorSettings())
    above, below = take(memory, 32 * MIB), take(memory, 32 * MIB)
    memory.free(below)
    memory.free(above)
    assert take(memory, 32 * MIB) is {"above": above, "below": below}[of_segments]

    memory = DeviceMemory(0, GIB, tie_rule=tie_rule, settings=AllocatorSettings())
    whole, below = take(memory, 96 * MIB), take(memory, 32 * MIB)
    memory.free(whole)
    above = take(memory, 32 * MIB)  # This block is new. The rest of the first segment is the old block.
    take(memory, 64 * MIB)
    memory.free(above)
    memory.free(below)
    assert take(memory, 32 * MIB) is {"above": above, "below": below}[of_parts]


def test_a_request_of_an_exabyte_fails_without_emptying_the_cache() -> None:
    """GIVEN cached memory WHEN a script requests an exabyte THEN PyTorch keeps the cached memory, and does not count the
    failure."""
    memory = memory_of()
    memory.free(take(memory, 30 * MIB))
    with pytest.raises(OutOfMemory, match=r"^CUDA out of memory\. Tried to allocate more than 1EB memory\.$"):
        memory.malloc(1 << 60, 0)
    stats = memory.usage.stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"], memory.usage.reserved_bytes) == (0, 0, 30 * MIB)


def test_a_full_device_returns_cached_segments_and_tries_again() -> None:
    memory = memory_of(100 * MIB)
    memory.free(take(memory, 60 * MIB))
    take(memory, 80 * MIB)
    stats = memory.usage.stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"], stats["num_device_free"]) == (1, 0, 1)
    assert memory.usage.reserved_bytes == 80 * MIB


def test_free_parts_of_segments_are_released_if_the_batch_is_known_to_fit() -> None:
    memory = memory_of(100 * MIB)
    large = take(memory, 90 * MIB)
    memory.free(large)
    kept = take(memory, 40 * MIB)  # This request splits the free block of 90 MiB.
    with pytest.raises(OutOfMemory):
        memory.malloc(60 * MIB, 0)
    memory.returns_pieces = True
    assert take(memory, 60 * MIB).size_bytes == 60 * MIB and memory.usage.reserved_bytes == 100 * MIB
    with pytest.raises(OutOfMemory):
        memory.malloc(MIB, 0)
    memory.free(kept)
    memory.empty_cache()
    assert memory.usage.reserved_bytes == 60 * MIB


def test_the_rest_of_a_partly_released_segment_becomes_separate_segments() -> None:
    memory = memory_of(100 * MIB)
    memory.free(take(memory, 90 * MIB))
    low, middle, high = (take(memory, 30 * MIB) for _ in range(3))
    memory.free(middle)
    memory.returns_pieces = True
    take(memory, 40 * MIB)
    assert (memory.usage.stats()["segment"]["all"]["current"], memory.usage.reserved_bytes) == (3, 100 * MIB)
    assert sorted(len(segment["blocks"]) for segment in memory.snapshot()) == [1, 1, 1]
    memory.free(low)
    memory.free(high)
    memory.empty_cache()
    assert (memory.usage.stats()["segment"]["all"]["current"], memory.usage.reserved_bytes) == (1, 40 * MIB)


def test_the_out_of_memory_message_contains_the_segment_size_and_all_figures() -> None:
    memory = memory_of(40 * MIB, outside_bytes=10 * MIB)
    take(memory, 2 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        memory.malloc(3 * MIB + 20 * MIB, 0)
    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 24.00 MiB. GPU 0 has a total capacity of 40.00 MiB of which 10.00 MiB is"
        " free. Including non-PyTorch memory, this process has 30.00 MiB memory in use. Of the allocated memory"
        " 2.00 MiB is allocated by PyTorch, and 18.00 MiB is reserved by PyTorch but unallocated. If reserved but"
        " unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation. "
        " See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )
    assert (memory.usage.stats()["num_ooms"], memory.usage.stats()["num_alloc_retries"]) == (1, 1)
    assert take(memory, 4 * MIB).address, "the allocator still works after it was full"


def test_a_request_of_3_mib_fails_if_its_segment_of_20_mib_does_not_fit() -> None:
    with pytest.raises(OutOfMemory, match=r"Tried to allocate 20\.00 MiB\."):
        memory_of(10 * MIB).malloc(3 * MIB, 0)


def test_a_memory_fraction_limits_the_memory_of_the_process() -> None:
    memory = memory_of(GIB)
    memory.set_memory_fraction(0.25)
    take(memory, 256 * MIB)
    with pytest.raises(OutOfMemory, match=r"memory in use\. 256\.00 MiB allowed; Of the allocated") as caught:
        memory.malloc(512, 0)
    assert caught.value.figures.free_bytes == 768 * MIB
    assert memory.usage.allowed_fraction == 0.25


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1024, "1024 bytes"), (1025, "1.00 KiB"), (MIB, "1024.00 KiB"), (GIB + 1, "1.00 GiB")],
)
def test_sizes_are_written_as_pytorch_writes_them(size: int, text: str) -> None:
    assert size_text(size) == text


# -- streams -----------------------------------------------------------------------------------------------------------


class Times:
    """Fakes a host whose time the tests set, and records how long the host had to wait."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.memory = DeviceMemory(
            0, 100 * MIB, host_now_ns=lambda: self.now_ns, wait_until_ns=self.wait, settings=AllocatorSettings()
        )

    def wait(self, time_ns: int) -> None:
        self.now_ns = max(self.now_ns, time_ns)


def test_a_block_used_by_another_stream_is_freed_when_its_work_ends() -> None:
    times = Times()
    side, early = VirtualStream(0, 1), VirtualStream(0, 2)
    side.wait(1_000)
    early.wait(400)
    block = take(times.memory, 512)
    for stream in (side, early):
        times.memory.record_stream(block, stream)
    times.memory.free(block)
    side.wait(5_000)  # Work that is queued after the block was freed does not delay its reuse.
    assert times.memory.usage.allocated_bytes == 0
    assert times.memory.usage.stats()["active_bytes"]["all"]["current"] == 512
    times.now_ns = 999
    assert take(times.memory, 512).address == block.address + 512
    times.now_ns = 1_000
    assert take(times.memory, 512).address == block.address


def test_record_stream_with_the_own_stream_of_a_block_does_not_delay_its_reuse() -> None:
    times = Times()
    own = VirtualStream(0, 0)
    own.wait(1_000)
    block = take(times.memory, 512)
    address = block.address
    times.memory.record_stream(block, own)
    times.memory.free(block)
    assert take(times.memory, 512).address == address


def test_the_peak_of_active_bytes_includes_blocks_waiting_for_a_stream() -> None:
    times = Times()
    side = VirtualStream(0, 1)
    side.wait(1_000)
    block = take(times.memory, 30 * MIB)
    times.memory.record_stream(block, side)
    times.memory.free(block)
    take(times.memory, 20 * MIB)
    stats = times.memory.usage.stats()
    assert stats["active_bytes"]["all"]["peak"] == 50 * MIB
    assert stats["allocated_bytes"]["all"]["peak"] == 30 * MIB
    times.now_ns = 1_000
    times.memory.free(take(times.memory, 512))
    times.memory.usage.reset_peak()
    assert times.memory.usage.stats()["active_bytes"]["all"] == {
        "current": 20 * MIB, "peak": 20 * MIB, "allocated": 50 * MIB + 512, "freed": 30 * MIB + 512
    }  # fmt: skip


def test_a_full_device_makes_the_host_wait_for_blocks_that_other_streams_use() -> None:
    times = Times()
    side = VirtualStream(0, 1)
    side.wait(7_000)
    block = take(times.memory, 60 * MIB)
    times.memory.record_stream(block, side)
    times.memory.free(block)
    take(times.memory, 80 * MIB)
    assert times.now_ns == 7_000
    assert times.memory.usage.stats()["num_sync_all_streams"] == 1


# -- settings ----------------------------------------------------------------------------------------------------------


def test_oversize_blocks_are_not_split_and_not_used_for_small_requests() -> None:
    memory = memory_of(settings="max_split_size_mb:32")
    big = take(memory, 40 * MIB)
    memory.free(big)
    small = take(memory, 12 * MIB)
    assert small.address != big.address
    assert take(memory, 36 * MIB).address == big.address, "20 MiB too large at most"
    stats = memory.usage.stats()
    assert (stats["max_split_size"], stats["oversize_allocations"]["current"]) == (32 * MIB, 1)


def test_an_oversize_block_is_not_used_if_it_would_waste_20_mib() -> None:
    memory = memory_of(settings="max_split_size_mb:32")
    memory.free(take(memory, 60 * MIB))
    take(memory, 40 * MIB)
    assert memory.usage.reserved_bytes == 100 * MIB


def test_a_full_device_first_returns_just_enough_oversize_blocks() -> None:
    memory = memory_of(200 * MIB, settings="max_split_size_mb:32")
    for block in [take(memory, size * MIB) for size in (40, 60, 90)]:
        memory.free(block)
    take(memory, 32 * MIB + 512)  # This request uses the block of 40 MiB.
    take(memory, 62 * MIB + 512 - 20 * MIB)  # This request uses the block of 60 MiB.
    take(memory, 110 * MIB - 20 * MIB)
    assert memory.usage.reserved_bytes == 190 * MIB
    with pytest.raises(OutOfMemory):
        memory.malloc(34 * MIB, 0)


def test_a_block_of_the_largest_split_size_is_oversize() -> None:
    memory = memory_of(settings="max_split_size_mb:32")
    block = take(memory, 32 * MIB)
    memory.free(block)
    stats = memory.usage.stats()
    assert (stats["oversize_segments"]["current"], stats["oversize_allocations"]["allocated"]) == (1, 1)
    assert take(memory, 30 * MIB).address != block.address
    assert take(memory, 32 * MIB).address == block.address
    memory.free(block)
    memory.empty_cache()
    assert memory.usage.stats()["oversize_segments"]["current"] == 0


def test_a_block_is_not_split_for_a_request_of_the_maximum_split_size() -> None:
    memory = memory_of(settings="max_split_size_mb:32")
    memory.free(take(memory, 40 * MIB))
    assert take(memory, 32 * MIB).size_bytes == 40 * MIB


@pytest.mark.parametrize(("cached_mib", "is_reused"), [(58, True), (60, False)])
def test_an_oversize_block_is_used_if_it_wastes_less_than_20_mib(cached_mib: int, is_reused: bool) -> None:
    memory = memory_of(settings="max_split_size_mb:32")
    memory.free(take(memory, cached_mib * MIB))
    take(memory, 40 * MIB)
    assert (memory.usage.reserved_bytes == cached_mib * MIB) is is_reused


def test_several_oversize_blocks_are_released_for_a_larger_request() -> None:
    """GIVEN a full device with free blocks of 20, 40, 40 and 60 MiB WHEN 80 MiB are requested THEN the allocator releases the
    blocks of 60 MiB and 40 MiB. No single block is large enough."""
    memory = memory_of(160 * MIB, settings="max_split_size_mb:32")
    for block in [take(memory, size * MIB) for size in (20, 40, 40, 60)]:
        memory.free(block)
    take(memory, 80 * MIB)
    assert memory.usage.reserved_bytes == (20 + 40 + 80) * MIB


def test_without_a_threshold_the_allocator_collects_no_garbage() -> None:
    memory = memory_of(200 * MIB)
    memory.set_memory_fraction(1.0)
    memory.free(take(memory, 60 * MIB))
    take(memory, 70 * MIB)
    assert memory.usage.reserved_bytes == 130 * MIB
    memory.apply(parse_settings("max_split_size_mb:64"))
    take(memory, 65 * MIB)
    assert memory.usage.reserved_bytes == 196 * MIB


@pytest.mark.parametrize(("limit_mib", "free_mib", "cached_mib"), [(50, 0, 50), (49, 49, 0), (None, 150, 50)])
def test_a_limit_below_the_reserved_memory_empties_the_cache(limit_mib: int | None, free_mib: int, cached_mib: int) -> None:
    memory = memory_of(200 * MIB)
    memory.free(take(memory, 50 * MIB))
    memory.limit_to(None if limit_mib is None else limit_mib * MIB)
    assert (memory.usage.free_bytes, memory.usage.reserved_bytes) == (free_mib * MIB, cached_mib * MIB)
    memory.limit_to(None)
    assert memory.usage.free_bytes == (200 - cached_mib) * MIB


def test_a_memory_limit_does_not_affect_other_programs() -> None:
    memory = memory_of(200 * MIB, outside_bytes=60 * MIB)
    memory.limit_to(190 * MIB)
    assert memory.usage.free_bytes == 140 * MIB


@pytest.mark.parametrize(
    ("request_bytes", "block_bytes"),
    [
        (100 * KIB, 104 * KIB),  # Sizes above 64 KiB are multiples of 64 KiB / 8.
        (65 * MIB, 72 * MIB),  # Sizes above 64 MiB are multiples of 64 MiB / 8.
        (130 * MIB, 130 * MIB),  # Sizes between 128 MiB and 256 MiB are not rounded.
        (300 * MIB, 320 * MIB),  # Sizes above 256 MiB are multiples of 256 MiB / 4.
        (600 * MIB, 768 * MIB),  # Sizes above 512 MiB are multiples of 512 MiB / 2.
        (200 * GIB, 256 * GIB),  # Sizes beyond the last given interval use the divisions of ">".
    ],
)
def test_the_number_of_divisions_depends_on_the_size_of_the_request(request_bytes: int, block_bytes: int) -> None:
    memory = memory_of(settings="roundup_power2_divisions:[64:8,256:4,>:2]")
    assert memory.settings.round_up(request_bytes) == block_bytes


@pytest.mark.parametrize("divisions", ["1", "4", "[131072:2]"])
def test_small_sizes_are_rounded_to_blocks_of_512_bytes(divisions: str) -> None:
    settings = parse_settings(f"roundup_power2_divisions:{divisions}")
    assert settings.round_up(1500) == 1536 and len(settings.power2_divisions) == 16


@pytest.mark.parametrize(
    ("request_bytes", "block_bytes"), [(1200 * MIB, 1280 * MIB), (GIB, GIB), (1700, 2048), (5 * MIB + 1, 6 * MIB)]
)
def test_sizes_are_rounded_to_fractions_of_powers_of_two(request_bytes: int, block_bytes: int) -> None:
    memory = memory_of(settings="roundup_power2_divisions:4")
    assert memory.settings.round_up(request_bytes) == block_bytes


def test_the_oldest_cached_segments_are_returned_before_the_limit_is_reached() -> None:
    """GIVEN a threshold of 100 MiB WHEN a new segment would exceed the threshold THEN the oldest cached segment is returned
    first."""
    memory = memory_of(200 * MIB, settings="garbage_collection_threshold:0.5,per_process_memory_fraction:1.0")
    old, young = take(memory, 60 * MIB), take(memory, 50 * MIB)
    memory.free(old)
    for _ in range(10):
        memory.free(young)
        young = take(memory, 50 * MIB)
    memory.free(young)
    take(memory, 70 * MIB)
    assert memory.usage.reserved_bytes == 120 * MIB
    assert memory.usage.stats()["num_alloc_retries"] == 0


def test_small_requests_do_not_age_cached_segments() -> None:
    """GIVEN two cached segments of the same age WHEN a new segment would exceed the threshold THEN both are returned. A small
    request between their frees does not make the first segment older."""
    memory = memory_of(200 * MIB, settings="garbage_collection_threshold:0.5,per_process_memory_fraction:1.0")
    first, second, _ = take(memory, 60 * MIB), take(memory, 50 * MIB), take(memory, 512)  # the small segment has 2 MiB
    memory.free(first)
    take(memory, 512)
    memory.free(second)
    take(memory, 70 * MIB)
    assert memory.usage.reserved_bytes == (70 + 2) * MIB


# -- threads, statistics and history -----------------------------------------------------------------------------------


def test_a_block_cannot_be_freed_twice() -> None:
    memory = memory_of()
    block = take(memory, 512)
    memory.free(block)
    with pytest.raises(ValueError, match="0x7f7ffe000000 was freed twice"):
        memory.free(block)


def test_threads_share_one_allocator() -> None:
    """GIVEN threads that allocate and free concurrently WHEN all threads have ended THEN no memory is lost or still
    allocated."""
    memory = memory_of()

    def work(turn: Callable[[], Block]) -> None:
        for _ in range(300):
            blocks = [turn() for _ in range(5)]
            for block in blocks:
                memory.free(block)

    sizes = (512, 7000, 3 * MIB, 21 * MIB)
    threads = [threading.Thread(target=work, args=(partial(take, memory, size),)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = memory.usage.stats()
    assert stats["allocated_bytes"]["all"]["current"] == stats["inactive_split_bytes"]["all"]["current"] == 0
    assert stats["allocation"]["all"]["allocated"] == 4 * 300 * 5
    memory.empty_cache()
    assert memory.usage.reserved_bytes == 0


def test_memory_use_does_not_grow_over_many_steps() -> None:
    memory = memory_of()
    for _ in range(3):
        for block in [take(memory, size) for size in (512, 3 * MIB, 64 * MIB, 700 * KIB)]:
            memory.free(block)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200):
        for block in [take(memory, size) for size in (512, 3 * MIB, 64 * MIB, 700 * KIB)]:
            memory.free(block)
    gc.collect()
    assert len(gc.get_objects()) - before < 50


def test_resetting_memory_statistics_restarts_them() -> None:
    memory = memory_of()
    first, second = take(memory, 3 * MIB), take(memory, 100)
    memory.free(first)
    memory.usage.reset_peak()
    memory.usage.reset_accumulated()
    memory.free(second)
    stats = memory.usage.stats()
    assert stats["allocated_bytes"]["all"] == {"current": 0, "peak": 512, "allocated": 0, "freed": 512}
    assert stats["requested_bytes"]["small_pool"] == {"current": 0, "peak": 100, "allocated": 0, "freed": 100}
    assert stats["allocation"]["large_pool"] == {"current": 0, "peak": 0, "allocated": 0, "freed": 0}


def test_settings_are_read_from_the_environment_at_the_first_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = DeviceMemory(0, GIB)
    monkeypatch.setitem(os.environ, "PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    take(memory, 512)
    assert memory.usage.stats()["max_split_size"] == 64 * MIB


def test_a_block_of_the_maximum_split_size_counts_as_oversize_while_in_use() -> None:
    memory = memory_of(settings="max_split_size_mb:32")
    counts = []
    for size_bytes in (32 * MIB, 30 * MIB):
        block = take(memory, size_bytes)
        counts.append(memory.usage.stats()["oversize_allocations"]["current"])
        memory.free(block)
        counts.append(memory.usage.stats()["oversize_allocations"]["current"])
    assert counts == [1, 0, 0, 0]


@pytest.mark.parametrize("ready_ns", [(100, 300), (300, 100)])
def test_a_block_used_on_other_streams_is_freed_when_those_streams_are_done(ready_ns: tuple[int, int]) -> None:
    now_ns = 0
    memory = DeviceMemory(0, GIB, host_now_ns=lambda: now_ns)
    blocks = [take(memory, 30 * MIB) for _ in ready_ns]
    for number, (block, at_ns) in enumerate(zip(blocks, ready_ns, strict=True), start=1):
        stream = VirtualStream(0, number)
        stream.wait(at_ns)
        memory.record_stream(block, stream)
        memory.free(block)
    reused = []
    for now_ns in (99, 100, 299, 300):  # noqa: B007 -- which the lambda reads
        reused.append(take(memory, 30 * MIB).address in {block.address for block in blocks})
    assert reused == [False, True, False, True]


@pytest.mark.parametrize(("most", "kept"), [(3, 3), (1 << 64, sys.maxsize)])
def test_the_allocation_history_keeps_at_most_the_given_number_of_entries(most: int, kept: int) -> None:
    assert History(None, most).entries.maxlen == kept
