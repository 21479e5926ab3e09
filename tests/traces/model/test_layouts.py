"""Tests that the memory layout of image tensors is determined from their strides."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from traces.kineto.spans.shapes import layouts_of
from traces.model.layouts import memory_layout

sizes = st.lists(st.integers(1, 4), min_size=4, max_size=5)


def layout_of(*tensors: torch.Tensor) -> str:
    return memory_layout((tuple(tensor.shape), tensor.stride()) for tensor in tensors)


@given(sizes)
def test_the_layout_of_image_tensors_agrees_with_torch(shape: list[int]) -> None:
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    plain = torch.empty(shape)
    other = plain.contiguous(memory_format=last)
    alike = shape[1] == 1 or all(size == 1 for size in shape[2:])
    assert layout_of(plain) == ("other" if alike else "contiguous")
    assert layout_of(other) == ("other" if alike else "channels_last")


def test_an_op_result_is_channels_last_if_one_operand_is_channels_last() -> None:
    weight = torch.empty(8, 4, 3, 3)
    assert layout_of(weight, torch.empty(2, 4, 5, 5).to(memory_format=torch.channels_last)) == "channels_last"
    assert layout_of(torch.empty(3, 4)) == layout_of() == ""
    assert layout_of(torch.empty(2, 3, 4, 5)[:, :, ::2]) == "other"


def test_layouts_are_read_from_the_arguments_of_profiled_ops() -> None:
    images, pixels_first = [2, 3, 4, 5], [60, 1, 15, 3]
    args: list[dict[str, Any]] = [
        {"Input Dims": [images, [], [7]], "Input Strides": [pixels_first, [], [1]]},
        {"Input Dims": [[images, images]], "Input Strides": [[[60, 20, 5, 1], [60, 20, 5, 1]]]},
        {"Input Dims": [images]},
        {"Memory layout": "channels_last"},
        {"Input Dims": [images], "Input Strides": "none", "Memory layout": 3},
        {"Input Dims": [[1, 2, "x", 4]], "Input Strides": [[1, 2, 3, 4]]},
    ]
    assert layouts_of(args) == ["channels_last", "contiguous", "", "channels_last", "", ""]
