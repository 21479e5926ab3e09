"""torch.nn.Module: the call of an outermost module begins a forward pass; moving a module is set-up.

    output = model(batch)       # reported once, not for each of its layers
    model.cuda()                # its hundreds of copies are no batches on their way to the device
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tracer.state import optimizers, recorder
from traces.patching import PhaseScope, patch
from traces.script_hooks import ModuleCalls, ScriptHooks

_CALLS = ModuleCalls()  # torch's modules are global


def in_module() -> bool:
    """Whether this thread is within a module's call."""
    return _CALLS.inside


def install(torch: ModuleType) -> None:
    """Wrap `Module.__call__` and `Module._apply`."""
    ScriptHooks(torch, recorder, optimizers()).module_calls(_CALLS)
    cls: Any = torch.nn.Module
    patch(cls, _apply=PhaseScope("other", recorder).around(cls._apply))
