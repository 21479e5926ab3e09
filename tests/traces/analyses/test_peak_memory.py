"""Tests which memory allocations exist at the peak of memory use."""

from __future__ import annotations

import numpy as np
import pytest

from tests.traces.handmade import training
from traces.analyses.peak_memory import held_at_peak
from traces.model.trace import NONE, MemoryEvents, Trace


def with_memory(sizes: list[int], addresses: list[int]) -> Trace:
    """Return a training run. From the start of the first step, its main thread allocates or frees memory every 10 µs."""
    trace = training(steps=1)
    begin = int(trace.steps.start_ns[0])
    trace.memory = MemoryEvents.of(
        thread=[0] * len(sizes), device=[0] * len(sizes), time_ns=begin + np.arange(len(sizes)) * 10_000, bytes=sizes,
        address=addresses,
    )  # fmt: skip
    return trace


@pytest.mark.parametrize("has_addresses", [True, False])
def test_memory_freed_before_the_peak_is_not_listed(has_addresses: bool) -> None:
    # GIVEN two blocks of 8 bytes, of which one is freed before blocks of 4 and 2 bytes are allocated
    sizes = [8, -8, 8, 4, 2, -2, 4, -4, -8]
    addresses = [1, 1, 1, 2, 3, 3, 4, 4, 1]
    peak = held_at_peak(with_memory(sizes, addresses if has_addresses else [0] * len(sizes)), 0)
    assert peak is not None and peak.by_size != has_addresses
    assert sum(one.bytes for one in peak.held) == 16 and sum(one.count for one in peak.held) == 3


def test_freeing_memory_without_an_address_releases_the_newest_block_of_that_size() -> None:
    # GIVEN three blocks without addresses WHEN one of the first two is freed before the peak
    trace = with_memory([4, 4, -4, 8], [0] * 4)
    trace.host.start_ns[:] += 10**9
    peak = held_at_peak(trace, 0)
    assert peak is not None and [(one.op, one.phase, one.count, one.bytes) for one in peak.held] == [
        ("", "forward", 1, 8), ("", "loader", 1, 4),
    ]  # fmt: skip
    # WHEN the trace has no CPU events THEN the memory is listed without ops
    trace.host = trace.host.take(np.zeros(0, dtype=np.int64))
    without = held_at_peak(trace, 0)
    assert without is not None and without.held == peak.held


def test_memory_events_without_a_thread_are_assigned_to_ops_of_their_rank() -> None:
    # GIVEN a memory event of a replay, which has no thread and the start time of its op
    trace = with_memory([64], [1])
    op = int(np.flatnonzero(trace.host.name == trace.strings.find("aten::copy_"))[0])
    trace.memory.time_ns[0], trace.memory.thread[0] = trace.host.start_ns[op], NONE
    peak = held_at_peak(trace, 0)
    assert peak is not None and [one.op for one in peak.held] == ["copy"]


def test_memory_at_the_peak_is_listed_with_the_ops_and_phases_that_allocated_it() -> None:
    trace = with_memory([64, 32, 32, 32], [1, 2, 3, 4])
    peak = held_at_peak(trace, 0)
    assert peak is not None and {one.phase for one in peak.held} >= {"loader", "h2d"}
    op = next(row for row in range(len(trace.host)) if trace.strings[int(trace.host.name[row])].startswith("aten::"))
    trace.memory.time_ns[0] = trace.host.start_ns[op]
    trace.memory.time_ns.sort()
    found = held_at_peak(trace, 0)
    assert found is not None and any(one.op for one in found.held)


def test_peak_memory_is_unknown_without_memory_events() -> None:
    assert held_at_peak(Trace(devices=training().devices), 0) is None
