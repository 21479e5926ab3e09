"""Emulates pinned memory in PyTorch functions such as `pin_memory` and `is_pinned`.

    torch.ones(3).pin_memory().is_pinned()            # True
    torch.empty(128, 3, 224, 224, pin_memory=True)    # 128 MiB more in VmLck
    torch.cuda.host_memory_stats()["allocated_bytes.current"]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from types import ModuleType

import torch

from replayer.errors import require
from replayer.ops.pinned_tensors import is_pinned, pinned_copy, pinned_empty
from replayer.state import host_memory
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import patch, patch_around, patch_everywhere

# functions that return uninitialized tensors
EMPTY = "empty empty_like empty_strided empty_permuted".split()
FILLED = (
    "zeros zeros_like ones ones_like full full_like rand rand_like randn randn_like randint randint_like randperm normal"
    " arange linspace logspace eye scalar_tensor tril_indices triu_indices"
    " bartlett_window blackman_window hamming_window hann_window kaiser_window".split()
)
NEW_EMPTY = "new_empty new_empty_strided".split()
NEW_FILLED = "new_zeros new_ones new_full".split()


def install(torch_module: ModuleType) -> None:
    tensor_class: TorchAny = torch_module.Tensor
    patch(tensor_class, pin_memory=wraps(tensor_class.pin_memory)(pin_memory), is_pinned=wraps(tensor_class.is_pinned)(pinned))
    randperm = torch_module.randperm
    for owner, empty, filled in ((torch_module, EMPTY, FILLED), (tensor_class, NEW_EMPTY, NEW_FILLED)):
        patch(owner, **{name: with_pin_memory(getattr(owner, name), _empty) for name in empty})
        patch(owner, **{name: with_pin_memory(getattr(owner, name)) for name in filled})
    patch_around(torch_module, randperm=_randperm)
    patch_everywhere(randperm, torch_module.randperm)  # torch.utils.data.dataset also imports this function
    patch(
        torch_module._C,
        _cuda_hostMemoryStats=lambda: host_memory().statistics(),
        _cuda_resetAccumulatedHostMemoryStats=lambda: host_memory().stats.reset_accumulated(),
        _cuda_resetPeakHostMemoryStats=lambda: host_memory().stats.reset_peak(),
        _host_emptyCache=lambda: host_memory().empty_cache(),
        _accelerator_emptyHostCache=lambda: host_memory().empty_cache(),
    )


def _warn_of_device(method: str) -> None:
    warnings.warn(
        f"The argument 'device' of Tensor.{method}() is deprecated. Please do not pass this argument.",
        DeprecationWarning,
        stacklevel=3,
    )


def pin_memory(self: TorchAny, device: TorchAny = None) -> torch.Tensor:
    if device is not None:
        _warn_of_device("pin_memory")
        _warn_of_device("is_pinned")
        kind = torch.device(device).type
        require(kind == "cuda", f"{kind.upper()} device type not an accelerator.")
    if self.device.type != "cpu":
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
    return self if is_pinned(self) else pinned_copy(self)


def pinned(self: TorchAny, device: TorchAny = None) -> bool:
    if device is not None:
        _warn_of_device("is_pinned")
    return is_pinned(self)


def _randperm(draw: TorchFunction, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    try:
        return draw(*args, **kwargs)
    except RuntimeError as error:
        require("generator device" not in str(error), "Expected a 'cpu' device type for generator but found 'cuda'")
        raise


def _empty(made: torch.Tensor) -> torch.Tensor:
    return pinned_empty(tuple(made.shape), made.stride(), made.dtype)


def with_pin_memory(make: TorchFunction, pin: Callable[[torch.Tensor], torch.Tensor] = pinned_copy) -> TorchFunction:
    @wraps(make)
    def pinning(*args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        if kwargs.get("out") is not None and kwargs.get("device") is not None:
            asked, given = torch.device(kwargs["device"]).type, kwargs["out"].device.type
            if asked != given:  # see `check_out_type_matches` in PyTorch
                raise RuntimeError(f"device type {asked} does not match device type of out parameter ({given})")
            kwargs = {name: value for name, value in kwargs.items() if name != "device"}
        if not kwargs.get("pin_memory"):
            return make(*args, **kwargs)
        device = kwargs.get("device")
        require(device is None or torch.device(device).type == "cpu", "Only dense CPU tensors can be pinned")
        made = make(*args, **{**kwargs, "pin_memory": False})
        require(made.device.type == "cpu", "Only dense CPU tensors can be pinned")
        return pin(made.detach()).requires_grad_(made.requires_grad)

    return pinning
