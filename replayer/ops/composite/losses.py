# mypy: allow-untyped-calls
"""Starts the loss phase when a script calls a loss function that PyTorch decomposes into other ops.

    F.l1_loss(output, target)       # aten::l1_loss, made of aten::sub, aten::abs and aten::mean

Each loss op starts the loss phase and is then decomposed as in PyTorch.
"""

from __future__ import annotations

from functools import partial

import torch

from replayer import state
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.torch_types import TorchAny
from traces.script.phase_rule import LOSS_OPS

aten = torch.ops.aten

# losses whose first inner op is itself a loss
_TOLD_BY_THEIR_OPS = frozenset(("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "log_softmax", "ctc_loss"))
_COMPOSITE = "CompositeImplicitAutograd"


def register(plans: PlanCache) -> None:
    library = torch.library.Library("aten", "IMPL")
    for name in sorted(LOSS_OPS - _TOLD_BY_THEIR_OPS):
        op = getattr(getattr(aten, name, None), "default", None)
        if op is not None and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _COMPOSITE):
            plans.composites[op] = loss = partial(_call_loss, op)
            library.impl(op, loss, "AutogradLazy")
    state.STATE.kept.append(library)


def _call_loss(op: torch._ops.OpOverload, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    if (gpu := state.started()) is not None:
        gpu.steps.loss_called()
    return op.decompose(*args, **kwargs)
