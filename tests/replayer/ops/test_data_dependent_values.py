# mypy: allow-untyped-calls
"""Tests ops whose result size depends on values: unique, bincount and repeat_interleave. Each test runs in a fork of an
interpreter that has imported torch (warm.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

from replayer.ops import data_dependent
from replayer.tensor.tensor import VirtualTensor
from tests.replayer.fake_gpu import use

CASES: list[tuple[Callable[[Any], Any], int]] = [  # (call on a table, the dimension of the result that depends on values)
    (lambda t: t.unique(), 0),
    (lambda t: torch.unique(t, return_inverse=True, return_counts=True), 0),
    (lambda t: t.unique(return_counts=True), 0),
    (lambda t: t.unique(dim=0), 0),
    (lambda t: torch.unique(t, dim=1, return_inverse=True, return_counts=True), 1),
    (lambda t: t.unique_consecutive(), 0),
    (lambda t: torch.unique_consecutive(t, return_inverse=True, return_counts=True), 0),
    (lambda t: torch.unique_consecutive(t, return_inverse=True, return_counts=True, dim=-1), 1),
    (lambda t: torch.bincount(t[:, 0]), 0),
    (lambda t: torch.bincount(t[:, 0], minlength=100), 0),
    (lambda t: torch.bincount(t[:, 0], weights=t[:, 1].float()), 0),
    (lambda t: torch.repeat_interleave(t[:, 0]), 0),
    (lambda t: t.repeat_interleave(t[:, 0], 0), 0),
    (lambda t: torch.repeat_interleave(t, t[0], 1), 1),
]


def parts(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_data_dependent_results_have_the_recorded_sizes(case: int) -> None:
    """GIVEN a recorded output size THEN each result on the virtual GPU has the shape and dtype of the result on the host."""
    ask, along = CASES[case]
    gpu = use()
    real = parts(ask((torch.arange(40).view(10, 4) * 7) % 11))
    gpu.selections = dict.fromkeys([(10, 4), (10,), (4,)], real[0].shape[along])
    ours = parts(ask(torch.rand(10, 4, device="cuda").long()))
    assert [(one.shape, one.dtype) for one in ours] == [(one.shape, one.dtype) for one in real]
    assert all(type(one) is VirtualTensor and one.is_cuda and one.is_contiguous() for one in ours)
    assert {"_unique2", "unique_dim", "unique_consecutive", "bincount", "repeat_interleave"} & set(gpu.launched)


def test_an_output_size_given_by_the_script_need_not_be_recorded() -> None:
    use()
    repeats = torch.rand(3, device="cuda").long()
    assert torch.repeat_interleave(repeats, output_size=7).shape == (7,)
    assert torch.rand(3, 2, device="cuda").repeat_interleave(repeats, 0, output_size=7).shape == (7, 2)


@pytest.mark.parametrize(("repeats", "output_size", "fails"), [([1, 2], 5, True), ([2, -1], 1, True), ([1, 2], 3, False)])
def test_repeat_interleave_checks_that_the_output_size_is_the_sum_of_the_repeats(
    repeats: list[int], output_size: int, fails: bool
) -> None:
    use()
    with mock.patch.object(data_dependent, "report_failed_assert") as report:
        result = torch.repeat_interleave(torch.tensor(repeats).cuda(), output_size=output_size)
    assert result.shape == (output_size,)
    assert report.call_count == fails


def test_output_sizes_of_known_values_need_no_recording() -> None:
    use()
    x = torch.tensor([3, 0, 3, 1]).cuda()
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    assert (values.tolist(), inverse.tolist(), counts.tolist()) == ([0, 1, 3], [2, 0, 2, 1], [1, 1, 2])
    assert x.bincount().tolist() == [1, 1, 0, 2]
    assert torch.bincount(x, minlength=6).shape == (6,)
    assert x.repeat_interleave(x).shape == (7,)
    assert torch.repeat_interleave(x).tolist() == [0, 0, 0, 2, 2, 2, 3]
    assert x.unique_consecutive().tolist() == [3, 0, 3, 1]
    assert torch.ones(5, device="cuda").unique().shape == (1,)
    assert x.view(2, 2).unique(dim=0).shape == (2, 2)


def test_gradients_flow_through_repeat_interleave() -> None:
    gpu = use()
    gpu.selections = {(3,): 5}
    x: Any = torch.rand(3, 2, device="cuda", requires_grad=True)
    x.repeat_interleave(torch.rand(3, device="cuda").long(), dim=0).sum().backward()
    assert x.grad.shape == x.shape and type(x.grad) is VirtualTensor
