"""torch.amp, torch.autocast and torch.cuda.amp: autocast for "cuda" acts on the backend that the tensors are built on.

    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x)                     # torch.is_autocast_enabled("cuda") is True

C++ keeps autocast's state per device type, and ours under another one than "cuda" (replayer/ops/autocast.py). So the functions
that read and set the state take "cuda" for it. torch's own classes (autocast, GradScaler, custom_fwd) call them.

Note [Autocast's key]
A tensor brings the autocast key of its device type along, and C++ has none for "lazy". So that of another type is added to
all that a thread calls while its autocast is on; what it calls without virtual tensors passes through unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from replayer.tensor.tensor_meta import ACCELERATOR
from traces.patching import patch

# Functions whose first argument is a device type. Those of the first group mean "cuda" when they are not given one.
_MEANS_CUDA = ("is_autocast_enabled", "set_autocast_enabled")
_TAKES_TYPE = ("get_autocast_dtype", "set_autocast_dtype", "_is_autocast_available")


def install(torch_module: ModuleType) -> None:
    """Patch the C functions of autocast's state, in torch._C and where torch exports them."""
    c: Any = torch_module._C

    def backend(device_type: str) -> str:
        return ACCELERATOR if device_type.partition(":")[0] == "cuda" else device_type

    def taking_type(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def for_backend(device_type: str, *args: Any) -> Any:
            return call(backend(device_type), *args)

        return for_backend

    def meaning_cuda(call: Callable[..., Any]) -> Callable[..., Any]:
        """`is_autocast_enabled()` and `set_autocast_enabled(True)` are the old spelling for CUDA."""

        @wraps(call)
        def for_backend(*args: Any) -> Any:
            if args and isinstance(args[0], str):
                return call(backend(args[0]), *args[1:])
            return call(backend("cuda"), *args)

        return for_backend

    def with_key(set_enabled: Callable[..., None]) -> Callable[..., None]:
        """See Note [Autocast's key]."""

        @wraps(set_enabled)
        def set_autocast_enabled(*args: Any) -> None:
            set_enabled(*args)
            if not isinstance(args[0], str) or backend(args[0]) == ACCELERATOR:
                c._dispatch_tls_set_dispatch_key_included(c.DispatchKey.AutocastPrivateUse1, args[-1])

        return set_autocast_enabled

    patched = {name: taking_type(getattr(c, name)) for name in _TAKES_TYPE}
    patched |= {name: meaning_cuda(getattr(c, name)) for name in _MEANS_CUDA}
    patched["set_autocast_enabled"] = with_key(patched["set_autocast_enabled"])
    patched["get_autocast_gpu_dtype"] = lambda: patched["get_autocast_dtype"]("cuda")
    patched["set_autocast_gpu_dtype"] = lambda dtype: patched["set_autocast_dtype"]("cuda", dtype)
    patch(c, **patched)
    patch(torch_module, **{name: call for name, call in patched.items() if hasattr(torch_module, name)})
