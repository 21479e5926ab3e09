"""The allocator's statistics, those of `torch.cuda.memory_stats`: current, peak, allocated and freed of each quantity.

Each quantity is counted for the pools of small blocks and for those of large blocks; of both together only the peak is
kept, for the rest is the sum. Of a count the current value, its peak and the sum of all increases are kept: what went
away follows.

    tallies = MemoryStats()
    tallies.small.segments.add(1)
    tallies.as_dicts()["segment"]["all"]  # {'current': 1, 'peak': 1, 'allocated': 1, 'freed': 0}

Note [Peaks from afar]
Peaks are exact, yet the hot path makes one comparison per count and leaves the peaks alone. As long as a count is at
most its `watch`, no peak is exceeded: `watch` is at most the count's peak, and the two of a quantity sum up to at most
the peak of both together. Only beyond, that is close to a peak, `note` looks at the figures, and shares out anew what
room there is.
"""

from __future__ import annotations

Counted = dict[str, int]  # by torch's names: current, peak, allocated, freed

# torch's names of our quantities. "active" is what is not free: handed out or waiting.
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
    """One quantity of both kinds of pools. `peak` is that of both together."""

    __slots__ = ("large", "peak", "small")

    def __init__(self) -> None:
        self.small, self.large = Count(self), Count(self)
        self.peak = 0

    @property
    def now(self) -> int:
        return self.small.now + self.large.now

    def note(self) -> None:
        """A count has risen above its `watch`."""
        small, large = self.small, self.large
        if small.now > small.peak:
            small.peak = small.now
        if large.now > large.peak:
            large.peak = large.now
        both = small.now + large.now
        if both > self.peak:
            self.peak = both
        room = self.peak - both
        small_wants, large_wants = small.peak - small.now, large.peak - large.now
        if small_wants + large_wants <= room:
            small.watch, large.watch = small.peak, large.peak
        else:
            share = room * small_wants // (small_wants + large_wants)
            small.watch, large.watch = small.now + share, large.now + room - share

    def reset_peak(self) -> None:
        self.small.peak = self.large.peak = self.peak = 0
        self.note()

    def reset_accumulated(self) -> None:
        for count in (self.small, self.large):
            count.total, count.base = 0, count.now


class Count:
    """One quantity of one kind of pool. The allocator's hot path does what `add` does itself: a call would double it."""

    __slots__ = ("base", "now", "peak", "quantity", "total", "watch")

    def __init__(self, quantity: Quantity) -> None:
        self.quantity = quantity
        self.now = self.peak = self.total = 0
        self.base = 0  # `now` when `total` was last set to 0
        self.watch = 0  # Note [Peaks from afar]

    def add(self, amount: int) -> None:
        self.total += amount
        self.now += amount
        if self.now > self.watch:
            self.quantity.note()

    def as_dict(self) -> Counted:
        return _counted(self.now, self.peak, self.total, self.base)


class PoolStats:
    """All quantities of one kind of pool."""

    __slots__ = (
        "blocks",
        "blocks_bytes",
        "requested_bytes",
        "reserved_bytes",
        "segments",
        "split_free",
        "split_free_bytes",
        "waiting",
        "waiting_bytes",
    )

    blocks: Count  # handed out
    blocks_bytes: Count
    requested_bytes: Count  # what the script asked for, before rounding; until the block is free again
    reserved_bytes: Count  # taken from the driver
    segments: Count
    split_free: Count  # free, but the segment is partly in use
    split_free_bytes: Count
    # Let go of by the script while other streams still used it. Here `peak` is that of blocks + waiting, seen only while
    # anything waits; at all other times that sum is `blocks`, whose own peak counts.
    waiting: Count
    waiting_bytes: Count

    def of_expandable(self) -> PoolStats:
        """The same quantities, but what is split and free is counted nowhere, for its empty pages can be given back.

        Reference: free_block in c10/cuda/CUDACachingAllocator.cpp.
        """
        made = PoolStats()
        for name in PoolStats.__slots__:
            setattr(made, name, getattr(self, name))
        made.split_free, made.split_free_bytes = Quantity().small, Quantity().small
        return made


class MemoryStats:
    """The statistics of one device, but for oversize blocks and calls."""

    def __init__(self) -> None:
        self.small, self.large = PoolStats(), PoolStats()
        self.of = {name: Quantity() for name in PoolStats.__slots__}
        for name, quantity in self.of.items():
            setattr(self.small, name, quantity.small)
            setattr(self.large, name, quantity.large)

    def note_active(self) -> None:
        """A block was handed out while others wait for their streams."""
        for name, waiting_name in _ACTIVE.values():
            blocks, waiting = self.of[name], self.of[waiting_name]
            waiting.small.peak = max(waiting.small.peak, blocks.small.now + waiting.small.now)
            waiting.large.peak = max(waiting.large.peak, blocks.large.now + waiting.large.now)
            waiting.peak = max(waiting.peak, blocks.now + waiting.now)

    def reset_peaks(self) -> None:
        for quantity in self.of.values():
            quantity.reset_peak()
        self.note_active()

    def reset_accumulated(self) -> None:
        for quantity in self.of.values():
            quantity.reset_accumulated()

    def as_dicts(self) -> dict[str, dict[str, Counted]]:
        """By torch's name of the quantity, then "all", "small_pool" or "large_pool"."""
        result = {}
        for torch_name, name in _NAMES.items():
            quantity = self.of[name]
            result[torch_name] = _by_pool(quantity.small.as_dict(), quantity.large.as_dict(), quantity.peak)
        for torch_name, (name, waiting_name) in _ACTIVE.items():
            blocks, waiting = self.of[name], self.of[waiting_name]
            small, large = _active(blocks.small, waiting.small), _active(blocks.large, waiting.large)
            result[torch_name] = _by_pool(small, large, max(blocks.peak, waiting.peak))
        return result


def _by_pool(small: Counted, large: Counted, peak: int) -> dict[str, Counted]:
    both = {key: small[key] + large[key] for key in small}
    return {"all": {**both, "peak": peak}, "small_pool": small, "large_pool": large}


def _active(handed_out: Count, waiting: Count) -> Counted:
    """A block becomes active as it is handed out, and stops to be as it is free."""
    now, base = handed_out.now + waiting.now, handed_out.base + waiting.base
    return _counted(now, max(handed_out.peak, waiting.peak), handed_out.total, base)


def _counted(now: int, peak: int, total: int, base: int) -> Counted:
    return {"current": now, "peak": peak, "allocated": total, "freed": base + total - now}
