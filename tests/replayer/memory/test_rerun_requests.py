"""Tests whether the memory requests of a run fit on other GPUs and at other batch sizes."""

from __future__ import annotations

import random

import pytest

from replayer.memory.capacity import Capacity
from replayer.memory.device.blocks import Block
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.device.request_log import LogEntry, RequestKind, RequestLog
from replayer.memory.device.settings import parse_settings
from replayer.memory.rerun_requests import MAX_BATCH, ScaledRequests, largest_batch, run_requests
from replayer.memory.tensor_allocator import TensorAllocator
from replayer.timing.stream import VirtualStream

MIB = 1 << 20
PLAIN = parse_settings("")


def capacity(mib: int, outside_mib: int = 0) -> Capacity:
    return Capacity(mib * MIB, outside_mib * MIB, "")


def logged(mib: int = 1 << 20) -> tuple[DeviceMemory, RequestLog]:
    memory = DeviceMemory(0, mib * MIB, settings=PLAIN)
    memory.requests = log = RequestLog()
    return memory, log


def train(batch: int, steps: int = 3) -> RequestLog:
    """Run a network of ten layers with weights, gradients, and activations for each sample. The optimizer has a state from the
    first step on."""
    memory, log = logged()
    sizes = [random.Random(7).randrange(1_000, 3_000_000) for _ in range(10)]
    weights = [memory.malloc(size, 0) for size in sizes]
    state: list[Block] = []
    for _ in range(steps):
        activations = [memory.malloc(700 + size * batch // 2, 0) for size in sizes]
        for activation, size in zip(reversed(activations), sizes, strict=True):
            gradient = memory.malloc(size, 0)
            assert activation is not None and gradient is not None
            memory.free(activation)
            if len(state) < len(weights):
                state.append(gradient)
            else:
                memory.free(gradient)
        log.add_event(RequestKind.STEP)
    return log


def test_optional_requests_are_skipped_on_gpus_that_do_not_make_them() -> None:
    entries = [LogEntry(RequestKind.REQUEST, 4 * MIB), LogEntry(RequestKind.OPTIONAL, 30 * MIB)]
    log = RequestLog([*entries, LogEntry(RequestKind.FREE, 1), LogEntry(RequestKind.FREE, 0)])
    assert run_requests(log, capacity(100), PLAIN).reserved_bytes == 50 * MIB
    assert run_requests(log, capacity(100), PLAIN, has_optional=False).reserved_bytes == 20 * MIB


def test_rerunning_the_requests_gives_the_memory_figures_of_the_original_run() -> None:
    chance = random.Random(1)
    memory, log = logged()
    memory.requests = log
    held: list[Block] = []
    for _ in range(2_000):
        if held and chance.random() < 0.45:
            memory.free(held.pop(chance.randrange(len(held))))
        else:
            block = memory.malloc(chance.choice([200, 5_000, 900_000, 3 * MIB, 30 * MIB]), chance.randrange(2))
            assert block is not None
            held.append(block)
        if chance.random() < 0.01:
            memory.empty_cache()
    outcome = run_requests(RequestLog.from_json(log.to_json()), capacity(1 << 20), PLAIN)
    assert outcome.fits
    assert outcome.peak_bytes == memory.usage.peak_allocated_bytes
    assert outcome.reserved_bytes == memory.usage.peak_reserved_bytes


def test_a_rerun_on_a_smaller_gpu_runs_out_of_memory_at_the_same_request_as_the_script() -> None:
    log = train(batch=64)
    enough = run_requests(log, capacity(1 << 20), PLAIN)
    assert enough.fits and enough.steps == 3 and enough.retries == 0
    for mib in (150, 250, 400):
        outcome = run_requests(log, capacity(mib, outside_mib=50), PLAIN)
        memory, blocks = DeviceMemory(0, mib * MIB, 50 * MIB, settings=PLAIN), []
        with pytest.raises(OutOfMemory):
            for kind, value, stream, _ in log.entries:
                if kind == RequestKind.REQUEST:
                    blocks.append(memory.malloc(value, stream))
                elif kind == RequestKind.FREE:
                    memory.free(blocks[value])  # type: ignore[arg-type]
        assert not outcome.fits and outcome.asked_bytes > 0 and outcome.peak_bytes == memory.usage.peak_allocated_bytes


def test_memory_requests_for_any_batch_size_follow_from_two_runs() -> None:
    scaled = ScaledRequests.of(train(16), 16, train(32), 32)
    assert scaled is not None
    for batch in (1, 7, 100):
        told, real = (run_requests(log, capacity(1 << 20), PLAIN) for log in (scaled.for_batch(batch), train(batch)))
        assert told == real
    limit = largest_batch(lambda batch: run_requests(scaled.for_batch(batch), capacity(2_000), PLAIN).fits, 16)
    assert run_requests(train(limit), capacity(2_000), PLAIN).fits
    assert not run_requests(train(limit + 1), capacity(2_000), PLAIN).fits


def test_memory_requests_in_different_orders_cannot_be_scaled_to_other_batches() -> None:
    assert ScaledRequests.of(train(16), 16, train(32, steps=2), 32) is None
    assert ScaledRequests.of(train(16), 16, train(16), 16) is None


@pytest.mark.parametrize("limit", [0, 1, 2, 15, 16, 17, 1_000, 123_456])
@pytest.mark.parametrize("start", [1, 16, 4_000])
def test_the_largest_batch_is_the_last_batch_that_fits(limit: int, start: int) -> None:
    assert largest_batch(lambda batch: batch <= limit, start) == limit


def test_the_search_for_the_largest_batch_doubles_its_steps() -> None:
    """GIVEN 10 samples fit WHEN the search begins at 4 samples THEN its steps are 2 and 4 samples, and then the interval
    between 10 and 18 samples is halved."""
    tried = list[int]()

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= 10

    assert largest_batch(fits, 4) == 10
    assert tried == [4, 6, 10, 18, 14, 12, 11]


def test_there_is_no_batch_limit_if_requests_do_not_grow() -> None:
    assert largest_batch(lambda batch: True, 32) == MAX_BATCH


def test_an_optional_workspace_that_does_not_fit_is_not_requested() -> None:
    memory, log = logged()
    allocator = TensorAllocator(memory)
    kept = allocator.malloc(30 * MIB, 0)
    scratch = allocator.try_malloc(200 * MIB, 0, "conv")
    assert kept is not None and scratch is not None
    allocator.free(scratch)
    allocator.malloc(10 * MIB, 0)
    allocator.end_step()
    kinds = [entry.kind.name for entry in log.entries]
    assert kinds == ["REQUEST", "OPTIONAL", "FREE", "REQUEST", "STEP"]
    assert run_requests(log, capacity(1_000), PLAIN).reserved_bytes == 230 * MIB
    outcome = run_requests(log, capacity(100), PLAIN)
    assert outcome.fits and outcome.peak_bytes == 40 * MIB
    assert log.sizes_by_step() == [[30 * MIB, 200 * MIB, 10 * MIB]]


def test_a_workspace_that_did_not_fit_is_not_requested_again() -> None:
    """PyTorch repeats its first algorithm, even if a larger workspace fits later. PyTorch does not return cached memory to
    make room for a workspace."""
    memory, log = logged()
    allocator = TensorAllocator(memory)
    for _ in range(3):
        kept = allocator.malloc(60 * MIB, 0)
        assert kept is not None
        for use in ("narrow", "wide"):
            scratch = allocator.try_malloc((30 if use == "narrow" else 80) * MIB, 0, use)
            assert scratch is not None
            allocator.free(scratch)
        allocator.free(kept)
        allocator.malloc(5 * MIB, 0)
        allocator.end_step()
    assert [entry.use for entry in log.entries if entry.kind is RequestKind.OPTIONAL] == [0, 1] * 3
    assert RequestLog.from_json(log.to_json()).entries == log.entries
    # The 80 MiB do not fit beside 60 MiB in the first step, so later steps do not request them.
    assert run_requests(log, capacity(120), PLAIN).retries == 1
    assert run_requests(log, capacity(1_000), PLAIN).retries == 0


def test_a_block_used_by_another_stream_is_freed_when_the_stream_ends() -> None:
    memory, log = logged()
    block = memory.malloc(MIB, 0)
    assert block is not None
    memory.record_stream(block, VirtualStream(0, 3))
    memory.free(block)
    assert log.entries == [LogEntry(RequestKind.REQUEST, MIB)]
    memory.malloc(MIB, 0)  # By default, all streams count as ended.
    assert [entry.kind for entry in log.entries] == [RequestKind.REQUEST, RequestKind.FREE, RequestKind.REQUEST]
