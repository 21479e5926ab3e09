"""torch.autograd: the "backward" phase lasts from making the first gradient to the end of the engine's run.

loss.backward()     # reaches torch.autograd.backward
"""

from __future__ import annotations

from types import ModuleType

from tracer.state import optimizers, recorder
from traces.script.script_hooks import ScriptHooks


def install(torch: ModuleType) -> None:
    """Wrap the entry points of autograd's engine. They call each other; only the outermost counts."""
    ScriptHooks(torch, recorder, optimizers()).backward()
