"""Wraps torch.nn.utils. The time of clipping gradients belongs neither to the backward phase nor to the optimizer phase.

    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""

from __future__ import annotations

from operator import methodcaller
from types import ModuleType

from tracer.surfaces.listening import before
from traces.script.patching import patch, patch_everywhere

_CLIPPING = "clip_grad_norm_ clip_grad_value_ get_total_norm clip_grads_with_norm_"


def install(torch: ModuleType) -> None:
    """Wrap the functions that clip gradients, under all their names in PyTorch."""
    for name in _CLIPPING.split():
        call = getattr(torch.nn.utils, name)
        wrapped = before(call, methodcaller("aside_called"))
        patch_everywhere(call, wrapped)
        patch(torch.nn.utils, **{name: wrapped})
