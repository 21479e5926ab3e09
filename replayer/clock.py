"""The clock that everything waits by. One object, injected, so that tests never sleep.

    clock = WallClock()
    clock.wait_until(clock.now_ns() + 2_000_000)

Deadlines are absolute, so errors of single waits never add up.
"""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Protocol

# A sleep may overshoot by about 75 us (by about 20 us with the timer slack at its minimum), so the last stretch is spun.
_SPIN_NS = 120_000
_PR_SET_TIMERSLACK = 29  # linux/prctl.h


class Clock(Protocol):
    """Time in integer nanoseconds since the Unix epoch, never running backwards."""

    def now_ns(self) -> int: ...

    def wait_until(self, deadline_ns: int) -> None:
        """Return at `deadline_ns`, or at once if that is past."""


class WallClock:
    """The machine's monotonic clock, shifted once so that it reads as time since the epoch."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.perf_counter_ns()

    def now_ns(self) -> int:
        return time.perf_counter_ns() + self._offset_ns

    def wait_until(self, deadline_ns: int) -> None:
        deadline_ns -= self._offset_ns
        coarse_ns = deadline_ns - _SPIN_NS - time.perf_counter_ns()
        if coarse_ns > 0:
            time.sleep(coarse_ns * 1e-9)
        while time.perf_counter_ns() < deadline_ns:
            pass


def lower_timer_slack() -> bool:
    """Ask Linux to wake this thread's sleeps within a nanosecond instead of 50 us. Returns whether it did; elsewhere it
    is not needed for correctness, only for precision."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0) == 0)
