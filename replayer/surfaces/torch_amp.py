"""Patches torch.amp, torch.autocast and torch.cuda.amp to support autocast on the virtual GPU.

    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x)                     # torch.is_autocast_enabled() is True

Note [Autocast's key]
    PyTorch's C++ code has no autocast dispatch key for the device type "lazy", which virtual tensors have. While autocast is
    on, every call in the thread therefore gets the autocast key of the device type PrivateUse1.
"""

from __future__ import annotations

from types import ModuleType

from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import around, patch


def install(torch_module: ModuleType) -> None:
    c: TorchAny = torch_module._C

    def for_cuda(call: TorchFunction, *args: TorchAny) -> TorchAny:
        return call(*args) if args and isinstance(args[0], str) else call("cuda", *args)

    def set_autocast_enabled(call: TorchFunction, *args: TorchAny) -> None:
        # see Note [Autocast's key]
        for_cuda(call, *args)
        if not isinstance(args[0], str) or args[0].partition(":")[0] == "cuda":
            c._dispatch_tls_set_dispatch_key_included(c.DispatchKey.AutocastPrivateUse1, args[-1])

    patched = {
        "is_autocast_enabled": around(c.is_autocast_enabled, for_cuda),
        "set_autocast_enabled": around(c.set_autocast_enabled, set_autocast_enabled),
        "get_autocast_gpu_dtype": lambda: c.get_autocast_dtype("cuda"),
        "set_autocast_gpu_dtype": lambda dtype: c.set_autocast_dtype("cuda", dtype),
    }
    patch(torch_module.cuda, get_amp_supported_dtype=lambda: [torch_module.bfloat16, torch_module.float16])
    patch(c, **patched)
    patch(torch_module, **{name: call for name, call in patched.items() if hasattr(torch_module, name)})
