"""Reports the memory usage of a GPU.

    memory.usage.allocated_bytes
    memory.usage.stats()["allocated_bytes"]["all"]["peak"]
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from replayer.memory.device.segments import Segments
from replayer.memory.device.settings import UNLIMITED
from replayer.memory.device.stats import MemoryStats, StatsDict
from traces.model.run import MemoryUse


class DeviceUsage:
    def __init__(
        self, counts: MemoryStats, segments: Segments, lock: AbstractContextManager[object], max_split_bytes: Callable[[], int]
    ) -> None:
        self._counts = counts
        self._segments = segments
        self._lock = lock
        self._max_split_bytes = max_split_bytes

    @property
    def allocated_bytes(self) -> int:
        return self._counts.quantities["blocks_bytes"].now

    @property
    def reserved_bytes(self) -> int:
        return self._segments.reserved_bytes

    @property
    def peak_allocated_bytes(self) -> int:
        return self._counts.quantities["blocks_bytes"].peak

    @property
    def peak_reserved_bytes(self) -> int:
        return self._counts.quantities["reserved_bytes"].peak

    @property
    def capacity_bytes(self) -> int:
        return self._segments.capacity_bytes

    @property
    def free_bytes(self) -> int:
        return self._segments.free_bytes

    @property
    def used_bytes(self) -> int:
        return self.capacity_bytes - self.free_bytes

    @property
    def allowed_fraction(self) -> float:
        allowed_bytes = self._segments.allowed_bytes
        return 1.0 if allowed_bytes is None else allowed_bytes / self.capacity_bytes

    @property
    def driver_calls(self) -> int:
        return self._segments.taken + self._segments.returned

    def stats(self) -> StatsDict:
        max_split_bytes = self._max_split_bytes()
        with self._lock:
            return {
                **self._counts.as_dict(),
                "max_split_size": -1 if max_split_bytes == UNLIMITED else max_split_bytes,
                "num_device_alloc": self._segments.taken,
                "num_device_free": self._segments.returned,
            }

    def usage_of_run(self) -> MemoryUse:
        """Return the memory peaks of the whole run. The script cannot reset these peaks."""
        return MemoryUse(self.capacity_bytes, self._segments.outside_bytes, *self._counts.of_run())

    def reset_peak(self) -> None:
        with self._lock:
            self._counts.reset_peaks()

    def reset_accumulated(self) -> None:
        with self._lock:
            self._counts.reset_accumulated()
            self._segments.taken = self._segments.returned = 0
