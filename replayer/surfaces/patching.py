"""The words in which every surface says what it does about a name of torch: put, refuse or ignore.

torch's own Python is kept wherever possible; what is replaced are the C functions beneath it (`torch._C._cuda_*`),
which torch looks up by attribute at each call. So a name that torch copied at import time, and torch's own checks and
messages, stay right.

    put(torch._C, _cuda_getDevice=current_device)                        # emulated
    refuse(torch.cuda, "torch.cuda", {"temperature": "it needs NVML"})   # raises NotEmulated by name
    ignore(torch.cuda.nvtx, {"mark": (None, "nobody listens")})          # answers a constant, with a reason
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, NoReturn, Self

import torch
import torch._jit_internal
import torch.jit._builtins

from replayer.errors import NotEmulated
from replayer.state import started


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


def refusal(call: str, advice: str) -> Callable[..., NoReturn]:
    """A function that raises NotEmulated, naming `call` as the script spells it."""

    def refused(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotEmulated(call, advice)

    refused.__name__ = refused.__qualname__ = call.rpartition(".")[2]
    return refused


def refuse(owner: object, prefix: str, advice: Mapping[str, str]) -> None:
    """Make each name of `advice` raise NotEmulated; names that this torch release does not have are left out."""
    for name, text in advice.items():
        if hasattr(owner, name):
            setattr(owner, name, refusal(f"{prefix}.{name}", text))


def refuse_construction(owner: object, prefix: str, advice: Mapping[str, str]) -> None:
    """Make the classes that `advice` names raise NotEmulated when called; they stay classes for `isinstance`."""
    for name, text in advice.items():
        if hasattr(owner, name):
            put(getattr(owner, name), __new__=refusal(f"{prefix}.{name}", text))


def ignore(owner: object, answers: Mapping[str, tuple[object, str]]) -> None:
    """Make each name a no-op that returns its answer. The reason beside it is for readers of the table."""
    for name, (answer, _reason) in answers.items():
        setattr(owner, name, _constant(name, answer))


def _constant(name: str, answer: object) -> Callable[..., object]:
    def ignored(*_args: object, **_kwargs: object) -> object:
        return answer

    ignored.__name__ = ignored.__qualname__ = name
    return ignored


class _Generic(type):
    """Makes a stand-in for a C class of torch whose instances count as the stand-in's too."""

    base: type[Any]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.base)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.base)


def generic(name: str, base: type[Any], make: Callable[..., Any]) -> type[Any]:
    """A class named torch.`name` that calls `make` to construct; for `isinstance` and `issubclass` it is `base`."""

    def new(_cls: type, *args: Any, **kwargs: Any) -> Any:
        return make(*args, **kwargs)

    namespace = {"__new__": new, "base": base, "__module__": "torch", "__doc__": base.__doc__}
    return _Generic(name, (), namespace)


class Section:
    """One phase of the script as a reusable context manager: only the outermost entry of a thread counts.

    An optimizer may call another optimizer, and a checkpointed layer runs backward inside backward. A process that does
    not use the GPU (a data loader's worker, say) has no phases.
    """

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self._local = threading.local()

    @property
    def inside(self) -> bool:
        """Whether this thread is within the section."""
        return getattr(self._local, "depth", 0) > 0

    def __enter__(self) -> Self:
        depth = getattr(self._local, "depth", 0)
        if not depth and (gpu := started()) is not None:
            gpu.enter_phase(self.phase)
        self._local.depth = depth + 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._local.depth -= 1
        if not self._local.depth and (gpu := started()) is not None:
            gpu.leave_phase(self.phase)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, run inside the section; its name, documentation and attributes are kept."""

        @wraps(call)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return call(*args, **kwargs)

        return inside
