"""Defines a clock that returns nanoseconds since the Unix epoch and never runs backwards.

    clock = EpochClock()
    clock.now_ns()  # 1_790_000_000_000_000_000

The clock reads the Unix time once, and afterwards counts with a monotonic clock.
"""

from __future__ import annotations

import time


class EpochClock:
    perf_ns = staticmethod(time.perf_counter_ns)
    thread_ns = staticmethod(time.thread_time_ns)  # CPU time of the calling thread

    def __init__(self) -> None:
        before_ns = time.perf_counter_ns()
        epoch_ns = time.time_ns()
        # difference between Unix time and the monotonic clock
        self.offset_ns = epoch_ns - (before_ns + time.perf_counter_ns()) // 2

    def now_ns(self) -> int:
        return time.perf_counter_ns() + self.offset_ns

    def sleep(self, duration_ns: int) -> None:
        time.sleep(duration_ns / 1e9)
