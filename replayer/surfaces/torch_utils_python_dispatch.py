"""torch.utils._python_dispatch: modes that scripts define are told "cuda", as by a GPU.

    class Printing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            print(func, kwargs)     # aten._to_copy.default {'device': device(type='cuda', index=0)}
            return func(*args, **(kwargs or {}))

`Tensor.to` gives C++ the device that it knows virtual tensors by (Note [Lazy] in replayer/tensor/tensor.py). torch's own modes
(fake tensors, tracers) take it as it is: see torch_fake_tensor.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from replayer.tensor.tensor_meta import BACKEND
from traces.patching import patch


def install(torch_module: ModuleType) -> None:
    """Wrap what modes are called by, as their classes are defined."""
    from torch.utils._python_dispatch import TorchDispatchMode

    define: Any = TorchDispatchMode.__init_subclass__.__func__  # type: ignore[attr-defined]

    def __init_subclass__(cls: Any, **options: Any) -> None:
        define(cls, **options)
        if "__torch_dispatch__" in vars(cls) and not cls.__module__.startswith("torch."):
            cls.__torch_dispatch__ = _told_cuda(torch_module, cls.__torch_dispatch__)

    patch(TorchDispatchMode, __init_subclass__=classmethod(__init_subclass__))  # type: ignore[arg-type]


def _told_cuda(torch_module: Any, dispatch: Callable[..., Any]) -> Callable[..., Any]:
    device = torch_module.device

    def told(value: Any) -> Any:
        return device("cuda", value.index) if isinstance(value, device) and value.type == BACKEND else value

    @wraps(dispatch)
    def torch_dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = {name: told(value) for name, value in (kwargs or {}).items()}
        return dispatch(self, func, types, tuple(map(told, args)), named)

    return torch_dispatch
