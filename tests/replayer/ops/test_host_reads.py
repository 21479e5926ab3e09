"""When PyTorch reads a value from the GPU within an op."""

from __future__ import annotations

import pytest
import torch

from replayer.ops.host_reads import _checks_lengths, _finds_limits, _has_elements, _removes_duplicates


@pytest.mark.parametrize(
    ("size", "limits", "reads"),
    [(3, (), True), (3, (0, 0), True), (3, (2, 2), True), (3, (0, 1), False), (0, (), False), (1, (), True)],
)
def test_a_histogram_with_equal_limits_finds_its_limits_in_the_data(size: int, limits: tuple[int, ...], reads: bool) -> None:
    assert _finds_limits(torch.zeros(size), 10, *limits) is reads


def test_lengths_are_checked_unless_the_call_is_unsafe() -> None:
    assert _checks_lengths(lengths=torch.ones(1)) and not _checks_lengths() and not _checks_lengths(unsafe=True)
    assert not _checks_lengths(lengths=torch.ones(1), unsafe=True)


def test_a_tensor_without_elements_is_not_read() -> None:
    assert _has_elements(torch.zeros(1)) and not _has_elements(torch.zeros(0, 3))


@pytest.mark.parametrize(("size", "least"), [(1, 10), (100, 19), (10_000, 38)])  # 10 * size ** 0.145
def test_many_values_are_sorted_for_isin_after_their_duplicates_are_removed(size: int, least: int) -> None:
    data = torch.zeros(size)
    assert _removes_duplicates(data, torch.zeros(least)) and not _removes_duplicates(data, torch.zeros(least - 1))
    assert not _removes_duplicates(data, torch.zeros(least), assume_unique=True)
    assert not _removes_duplicates(data, torch.zeros(least - 1), assume_unique=True)
