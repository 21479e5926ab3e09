"""torch.autograd: from the making of the first gradient to the end of the engine's run is the script's "backward" phase.

    loss.backward()     # reaches torch.autograd.backward
"""

from __future__ import annotations

from types import ModuleType

from tracer.surfaces.seam import Section, put


def install(torch: ModuleType) -> None:
    """Wrap both entries; one calls the other for some inputs, and only the outermost counts."""
    section = Section("backward")
    put(torch.autograd, backward=section.around(torch.autograd.backward), grad=section.around(torch.autograd.grad))
