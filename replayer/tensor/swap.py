"""Exchanges the contents of two tensors, as `Module.to` does to move parameters to another device.

    swap(parameter, moved)      # the object that optimizers hold is now on another device

Note [Weak references of C++]
    PyTorch refuses to swap tensors with weak references in C++ code, such as those of torch.profiler and autocast. The swap is
    safe, because this code only uses weak references to identify tensors. This module lowers the count of weak references
    during the swap. To find the position of this count in a C++ object, the module examines a new tensor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from replayer.errors import NotEmulated
from replayer.torch_types import TorchAny

_swap_in_cpp: TorchAny = torch._C._swap_tensor_impl
_WORD_OFFSETS_BYTES = range(8, 24, 4)  # possible offsets of the reference counts in a C++ object, after the vtable pointer


def swap(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange the C++ objects of two tensors. Raise NotEmulated if PyTorch refuses."""
    try:
        _swap_in_cpp(tensor, other)
    except RuntimeError as error:
        place = _weak_count_offset()
        if place is None:
            advice = "a profile with record_shapes refers to the tensor; move it before profiling, or delete the profile"
            raise NotEmulated("moving a tensor between CPU and GPU in place", advice) from error
        with _without_weak_references(tensor, *place):
            _swap_in_cpp(tensor, other)


@contextmanager
def _without_weak_references(tensor: torch.Tensor, offset_bytes: int, count_of_none: int) -> Iterator[None]:
    count = _word(tensor, offset_bytes)
    weak_references = count.value - count_of_none
    count.value = count_of_none
    try:
        yield
    finally:
        count.value += weak_references


@cache
def _weak_count_offset() -> tuple[int, int] | None:
    probe, make_reference = torch.empty(0), getattr(torch._C, "_WeakTensorRef", None)
    if make_reference is None:
        return None
    before = [_word(probe, offset).value for offset in _WORD_OFFSETS_BYTES]
    references = [make_reference(probe) for _ in range(3)]
    after = [_word(probe, offset).value for offset in _WORD_OFFSETS_BYTES]
    changes = [
        (offset, old, new - old) for offset, old, new in zip(_WORD_OFFSETS_BYTES, before, after, strict=True) if old != new
    ]
    return changes[0][:2] if [added for *_, added in changes] == [len(references)] else None


def _word(tensor: torch.Tensor, offset_bytes: int) -> ctypes.c_uint32:
    return ctypes.c_uint32.from_address(tensor._cdata + offset_bytes)
