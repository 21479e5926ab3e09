"""Manages the virtual GPU memory of tensors, and creates virtual tensors.

    allocation = allocate(gpu, device=0, size_bytes=4096)
    make(meta, allocation)      # a VirtualTensor

Note [A dictionary at once]
    Python reads an attribute in 10 ns from an ordinary dictionary, and in 33 ns from a dictionary that shares its keys with
    other instances. `set_attributes` therefore gives each tensor an ordinary dictionary.

Note [Views in inference mode]
    In inference mode, a view of a normal tensor is a normal tensor. Outside inference mode, a view of an inference tensor is an
    inference tensor. PyTorch has two exceptions. The result of `view(dtype)` is an inference tensor exactly in inference mode.
    Outside inference mode, a script can change the result of `detach`. Until the script first uses inference mode, the dispatch
    function creates views without `make_view`.
"""

from __future__ import annotations

import math
from enum import Enum, IntEnum
from typing import NamedTuple

import torch

from replayer.gpu.virtual_gpu import VirtualGpu
from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.tensor_allocator import TensorAllocator
from replayer.state import STATE
from replayer.tensor.tensor_meta import TensorMeta, is_inference
from replayer.torch_types import TorchAny
from traces.model.layouts import Shape

# surfaces/torch_tensor_subclass.py replaces this function for scripts
wrapper: TorchAny = torch.Tensor._make_wrapper_subclass
_inference_mode, _is_mode_enabled = torch._C._InferenceMode, torch.is_inference_mode_enabled
_ALL_ATTRIBUTES: TorchAny = vars(torch.Tensor)["__dict__"]
# see Note [Attributes of scripts] in tensor.py
attributes_of: TorchAny = _ALL_ATTRIBUTES.__get__
set_attributes: TorchAny = _ALL_ATTRIBUTES.__set__
_set_data: TorchAny = torch._C.TensorBase.data.__set__  # type: ignore[attr-defined]

KNOWN_BYTES = 1 << 20  # size of the largest tensor whose values are kept
_KNOWN_BYTES_OF_BUFFER = 1 << 28  # the same for a buffer of bytes


def is_kept_on_host(shape: Shape, dtype: torch.dtype) -> bool:
    is_buffer = dtype is torch.uint8 and len(shape) == 1
    return math.prod(shape) * dtype.itemsize <= (_KNOWN_BYTES_OF_BUFFER if is_buffer else KNOWN_BYTES)


class Doubt(IntEnum):
    """Says how far a known value can be trusted. The result of an op is as doubtful as its most doubtful argument."""

    NONE = 0
    ROUNDED = 1  # the value was computed from floats, which a GPU may round differently
    GUESSED = 2  # the value depends on an assumption (values/value_rules.py)
    CHOSEN = 3  # a guessed index of the largest or smallest elements of unknown values, such as a predicted class


class Uniform(NamedTuple):
    value: float | int | bool
    dtype: torch.dtype
    doubt: Doubt = Doubt.NONE


class Content:
    """Identifies unknown values. Two tensors with the same `Content` object, such as a tensor and its clone, have equal
    values."""


class Truth(Enum):
    ZERO_OR_ONE = "the result of a comparison, as booleans or as the numbers 0 and 1"
    IN_RANGE = "the result of comparing floats with bounds, which the floats do not exceed if training goes well"
    EQUAL_OR_IN_RANGE = "the result of comparing floats, which are nearly equal if training goes well"


class Matches(NamedTuple):
    """Represents an unknown comparison result with a limited number of true elements, such as `labels[:, None] == classes`."""

    at_most: int


class Allocation:
    __slots__ = ("__weakref__", "block", "known")

    block: AllocationHandle | None  # None for an allocation of 0 bytes
    known: Uniform | torch.Tensor | Content | Truth | Matches | None

    def __del__(self) -> None:
        block = self.block
        if block is not None:
            free = block.allocator.free  # calling a local variable is faster than calling an attribute
            free(block)

    @property
    def address(self) -> int:
        return self.block.address if self.block is not None else 0

    @property
    def size_bytes(self) -> int:
        return self.block.size_bytes if self.block is not None else 0

    @property
    def doubt(self) -> Doubt:
        return getattr(self.known, "doubt", Doubt.NONE)

    def mark(self, doubt: Doubt) -> None:
        known: TorchAny = self.known
        doubt = max(doubt, self.doubt)
        if type(known) is Uniform:
            self.known = known._replace(doubt=doubt)
        elif isinstance(known, torch.Tensor):
            known.doubt = doubt  # type: ignore[attr-defined]

    def exchange(self, other: Allocation) -> None:
        self.block, other.block = other.block, self.block
        self.known = None


def allocation_of(block: AllocationHandle | None) -> Allocation:
    made = Allocation()
    made.block = block
    made.known = None
    return made


def allocate(gpu: VirtualGpu, device: int, size_bytes: int) -> Allocation:
    """Allocate memory for the current stream. Raise torch.OutOfMemoryError if the memory is full."""
    try:
        return allocation_of(gpu.devices[device].allocator.malloc(size_bytes, gpu.current.stream(device).number))
    except OutOfMemory as full:
        raise full.to_torch() from None


def make(meta: TensorMeta, allocation: Allocation) -> TorchAny:
    made: TorchAny = wrapper(*meta.wrapping)
    set_attributes(made, {"tensor_meta": meta, "allocation": allocation})
    return made


def make_as(cls: type, meta: TensorMeta, allocation: Allocation) -> TorchAny:
    made: TorchAny = wrapper(cls, *meta.wrapping[1:])
    set_attributes(made, {"tensor_meta": meta, "allocation": allocation})
    return made


def make_view(meta: TensorMeta, source: TorchAny, cls: TorchAny = None, allocation: Allocation | None = None) -> TorchAny:
    cls, allocation = cls or meta.wrapping[0], allocation or source.allocation
    if STATE.inference_mode_used:  # see Note [Views in inference mode]
        inference = source.is_inference() if type(source) is cls else is_inference(source)
        if inference is not _is_mode_enabled():
            with _inference_mode(inference):
                return make_as(cls, meta, allocation)
    return make_as(cls, meta, allocation)


def detach(source: TorchAny, cls: type | None = None) -> TorchAny:
    """Execute `source.detach()`. The script can change the result, even if the source is an inference tensor."""
    if not STATE.inference_mode_used or torch.is_inference_mode_enabled() or not is_inference(source):
        return make_view(source.tensor_meta, source, cls)
    with torch._C._DisableTorchDispatch():
        made: TorchAny = torch._C.TensorBase._make_subclass(cls or source.tensor_meta.wrapping[0], source)
    set_attributes(made, {"tensor_meta": source.tensor_meta, "allocation": source.allocation})
    return made


def new_tensor(meta: TensorMeta, size_bytes: int, allocator: TensorAllocator, stream: int) -> TorchAny:
    try:
        block = allocator.malloc(size_bytes, stream)
    except OutOfMemory as full:
        raise full.to_torch() from None
    return make(meta, allocation_of(block))


def assign_data(tensor: TorchAny, meta: TensorMeta, allocation: Allocation) -> None:
    before = attributes_of(tensor).get("tensor_meta", meta)
    made = make_view(meta, tensor, allocation=allocation)
    if before.is_conj is not meta.is_conj or before.is_neg is not meta.is_neg:
        # Tensors have a conjugate bit and a negative bit. If these bits of two tensors differ, PyTorch raises an error for
        # `tensor.data = made`. So clear the bits of both tensors, assign the data, and then set the bits of `tensor`.
        _set_bits(tensor, False, False)
        _set_bits(made, False, False)
        _set_data(tensor, made)
        _set_bits(tensor, meta.is_conj, meta.is_neg)
    else:
        _set_data(tensor, made)
    tensor.tensor_meta = meta
    tensor.allocation = allocation


def _set_bits(tensor: TorchAny, is_conj: bool, is_neg: bool) -> None:
    torch._C._set_conj(tensor, is_conj)
    torch._C._set_neg(tensor, is_neg)
