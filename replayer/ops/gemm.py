"""Matrix products: ops that cuBLAS computes, and for which its workspace is allocated (cublas_workspaces.py).

    plans.specials |= gemm.handlers(plans, run)     # each runs from its plan, then takes the workspace, as PyTorch does

If no workspaces are kept, a handler removes itself at its first call, and its op runs like any other.
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
    """Take the workspace for the calling thread's product, unless it is empty. Returns whether workspaces are kept."""
    here = gpu()
    if here.blas.kept and result.meta.numel:
        device = result.meta.index
        here.blas.use(here.devices[device].allocator, device, here.current.stream(device).number)
    return here.blas.kept


def handlers(plans: PlanCache, run: Callable[..., TorchAny]) -> dict[TorchAny, Callable[..., TorchAny]]:
    """Return the handlers for one plan cache. `run` runs an op from its plan."""

    def product(op: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        result = run(op, *args, **kwargs)
        if not use_workspace(result):
            plans.route(op).special = None
        return result

    return {op: partial(product, op) for op in PRODUCTS}
