"""Allocates cuBLAS workspaces (see cublas_workspaces.py) when a script computes matrix products.

    plans.specials |= gemm.handlers(plans, run)     # each op runs from its plan, and then allocates the workspace
"""

from __future__ import annotations

from functools import partial

import torch

from replayer.state import gpu
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.torch_types import Op, TorchAny, TorchFunction

aten = torch.ops.aten

_NAMES = "mm addmm addmm_ bmm baddbmm baddbmm_ mv addmv addmv_ dot vdot _addmm_activation _int_mm _scaled_mm".split()

_WITH_BIAS = (aten.addmm.default, aten._addmm_activation.default)
_LT_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

PRODUCTS = frozenset(getattr(getattr(aten, name), overload) for name in _NAMES for overload in getattr(aten, name).overloads())


def use_workspace(result: TorchAny) -> bool:
    """Return True if cuBLAS keeps the workspace."""
    here = gpu()
    if here.blas.kept and result.tensor_meta.numel:
        device = result.tensor_meta.index
        here.blas.use(here.devices[device].allocator, here.current.stream(device))
    return here.blas.kept


def _is_lt(result: TorchAny, bias: TorchAny, left: TorchAny, right: TorchAny, beta: float = 1, **_: TorchAny) -> bool:
    return (
        beta == 1
        and result.dtype in _LT_DTYPES
        and bias.dim() > 0
        and bias.numel() == bias.shape[-1] == right.shape[1]
        and min(right.shape) > 1
        and bias.is_contiguous()
        and result.is_contiguous()
    )


def handlers(plans: PlanCache, run: TorchFunction) -> dict[TorchAny, TorchFunction]:
    def product(op: Op, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        result = run(op, *args, **kwargs)
        if not use_workspace(result):
            plans.route(op).special = None
        return result

    def with_bias(op: Op, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        result = product(op, *args, **kwargs)
        here = gpu()
        if here.blas.lt_bytes and here.blas.kept and result.tensor_meta.numel and _is_lt(result, *args, **kwargs):
            device = result.tensor_meta.index
            here.blas.use_lt(here.devices[device].allocator, here.current.stream(device))
        return result

    return {op: partial(with_bias if op in _WITH_BIAS else product, op) for op in PRODUCTS}
