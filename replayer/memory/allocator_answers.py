"""What a script asks of a device's memory, and what it may reset: the figures behind `torch.cuda.memory_*`.

    memory = DeviceMemory(device=0, capacity_bytes=16 << 30, outside_bytes=400 << 20)
    memory.set_memory_fraction(0.5)
    memory.stats()["reserved_bytes"]["all"]["peak"]
"""

from __future__ import annotations

from typing import Any

from replayer.memory.allocator_segments import AllocatorSegments
from replayer.memory.blocks import Block, Unmapped
from replayer.memory.settings import UNLIMITED
from replayer.memory.snapshot import mapped_ranges, segment


class AllocatorAnswers(AllocatorSegments):
    """Questions about the whole device; blocks and segments are the other classes' matter."""

    @property
    def allocated_bytes(self) -> int:
        return self._tallies.of["blocks_bytes"].now

    @property
    def reserved_bytes(self) -> int:
        return self._segments.reserved_bytes

    @property
    def driver_calls(self) -> int:
        """Calls so far that took or returned memory: while it stays, so does what is reserved."""
        return self._segments.taken + self._segments.returned

    @property
    def peak_allocated_bytes(self) -> int:
        return self._tallies.of["blocks_bytes"].peak

    @property
    def peak_reserved_bytes(self) -> int:
        return self._tallies.of["reserved_bytes"].peak

    @property
    def capacity_bytes(self) -> int:
        return self._segments.capacity_bytes

    @property
    def free_bytes(self) -> int:
        """What cudaMemGetInfo calls free."""
        return self._segments.free_bytes

    @property
    def memory_fraction(self) -> float:
        allowed_bytes = self._segments.allowed_bytes
        return 1.0 if allowed_bytes is None else allowed_bytes / self.capacity_bytes

    def empty_cache(self) -> None:
        """Return every segment that no block is in use of."""
        with self._settled():
            self._release_cached()

    def reset_peak(self) -> None:
        with self._settled():
            self._most_allocated_bytes, self._most_reserved_bytes = self._most()
            self._tallies.reset_peaks()
            self._oversize_blocks.reset_peak()
            self._oversize_segments.reset_peak()

    def reset_accumulated(self) -> None:
        with self._settled():
            self._earlier_ooms += self._ooms
            self._tallies.reset_accumulated()
            self._oversize_blocks.reset_accumulated()
            self._oversize_segments.reset_accumulated()
            self._retries = self._ooms = self._syncs = 0
            self._segments.taken = self._segments.returned = 0

    @property
    def sure_bytes(self) -> int:
        """What can certainly be reserved, whatever the sizes; 0 if nothing is certain or each call must be done at its time."""
        if self._history is not None or (self._settings is not None and not self._settings.are_bounded):
            return 0
        allowed_bytes = self._segments.allowed_bytes
        free_bytes = self.free_bytes
        return free_bytes if allowed_bytes is None else min(free_bytes, allowed_bytes - self.reserved_bytes)

    def snapshot(self) -> list[dict[str, Any]]:
        """All segments in order of address, in torch's form."""
        with self._settled():
            ranges = [blocks for tail in self._tails() for blocks in mapped_ranges(tail)]
            ranges.sort(key=lambda blocks: blocks[0].address)
            return [segment(blocks, self.device, self._history) for blocks in ranges]

    def layout(self) -> tuple[tuple[int, ...], ...] | None:
        """All blocks by address, size, use and request; None while any waits for another stream or will."""
        with self._settled():
            found = []
            for tail in self._tails():
                block: Block | None = tail
                while block is not None:
                    if type(block) is not Unmapped:
                        if block.users or not (block.in_use or block.in_pool):
                            return None
                        requested_bytes = block.requested_bytes if block.in_use else 0
                        found.append((block.address, block.size_bytes, block.in_use, requested_bytes))
                    block = block.prev
            return tuple(sorted(found))

    def _tails(self) -> list[Block]:
        """The last block of each chain."""
        return [*self._segments.tails.values(), *self._expandable.tails()]

    def totals(self) -> list[int]:
        """The sums of all increases, for `raise_totals`."""
        return [count.total for quantity in self._tallies.of.values() for count in (quantity.small, quantity.large)]

    def raise_totals(self, amounts: list[int]) -> None:
        """Count what went up and down again without being done: by how much each of `totals` rose. See allocation_cycles.py."""
        counts = [count for quantity in self._tallies.of.values() for count in (quantity.small, quantity.large)]
        for count, amount in zip(counts, amounts, strict=True):
            count.total += amount

    def facts(self) -> dict[str, int]:
        """What there was to have and what was needed, whatever the script has reset since: for a report."""
        allocated_bytes, reserved_bytes = self._most()
        return {
            "capacity_bytes": self.capacity_bytes,
            "outside_bytes": self._segments.outside_bytes,
            "most_allocated_bytes": allocated_bytes,
            "most_reserved_bytes": reserved_bytes,
            "ooms": self._earlier_ooms + self._ooms - self._excused_ooms,
        }

    def excuse_oom(self) -> None:
        """The last failure was not the script's: a library found another way (see workspaces.py)."""
        self._excused_ooms += 1

    def _most(self) -> tuple[int, int]:
        return (
            max(self._most_allocated_bytes, self.peak_allocated_bytes),
            max(self._most_reserved_bytes, self.peak_reserved_bytes),
        )

    def stats(self) -> dict[str, Any]:
        """What torch._C._cuda_memoryStats returns in torch 2.13: one dictionary per quantity, and plain counts."""
        with self._settled():
            max_split_bytes = self._settings.max_split_bytes if self._settings else UNLIMITED
            return {
                "num_alloc_retries": self._retries,
                "num_ooms": self._ooms,
                "max_split_size": -1 if max_split_bytes == UNLIMITED else max_split_bytes,
                "num_sync_all_streams": self._syncs,
                "num_device_alloc": self._segments.taken,
                "num_device_free": self._segments.returned,
                "num_oom_rejections": 0,
                **self._tallies.as_dicts(),
                "reserved_bytes_by_private_pools": {},
                "oversize_allocations": self._oversize_blocks.large.as_dict(),
                "oversize_segments": self._oversize_segments.large.as_dict(),
            }
