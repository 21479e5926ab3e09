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

Note [Views in inference mode]
    What is made in inference mode is an inference tensor, except a view of a normal tensor: it counts versions with its base.
    Dispatch makes views itself, and asks here only once the script has used the mode.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import torch

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.tensor_allocator import TensorAllocator
from replayer.state import STATE
from replayer.tensor.tensor_meta import TensorMeta
from replayer.torch_types import TorchAny
from traces.model.layouts import Shape

if TYPE_CHECKING:
    from replayer.gpu.virtual_gpu import VirtualGpu

wrapper: TorchAny = (
    torch.Tensor._make_wrapper_subclass
)  # torch's own, which surfaces/torch_tensor_subclass.py replaces for scripts
_inference_mode: TorchAny = torch._C._InferenceMode
_set_data: TorchAny = torch._C.TensorBase.data.__set__  # type: ignore[attr-defined]

KNOWN_LIMIT = 16_384  # elements of a tensor whose values the host keeps
_KNOWN_BYTES_LIMIT = 1 << 28  # and of a row of bytes


def host_keeps(shape: Shape, dtype: torch.dtype) -> bool:
    """Whether the host keeps the values of a tensor: of a small one, and of a row of bytes, which is no data to compute with
    but a pickle or a generator's state, on its way to another process.
    """
    count = math.prod(shape)
    return count <= KNOWN_LIMIT or (dtype is torch.uint8 and len(shape) == 1 and count <= _KNOWN_BYTES_LIMIT)


class Uniform(NamedTuple):
    """Content of which every element is `value`. `assumed`: or would be in a healthy run; values/assumed_values.py."""

    value: float | int | bool
    dtype: torch.dtype
    assumed: bool = False


class Content:
    """Content that is not known, but is the same wherever this object is: that of a tensor and its clone."""


class Truth(Enum):
    """Content that is not known, of which more than that can be said."""

    ZERO_OR_ONE = "the result of a comparison, perhaps as numbers"
    IN_RANGE = "the result of comparing floats with bounds, which hold in a healthy run"
    EQUAL_OR_IN_RANGE = "the result of comparing floats, which are equal or near to each other in a healthy run"


class Matches(NamedTuple):
    """As Truth.ZERO_OR_ONE, with no more than so many ones."""

    at_most: int


class Allocation:
    """`block` is None for 0 bytes; `known` is None or what is known of the content. Made by `allocation_of`."""

    __slots__ = ("__weakref__", "block", "known")

    block: AllocationHandle | None
    known: Uniform | torch.Tensor | Content | Truth | Matches | None

    def __del__(self) -> None:
        block = self.block
        if block is not None:
            free = block.allocator.free  # by a name: the interpreter calls an attribute of an instance more slowly
            free(block)

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
        return allocation_of(gpu.devices[device].allocator.malloc(size_bytes, gpu.current.stream(device).number))
    except OutOfMemory as full:
        raise full.to_torch() from None


def make(meta: TensorMeta, allocation: Allocation) -> TorchAny:
    """A virtual tensor with metadata `meta` on an allocation."""
    made: TorchAny = wrapper(*meta.wrapping)
    made.__dict__ = {"meta": meta, "allocation": allocation}  # Note [A dictionary at once], here and below
    return made


def make_as(cls: type, meta: TensorMeta, allocation: Allocation) -> TorchAny:
    """A tensor of a subclass of virtual tensors."""
    made: TorchAny = wrapper(cls, *meta.wrapping[1:])
    made.__dict__ = {"meta": meta, "allocation": allocation}
    return made


def make_view(meta: TensorMeta, source: TorchAny, cls: type | None = None) -> TorchAny:
    """A virtual tensor with metadata `meta` on the allocation of `source`. See Note [Views in inference mode]."""
    cls = cls or meta.wrapping[0]
    if STATE.inference_mode_used and torch.is_inference_mode_enabled() and not source.is_inference():
        with _inference_mode(False):
            return make_as(cls, meta, source.allocation)
    return make_as(cls, meta, source.allocation)


def new_tensor(meta: TensorMeta, size_bytes: int, allocator: TensorAllocator, stream: int) -> TorchAny:
    """A virtual tensor on new memory. Raises torch.OutOfMemoryError in PyTorch's words."""
    try:
        block = allocator.malloc(size_bytes, stream)
    except OutOfMemory as full:
        raise full.to_torch() from None
    made: TorchAny = wrapper(*meta.wrapping)
    made.__dict__ = {"meta": meta, "allocation": allocation_of(block)}
    return made


def adopt(tensor: TorchAny, other: TorchAny) -> None:
    """Give `tensor` the metadata and the allocation of `other`, both virtual: what `tensor.data = other` does."""
    _set_data(tensor, other)
    tensor.meta = other.meta
    tensor.allocation = other.allocation
