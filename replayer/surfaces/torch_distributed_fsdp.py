"""torch.distributed.fsdp: a device given by number is a "cuda" one.

    FullyShardedDataParallel(net, device_id=local_rank)

FSDP makes `torch.device(local_rank)` of it, which is on the accelerator of the build: the type that C++ knows the virtual GPU's
streams by. It is then compared with the "cuda" of the parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.machinery import ModuleSpec
from inspect import signature
from types import ModuleType
from typing import Any

from replayer.tensor.tensor_meta import ACCELERATOR
from traces.patching import patch

_MODULE = "torch.distributed.fsdp._init_utils"


class _AfterImport:
    """A meta path entry that finds nothing itself, and patches the module when another has loaded it."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def run_and_patch(module: ModuleType) -> None:
                del loader.exec_module
                run(module)
                _patch(module)

            loader.exec_module = run_and_patch
        return spec


def install(torch_module: ModuleType) -> None:
    """Patch it now, or when the script imports it, which takes a while."""
    loaded = sys.modules.get(_MODULE)
    if loaded is not None:
        _patch(loaded)
    else:
        sys.meta_path.insert(0, _AfterImport())


def _patch(module: Any) -> None:
    def with_cuda(call: Callable[..., Any]) -> Callable[..., Any]:
        at = list(signature(call).parameters).index("device_id")

        @wraps(call)
        def with_device_on_cuda(*args: Any, **kwargs: Any) -> Any:
            if len(args) > at:
                args = (*args[:at], on_cuda(args[at]), *args[at + 1 :])
            elif "device_id" in kwargs:
                kwargs["device_id"] = on_cuda(kwargs["device_id"])
            return call(*args, **kwargs)

        return with_device_on_cuda

    def on_cuda(device: Any) -> Any:
        index = device if isinstance(device, int) else device.index if getattr(device, "type", "") == ACCELERATOR else None
        return device if index is None else module.torch.device("cuda", index)

    for name in ("_init_device_handle", "_get_device_from_device_id"):
        patch(module, **{name: with_cuda(getattr(module, name))})
    compute_device = module._get_compute_device  # of the current device, where the script gives none
    patch(module, _get_compute_device=wraps(compute_device)(lambda *args, **kwargs: on_cuda(compute_device(*args, **kwargs))))
