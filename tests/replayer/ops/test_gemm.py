"""Tests which matrix products PyTorch computes with cuBLASLt."""

from __future__ import annotations

import pytest
import torch

from replayer.ops.gemm import _is_lt


def _with_bias(bias: tuple[int, ...], left: tuple[int, int], right: tuple[int, int], beta: float = 1) -> bool:
    """Return whether cuBLASLt computes the product of tensors with these shapes."""
    operands = torch.zeros(bias), torch.zeros(left), torch.zeros(right)
    return _is_lt(torch.addmm(*operands, beta=beta), *operands, beta=beta)


@pytest.mark.parametrize(
    ("bias", "left", "right", "is_lt"),
    [
        ((4,), (2, 3), (3, 4), True),
        ((1, 4), (2, 3), (3, 4), True),
        ((4,), (2, 2), (2, 4), True),
        ((), (2, 3), (3, 4), False),
        ((1,), (2, 3), (3, 4), False),
        ((2, 4), (2, 3), (3, 4), False),
        ((4,), (2, 1), (1, 4), False),
        ((1,), (2, 3), (3, 1), False),
    ],
)
def test_a_product_with_a_bias_per_column_uses_cublaslt(
    bias: tuple[int, ...], left: tuple[int, int], right: tuple[int, int], is_lt: bool
) -> None:
    assert _with_bias(bias, left, right) is is_lt
    assert not _with_bias(bias, left, right, beta=2)
