"""Wraps torch.nn.functional. The phase "loss" begins when the script calls a loss function.

    loss = F.cross_entropy(output, target)      # also inside nn.CrossEntropyLoss or a model
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tracer.state import optimizers, recorder
from tracer.surfaces.listening import before
from traces.script.patching import patch
from traces.script.script_hooks import ScriptHooks

_LOSSES = (
    "cross_entropy nll_loss log_softmax mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy"
    " binary_cross_entropy_with_logits kl_div ctc_loss hinge_embedding_loss cosine_embedding_loss margin_ranking_loss"
    " triplet_margin_loss soft_margin_loss multi_margin_loss multilabel_margin_loss poisson_nll_loss"
)


def install(torch: ModuleType) -> None:
    functional = torch.nn.functional
    losses = [name for name in _LOSSES.split() if hasattr(functional, name)]
    hooks = ScriptHooks(torch, recorder, optimizers())

    def report(to: Any) -> None:
        hooks.report_forward_pass(to)
        to.loss_called()

    patch(functional, **{name: before(getattr(functional, name), report) for name in losses})
    patch(torch, log_softmax=before(torch.log_softmax, report))
    patch(torch.Tensor, log_softmax=before(torch.Tensor.log_softmax, report))
