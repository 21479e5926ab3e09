"""Makes torch.distributed.rpc raise NotEmulated for tensors on the virtual GPU.

    rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1))                 # works as usual
    rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2, device="cuda"), 1))  # NotEmulated
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

from torch.utils._pytree import tree_leaves

from replayer.errors import NotEmulated
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import around, patch_around, patch_everywhere

_ADVICE = "send x.cpu(), or communicate with torch.distributed's collectives"


def install(torch_module: ModuleType) -> None:
    if not torch_module.distributed.is_available() or not torch_module.distributed.rpc.is_available():
        return
    rpc: TorchAny = torch_module.distributed.rpc
    api: TorchAny = importlib.import_module(f"{rpc.__name__}.api")
    patch_around(api, _invoke_rpc=_checked)
    patch_everywhere(api.remote, around(api.remote, _checked))
    options = rpc.TensorPipeRpcBackendOptions
    patch_around(options, __init__=_without_devices, set_device_map=_reject_devices, set_devices=_reject_devices)


def _checked(call: TorchFunction, /, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    if any(isinstance(leaf, VirtualTensor) for leaf in tree_leaves((args, kwargs))):
        raise NotEmulated("torch.distributed.rpc with CUDA tensors", _ADVICE)
    return call(*args, **kwargs)


def _without_devices(init: Callable[..., None], self: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> None:
    if kwargs.get("device_maps") or kwargs.get("devices"):
        _reject_devices()
    init(self, *args, **kwargs)


def _reject_devices(*args: TorchAny, **kwargs: TorchAny) -> NoReturn:
    raise NotEmulated("torch.distributed.rpc with device maps", _ADVICE)
