"""The one clock that really waits."""

from __future__ import annotations

import time

import pytest

from replayer.clock import WallClock


@pytest.mark.real_time
def test_a_wait_ends_at_its_deadline_and_a_past_deadline_does_not_wait() -> None:
    clock = WallClock()
    deadline_ns = clock.now_ns() + 3_000_000
    clock.wait_until(deadline_ns)
    late_ns = clock.now_ns() - deadline_ns
    assert late_ns >= 0
    clock.wait_until(deadline_ns - 1_000_000_000)
    assert clock.now_ns() - deadline_ns < 1_000_000_000


def test_the_clock_reads_as_time_since_the_epoch() -> None:
    assert abs(WallClock().now_ns() - time.time_ns()) < 1_000_000_000
