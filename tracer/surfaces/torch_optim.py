"""Wraps torch.optim. A training step ends when the `step` of the first optimizer returns.

    optimizer.zero_grad()       # phase "zero_grad"
    loss.backward()
    optimizer.step()            # phase "optimizer"; ends the training step

A compiled `step` has no profiler range, so the recorder adds the range "optimizer". The range "Optimizer.closure" marks calls
of a closure.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from tracer.state import optimizers, recorder, started
from tracer.surfaces.torch_nn_module import has_compiled
from traces.script.patching import stands_for
from traces.script.phase_rule import CLOSURE
from traces.script.script_hooks import ScriptHooks


def install(torch: ModuleType) -> None:
    def in_range(name: str, is_needed: Callable[[], bool]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
            @stands_for(call)
            def called(*args: Any, **kwargs: Any) -> Any:
                to = started()
                if to is None or not to.steps.profiler.active or not is_needed():
                    return call(*args, **kwargs)
                with torch.autograd.profiler.record_function(name):
                    return call(*args, **kwargs)

            return called

        return wrap

    hooks = ScriptHooks(torch, recorder, optimizers())
    hooks.optimizers(whole_step=in_range("optimizer", has_compiled), closure=in_range(CLOSURE, lambda: True))
