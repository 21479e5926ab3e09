"""The virtual driver's address space: addresses of segments, which look like CUDA's and are reused once freed.

Segments are multiples of 2 MiB on 2 MiB boundaries, as the driver returns them for the sizes that PyTorch asks for. The
lowest hole that is large enough is taken. Devices are 1 TiB apart, so that addresses are unique; expandable segments have
spaces of their own, 5 TiB for each device.

    space = AddressSpace(device=0)
    first = space.take(2 << 20)  # 0x7f0000000000
    space.give_back(first, 2 << 20)
    space.take(2 << 20) == first  # True
"""

from __future__ import annotations

from bisect import bisect_left

_BASE = 0x7F00_0000_0000
_SPAN = 1 << 40
_RESERVED_BASE = 0x1000_0000_0000
_RESERVED_SPAN = 5 << 40


class AddressSpace:
    """The holes, sorted: `_starts[i]` begins a hole of `_sizes[i]` bytes. Neighbouring holes are joined."""

    def __init__(self, device: int, *, reserved: bool = False) -> None:
        self._starts = [_RESERVED_BASE + device * _RESERVED_SPAN if reserved else _BASE - device * _SPAN]
        self._sizes = [_RESERVED_SPAN if reserved else _SPAN]

    def take(self, size_bytes: int) -> int:
        """The address of a new segment.

        Raises RuntimeError if no hole is large enough, which can only happen to address ranges without memory.
        """
        hole = next((i for i, size in enumerate(self._sizes) if size >= size_bytes), None)
        if hole is None:
            raise RuntimeError(f"CUDA driver error: out of memory: no {size_bytes:,} bytes of addresses are left")
        address = self._starts[hole]
        if self._sizes[hole] == size_bytes:
            del self._starts[hole], self._sizes[hole]
        else:
            self._starts[hole] += size_bytes
            self._sizes[hole] -= size_bytes
        return address

    def give_back(self, address: int, size_bytes: int) -> None:
        hole = bisect_left(self._starts, address)
        if hole < len(self._starts) and address + size_bytes == self._starts[hole]:
            size_bytes += self._sizes[hole]
            del self._starts[hole], self._sizes[hole]
        if hole and self._starts[hole - 1] + self._sizes[hole - 1] == address:
            self._sizes[hole - 1] += size_bytes
        else:
            self._starts.insert(hole, address)
            self._sizes.insert(hole, size_bytes)
