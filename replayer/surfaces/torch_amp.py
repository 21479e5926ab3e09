"""Patches torch.amp, torch.autocast and torch.cuda.amp for autocast on the virtual GPU.

    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x)                     # torch.is_autocast_enabled() is True

Note [Autocast's key]
    PyTorch has no autocast for the device type "lazy", which virtual tensors have in C++ code. While autocast is on, every call
    in the thread therefore gets the autocast dispatch key of the device type PrivateUse1.
"""

from __future__ import annotations

from types import ModuleType

from replayer.state import script_steps
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import around, patch


def install(torch_module: ModuleType) -> None:
    c: TorchAny = torch_module._C

    def is_autocast_enabled(call: TorchFunction, device_type: str = "cuda") -> TorchAny:
        return call(device_type)

    def set_autocast_enabled(call: TorchFunction, device_type: TorchAny = "cuda", enabled: TorchAny = None) -> None:
        # see Note [Autocast's key]
        if enabled is None:
            device_type, enabled = "cuda", device_type
        call(device_type, enabled)
        if device_type.partition(":")[0] == "cuda":
            c._dispatch_tls_set_dispatch_key_included(c.DispatchKey.AutocastPrivateUse1, enabled)

    def set_autocast_dtype(call: TorchFunction, device_type: str, dtype: TorchAny) -> None:
        call(device_type, dtype)
        steps = script_steps()
        if device_type == "cuda" and steps is not None and c.is_autocast_enabled("cuda"):
            steps.autocast_entered(str(dtype).removeprefix("torch."))

    patched = {
        "set_autocast_dtype": around(c.set_autocast_dtype, set_autocast_dtype),
        "is_autocast_enabled": around(c.is_autocast_enabled, is_autocast_enabled),
        "set_autocast_enabled": around(c.set_autocast_enabled, set_autocast_enabled),
        "get_autocast_gpu_dtype": lambda: c.get_autocast_dtype("cuda"),
        "set_autocast_gpu_dtype": lambda dtype: c.set_autocast_dtype("cuda", dtype),
    }
    patch(torch_module.cuda, get_amp_supported_dtype=lambda: [torch_module.bfloat16, torch_module.float16])
    patch(c, **patched)
    patch(torch_module, **{name: call for name, call in patched.items() if hasattr(torch_module, name)})
