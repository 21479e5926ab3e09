"""Runs matrix products that cuBLAS computes. PyTorch allocates a cuBLAS workspace at a thread's first matrix product on a
stream (cublas_workspaces.py).

    plans.specials |= gemm.handlers(plans, run)     # each runs from its plan, then takes the workspace, as PyTorch does

If the replay keeps no workspaces, each handler removes itself at its first call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from replayer.state import gpu
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.torch_types import TorchAny

aten = torch.ops.aten

_NAMES = "mm addmm addmm_ bmm baddbmm baddbmm_ mv addmv addmv_ dot vdot _addmm_activation _int_mm _scaled_mm".split()

PRODUCTS = frozenset(getattr(getattr(aten, name), overload) for name in _NAMES for overload in getattr(aten, name).overloads())


def use_workspace(result: TorchAny) -> bool:
    """Allocate the calling thread's cuBLAS workspace for a matrix product, unless the product is empty.

    Return whether workspaces are kept.
    """
    here = gpu()
    if here.blas.kept and result.tensor_meta.numel:
        device = result.tensor_meta.index
        here.blas.use(here.devices[device].allocator, here.current.stream(device))
    return here.blas.kept


def handlers(plans: PlanCache, run: Callable[..., TorchAny]) -> dict[TorchAny, Callable[..., TorchAny]]:
    def product(op: torch._ops.OpOverload, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        result = run(op, *args, **kwargs)
        if not use_workspace(result):
            plans.route(op).special = None
        return result

    return {op: partial(product, op) for op in PRODUCTS}
