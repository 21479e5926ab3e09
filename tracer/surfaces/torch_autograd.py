"""torch.autograd: from the making of the first gradient to the end of the engine's run is the script's "backward" phase.

loss.backward()     # reaches torch.autograd.backward
"""

from __future__ import annotations

from types import ModuleType

from tracer.state import optimizers, recorder
from traces.script.script_hooks import ScriptHooks


def install(torch: ModuleType) -> None:
    """Wrap the entries to autograd's engine; one calls the other, and only the outermost counts."""
    ScriptHooks(torch, recorder, optimizers()).backward()
