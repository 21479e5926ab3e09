"""torch.nn.Module: the call of an outermost module begins a forward pass; moving a module is set-up.

    output = model(batch)       # told once, not for each of its layers
    model.cuda()                # its hundreds of copies are no batches on their way to the device
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from tracer.state import recorder
from tracer.surfaces.seam import Section, put


class _Depth(threading.local):
    """How deep in module calls this thread is."""

    calls = 0


_DEPTH = _Depth()  # module calls are global, and so are threads


def in_module() -> bool:
    """Whether this thread is within a module's call."""
    return _DEPTH.calls > 0


def install(torch: ModuleType) -> None:
    """Wrap `Module.__call__` and `Module._apply`."""
    cls: Any = torch.nn.Module
    call: Callable[..., Any] = cls.__call__
    depth = _DEPTH
    is_grad_enabled = torch.is_grad_enabled

    @wraps(call)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if depth.calls:
            return call(self, *args, **kwargs)
        depth.calls = 1
        try:
            recorder().module_called(self, is_grad_enabled())
            return call(self, *args, **kwargs)
        finally:
            depth.calls = 0

    put(cls, __call__=called, _apply=Section("other").around(cls._apply))
