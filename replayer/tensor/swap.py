"""Swap what two Python tensors stand for in C++.

    swap(parameter, moved)      # the object that optimizers know is on another device

Note [Weak references of C++]
    PyTorch's own swap refuses tensors that C++ refers to weakly. A torch.profiler profile with record_shapes refers so to every
    tensor that an op has seen, for as long as the profile is kept, and autocast to the weights that it has cast. Both use the
    address of what a tensor stood for to tell tensors apart, and keep that address from being taken again: to them the swapped
    tensor has died. So the count of weak references, by which the swap is refused, is lowered while it happens. Where in a
    tensor that count lies is measured on a tensor of our own.
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
_WORD_OFFSETS_BYTES = range(8, 24, 4)  # behind the virtual table of a C++ object: its counts of references


def swap(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Swap what the two stand for. Raises NotEmulated where C++ refers to `tensor` and the release of torch hides how often."""
    try:
        _swap_in_cpp(tensor, other)
    except RuntimeError as error:
        place = _weak_count_place()
        if place is None:
            advice = "a profile with record_shapes refers to it: move it before the profile begins, or del the profile"
            raise NotEmulated("moving a tensor between CPU and GPU in place", advice) from error
        with _without_weak_references(tensor, *place):
            _swap_in_cpp(tensor, other)


@contextmanager
def _without_weak_references(tensor: TorchAny, offset_bytes: int, count_of_none: int) -> Iterator[None]:
    count = _word(tensor, offset_bytes)  # of what `tensor` stands for now, whatever it will stand for
    weak_references = count.value - count_of_none
    count.value = count_of_none
    try:
        yield
    finally:
        count.value += weak_references


@cache
def _weak_count_place() -> tuple[int, int] | None:
    """Where a tensor has its count of weak references, in bytes from its beginning, and what it says where there are none."""
    probe, make_reference = torch.empty(0), getattr(torch._C, "_WeakTensorRef", None)
    if make_reference is None:
        return None
    before = [_word(probe, offset).value for offset in _WORD_OFFSETS_BYTES]
    references = [make_reference(probe) for _ in range(3)]
    after = [_word(probe, offset).value for offset in _WORD_OFFSETS_BYTES]
    del references
    changes = [(offset, old) for offset, old, new in zip(_WORD_OFFSETS_BYTES, before, after, strict=True) if old != new]
    if len(changes) != 1 or changes[0][1] + 3 != after[_WORD_OFFSETS_BYTES.index(changes[0][0])]:
        return None
    return changes[0]


def _word(tensor: TorchAny, offset_bytes: int) -> ctypes.c_uint32:
    return ctypes.c_uint32.from_address(tensor._cdata + offset_bytes)
