"""What a surface does about a name of torch that it does not emulate: refuse or ignore it.

torch's own Python is kept wherever possible; what is replaced are the C functions beneath it (`torch._C._cuda_*`),
which torch looks up by attribute at each call. So a name that torch copied at import time, and torch's own checks and
messages, stay right.

    patch(torch._C, _cuda_getDevice=current_device)                      # emulated: traces/script/patching.py
    refuse(torch.cuda, "torch.cuda", {"temperature": "it needs NVML"})   # raises NotEmulated by name
    ignore(torch.cuda.nvtx, {"mark": (None, "nobody listens")})          # answers a constant, with a reason
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import NoReturn

from replayer.errors import NotEmulated
from replayer.torch_types import TorchAny
from traces.script.patching import patch


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
            patch(getattr(owner, name), __new__=refusal(f"{prefix}.{name}", text))


def ignore(owner: object, answers: Mapping[str, tuple[object, str]]) -> None:
    """Make each name a no-op that returns its answer. The reason beside it is for readers of the table."""
    for name, (answer, _reason) in answers.items():
        setattr(owner, name, _constant(name, answer))


def _constant(name: str, answer: object) -> Callable[..., object]:
    def ignored(*_args: object, **_kwargs: object) -> object:
        return answer

    ignored.__name__ = ignored.__qualname__ = name
    return ignored


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with the module `name`: at once, or when the script imports it."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _WhenImported(name, then))


class _WhenImported(MetaPathFinder):
    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, path: TorchAny, target: TorchAny = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                self._then(module)

            patch(spec.loader, exec_module=execute_and_call)
        return spec


class _Generic(type):
    """Makes a stand-in for a C class of torch whose instances count as the stand-in's too."""

    base: type[TorchAny]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.base)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.base)


def generic(name: str, base: type[TorchAny], make: Callable[..., TorchAny]) -> type[TorchAny]:
    """A class named torch.`name` that calls `make` to construct; for `isinstance` and `issubclass` it is `base`."""

    def new(_cls: type, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        return make(*args, **kwargs)

    namespace = {"__new__": new, "base": base, "__module__": "torch", "__doc__": base.__doc__}
    return _Generic(name, (), namespace)
