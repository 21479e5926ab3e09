"""Matrix products: what cuBLAS computes, and so what its workspace is taken for (cublas_workspaces.py).

    products = MatrixProducts(plans, run)
    plans.specials |= products.handlers()       # each runs from its plan, and takes the workspace after its result, as PyTorch

Where no workspaces are kept, a handler steps aside at its first call, and its op runs as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from replayer.state import gpu
from replayer.tensor.plan_cache import PlanCache

aten = torch.ops.aten

_NAMES = "mm addmm addmm_ bmm baddbmm baddbmm_ mv addmv addmv_ dot vdot _addmm_activation _int_mm _scaled_mm".split()

PRODUCTS = frozenset(getattr(getattr(aten, name), overload) for name in _NAMES for overload in getattr(aten, name).overloads())


def use_workspace(result: Any) -> bool:
    """The calling thread has asked for this product; nothing is taken for an empty one. Returns whether any are kept."""
    here = gpu()
    if here.blas.kept and result.meta.numel:
        device = result.meta.index
        here.blas.use(here.devices[device].allocator, device, here.current_stream(device).number)
    return here.blas.kept


class MatrixProducts:
    """The handlers, bound to one plan cache. `run` runs an op from its plan."""

    def __init__(self, plans: PlanCache, run: Callable[..., Any]) -> None:
        self._plans = plans
        self._run = run

    def handlers(self) -> dict[Any, Callable[..., Any]]:
        return {op: self._product(op) for op in PRODUCTS}

    def _product(self, op: Any) -> Callable[..., Any]:
        run, plans = self._run, self._plans

        def product(*args: Any, **kwargs: Any) -> Any:
            route = plans.route(op)
            result = run(route, args, kwargs)
            if not use_workspace(result):
                route.special = None
            return result

        return product
