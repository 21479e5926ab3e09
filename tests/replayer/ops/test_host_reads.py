"""Tests which ops read a value from the GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from replayer.ops.host_reads import reads_an_argument


@pytest.mark.parametrize(
    ("size", "limits", "reads"),
    [(3, (), True), (3, (0, 0), True), (3, (2, 2), True), (3, (0, 1), False), (0, (), False), (1, (), True)],
)
def test_a_histogram_with_equal_limits_finds_its_limits_in_the_data(size: int, limits: tuple[int, ...], reads: bool) -> None:
    assert reads_an_argument(torch.ops.aten.histc.default, (torch.zeros(size), 10, *limits), {}) is reads


def test_lengths_are_checked_unless_the_call_is_unsafe() -> None:
    def reads(**options: object) -> bool:
        return reads_an_argument(torch.ops.aten.segment_reduce.default, (torch.ones(1), "sum"), options)

    lengths = torch.ones(1)
    assert reads(lengths=lengths) and not reads() and not reads(unsafe=True) and not reads(lengths=lengths, unsafe=True)


def test_a_tensor_without_elements_is_not_read() -> None:
    pinv = torch.ops.aten.linalg_pinv.atol_rtol_tensor
    assert reads_an_argument(pinv, (torch.zeros(1, 1),), {}) and not reads_an_argument(pinv, (torch.zeros(0, 3),), {})


@pytest.mark.parametrize(("size", "least"), [(1, 10), (100, 19), (10_000, 38)])  # `least` is 10 * size ** 0.145
def test_many_values_are_sorted_for_isin_after_their_duplicates_are_removed(size: int, least: int) -> None:
    def reads(among: int, **options: object) -> bool:
        return reads_an_argument(torch.ops.aten.isin.Tensor_Tensor, (torch.zeros(size), torch.zeros(among)), options)

    assert reads(least) and not reads(least - 1)
    assert not reads(least, assume_unique=True) and not reads(least - 1, assume_unique=True)


@pytest.mark.parametrize(
    ("on_gpu", "dtype", "numel", "accumulates", "reads"),
    [
        (True, "bool", 2, [], True),
        (True, "bool", 1, [], False),  # PyTorch fills the selected elements with a number on the host
        (True, "bool", 1, [False], False),
        (True, "bool", 1, [True], True),
        (True, "int64", 2, [], False),
        (False, "bool", 2, [], False),
    ],
)
def test_masked_assignment_reads_the_mask_unless_the_value_is_one_number(
    on_gpu: bool, dtype: str, numel: int, accumulates: list[bool], reads: bool
) -> None:
    index: Any = torch.zeros(4, dtype=getattr(torch, dtype))
    if on_gpu:
        index.allocation = None
    value: Any = torch.zeros(numel)
    args = [torch.zeros(4), [index], value, *accumulates]
    assert reads_an_argument(torch.ops.aten.index_put_.default, args, {}) is reads
    value.allocation = None
    assert reads_an_argument(torch.ops.aten.index_put_.default, args, {}) is (on_gpu and dtype == "bool")
