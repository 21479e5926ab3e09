"""Wraps torch.autograd. The phase "backward" lasts as long as a call of `torch.autograd.backward` or `torch.autograd.grad`.

    loss.backward()     # reaches torch.autograd.backward
"""

from __future__ import annotations

from types import ModuleType

from tracer.state import optimizers, recorder
from traces.script.script_hooks import ScriptHooks


def install(torch: ModuleType) -> None:
    ScriptHooks(torch, recorder, optimizers()).backward()
