"""Wraps torch.autograd. The "backward" phase lasts from the creation of the first gradient to the end of the engine's run.

    loss.backward()     # reaches torch.autograd.backward
"""

from __future__ import annotations

from types import ModuleType

from tracer.state import optimizers, recorder
from traces.script.script_hooks import ScriptHooks


def install(torch: ModuleType) -> None:
    """Wraps the entry points of autograd's engine. Entry points call each other, and only the outermost call is recorded."""
    ScriptHooks(torch, recorder, optimizers()).backward()
