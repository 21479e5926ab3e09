"""The device memory behind virtual tensors: one `Allocation` per storage, shared by all views, freed with the last.

Python's reference counting makes the lifetime exact: C++ keeps a tensor's Python object, and so its allocation, alive for as
long as autograd has it saved. What the host knows of the content (`known`) rides along: a uniform scalar after
`zeros` or `fill_`, or the host's own copy after a small host-to-device copy; None as soon as anything else writes.

    allocation = allocate(gpu, device=0, size_bytes=4096)
    allocation.address
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from replayer.memory.oom import OutOfMemory
from replayer.memory.tensor_allocator import AllocationHandle

if TYPE_CHECKING:
    from replayer.gpu import VirtualGpu

KNOWN_LIMIT = 4096  # elements of a host-to-device copy that is remembered


class Uniform(NamedTuple):
    """Content of which every element is `value`."""

    value: float | int | bool
    dtype: torch.dtype


class Allocation:
    """`block` is None if nothing was asked for; `known` is None, a `Uniform` or a CPU tensor. Made by `hold`."""

    __slots__ = ("__weakref__", "block", "known")

    block: AllocationHandle | None
    known: Uniform | torch.Tensor | None

    def __del__(self) -> None:
        block = self.block
        if block is not None:
            block.allocator.free(block)

    @property
    def address(self) -> int:
        return self.block.address if self.block is not None else 0

    @property
    def size_bytes(self) -> int:
        """What was asked for."""
        return self.block.size_bytes if self.block is not None else 0

    def exchange(self, other: Allocation) -> None:
        """Take over the memory of `other`, which is left with the old."""
        self.block, other.block = other.block, self.block
        self.known = None


def hold(block: AllocationHandle | None) -> Allocation:
    """An allocation of memory that was got from an allocator. A function, because calling a class costs three times as much."""
    made = Allocation()
    made.block = block
    made.known = None
    return made


def allocate(gpu: VirtualGpu, device: int, size_bytes: int) -> Allocation:
    """Memory of `device` for its current stream. Raises torch.OutOfMemoryError in PyTorch's words."""
    try:
        return hold(gpu.devices[device].allocator.malloc(size_bytes, gpu.current_stream(device).number))
    except OutOfMemory as full:
        raise full.to_torch() from None


def placeholder(dtype: torch.dtype) -> float | int | bool:
    """What an unrecorded value reads as."""
    if dtype is torch.bool:
        return False
    return 1.0 if dtype.is_floating_point or dtype.is_complex else 0
