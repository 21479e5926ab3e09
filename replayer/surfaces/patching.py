"""Disables PyTorch functions that a replay does not emulate: they raise NotEmulated or return a constant.

    patch(torch._C, _cuda_getDevice=current_device)                      # emulated; see traces/script/patching.py
    refuse(torch.cuda, "torch.cuda", {"temperature": "it needs NVML"})   # raises NotEmulated with the name of the call
    ignore(torch.cuda.nvtx, {"mark": (None, "nobody listens")})          # returns a constant, with a reason
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

from replayer.errors import NotEmulated
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import PATCHES, patch


def refusal(call: str, advice: str) -> Callable[..., NoReturn]:
    def refused(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotEmulated(call, advice)

    refused.__name__ = refused.__qualname__ = call.rpartition(".")[2]
    return refused


def refuse(owner: object, prefix: str, advice: Mapping[str, str]) -> None:
    for name, text in advice.items():
        if hasattr(owner, name):
            PATCHES.set(owner, name, refusal(f"{prefix}.{name}", text))


def refuse_construction(owner: object, prefix: str, advice: Mapping[str, str]) -> None:
    """Make constructors raise NotEmulated, but keep the classes for `isinstance`."""
    for name, text in advice.items():
        if hasattr(owner, name):
            patch(getattr(owner, name), __new__=refusal(f"{prefix}.{name}", text))


def ignore(owner: object, answers: Mapping[str, tuple[object, str]]) -> None:
    """Make functions return constants. The reason beside each constant is documentation."""
    for name, (answer, _reason) in answers.items():
        PATCHES.set(owner, name, _constant(name, answer))


def _constant(name: str, answer: object) -> Callable[..., object]:
    def ignored(*_args: object, **_kwargs: object) -> object:
        return answer

    ignored.__name__ = ignored.__qualname__ = name
    return ignored


class _Generic(type):
    base: type[TorchAny]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.base)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.base)


def generic(name: str, base: type[TorchAny], make: TorchFunction) -> type[TorchAny]:
    def new(_cls: type, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        return make(*args, **kwargs)

    namespace = {"__new__": new, "base": base, "__module__": "torch", "__doc__": base.__doc__}
    return _Generic(name, (), namespace)
