"""Counts current, peak, allocated and freed memory, as `torch.cuda.memory_stats` does.

    stats = MemoryStats()
    stats.small.segments.add(1)
    stats.as_dict()["segment"]["all"]  # {'current': 1, 'peak': 1, 'allocated': 1, 'freed': 0}

See `Stat` in PyTorch's c10/core/CachingDeviceAllocator.h.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from replayer.torch_types import TorchAny

Counted = dict[str, int]  # keys: current, peak, allocated, freed
StatsDict = dict[str, TorchAny]  # the format of `torch.cuda.memory_stats_as_nested_dict`

# the names in PyTorch's statistics
_NAMES = {
    "allocation": "blocks",
    "segment": "segments",
    "inactive_split": "split_free",
    "allocated_bytes": "blocks_bytes",
    "reserved_bytes": "reserved_bytes",
    "inactive_split_bytes": "split_free_bytes",
    "requested_bytes": "requested_bytes",
}
_ACTIVE = {"active": ("blocks", "waiting"), "active_bytes": ("blocks_bytes", "waiting_bytes")}


class Quantity:
    __slots__ = ("large", "peak", "small")

    def __init__(self) -> None:
        self.small, self.large = Count(self), Count(self)
        self.peak = 0

    @property
    def now(self) -> int:
        return self.small.now + self.large.now

    def reset_peak(self) -> None:
        self.small.peak, self.large.peak, self.peak = self.small.now, self.large.now, self.now

    def reset_accumulated(self) -> None:
        for count in (self.small, self.large):
            count.total, count.base = 0, count.now


class Count:
    __slots__ = ("base", "now", "peak", "quantity", "total")

    def __init__(self, quantity: Quantity) -> None:
        self.quantity = quantity
        self.now = self.peak = 0
        self.total = 0
        self.base = 0  # value of `now` at the last time that `total` was set to 0

    def add(self, amount: int) -> None:
        self.total += amount
        self.now = now = self.now + amount
        if now > self.peak:
            self.peak = now
        quantity = self.quantity
        both = quantity.small.now + quantity.large.now
        if both > quantity.peak:
            quantity.peak = both

    def change(self, amount: int) -> None:
        if amount > 0:
            self.add(amount)
        else:
            self.now += amount

    def as_dict(self) -> Counted:
        return _counted(self.now, self.peak, self.total, self.base)


@dataclass(slots=True, eq=False)
class PoolStats:
    blocks: Count
    blocks_bytes: Count
    requested_bytes: Count
    reserved_bytes: Count
    segments: Count
    split_free: Count
    split_free_bytes: Count
    # Freed memory counts as used until all CUDA streams have finished with it.
    waiting: Count
    waiting_bytes: Count

    def of_expandable(self) -> PoolStats:
        """Return statistics of expandable segments. PyTorch's `inactive_split` does not count blocks in expandable segments
        (free_block in CUDACachingAllocator.cpp)."""
        return replace(self, split_free=Quantity().small, split_free_bytes=Quantity().small)


class MemoryStats:
    def __init__(self) -> None:
        self.quantities = {field.name: Quantity() for field in fields(PoolStats)}
        self.small = PoolStats(**{name: quantity.small for name, quantity in self.quantities.items()})
        self.large = PoolStats(**{name: quantity.large for name, quantity in self.quantities.items()})
        self.oversize_blocks, self.oversize_segments = Quantity().large, Quantity().large
        self.retries = self.ooms = self.stream_syncs = 0
        self._ignored_ooms = self._earlier_ooms = 0
        self._earlier_peak_bytes = 0, 0

    def note_active(self) -> None:
        for name, waiting_name in _ACTIVE.values():
            blocks, waiting = self.quantities[name], self.quantities[waiting_name]
            waiting.small.peak = max(waiting.small.peak, blocks.small.now + waiting.small.now)
            waiting.large.peak = max(waiting.large.peak, blocks.large.now + waiting.large.now)
            waiting.peak = max(waiting.peak, blocks.now + waiting.now)

    def reset_peaks(self) -> None:
        self._earlier_peak_bytes = self._run_peak_bytes()
        for quantity in (*self.quantities.values(), self.oversize_blocks.quantity, self.oversize_segments.quantity):
            quantity.reset_peak()
        self.note_active()

    def reset_accumulated(self) -> None:
        self._earlier_ooms += self.ooms
        for quantity in (*self.quantities.values(), self.oversize_blocks.quantity, self.oversize_segments.quantity):
            quantity.reset_accumulated()
        self.retries = self.ooms = self.stream_syncs = 0

    def ignore_last_oom(self) -> None:
        self._ignored_ooms += 1

    def of_run(self) -> tuple[int, int, int]:
        return *self._run_peak_bytes(), self._earlier_ooms + self.ooms - self._ignored_ooms

    def _run_peak_bytes(self) -> tuple[int, int]:
        allocated_bytes, reserved_bytes = self._earlier_peak_bytes
        return (
            max(allocated_bytes, self.quantities["blocks_bytes"].peak),
            max(reserved_bytes, self.quantities["reserved_bytes"].peak),
        )

    def totals(self) -> list[int]:
        return [count.total for count in self._counts()]

    def raise_totals(self, amounts: list[int]) -> None:
        for count, amount in zip(self._counts(), amounts, strict=True):
            count.total += amount

    def _counts(self) -> list[Count]:
        return [count for quantity in self.quantities.values() for count in (quantity.small, quantity.large)]

    def as_dict(self) -> StatsDict:
        result: StatsDict = {}
        for torch_name, name in _NAMES.items():
            quantity = self.quantities[name]
            result[torch_name] = _by_pool(quantity.small.as_dict(), quantity.large.as_dict(), quantity.peak)
        for torch_name, (name, waiting_name) in _ACTIVE.items():
            blocks, waiting = self.quantities[name], self.quantities[waiting_name]
            small, large = _active(blocks.small, waiting.small), _active(blocks.large, waiting.large)
            result[torch_name] = _by_pool(small, large, max(blocks.peak, waiting.peak))
        return {
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
            "num_sync_all_streams": self.stream_syncs,
            "num_oom_rejections": 0,
            **result,
            "reserved_bytes_by_private_pools": {},
            "oversize_allocations": self.oversize_blocks.as_dict(),
            "oversize_segments": self.oversize_segments.as_dict(),
        }


def _by_pool(small: Counted, large: Counted, peak: int) -> dict[str, Counted]:
    both = {key: small[key] + large[key] for key in small}
    return {"all": {**both, "peak": peak}, "small_pool": small, "large_pool": large}


def _active(allocated: Count, waiting: Count) -> Counted:
    now, base = allocated.now + waiting.now, allocated.base + waiting.base
    return _counted(now, max(allocated.peak, waiting.peak), allocated.total, base)


def _counted(now: int, peak: int, total: int, base: int) -> Counted:
    return {"current": now, "peak": peak, "allocated": total, "freed": base + total - now}
