"""The device memory behind virtual tensors, one `Allocation` per storage, and the tensors made on it.

All views of a storage share its allocation, which is freed with the last. Python's reference counting makes the lifetime exact:
C++ keeps a tensor's Python object, and so its allocation, alive for as long as autograd has it saved. What the host knows of
the content (`known`) is kept there too: a uniform scalar after `zeros` or `fill_`, or the host's own copy after a small
host-to-device copy; None as soon as anything else writes.

    allocation = allocate(gpu, device=0, size_bytes=4096)
    make(meta, allocation)      # a VirtualTensor

Note [A dictionary at once]
    C++ makes a tensor without its dictionary. Setting two attributes would make one that shares its keys with those of other
    tensors, from which the interpreter reads more slowly: 33 ns per attribute instead of 10, three reads per op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from replayer.memory.oom import OutOfMemory
from replayer.memory.tensor_allocator import AllocationHandle, TensorAllocator
from replayer.tensor.tensor_meta import TensorMeta

if TYPE_CHECKING:
    from replayer.gpu import VirtualGpu

_wrap: Any = torch.Tensor._make_wrapper_subclass
_set_data: Any = torch._C.TensorBase.data.__set__  # type: ignore[attr-defined]

KNOWN_LIMIT = 4096  # elements of a tensor whose values the host keeps


class Uniform(NamedTuple):
    """Content of which every element is `value`."""

    value: float | int | bool
    dtype: torch.dtype


class Allocation:
    """`block` is None for 0 bytes; `known` is None, a `Uniform` or a CPU tensor. Made by `allocation_of`."""

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
        """As requested, not as rounded by the allocator."""
        return self.block.size_bytes if self.block is not None else 0

    def exchange(self, other: Allocation) -> None:
        """Swap memory with `other`."""
        self.block, other.block = other.block, self.block
        self.known = None


def allocation_of(block: AllocationHandle | None) -> Allocation:
    """The allocation of a block of an allocator. A function, because calling a class costs three times as much."""
    made = Allocation()
    made.block = block
    made.known = None
    return made


def allocate(gpu: VirtualGpu, device: int, size_bytes: int) -> Allocation:
    """Memory of `device` for its current stream. Raises torch.OutOfMemoryError in PyTorch's words."""
    try:
        return allocation_of(gpu.devices[device].allocator.malloc(size_bytes, gpu.current_stream(device).number))
    except OutOfMemory as full:
        raise full.to_torch() from None


def make(meta: TensorMeta, allocation: Allocation) -> Any:
    """A virtual tensor with metadata `meta` on an allocation."""
    made: Any = _wrap(*meta.wrapping)
    made.__dict__ = {"meta": meta, "allocation": allocation}  # Note [A dictionary at once], here and below
    return made


def new_tensor(meta: TensorMeta, size_bytes: int, allocator: TensorAllocator, stream: int) -> Any:
    """A virtual tensor on new memory. Raises torch.OutOfMemoryError in PyTorch's words."""
    try:
        block = allocator.malloc(size_bytes, stream)
    except OutOfMemory as full:
        raise full.to_torch() from None
    made: Any = _wrap(*meta.wrapping)
    made.__dict__ = {"meta": meta, "allocation": allocation_of(block)}
    return made


def adopt(tensor: Any, other: Any) -> None:
    """Give `tensor` the metadata and the allocation of `other`, both virtual: what `tensor.data = other` does."""
    _set_data(tensor, other)
    tensor.meta = other.meta
    tensor.allocation = other.allocation


def placeholder(dtype: torch.dtype) -> float | int | bool:
    """What an unrecorded value reads as."""
    if dtype is torch.bool:
        return False
    return 1.0 if dtype.is_floating_point or dtype.is_complex else 0
