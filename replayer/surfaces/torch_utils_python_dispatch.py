"""Passes the device "cuda" to a script's TorchDispatchMode, instead of the device "lazy" that the replay uses internally.

    class Printing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            print(func, kwargs)     # aten._to_copy.default {'device': device(type='cuda', index=0)}
            return func(*args, **(kwargs or {}))

See Note [Lazy] in replayer/tensor/tensor.py.
"""

from __future__ import annotations

from types import ModuleType

import torch

from replayer.tensor.tensor_meta import BACKEND
from replayer.torch_types import Op, TorchAny
from traces.script.patching import patch, patch_around


def install(torch_module: ModuleType) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    defined: TorchAny = vars(TorchDispatchMode).get("__init_subclass__")  # this method exists since PyTorch 2.11

    def __init_subclass__(cls: TorchAny, **options: TorchAny) -> None:
        define = super(TorchDispatchMode, cls).__init_subclass__ if defined is None else defined.__get__(None, cls)
        define(**options)
        if "__torch_dispatch__" in vars(cls) and not cls.__module__.startswith("torch."):
            patch_around(cls, __torch_dispatch__=_report_cuda)

    patch(TorchDispatchMode, __init_subclass__=classmethod(__init_subclass__))  # type: ignore[arg-type]


def _report_cuda(
    dispatch: TorchAny,
    self: TorchAny,
    func: Op,
    types: TorchAny,
    args: TorchAny = (),
    kwargs: TorchAny = None,
) -> TorchAny:
    named = {name: _as_cuda_device(value) for name, value in (kwargs or {}).items()}
    return dispatch(self, func, types, tuple(map(_as_cuda_device, args)), named)


def _as_cuda_device(value: TorchAny) -> TorchAny:
    return torch.device("cuda", value.index) if isinstance(value, torch.device) and value.type == BACKEND else value
