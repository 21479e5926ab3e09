"""Wraps torch.optim. A training step ends when the first optimizer's `step` returns.

    optimizer.zero_grad()       # phase "zero_grad"
    loss.backward()
    optimizer.step()            # phase "optimizer"; ends the training step
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

from tracer.state import CALLS, OPTIMIZERS, recorder, started
from tracer.surfaces.torch_nn_module import has_compiled
from traces.script.patching import stands_for
from traces.script.phase_rule import CLOSURE
from traces.script.script_hooks import ScriptHooks


def install(torch: ModuleType) -> None:
    def is_profiled() -> bool:
        to = started()
        return to is not None and to.steps.profiler.active

    def whole_step() -> Any:
        to = started()
        if to is None or not to.steps.profiler.active or not has_compiled():
            return None
        return torch.autograd.profiler.record_function("optimizer")

    def closure(call: Callable[..., Any]) -> Callable[..., Any]:
        @stands_for(call)
        def called(*args: Any, **kwargs: Any) -> Any:
            with torch.autograd.profiler.record_function(CLOSURE) if is_profiled() else nullcontext():
                return call(*args, **kwargs)

        return called

    ScriptHooks(torch, recorder, OPTIMIZERS, CALLS).optimizers(whole_step=whole_step, closure=closure)
