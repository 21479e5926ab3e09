"""Wraps the PyTorch functions that begin a phase, such as `backward` and loss functions.

    loss = F.cross_entropy(output, target)      # phase "loss", also inside nn.CrossEntropyLoss or a model
    loss.backward()                             # phase "backward"; reaches torch.autograd.backward
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

The backward phase ends before gradient clipping, and the optimizer phase begins after gradient clipping.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from types import ModuleType
from typing import Any

from tracer.recorder import Recorder
from tracer.state import CALLS, OPTIMIZERS, recorder
from tracer.surfaces.torch_tensor import overridable
from traces.script.patching import patch, patch_everywhere, stands_for
from traces.script.script_hooks import ScriptHooks

_LOSSES = (
    "cross_entropy nll_loss log_softmax mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy"
    " binary_cross_entropy_with_logits kl_div ctc_loss hinge_embedding_loss cosine_embedding_loss margin_ranking_loss"
    " triplet_margin_loss soft_margin_loss multi_margin_loss multilabel_margin_loss poisson_nll_loss"
)
_CLIPPING = "clip_grad_norm_ clip_grad_value_ get_total_norm clip_grads_with_norm_"


def install(torch: ModuleType) -> None:
    hooks = ScriptHooks(torch, recorder, OPTIMIZERS, CALLS)
    hooks.backward()

    def loss_called(to: Recorder) -> None:
        if CALLS.now.nodes is not None:
            hooks.report_forward_pass(to)
        to.loss_called()

    patch(torch, log_softmax=overridable(_before(torch.log_softmax, loss_called)))
    for owner, names in ((torch.nn.functional, _LOSSES), (torch.Tensor, "log_softmax")):
        patch(owner, **{name: _before(getattr(owner, name), loss_called) for name in names.split()})
    aside_called = methodcaller("aside_called")
    for name in _CLIPPING.split():
        call = getattr(torch.nn.utils, name)
        wrapped = _before(call, aside_called)
        patch_everywhere(call, wrapped)
        patch(torch.nn.utils, **{name: wrapped})
    scaler: Any = torch.amp.GradScaler  # torch.cuda.amp.GradScaler inherits the wrapped methods
    patch(scaler, _unscale_grads_=_before(scaler._unscale_grads_, aside_called), update=_before(scaler.update, aside_called))


def _before(call: Callable[..., Any], report: Callable[[Any], object]) -> Callable[..., Any]:
    @stands_for(call)
    def reported(*args: Any, **kwargs: Any) -> Any:
        if (to := recorder()) is not None:
            report(to)
        return call(*args, **kwargs)

    return reported
