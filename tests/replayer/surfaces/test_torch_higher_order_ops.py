# mypy: allow-untyped-calls
"""Tests that higher-order operators, which take functions as arguments, run eagerly."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


def test_flex_attention_runs_forward_and_backward() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    warnings.simplefilter("ignore")  # PyTorch advises to compile flex attention
    q, k, v = (torch.ones(1, 2, 4, 8, device="cuda", requires_grad=True) for _ in range(3))
    out = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (j - i))
    out.sum().backward()
    assert out.shape == (1, 2, 4, 8) and q.grad is not None and q.grad.is_cuda


class _LeavesItToTensors(TorchDispatchMode):
    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_operator = isinstance(func, torch._ops.HigherOrderOperator)
        return NotImplemented if is_operator else func(*args, **(kwargs or {}))


def test_a_higher_order_operator_can_run_eagerly_inside_a_dispatch_mode() -> None:
    """Since PyTorch 2.15, the first call of compiled code runs in such a mode."""
    from torch._prims.rng_prims import graphsafe_run_with_rng_state

    dropout, generator = torch.ops.aten.native_dropout.default, torch.cuda.default_generators[0].clone_state()
    x = torch.ones(2, 4, device="cuda")
    with _LeavesItToTensors():
        out, mask = graphsafe_run_with_rng_state(dropout, x, 0.5, True, rng_state=generator)
    assert out.shape == mask.shape == (2, 4) and out.is_cuda


def test_an_operator_of_the_script_uses_its_kernel_for_cuda() -> None:
    """The script's operator has no eager form. Without a CUDA kernel, the error message names CUDA."""

    class Sum(torch._ops.HigherOrderOperator):
        def __call__(self, *args: Any) -> Any:
            return super().__call__(*args)

    total, x = Sum("sum_of_script"), torch.ones(2, 3, device="cuda", requires_grad=True)
    with pytest.raises(NotImplementedError, match="AutogradCUDA"):
        total(x)
    total.py_impl(torch._C.DispatchKey.AutogradCUDA)(torch.sum)
    assert total(x).shape == ()


def test_a_condition_can_run_eagerly_inside_a_dispatch_mode() -> None:
    """PyTorch's own kernel of `cond` raises an error while a dispatch mode is active."""
    x = torch.ones(2, 4, device="cuda")
    with torch.no_grad(), _LeavesItToTensors(), _LeavesItToTensors():
        out = torch.ops.higher_order.cond(True, lambda a: a + 1, lambda a: a - 1, (x,))
    assert out.is_cuda and out.shape == x.shape
