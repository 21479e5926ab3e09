"""Wraps torch.optim. `step` and `zero_grad` are phases, and the first optimizer's `step` ends a training step.

optimizer.zero_grad()       # phase "zero_grad"
loss.backward()
optimizer.step()            # phase "optimizer"; ends the training step
"""

from __future__ import annotations

from types import ModuleType

from tracer.state import optimizers, recorder
from traces.script.script_hooks import ScriptHooks


def install(torch: ModuleType) -> None:
    ScriptHooks(torch, recorder, optimizers()).optimizers()
