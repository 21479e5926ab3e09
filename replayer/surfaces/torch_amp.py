"""Patches torch.amp, torch.autocast and torch.cuda.amp. Calls without a device type use "cuda".

    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x)                     # torch.is_autocast_enabled() is True

C++ keeps autocast state per device type. PyTorch's autocast, GradScaler and custom_fwd read and set the autocast state through
functions that this module patches. autocast and GradScaler read the list of supported dtypes from torch.cuda.

Note [Autocast's key]
    A tensor has the autocast dispatch key of its device type, but C++ has no autocast key for "lazy". While autocast is on, the
    autocast key of another device type (PrivateUse1) is therefore added to every call in the thread. Calls without virtual
    tensors are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from replayer.torch_types import TorchAny
from traces.script.patching import around, patch


def install(torch_module: ModuleType) -> None:
    c: TorchAny = torch_module._C

    def for_cuda(call: Callable[..., TorchAny], *args: TorchAny) -> TorchAny:
        """Call an autocast function with the device type "cuda" if a script uses the old form without a device type."""
        return call(*args) if args and isinstance(args[0], str) else call("cuda", *args)

    def set_autocast_enabled(call: Callable[..., TorchAny], *args: TorchAny) -> None:
        """Turn autocast for "cuda" on or off, and add or remove autocast's dispatch key in the current thread. See
        Note [Autocast's key]."""
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
