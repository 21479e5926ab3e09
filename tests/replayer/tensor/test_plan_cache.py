# mypy: allow-untyped-calls
"""Tests the keys and the size of the plan cache, and that cached plans equal newly inferred ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from replayer.gpu.shared_results import SharedResults
from replayer.tensor.planning import plan_cache
from replayer.tensor.planning.mixed_dtypes import overlaps_of
from replayer.tensor.planning.plan_keys import key_for_ranks
from replayer.tensor.planning.results import plan_results
from replayer.tensor.planning.shape_inference import infer
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.tensor_meta import TensorMetaTable
from tests.replayer.fake_gpu import use
from tests.replayer.tensor import test_tensor_ops
from traces.script.patching import temporarily_set


def _plans_of(op: Any) -> int:
    return len(VirtualTensor.plan_cache.route(op).plans)


def test_equal_tensor_metadata_is_stored_once() -> None:
    metas = TensorMetaTable(torch.Tensor)
    one = metas.of((2, 3), (3, 1), 0, torch.float32, 0)
    assert metas.of((2, 3), (3, 1), 0, torch.float32, 0) is one
    assert metas.of((2, 3), (3, 1), 0, torch.float32, 1) is not one
    assert (one.numel, one.extent_bytes, one.dense) == (6, 24, True)
    assert metas.of((2, 2), (3, 1), 0, torch.float32, 0).dense is False
    assert metas.of((0, 2), (2, 1), 5, torch.float32, 0).extent_bytes == 0
    assert metas.contiguous((2, 3), torch.float32, 0) is one


def test_calls_with_different_scalars_share_one_cache_entry() -> None:
    use()
    x = torch.rand(3, device="cuda")
    ops = (torch.ops.aten.mul_.Tensor, torch.ops.aten.add_.Tensor, torch.ops.aten.addcdiv_.default)
    for i in range(20):
        x.mul_(0.5 + i).add_(x, alpha=0.1 * i)
        x.addcdiv_(x, x, value=-0.01 * i)
    assert [_plans_of(op) for op in ops] == [1, 1, 1]
    for i in range(20):
        x.add_(i)
    assert _plans_of(torch.ops.aten.add_.Tensor) == 2


def test_the_scalars_true_and_1_and_1_0_have_separate_cache_entries() -> None:
    use()
    x = torch.ones(3, dtype=torch.bool, device="cuda")
    dtypes = [(x + scalar).dtype for scalar in (True, 1, 1.0, True, 1, 1.0)]
    assert dtypes == [torch.bool, torch.int64, torch.float32] * 2
    y = torch.ones(3, 3, device="cuda")
    assert [tuple(y.sum(1, keepdim=keep).shape) for keep in (True, False, True)] == [(3, 1), (3,), (3, 1)]
    assert [len(torch.arange(n, device="cuda")) for n in (3, 5, 3)] == [3, 5, 3]
    assert [torch.arange(n, device="cuda").dtype for n in (3, 3.0, 3)] == [torch.int64, torch.float32, torch.int64]
    assert [tuple(y.new_zeros(size).shape) for size in ((2,), (2, 1), (2,))] == [(2,), (2, 1), (2,)]


def test_inferred_results_depend_on_the_dtype_argument_and_the_default_dtype() -> None:
    use()
    x = torch.ones(3, dtype=torch.int64, device="cuda")
    assert [x.sum(dtype=dtype).dtype for dtype in (torch.float32, torch.float64, None)] == [
        torch.float32,
        torch.float64,
        torch.int64,
    ]
    before = (x / 2).dtype
    torch.set_default_dtype(torch.float64)
    assert (before, (x / 2).dtype) == (torch.float32, torch.float64)


def test_cached_results_of_shape_inference_equal_new_ones() -> None:
    """The test infers every plan that is found in the cache once more, and compares the two plans."""
    gpu = use()
    plans = VirtualTensor.plan_cache
    compared = 0

    def watching(find: Any, func: Any) -> Any:
        def watched(args: Any, kwargs: Any) -> Any:
            nonlocal compared
            plan = find(args, kwargs)
            if plan is not None:
                compared += 1
                fresh = infer(plans.metas, func, args, kwargs, 0)
                overlaps = overlaps_of(func, args, kwargs, VirtualTensor)
                plan_results(fresh, func, gpu.workspaces_of(fresh.signature), overlaps)
                for field in ("outcome", "writes", "reshaped", "device", "kind", "tensor_meta", "size_bytes", "at"):
                    assert getattr(fresh, field) == getattr(plan, field), (func, field)
            return plan

        return watched

    def run_all() -> None:
        for op, shapes in test_tensor_ops.OPS.values():
            op(*[torch.rand(shape, device="cuda") for shape in shapes])

    run_all()
    for route in plans.routes.values():
        route.finders = [watching(find, route.func) for find in route.finders]
    run_all()
    assert compared > len(test_tensor_ops.OPS)


def test_results_of_shape_inference_from_another_rank_equal_new_ones() -> None:
    """GIVEN ranks that share plans WHEN one rank has run an op on GPU 0 THEN another rank gets an equal plan for GPU 1."""
    use(devices=2)
    plans, inferred_on = VirtualTensor.plan_cache, Counter[int]()
    plans.clear()
    of_other_rank = plans._of_other_rank

    def counting(metas: Any, func: Any, args: Any, kwargs: Any, device: int) -> Any:
        inferred_on[device] += 1
        return infer(metas, func, args, kwargs, device)

    def checked(func: Any, key: Any, device: int, args: Any, kwargs: Any) -> Any:
        plan = of_other_rank(func, key, device, args, kwargs)
        if plan is None:
            return None
        fresh = infer(plans.metas, func, args, kwargs, device)
        for field in ("outcome", "writes", "reshaped", "device", "kind", "tensor_meta", "size_bytes", "at", "kept"):
            assert getattr(fresh, field) == getattr(plan, field), (func, field)
        assert asdict(fresh.signature) == asdict(plan.signature)
        return plan

    with temporarily_set(plan_cache, infer=counting), temporarily_set(plans, shared=SharedResults(), _of_other_rank=checked):
        for device in (0, 1):
            with torch.cuda.device(device):
                for op, shapes in test_tensor_ops.OPS.values():
                    op(*[torch.rand(shape, device="cuda") for shape in shapes])
    assert inferred_on[0] > 100 and inferred_on[1] < inferred_on[0] / 10


def test_a_rank_that_uses_cached_results_still_gives_warnings_and_errors() -> None:
    """GIVEN the cached plans of another rank THEN a rank still gives the warning, and raises the error for deterministic
    algorithms."""
    use(devices=2)
    plans = VirtualTensor.plan_cache
    plans.clear()
    with temporarily_set(plans, shared=SharedResults()):
        for device in ("cuda:0", "cuda:1"):
            with torch.cuda.device(device):
                mask = torch.zeros(2, 3, dtype=torch.bool, device=device)
                with pytest.warns(UserWarning, match="masked_fill_ on expanded tensors"):
                    torch.zeros(1, 3, device=device).expand(2, 3).masked_fill_(mask, 1.0)
                values = torch.zeros(3, device=device)
                if device == "cuda:0":
                    torch.histc(values, 2, 0.0, 1.0)
                    torch.use_deterministic_algorithms(True)
                    continue
                try:
                    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
                        torch.histc(values, 2, 0.0, 1.0)
                finally:
                    torch.use_deterministic_algorithms(False)


def test_results_that_depend_on_the_rank_are_not_shared() -> None:
    """A key is not shared if it contains tensors of two GPUs, no tensor, or an object of the process. A shared key names no
    GPU."""
    metas, add = TensorMetaTable(torch.Tensor), torch.ops.aten.add.Tensor
    first, second = (metas.of((2,), (1,), 0, torch.float32, device) for device in (0, 1))
    assert key_for_ranks(add, (2, first, second)) is None
    assert key_for_ranks(add, (2, int)) is None
    assert key_for_ranks(add, (2, first, (object, object()))) is None
    assert key_for_ranks(add, (2, first, dict)) is None  # only the classes of numbers are the same in all ranks
    of_first, of_second = key_for_ranks(add, (2, first, (float, 0.5))), key_for_ranks(add, (2, second, (float, 0.5)))
    assert of_first is not None and of_second is not None
    assert of_first[0] == of_second[0] and (of_first[1], of_second[1]) == (0, 1)
    assert key_for_ranks(add, (2, first, float)) != of_first


def test_equal_calls_share_one_cache_entry() -> None:
    gpu = use()
    x = torch.rand(2, 3, 8, 8, device="cuda")
    w = torch.rand(4, 3, 3, 3, device="cuda")
    for _ in range(3):
        F.conv2d(x, w)
    assert _plans_of(torch.ops.aten.convolution.default) == 1
    signatures = [signature for signature, _ in gpu.launched_ops if signature.op == "aten::convolution"]
    assert len(signatures) == 3 and len({id(signature) for signature in signatures}) == 1
    assert signatures[0].shapes == ((2, 3, 8, 8), (4, 3, 3, 3)) and signatures[0].outputs == ((2, 4, 6, 6),)


def test_an_op_signature_contains_the_softmax_dimension_and_the_batch_norm_mode() -> None:
    gpu = use()
    x, norm = torch.rand(2, 3, 8, 8, device="cuda"), torch.nn.BatchNorm2d(3, device="cuda")
    for dim in (1, -1, 2):
        torch.softmax(x, dim)
    norm(x)
    norm.eval()(x)
    options = [(op.op, op.option) for op, _ in gpu.launched_ops if op.op in ("aten::_softmax", "aten::native_batch_norm")]
    assert options == [*(("aten::_softmax", dim) for dim in (1, -1, 2)), *(("aten::native_batch_norm", of) for of in (1, 0))]


def test_views_and_empty_tensors_launch_no_kernel() -> None:
    gpu = use()
    x = torch.rand(4, 6, device="cuda")
    gpu.launched_ops.clear()
    x.view(-1), x.t(), x[1:], x.detach(), x.expand(2, 4, 6), x.unsqueeze_(0), torch.empty_like(x), x.new_empty(3)
    x.split(2, 1), x.chunk(2), torch.empty(3, device="cuda"), x.as_strided((2,), (1,)), x.resize_(3)
    assert gpu.launched == []
    x.add_(1), x.clone(), x.zero_(), torch.zeros(3, device="cuda"), x.sum()
    assert gpu.launched == ["add_", "clone", "zero_", "zero_", "sum"]
