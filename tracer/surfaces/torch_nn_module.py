"""torch.nn.Module: the call of an outermost module begins a forward pass; moving a module is set-up.

    output = model(batch)       # told once, not for each of its layers
    model.cuda()                # its hundreds of copies are no batches on their way to the device

Note [Within a call]
    A forward pass calls modules by the hundred, and all but the outermost are no news. So that these cost next to nothing, one
    flag says for all threads that the one whose steps are recorded is within a call: what others call is not told anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from tracer.state import recorder
from traces.patching import PhaseScope, patch


class _Calls:
    """Whether the thread whose steps are recorded is within a module's call; see Note [Within a call]."""

    __slots__ = ("inside",)

    def __init__(self) -> None:
        self.inside = False


_CALLS = _Calls()  # module calls are global


def in_module() -> bool:
    """Whether a module's call here would be no news."""
    return _CALLS.inside


def install(torch: ModuleType) -> None:
    """Wrap `Module.__call__` and `Module._apply`."""
    cls: Any = torch.nn.Module
    call: Callable[..., Any] = cls.__call__
    calls = _CALLS
    is_grad_enabled = torch.is_grad_enabled

    @wraps(call)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if calls.inside:
            return call(self, *args, **kwargs)
        to = recorder()
        if not to.mine():
            return call(self, *args, **kwargs)
        calls.inside = True
        try:
            to.module_called(self, is_grad_enabled())
            return call(self, *args, **kwargs)
        finally:
            calls.inside = False

    patch(cls, __call__=called, _apply=PhaseScope("other", recorder).around(cls._apply))
