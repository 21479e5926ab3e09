"""torch.amp, torch.autocast and torch.cuda.amp: what older code asks without a device type means "cuda".

    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x)                     # torch.is_autocast_enabled() is True

C++ keeps the state per device type, of which "cuda" is ours (replayer/backend.py). torch's classes (autocast, GradScaler,
custom_fwd) call the functions that read and set it, and ask the backend's module, torch.cuda, for its dtypes.

Note [Autocast's key]
A tensor brings the autocast key of its device type along, and C++ has none for "lazy". So that of another type is added to
all that a thread calls while its autocast is on; what it calls without virtual tensors passes through unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from replayer.torch_types import TorchAny
from traces.script.patching import around, patch


def install(torch_module: ModuleType) -> None:
    """Patch the C functions of autocast's state, in torch._C and where torch exports them."""
    c: TorchAny = torch_module._C

    def for_cuda(call: Callable[..., TorchAny], *args: TorchAny) -> TorchAny:
        """`is_autocast_enabled()` and `set_autocast_enabled(True)` are the old spelling for CUDA."""
        return call(*args) if args and isinstance(args[0], str) else call("cuda", *args)

    def set_autocast_enabled(call: Callable[..., TorchAny], *args: TorchAny) -> None:
        """See Note [Autocast's key]."""
        for_cuda(call, *args)
        if not isinstance(args[0], str) or args[0].partition(":")[0] == "cuda":
            c._dispatch_tls_set_dispatch_key_included(c.DispatchKey.AutocastPrivateUse1, args[-1])

    patched = {
        "is_autocast_enabled": around(c.is_autocast_enabled, for_cuda),
        "set_autocast_enabled": around(c.set_autocast_enabled, set_autocast_enabled),
        "get_autocast_gpu_dtype": lambda: c.get_autocast_dtype("cuda"),
        "set_autocast_gpu_dtype": lambda dtype: c.set_autocast_dtype("cuda", dtype),
    }
    torch_module.cuda.get_amp_supported_dtype = lambda: [torch_module.bfloat16, torch_module.float16]
    patch(c, **patched)
    patch(torch_module, **{name: call for name, call in patched.items() if hasattr(torch_module, name)})
