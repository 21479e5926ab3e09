"""torch.autograd: backward is the script's "backward" phase.

Both `torch.autograd.backward` and `torch.autograd.grad` reach the C++ engine through `_engine_run_backward`. The phase
begins before that, where they make the first gradient (`ones_like`).

On a real GPU the engine has a thread per device, and the caller waits for it; for the device type that virtual tensors have in
C++ it runs all nodes in the calling thread (Engine::ready_queue in torch/csrc/autograd/engine.cpp). The timeline is the same.
"""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any

from replayer.state import started
from traces.patching import PhaseScope, patch


def install(torch_module: ModuleType) -> None:
    """Wrap the entry to the engine where it is defined and where torch.autograd copied it."""
    autograd: Any = torch_module.autograd
    engine_run_backward = autograd.graph._engine_run_backward
    scope = PhaseScope("backward", started)

    @wraps(engine_run_backward)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        with scope:
            return engine_run_backward(*args, **kwargs)

    def as_phase(function: Any) -> Any:
        @wraps(function)
        def phased(*args: Any, **kwargs: Any) -> Any:
            with scope:
                return function(*args, **kwargs)

        return phased

    patch(autograd, backward=as_phase(autograd.backward), grad=as_phase(autograd.grad))
    patch(autograd.graph, _engine_run_backward=run_backward)
    patch(autograd, _engine_run_backward=run_backward)
