"""Tests which tensors have values that the host keeps."""

from __future__ import annotations

import pytest
import torch

from replayer.tensor.allocation import is_kept_on_host


@pytest.mark.parametrize(
    ("sizes", "dtype", "keeps"),
    [
        ([], "float64", True),
        ([1 << 18], "float32", True),
        ([(1 << 18) + 1], "float32", False),
        ([1 << 20], "int8", True),
        ([(1 << 20) + 1], "int8", False),
        ([1 << 10, 1 << 10], "uint8", True),
        ([1 << 10, (1 << 10) + 1], "uint8", False),  # only one-dimensional tensors of bytes may be larger than 1 MiB
        ([1 << 28], "uint8", True),
        ([(1 << 28) + 1], "uint8", False),
    ],
)
def test_values_up_to_1_mib_and_flat_bytes_up_to_256_mib_are_known(sizes: list[int], dtype: str, keeps: bool) -> None:
    assert is_kept_on_host(tuple(sizes), getattr(torch, dtype)) is keeps
