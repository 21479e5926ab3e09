"""How a surface listens: it wraps a function of torch and keeps its name, documentation and attributes.

    put(torch.autograd, backward=Section("backward").around(torch.autograd.backward))
    put(F, mse_loss=before(F.mse_loss, lambda: recorder().loss_called()))
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, Self

import torch
import torch._jit_internal
import torch.jit._builtins

from tracer.state import recorder


def put(owner: object, **names: object) -> None:
    """Replace attributes of a module or class. TorchScript goes on compiling what a module's function was."""
    for name, value in names.items():
        if inspect.ismodule(owner) and inspect.isfunction(value):
            _script_as(getattr(owner, name, None), value)
        setattr(owner, name, value)


def _script_as(original: Any, value: Any) -> None:
    """torch.jit.script finds builtins in a table by their identity, and of other functions it reads the source."""
    table: Any = torch.jit._builtins
    by_flags: Any = torch._jit_internal.boolean_dispatched
    builtin = table._find_builtin(original)
    if builtin is not None:
        table._register_builtin(value, builtin)
    elif inspect.isfunction(original):
        if original in by_flags:
            by_flags[value] = by_flags[original]
        value.__prepare_scriptable__ = getattr(original, "__prepare_scriptable__", lambda: original)


def put_everywhere(original: Callable[..., Any], wrapped: Callable[..., Any]) -> None:
    """Replace a function in every module of torch that defines or imported it, so that all keep holding one and the same."""
    name = original.__name__
    for module in [module for key, module in sys.modules.items() if key.partition(".")[0] == "torch"]:
        if getattr(module, "__dict__", {}).get(name) is original:
            put(module, **{name: wrapped})


def argument(call: Callable[..., Any], name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """What finds the argument `name` of a call of `call`, given by place or by name; None where it was not given."""
    place = list(inspect.signature(call).parameters).index(name)

    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[place] if place < len(args) else kwargs.get(name)

    return find


def before(call: Callable[..., Any], tell: Callable[[], None]) -> Callable[..., Any]:
    """`call`, with `tell` called first."""

    @wraps(call)
    def told(*args: Any, **kwargs: Any) -> Any:
        tell()
        return call(*args, **kwargs)

    return told


class Section:
    """A phase of the script as a context manager that may be used again; only the outermost entry of a thread counts."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self._local = threading.local()

    @property
    def inside(self) -> bool:
        """Whether this thread is within the section."""
        return getattr(self._local, "depth", 0) > 0

    def __enter__(self) -> Self:
        depth = getattr(self._local, "depth", 0)
        if not depth:
            recorder().enter(self.phase)
        self._local.depth = depth + 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._local.depth -= 1
        if not self._local.depth:
            recorder().leave(self.phase)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, run inside the section."""

        @wraps(call)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return call(*args, **kwargs)

        return inside
