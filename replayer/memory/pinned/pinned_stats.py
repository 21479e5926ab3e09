"""Counts pinned memory, as `torch.cuda.host_memory_stats` does.

    stats = HostStats()
    stats.block_added(1 << 20, took_ns=300_000)
    stats.allocated(1 << 20)
    stats.as_dict()["active_bytes"]     # {'current': 1048576, 'peak': 1048576, 'allocated': 1048576, 'freed': 0}

As in PyTorch, each size of memory blocks has its own peak, and `active_bytes` contains the sum of these peaks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from replayer.memory.device.stats import Count, Counted, Quantity


@dataclass(slots=True)
class Durations:
    total: int = 0
    max: int = 0
    min: int = 0
    count: int = 0

    def add(self, took_ns: int) -> None:
        took_us = took_ns // 1_000
        self.total += took_us
        self.max = max(self.max, took_us)
        self.min = min(self.min, took_us) if self.min else took_us
        self.count += 1

    def reset_accumulated(self) -> None:
        self.total = self.count = 0

    def reset_peak(self) -> None:
        self.max = self.min = 0

    def as_dict(self) -> dict[str, float]:
        return {
            "total": self.total,
            "max": self.max,
            "min": self.min,
            "count": self.count,
            "avg": self.total / self.count if self.count else 0,
        }


class HostStatsDict(TypedDict):
    """Describes the result of `torch.cuda.host_memory_stats_as_nested_dict`. Times are in microseconds."""

    allocations: Counted
    allocated_bytes: Counted
    active_requests: Counted
    active_bytes: Counted
    host_alloc_time: dict[str, float]
    host_free_time: dict[str, float]
    num_host_alloc: int
    num_host_free: int


@dataclass(slots=True)
class HostStats:
    owned: Count = field(default_factory=lambda: Quantity().large)  # all pinned blocks
    owned_bytes: Count = field(default_factory=lambda: Quantity().large)
    active: dict[int, Count] = field(default_factory=dict)  # blocks that the script uses
    alloc_time: Durations = field(default_factory=Durations)
    free_time: Durations = field(default_factory=Durations)

    def block_added(self, size_bytes: int, took_ns: int) -> None:
        self.owned.add(1)
        self.owned_bytes.add(size_bytes)
        self.alloc_time.add(took_ns)

    def block_removed(self, size_bytes: int, took_ns: int) -> None:
        self.owned.now -= 1
        self.owned_bytes.now -= size_bytes
        self.free_time.add(took_ns)

    def allocated(self, size_bytes: int) -> None:
        self.active.setdefault(size_bytes, Quantity().large).add(1)

    def freed(self, size_bytes: int) -> None:
        self.active[size_bytes].now -= 1

    def reset_accumulated(self) -> None:
        for each in self._all():
            each.reset_accumulated()

    def reset_peak(self) -> None:
        for each in self._all():
            each.reset_peak()

    def _all(self) -> list[Quantity | Durations]:
        counts = (self.owned, self.owned_bytes, *self.active.values())
        return [*(count.quantity for count in counts), self.alloc_time, self.free_time]

    def as_dict(self) -> HostStatsDict:
        owned = self.owned.as_dict()
        blocks = dict.fromkeys(owned, 0)
        sizes = dict(blocks)
        for size_bytes, amount in self.active.items():
            for name, value in amount.as_dict().items():
                blocks[name] += value
                sizes[name] += value * size_bytes
        return {
            "allocations": owned,
            "allocated_bytes": self.owned_bytes.as_dict(),
            "active_requests": blocks,
            "active_bytes": sizes,
            "host_alloc_time": self.alloc_time.as_dict(),
            "host_free_time": self.free_time.as_dict(),
            "num_host_alloc": owned["allocated"],
            "num_host_free": owned["freed"],
        }
