"""Tests which ops read a value from the GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from replayer.ops.host_reads import equal_without_kernel, reads_an_argument
from tests.replayer.fake_gpu import use


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


def test_torch_equal_needs_no_kernel_for_other_shapes_or_the_same_memory() -> None:
    """The results are those of ATen/native/cuda/Equal.cpp. None means that the values have to be compared."""
    use()
    x, empty = torch.ones(2, 3, device="cuda"), torch.ones(0, 3, device="cuda")
    assert equal_without_kernel(x, x.view(3, 2)) is False
    assert equal_without_kernel(x, x) is True and equal_without_kernel(empty, empty.clone()) is True
    assert equal_without_kernel(x, x.clone()) is None and equal_without_kernel(x[0], x[1]) is None
    assert equal_without_kernel(x, torch.ones(2, 3)) is None and equal_without_kernel(torch.ones(2, 3), x) is None


def test_unknown_values_are_close_to_each_other_but_not_to_known_values() -> None:
    use()
    x, y, known = torch.rand(3, device="cuda"), torch.rand(3, device="cuda"), torch.ones(3, device="cuda")
    assert torch.allclose(x, y) and torch.allclose(known, known.clone())
    assert not torch.allclose(x, known) and not torch.allclose(known, x) and not torch.allclose(known, known + 1)


def test_known_integers_take_precedence_over_recorded_values() -> None:
    """GIVEN labels from 0 to 6 on the host and a recorded largest label of 0 WHEN the script reads the largest label THEN it is
    6, and the labels are valid for a network with 7 classes. A sum of known floats is the recorded value."""
    gpu = use()
    gpu.answers = {"aten::_local_scalar_dense": [0.0], "aten::copy_": [0.0, 0.0, 0.0]}
    labels = torch.tensor([3, 6, 0]).to("cuda")
    assert labels.max().item() == 6 and labels.tolist() == [3, 6, 0] and bool((labels == 6).any())
    assert torch.ones(3, device="cuda").sum().item() == 0.0
    torch.nn.functional.cross_entropy(torch.rand(3, 7, device="cuda"), labels)
    assert len(gpu.reads) == 4


_DOUBTFUL_RESULTS: dict[str, Any] = {
    "argmax of known floats, which a GPU may round differently": lambda x, y: torch.ones(3, 2).to("cuda").argmax(1).sum(),
    "sum of an unknown comparison": lambda x, y: (x.argmax(1) == y).sum(),
    "sum added in place": lambda x, y: torch.zeros(3, dtype=torch.long, device="cuda").add_((x.argmax(1) == y).sum())[0],
    "stacked sums": lambda x, y: torch.stack([(x.argmax(1) == y).sum(), y.max()])[1],
    "stacked sums, copied": lambda x, y: torch.stack([(x.argmax(1) == y).sum(), y.max()]).clone()[1],
    "copied into a part": lambda x, y: torch.zeros(3, device="cuda").long()[:2].copy_((x.argmax(1) == y).sum())[0],
    "all finite": lambda x, y: x.isinf().logical_not().all().long(),
    "counts of labels": lambda x, y: x.argmax(1).unique(return_counts=True)[1][0],
    "mean is below infinity": lambda x, y: (x < torch.inf).sum() - 1,
}


@pytest.mark.parametrize("name", _DOUBTFUL_RESULTS)
def test_recorded_values_take_precedence_over_integers_computed_from_floats_or_assumptions(name: str) -> None:
    """GIVEN a recorded value of 7 WHEN the script reads an integer that depends on an assumption THEN the integer is 7."""
    gpu = use()
    gpu.answers, gpu.selections = {"aten::_local_scalar_dense": [7.0]}, {(3,): 2}
    x, y = torch.rand(3, 7, device="cuda"), torch.tensor([3, 6, 0]).to("cuda")
    assert _DOUBTFUL_RESULTS[name](x, y).item() == 7
