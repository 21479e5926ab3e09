# mypy: allow-untyped-calls
"""Tests that higher-order operators, which take functions as arguments, run eagerly."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import torch
from replayer import backend, state
from replayer.surfaces import install_all
from tests.replayer.fake_gpu import SurfaceGpu

state.start(SurfaceGpu)
backend.register()
install_all(torch)
from torch.nn.attention.flex_attention import flex_attention

x = torch.ones(1, 16, 2048, 8, device="cuda", requires_grad=True)
out = torch.compile(lambda q: flex_attention(q, q, q))(x)
print(torch.cuda.max_memory_allocated())
out.backward(torch.ones_like(out))
print(torch.cuda.max_memory_allocated(), x.grad.stride() == x.stride())
"""


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


@pytest.mark.program
def test_flex_attention_in_compiled_code_is_one_kernel_without_a_matrix_of_scores() -> None:
    """Input, output and each gradient take 1 MiB. A matrix of scores for 16 heads would take 256 MiB. The forward pass also
    returns logsumexp and maxima of 16 x 2048 floats. The mask has four tensors with one block of 512 bytes each."""
    said = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True, timeout=280)
    assert "flex_attention called" not in said.stderr
    mib, row = 1 << 20, 16 * 2048 * 4
    forward, backward, same_strides = said.stdout.split()
    assert int(forward) == 2 * mib + 2 * row + 4 * 512
    assert int(backward) < 8 * mib and same_strides == "True"
