"""Tests which arguments fail the assertions of CUDA kernels, and with which values the CPU kernel then runs."""

from __future__ import annotations

from typing import Any

import torch

from replayer.tensor.values.kernel_asserts import can_fail, failed_assert, harmless

aten = torch.ops.aten
TABLE, INDICES, OUTSIDE = torch.zeros(3, 4), torch.tensor([0, 2]), torch.tensor([0, 3])
FROM_1, IN_ORDER = torch.tensor([1, 2]), (torch.tensor([0, 1, 9]), False, 0, False, None, True)
HALVES = torch.full((2,), 0.5)
MASK, CUBE = torch.ones(2, 2, dtype=torch.bool), torch.zeros(1, 1, 1, 1, 1, dtype=torch.int64)
CLASSES = torch.zeros(2, 3)
PUTS = (aten.index_put_.default, aten._index_put_impl_.default)
ALONG_ROWS = (aten.gather.default, aten.scatter.src, aten.scatter_.src, aten.scatter_add.default, aten.scatter_reduce.two)
# (op, arguments that fail, arguments that do not fail, failed condition).
WRONG: list[tuple[Any, tuple[Any, ...], tuple[Any, ...], str]] = [
    (aten._embedding_bag.default, (TABLE, OUTSIDE, INDICES), (TABLE, INDICES, INDICES), "input[emb] < numRows"),
    (aten._embedding_bag_forward_only.default, (TABLE, OUTSIDE, FROM_1), (TABLE, INDICES, FROM_1), "input[emb] < numRows"),
    (aten._embedding_bag.default, (TABLE, INDICES, OUTSIDE), (TABLE, INDICES, *IN_ORDER), "sum_mean: block: [0,0,0]"),
    (aten._embedding_bag.default, (TABLE, INDICES, OUTSIDE, False), (TABLE, INDICES, FROM_1), "sum_mean: block: [0,0,0]"),
    (aten._embedding_bag.default, (TABLE, INDICES, OUTSIDE, False, 2), (TABLE, INDICES, FROM_1), "Kernel_max: block: [0,0,0]"),
    (aten.embedding_renorm_.default, (TABLE, OUTSIDE, 1.0, 2.0), (TABLE, INDICES, 1.0, 2.0), "srcIndex < srcSelectDimSize"),
    (aten.index_reduce_.default, (TABLE, 0, OUTSIDE), (TABLE, 0, INDICES), "dstIndex < dstAddDimSize"),
    (aten.index_fill_.int_Scalar, (TABLE, 0, OUTSIDE, 1), (TABLE, 0, -OUTSIDE, 1), "idx >= -self_dim_size"),
    (aten.masked_scatter.default, (MASK, MASK, INDICES), (MASK, ~MASK, INDICES), "totalElements <= srcSize"),
    (aten.masked_scatter_.default, (MASK, MASK[0], OUTSIDE), (MASK, MASK, TABLE), "totalElements <= srcSize"),
    (aten.max_unpool2d.default, (CUBE[0], CUBE[0] + 4, [2, 2]), (CUBE[0], CUBE[0] + 3, [2, 2]), "maxind < outputImageSize"),
    (aten.max_unpool3d.default, (CUBE, CUBE - 1, [2, 2, 2]), (CUBE, CUBE + 7, [2, 2, 2]), "index >= 0"),
    (aten.poisson.default, (torch.tensor([1.0, -1.0]),), (torch.tensor([0.0]),), "invalid Poisson rate"),
    (aten.multinomial.default, (torch.tensor([-1.0, 2.0]), 2, True), (torch.tensor([-1.0, 2.0]), 1, True), "! (val < zero)"),
    (aten.multinomial.default, (torch.tensor([torch.inf]), 2, True), (torch.tensor([0.5]), 2, True), "cumdist[size - 1] > "),
    (aten.multinomial.default, (torch.zeros(1, 3), 2, True), (torch.ones(1, 3), 2, True), "cumdist[size - 1] > "),
    (aten.multi_margin_loss.default, (TABLE, OUTSIDE + 1), (TABLE, INDICES), "target index is out of bounds"),
    (aten.binary_cross_entropy.default, (HALVES + 1, HALVES), (HALVES, HALVES), "input_val >= zero"),
    (aten.binary_cross_entropy.default, (HALVES, HALVES - 1), (HALVES, HALVES * 2), "target_val <= one"),
    (aten.index.Tensor, (TABLE, [OUTSIDE]), (TABLE, [INDICES]), "index out of bounds"),
    *[(func, (TABLE, [OUTSIDE], HALVES), (TABLE, [-OUTSIDE], HALVES), "index out of bounds") for func in PUTS],
    *[(func, (TABLE, 0, OUTSIDE[None], TABLE), (TABLE, 0, INDICES[None], TABLE), "index out of bounds") for func in ALONG_ROWS],
    (aten.index_add.default, (TABLE, 0, OUTSIDE, TABLE), (TABLE, 0, INDICES, TABLE), "dstIndex < dstAddDimSize"),
    (aten.index_copy.default, (TABLE, 0, OUTSIDE, TABLE), (TABLE, 0, INDICES, TABLE), "idx >= 0 && idx < self_dim_size"),
    (aten.index_select.default, (TABLE, 0, OUTSIDE), (TABLE, 0, INDICES), "srcIndex < srcSelectDimSize"),
    (aten.take.default, (TABLE, OUTSIDE * 4), (TABLE, INDICES * -6), "index out of bounds"),
    (aten.put_.default, (TABLE, OUTSIDE * -5, HALVES), (TABLE, OUTSIDE * -4, HALVES), "index out of bounds"),
    (aten.nll_loss_forward.default, (CLASSES, OUTSIDE, None, 1, -100), (CLASSES, -INDICES * 50, None, 1, -100), "t >= 0"),
    (aten.nll_loss2d_forward.default, (CLASSES, OUTSIDE, None, 1, 4), (CLASSES, OUTSIDE, None, 1, 3), "n_classes"),
    (aten.bernoulli.default, (HALVES * 3,), (HALVES * 2,), "0 <= p1 && p1 <= 1"),
    (aten.bernoulli_.Tensor, (TABLE, HALVES - 1), (TABLE, HALVES), "0 <= p1 && p1 <= 1"),
    (aten._assert_async.msg, (torch.tensor(False), "large"), (torch.tensor(True), "large"), "input[0] != 0 && 'large'"),
]


def test_wrong_arguments_fail_the_assertions_of_cuda_kernels() -> None:
    for func, wrong, right, condition in WRONG:
        assert can_fail(func)
        failed = failed_assert(func, wrong, lambda tensor: tensor)
        assert failed is not None and condition in failed[1], func
        assert failed_assert(func, right, lambda tensor: tensor) is None, func
        assert failed_assert(func, wrong, lambda tensor: None) is None  # unknown values cannot be checked
        at = failed[0]
        mended = (*wrong[:at], harmless(func, wrong[at]), *wrong[at + 1 :])
        assert failed_assert(func, mended, lambda tensor: tensor) is None, func


def test_the_cpu_kernel_rejects_the_dtype_of_an_index() -> None:
    beyond = torch.tensor([9], dtype=torch.uint16)
    assert failed_assert(aten.index.Tensor, (TABLE, [beyond]), lambda tensor: tensor) is None


def test_too_many_indices_are_left_to_the_check_of_the_cpu_kernel() -> None:
    assert failed_assert(aten.index.Tensor, (TABLE[0], [INDICES, INDICES]), lambda tensor: tensor) is None


def test_a_probability_that_is_a_number_is_not_checked() -> None:
    for arguments in ((TABLE,), (TABLE, 0.5)):
        assert failed_assert(aten.bernoulli_.float, arguments, lambda tensor: tensor) is None


def test_large_tensors_of_one_value_are_checked_without_memory_for_all_elements() -> None:
    zeros = torch.zeros((), dtype=torch.int64).expand(1 << 20, 1 << 20)
    for func, right, wrong in (
        (aten.index.Tensor, (TABLE, [zeros]), (TABLE, [(zeros[0, 0] + 3).expand(1 << 40)])),
        (aten.bernoulli.default, (HALVES[0].expand(1 << 40),), ((HALVES[0] + 1).expand(1 << 40),)),
    ):
        assert failed_assert(func, right, lambda tensor: tensor) is None
        assert failed_assert(func, wrong, lambda tensor: tensor) is not None
