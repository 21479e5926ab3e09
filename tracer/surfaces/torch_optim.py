"""torch.optim: `step` and `zero_grad` are phases of the script, and the first optimizer's `step` ends a step.

optimizer.zero_grad()       # phase "zero_grad"
loss.backward()
optimizer.step()            # phase "optimizer"; when it returns, the training step is over
"""

from __future__ import annotations

from types import ModuleType

from tracer.state import optimizers, recorder
from traces.script.script_hooks import ScriptHooks


def install(torch: ModuleType) -> None:
    """Wrap `step` and `zero_grad` of all optimizer classes."""
    ScriptHooks(torch, recorder, optimizers()).optimizers()
