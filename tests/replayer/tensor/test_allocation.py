"""Tests which tensors have values that the host keeps."""

from __future__ import annotations

import pytest
import torch

from replayer.tensor.allocation import is_kept_on_host


@pytest.mark.parametrize(
    ("sizes", "dtype", "keeps"),
    [
        ([], "float64", True),
        ([16_384], "float32", True),
        ([16_385], "float32", False),
        ([16_385], "int8", False),
        ([128, 128], "uint8", True),
        ([128, 129], "uint8", False),  # only one-dimensional byte tensors may have more than 16,384 elements
        ([1 << 28], "uint8", True),
        ([(1 << 28) + 1], "uint8", False),
    ],
)
def test_values_of_small_tensors_and_of_byte_tensors_up_to_256_mib_are_known(sizes: list[int], dtype: str, keeps: bool) -> None:
    assert is_kept_on_host(tuple(sizes), getattr(torch, dtype)) is keeps
