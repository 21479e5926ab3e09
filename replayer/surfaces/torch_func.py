"""Makes tensors inside of torch.func transforms, such as vmap and grad, report the device "cuda".

    torch.func.vmap(lambda x: x.new_zeros(3, device=x.device))(torch.ones(2, device="cuda"))

The patched properties are slow, so they are installed at the first use of torch.func.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from replayer.surfaces.torch_tensor_subclass import device_properties
from replayer.torch_types import TorchAny
from traces.script.patching import PATCHES, patch_around, when_imported

_LEVELS = ("_vmap_increment_nesting", "_grad_increment_nesting", "_jvp_increment_nesting", "_func_increment_nesting")


def install(torch_module: ModuleType) -> None:
    tensor: TorchAny = torch_module.Tensor

    def increment(call: Callable[..., TorchAny], *args: TorchAny) -> TorchAny:
        if "device" not in vars(tensor):
            for name, value in device_properties(torch_module).items():
                PATCHES.set(tensor, name, value)
        return call(*args)

    for part in ("vmap", "eager_transforms"):
        when_imported(
            f"torch._functorch.{part}",
            lambda module: patch_around(module, **{name: increment for name in _LEVELS if hasattr(module, name)}),
        )
