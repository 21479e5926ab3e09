"""torch.autograd: from the making of the first gradient to the end of the engine's run is the script's "backward" phase.

    loss.backward()     # reaches torch.autograd.backward
"""

from __future__ import annotations

from types import ModuleType

from tracer.state import recorder
from traces.patching import PhaseScope, patch


def install(torch: ModuleType) -> None:
    """Wrap both entries; one calls the other for some inputs, and only the outermost counts."""
    scope = PhaseScope("backward", recorder)
    patch(torch.autograd, backward=scope.around(torch.autograd.backward), grad=scope.around(torch.autograd.grad))
