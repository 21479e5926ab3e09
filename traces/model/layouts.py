"""Finds the memory layout of image tensors (contiguous or channels_last) from shapes and strides.

    memory_layout([((8, 3, 32, 32), (3072, 1, 96, 3))])      # "channels_last"
    memory_layout([((8, 128), (128, 1))])                    # "": only 4-d and 5-d tensors have a channels_last layout
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Shape = tuple[int, ...]

CONTIGUOUS, CHANNELS_LAST, OTHER_LAYOUT = "contiguous", "channels_last", "other"

LAYOUTS = (CHANNELS_LAST, CONTIGUOUS, OTHER_LAYOUT)
LAYOUT_ARG = "Memory layout"  # our exports use this op argument; files of torch.profiler contain strides

IMAGES = (4, 5)


def memory_layout(tensors: Iterable[tuple[Sequence[int], Sequence[int]]]) -> str:
    found = {_of_image(shape, stride) for shape, stride in tensors if len(shape) in IMAGES}
    return next((layout for layout in LAYOUTS if layout in found), "")


def _of_image(shape: Sequence[int], stride: Sequence[int]) -> str:
    if len(stride) != len(shape):
        return ""
    dims = range(len(shape))
    fits = [_dense_in(order, shape, stride) for order in ((*dims,), (0, *dims[2:], 1))]
    return OTHER_LAYOUT if fits[0] is fits[1] else CONTIGUOUS if fits[0] else CHANNELS_LAST


def _dense_in(order: Sequence[int], shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for dim in reversed(order):
        if shape[dim] != 1:
            if stride[dim] != expected:
                return False
            expected *= shape[dim]
    return True
