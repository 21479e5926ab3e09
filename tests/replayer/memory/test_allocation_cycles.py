"""Tests that repeated memory requests of a step are not executed again, and that the results are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.memory import tensor_allocator
from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.blocks import Block
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.op_rows import UnresolvedOps, host_rows
from replayer.memory.tensor_allocator import TensorAllocator
from traces.model.trace import Column

MIB = 1 << 20
CAPACITY_BYTES = 8 << 30

# (size, stream) allocates memory, and (None, n) frees the n-th live allocation.
sizes = st.sampled_from([1, 512, 700, 3_000, MIB, MIB + 1, 3 * MIB, 12 * MIB, 30 * MIB])
moves = st.one_of(st.tuples(sizes, st.sampled_from([0, 0, 0, 5])), st.tuples(st.none(), st.integers(0, 20)))
steps = st.lists(moves, min_size=1, max_size=30)
Move = tuple[int | None, int]


class Other:
    """Another stream, which has finished its work."""

    own_number = 9
    ready_ns = 0


class Twin:
    """Runs the same program directly on DeviceMemory and through a TensorAllocator."""

    def __init__(self, settle_every: int = 0) -> None:
        self.settle_every = settle_every  # The number of moves between executions. 0 means once at the end of each step.
        self.rows: list[tuple[int, ...]] = []
        self.expected: list[tuple[int, ...]] = []
        self.at_once, self.behind = DeviceMemory(0, CAPACITY_BYTES), DeviceMemory(0, CAPACITY_BYTES)
        self.allocator = TensorAllocator(self.behind, note=self._note)
        self.live: list[tuple[Block, AllocationHandle]] = []

    def _note(self, table: Column, ops: UnresolvedOps) -> None:
        assert len(host_rows([ops])) == len(table)
        self.rows += [tuple(row) for row in table.tolist()]

    def _expect(self, size_bytes: int, address: int) -> None:
        self.expected.append((0, 0, size_bytes, address, self.at_once.usage.allocated_bytes, self.at_once.usage.reserved_bytes))

    def malloc(self, size_bytes: int, stream: int) -> None:
        block, handle = self.at_once.malloc(size_bytes, stream), self.allocator.malloc(size_bytes, stream)
        assert block is not None and handle is not None
        self.live.append((block, handle))
        self._expect(block.size_bytes, block.address)

    def free(self, which: int) -> None:
        block, handle = self.live.pop(which)
        size_bytes, address = block.size_bytes, block.address
        self.at_once.free(block)
        self.allocator.free(handle)
        self._expect(-size_bytes, address)

    def step(self, moves: list[Move], kept: int) -> None:
        """Make some allocations and frees, free all except the latest few allocations, and end the step."""
        for number, (size, which) in enumerate(moves, 1):
            if size is not None:
                self.malloc(size, which)
            elif which < len(self.live):
                self.free(which)
            if self.settle_every and not number % self.settle_every:
                self.allocator.execute_pending()
        while len(self.live) > kept:
            self.free(0)
        self.allocator.end_step()

    def compare(self) -> None:
        assert [handle.address for _, handle in self.live] == [block.address for block, _ in self.live]
        assert self.allocator.flush().usage.stats() == self.at_once.usage.stats()
        assert self.rows == self.expected


@given(steps, steps, st.integers(0, 4), st.integers(0, 6), st.integers(0, 3), st.integers(0, 4))
def test_repeated_steps_give_the_same_addresses_and_statistics_as_single_requests(
    usual: list[Move], other: list[Move], kept: int, compare_after: int, interruption: int, settle_every: int
) -> None:
    twin = Twin(settle_every)
    # WHEN the usual step repeats and becomes a cycle, and something else happens during or after the cycle
    for i in range(8):
        twin.step(usual, kept)
        assert [handle.address for _, handle in twin.live] == [block.address for block, _ in twin.live]
        if i == compare_after:
            twin.compare()
    for size, which in usual[: len(usual) // 2]:
        if size is not None:
            twin.malloc(size, which)
    if interruption == 1:
        for memory in (twin.at_once, twin.allocator.flush()):
            memory.usage.reset_peak()
    elif interruption == 2 and twin.live:
        block, handle = twin.live[0]
        twin.at_once.record_stream(block, Other())
        twin.allocator.record_stream(handle, Other())
    elif interruption == 3:
        for memory in (twin.at_once, twin.allocator.flush()):
            memory.empty_cache()
    for _ in range(6):
        twin.step(other, kept)
    # THEN the results equal those of single requests
    twin.compare()


class Counting(DeviceMemory):
    """Counts the allocations that are executed."""

    mallocs = 0

    def malloc(self, size_bytes: int, stream: int) -> Block | None:
        self.mallocs += 1
        return super().malloc(size_bytes, stream)


def play(allocator: TensorAllocator, held: list[AllocationHandle | None]) -> None:
    for size in (MIB, 3 * MIB, 700):
        held.append(allocator.malloc(size, 0))
    while len(held) > 1:
        handle = held.pop(0)
        assert handle is not None
        allocator.free(handle)
    allocator.end_step()


def test_repeated_requests_are_executed_only_when_the_allocator_state_is_read() -> None:
    memory = Counting(0, CAPACITY_BYTES)
    allocator = TensorAllocator(memory)
    held: list[AllocationHandle | None] = []
    for _ in range(20):
        play(allocator, held)
    done = memory.mallocs
    assert done < 20  # The steps made 60 requests.
    for _ in range(100):
        play(allocator, held)
    assert memory.mallocs == done
    # WHEN the script reads the statistics THEN all requests count, and at most one step is executed
    assert allocator.flush().usage.stats()["allocation"]["all"]["allocated"] == 360
    assert memory.mallocs <= done + 3


def test_repeated_steps_are_not_detected_if_the_script_reads_memory_state_each_step() -> None:
    memory = Counting(0, CAPACITY_BYTES)
    allocator = TensorAllocator(memory)
    held: list[AllocationHandle | None] = []
    for _ in range(20):
        play(allocator, held)
        allocator.flush()
    assert memory.mallocs == 60


def test_a_memory_block_is_not_reused_while_the_script_still_keeps_it() -> None:
    # GIVEN steps that each make a result and free the result of the previous step
    allocator = TensorAllocator(DeviceMemory(0, CAPACITY_BYTES))
    kept = allocator.malloc(MIB, 0)
    for _ in range(10):
        assert kept is not None
        allocator.free(kept)
        kept = allocator.malloc(MIB, 0)
        allocator.end_step()
    # WHEN the script keeps a result, and frees it later
    result = allocator.malloc(MIB, 0)
    # THEN the next result gets another block
    assert kept is not None and result is not None and result is not kept
    assert result.address != kept.address
    allocator.free(kept)
    assert allocator.flush().usage.allocated_bytes == MIB
    assert result.block.address == result.address


def test_during_repeated_steps_the_first_request_that_does_not_fit_fails() -> None:
    """GIVEN a cycle with a result of 400 MiB on a device of 1000 MiB WHEN the script keeps all results THEN the third
    allocation fails."""
    allocator = TensorAllocator(DeviceMemory(0, 1000 * MIB))
    for _ in range(10):
        result = allocator.malloc(400 * MIB, 0)
        assert result is not None
        allocator.free(result)
        allocator.end_step()
    assert allocator._cycle is not None
    kept = [allocator.malloc(400 * MIB, 0), allocator.malloc(400 * MIB, 0)]
    with pytest.raises(OutOfMemory):
        allocator.malloc(400 * MIB, 0)
    assert len({handle.address for handle in kept if handle is not None}) == 2


def test_detection_of_repeated_steps_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cycles, the same program executes every request and gets the same addresses."""
    addresses, mallocs = [], []
    for use_cycles in (True, False):
        monkeypatch.setattr(tensor_allocator, "USE_CYCLES", use_cycles)
        memory = Counting(0, CAPACITY_BYTES)
        allocator = TensorAllocator(memory)
        held: list[AllocationHandle | None] = []
        seen = []
        for _ in range(20):
            play(allocator, held)
            seen += [handle.address for handle in held if handle is not None]
        addresses.append(seen)
        mallocs.append(memory.mallocs)
        assert allocator.flush().usage.stats()["allocation"]["all"]["allocated"] == 60
    assert addresses[0] == addresses[1]
    assert mallocs[0] < mallocs[1] == 60
