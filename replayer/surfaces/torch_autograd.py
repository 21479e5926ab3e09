"""torch.autograd: backward runs in the calling thread, and is the script's "backward" phase.

Both `torch.autograd.backward` and `torch.autograd.grad` reach the C++ engine through `_engine_run_backward`. The phase
begins before that, where they make the first gradient (`ones_like`).

Note [Backward in the calling thread]
The engine keeps one thread per device. For devices of a Python backend it knows one device, and asserts on `vcuda:1`.
With multithreading disabled it runs all nodes in the calling thread, which every device accepts. A real GPU's backward
thread launches kernels while the caller waits for it, so the time line is the same.
"""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any

from replayer.guard import raising_what_was_lost
from replayer.surfaces.seam import Section, put


def install(torch_module: ModuleType) -> None:
    """Wrap the entry to the engine where it is defined and where torch.autograd copied it."""
    autograd: Any = torch_module.autograd
    engine_run_backward = autograd.graph._engine_run_backward
    one_thread = autograd.set_multithreading_enabled
    section = Section("backward")

    @wraps(engine_run_backward)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        with section, one_thread(False):
            return raising_what_was_lost(engine_run_backward, *args, **kwargs)

    def as_phase(function: Any) -> Any:
        @wraps(function)
        def phased(*args: Any, **kwargs: Any) -> Any:
            with section:
                return function(*args, **kwargs)

        return phased

    put(autograd, backward=as_phase(autograd.backward), grad=as_phase(autograd.grad))
    put(autograd.graph, _engine_run_backward=run_backward)
    put(autograd, _engine_run_backward=run_backward)
