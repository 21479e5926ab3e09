"""Tests that output sizes are read from the shapes of results, for any index with a mask."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.forked import printed_in_fork
from tracer.surfaces.torch_sizes import NONZERO, Found, _getitem, _masks, _where
from traces.model.trace import NONE

X = (torch.arange(5 * 4 * 3 * 2).view(5, 4, 3, 2) * 7) % 11
FIVE, FOUR, THREE = torch.tensor([1, 0, 1, 1, 0]).bool(), torch.tensor([0, 1, 1, 1]).bool(), torch.tensor([0, 0, 1]).bool()
PAIR = torch.rand(4, 3).gt(0.4) | torch.eye(4, 3).bool()

INDICES: list[Any] = [
    FIVE,
    (FIVE,),
    (slice(None), FOUR),
    (..., torch.tensor([True, False])),
    (slice(1, 3), PAIR),
    (None, FIVE, None, slice(2)),
    (2, FOUR),
    (2, ..., THREE, slice(None)),
    (slice(None), PAIR, 1),
    (FIVE, torch.tensor([0, 3, 2])),
    (FIVE, 1, torch.tensor([0, 1, 2])),
    (FIVE, slice(None), torch.tensor([0, 1, 2])),
    (slice(None), FOUR, torch.tensor(2)),
    (slice(None), FOUR, slice(None), torch.tensor([0, 1, 0])),
    (FIVE, FOUR),
    (None, FIVE, ..., torch.tensor([1, 0, 1])),
]


@pytest.mark.parametrize("place", range(len(INDICES)))
def test_the_number_of_elements_that_a_mask_selects_is_read_from_the_result_shape(place: int) -> None:
    """GIVEN any form of index with masks THEN the size that is read for each mask is the number of its true elements."""
    index = INDICES[place]
    masks = _masks(index)
    found = list(_getitem(X[index], X, index))
    assert found == [Found(NONZERO, tuple(mask.shape), int(mask.sum())) for mask in masks] and masks


@pytest.mark.parametrize("index", [(FIVE, [0, 1, 2]), (FIVE, torch.zeros(2, 3, dtype=torch.int64))])
def test_ambiguous_sizes_are_recorded_as_unknown(index: Any) -> None:
    assert [found.size for found in _getitem(X[index], X, index)] == [NONE]


@pytest.mark.parametrize("index", [0, slice(2), (0, ...), torch.tensor([1, 2]), None, ([0, 1], 2)])
def test_indexing_without_a_mask_records_no_size(index: Any) -> None:
    assert _masks(index) == []


def test_torch_where_with_three_arguments_records_no_output_size() -> None:
    choose: Callable[..., Any] = torch.where
    assert list(_where(choose(FIVE, 1, 0), FIVE, 1, 0)) == []
    assert list(_where(choose(FIVE), FIVE)) == [Found(NONZERO, (5,), 3)]


def test_new_tensors_can_be_made_from_zero_dimensional_tensors() -> None:
    """C code treats a class with a Python `__getitem__` as a sequence. A native tensor is not treated as a sequence."""
    script = (
        "import torch; from tracer.surfaces import torch_sizes; torch_sizes.install(torch); i = torch.tensor(3);"
        "print(torch.Tensor([[i]]).tolist(), torch.tensor([i, i]).tolist(), torch.ones(2)[1].item(), torch.ones(3)[:2].shape,"
        "torch.nn.Parameter(torch.ones(3))[torch.tensor([True, False, True])].shape)"
    )
    assert printed_in_fork(script) == "[[3.0]] [3, 3] 1.0 torch.Size([2]) torch.Size([2])\n"


# The script makes these calls without a GPU. Each call has the recorded op, the shape of the searched tensor and the number of
# results.
CALLS: dict[str, list[list[Any]]] = {
    "torch.nonzero(x)": [["aten::nonzero", [2, 3], 4]],
    "x.nonzero()": [["aten::nonzero", [2, 3], 4]],
    "torch.nonzero(input=x)": [["aten::nonzero", [2, 3], 4]],
    "x.nonzero(as_tuple=True)": [["aten::nonzero", [2, 3], 4]],
    "torch.argwhere(x)": [["aten::nonzero", [2, 3], 4]],
    "torch.where(x > 0)": [["aten::nonzero", [2, 3], 4]],
    "torch.where(x > 0, x, -x)": [],
    "torch.where(condition=x > 0)": [["aten::nonzero", [2, 3], 4]],
    "torch.where(condition=x > 0, input=x, other=y)": [],
    "x[x > 1]": [["aten::nonzero", [2, 3], 2]],
    "x[0]": [],
    "p[p > 1]": [["aten::nonzero", [3], 2]],
    "x.masked_select(torch.tensor([True, False, True]))": [["aten::nonzero", [2, 3], 4]],
    "torch.masked_select(input=x, mask=x > 2)": [["aten::nonzero", [2, 3], 1]],
    "x.unique()": [["aten::_unique2", [2, 3], 4]],
    "torch.unique(x, dim=1)": [["aten::unique_dim", [2, 3], 3]],
    "torch.unique(x, True, False, False, 0)": [["aten::unique_dim", [2, 3], 2]],
    "torch.unique(x, True, False, False)": [["aten::_unique2", [2, 3], 4]],
    "x.unique(return_counts=True)": [["aten::_unique2", [2, 3], 4]],
    "x.unique_consecutive()": [["aten::unique_consecutive", [2, 3], 5]],
    "torch.unique_consecutive(x, False, False, 1)": [["aten::unique_consecutive", [2, 3], 3]],
    "torch.repeat_interleave(n)": [["aten::repeat_interleave", [3], 6]],
    "y.repeat_interleave(n)": [["aten::repeat_interleave", [3], 6]],
    "x.repeat_interleave(torch.tensor([1, 4]), 0)": [["aten::repeat_interleave", [2], 5]],
    "x.repeat_interleave(torch.tensor([2]))": [["aten::repeat_interleave", [6], 12]],
    "y.repeat_interleave(2)": [],
    "y.repeat_interleave(n, output_size=6)": [],
    "torch.bincount(n)": [["aten::bincount", [3], 4]],
}
NOTING = """
import json, sys, torch
from types import SimpleNamespace
from tracer import state
from tracer.surfaces import torch_sizes

found = []
workload = SimpleNamespace(loading=())
recorder = SimpleNamespace(phase="forward", workload=workload, add_result_size=lambda *facts: found.append(facts))
state.start(lambda: recorder)
state.recorder()
torch_sizes.install(torch)
x = torch.tensor([[0, 3, 1], [1, 0, 2]])
y, n = torch.tensor([5, 6, 7]), torch.tensor([2, 1, 3])
p = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
answers = {}
for call in json.loads(sys.argv[1]):
    eval(call)
    answers[call], found[:] = list(found), []
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def noted() -> dict[str, list[list[Any]]]:
    answers: dict[str, list[list[Any]]] = json.loads(printed_in_fork(NOTING, json.dumps(list(CALLS))))
    return answers


@pytest.mark.parametrize("call", CALLS)
def test_each_call_with_a_data_dependent_output_size_is_recorded_once(call: str, noted: dict[str, list[list[Any]]]) -> None:
    assert noted[call] == CALLS[call]
