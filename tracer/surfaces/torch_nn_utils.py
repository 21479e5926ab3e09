"""torch.nn.utils: clipping gradients belongs neither to the backward pass before it nor to the optimizer after it.

torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""

from __future__ import annotations

from types import ModuleType

from tracer.recorder import Recorder
from tracer.surfaces.listening import before
from traces.patching import patch

_CLIPPING = "clip_grad_norm_ clip_grad_value_ get_total_norm clip_grads_with_norm_"


def install(torch: ModuleType) -> None:
    """Wrap where they are defined and where torch.nn.utils copied them."""

    def report(recorder: Recorder) -> None:
        recorder.aside_called()

    for name in _CLIPPING.split():
        if hasattr(torch.nn.utils.clip_grad, name):
            wrapped = before(getattr(torch.nn.utils.clip_grad, name), report)
            patch(torch.nn.utils.clip_grad, **{name: wrapped})
            patch(torch.nn.utils, **{name: wrapped})
