"""Tests the timing rules of ops with examples, with invariants, and by comparing arrays with loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.timing.timing_rules import call_start, host_times, kernel_end, queue_ends

NS = st.integers(0, 1 << 50)
SHORT_NS = st.integers(0, 1_000)


@pytest.mark.parametrize(
    ("position_ns", "from_ns", "to_ns", "expected"),
    [
        (40, 100, 130, (60, 30)),  # The host advances to the call, and spends the call's own time.
        (110, 100, 130, (0, 20)),  # The call began during earlier calls, so only the time after them counts.
        (200, 100, 130, (0, 0)),  # The call lies completely within earlier calls.
        (100, 100, 100, (0, 0)),
    ],
)
def test_host_time_is_split_into_time_before_and_during_an_op(
    position_ns: int, from_ns: int, to_ns: int, expected: tuple[int, int]
) -> None:
    assert host_times(position_ns, from_ns, to_ns) == expected


@given(st.lists(st.tuples(NS, NS).map(sorted)))
def test_a_phase_never_takes_more_than_its_recorded_host_time(calls: list[list[int]]) -> None:
    """In any order of calls, the sum of the call times is the furthest recorded position that the calls reach."""
    position_ns = spent_ns = 0
    for from_ns, to_ns in calls:
        advance_ns, own_ns = host_times(position_ns, from_ns, to_ns)
        assert advance_ns >= 0 and own_ns >= 0
        spent_ns += advance_ns + own_ns
        position_ns = max(position_ns, to_ns)
    assert spent_ns == max((to_ns for _, to_ns in calls), default=0)


@pytest.mark.parametrize(
    ("host_ns", "advance_ns", "called_ns", "room_ns", "expected"),
    [
        (1_000, 60, 1_010, 0, 1_060),  # The script runs at the recorded pace.
        (1_000, 60, 1_100, 0, 1_100),  # The script is slower than the recorded one.
        (1_000, 60, 1_010, 5_000, 5_000),  # The launch queue is full until 5 000 ns.
    ],
)
def test_a_call_starts_after_its_recorded_time_and_when_the_queue_has_room(
    host_ns: int, advance_ns: int, called_ns: int, room_ns: int, expected: int
) -> None:
    assert call_start(host_ns, advance_ns, called_ns, room_ns) == expected


@pytest.mark.parametrize(
    ("launch_ns", "latency_ns", "ready_ns", "gap_ns", "duration_ns", "expected"),
    [
        (1_070, 5, 1_100, 1, 50, 1_151),  # The kernel runs after other work, so its gap counts.
        (1_070, 5, 1_000, 1, 50, 1_125),  # The stream is idle, so the latency of the launch counts.
        (1_070, 5, 1_070, 5, 0, 1_075),  # Work without duration also takes a place in the queue.
    ],
)
def test_a_kernel_starts_after_its_launch_and_after_earlier_work_on_its_stream(
    launch_ns: int, latency_ns: int, ready_ns: int, gap_ns: int, duration_ns: int, expected: int
) -> None:
    assert kernel_end(launch_ns, latency_ns, ready_ns, gap_ns, duration_ns) == expected


@given(st.lists(st.tuples(NS, SHORT_NS, SHORT_NS, SHORT_NS)), NS)
def test_kernel_end_times_computed_with_numpy_equal_those_of_a_loop(
    kernels: list[tuple[int, int, int, int]], ready_ns: int
) -> None:
    ends_ns, end_ns = [], ready_ns
    for launch_ns, latency_ns, gap_ns, duration_ns in kernels:
        end_ns = kernel_end(launch_ns, latency_ns, end_ns, gap_ns, duration_ns)
        ends_ns.append(end_ns)
    launch, latency, gap, duration = np.array(kernels, np.int64).reshape(-1, 4).T
    assert queue_ends(launch + latency + duration, gap + duration, ready_ns).tolist() == ends_ns


@given(st.lists(st.tuples(NS, NS, SHORT_NS, SHORT_NS)), NS)
def test_call_end_times_computed_with_numpy_equal_those_of_a_loop(
    calls: list[tuple[int, int, int, int]], host_ns: int
) -> None:
    ends_ns, end_ns = [], host_ns
    for called_ns, room_ns, advance_ns, own_ns in calls:
        end_ns = call_start(end_ns, advance_ns, called_ns, room_ns) + own_ns
        ends_ns.append(end_ns)
    called, room, advance, own = np.array(calls, np.int64).reshape(-1, 4).T
    assert queue_ends(np.maximum(called, room) + own, advance + own, host_ns).tolist() == ends_ns
