"""The recorder's clock: nanoseconds since the Unix epoch that never run backwards.

The epoch is looked up once and the monotonic clock counts from there, as torch.profiler does, so that its recording and
ours can be laid over each other.

    clock = EpochClock()
    clock.now_ns()  # 1_790_000_000_000_000_000
"""

from __future__ import annotations

import time


class EpochClock:
    """Wall time as whole nanoseconds; `perf_ns` is the raw counter for measuring our own cost."""

    perf_ns = staticmethod(time.perf_counter_ns)

    def __init__(self) -> None:
        before_ns = time.perf_counter_ns()
        epoch_ns = time.time_ns()
        self._offset_ns = epoch_ns - (before_ns + time.perf_counter_ns()) // 2

    def now_ns(self) -> int:
        return time.perf_counter_ns() + self._offset_ns

    def sleep(self, duration_ns: int) -> None:
        """Let the calling thread sleep for about `duration_ns`."""
        time.sleep(duration_ns / 1e9)
