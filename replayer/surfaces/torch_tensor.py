"""torch.Tensor as scripts use it to reach the device: `to`, `cuda`, `pin_memory`, and what asks about types.

    torch.ones(3).to("cuda", non_blocking=True)
    torch.ones(3).pin_memory().is_pinned()    # True

Plain tensors keep their methods; those that may name a device pass through one look at their arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from torch.utils import _device

from replayer.devices import placed, placed_arguments
from replayer.state import plans

_PINNED = "_replayed_pinned"  # on the storage itself, so that views are pinned too, without module-level state

# Functions of torch that take a device: those that would ask C++ for CUDA's current device, and those that can pin.
_PLACED = "tensor as_tensor asarray".split()
_PINNING = "empty zeros ones full rand randn randint arange empty_like zeros_like ones_like full_like empty_strided".split()


def install(torch: ModuleType) -> None:
    """Patch torch.Tensor and the factories."""
    # PyTorch's set of the functions that obey set_default_device is made at its first use; it must hold the C functions.
    _device._device_constructors()
    _install_moves(torch.Tensor)
    _install_pinning(torch.Tensor)
    for name in _PLACED:
        setattr(torch, name, _placing(getattr(torch, name)))
    for name in _PINNING:
        setattr(torch, name, _pinning(getattr(torch, name)))
    for name in ("_set_default_dtype", "_set_default_tensor_type"):
        setattr(torch._C, name, _relearning(getattr(torch._C, name)))


def _install_moves(tensor_class: Any) -> None:
    to, new_tensor = tensor_class.to, tensor_class.new_tensor

    @wraps(to)
    def to_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = placed_arguments(args, kwargs)
        return to(self, *args, **kwargs)

    @wraps(tensor_class.cuda)
    def cuda(self: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        return to(self, placed("cuda" if device is None else device), non_blocking=non_blocking, **kwargs)

    @wraps(new_tensor)
    def new_tensor_placed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = placed(kwargs["device"])
        return new_tensor(self, *args, **kwargs)

    tensor_class.to = to_device
    tensor_class.cuda = cuda
    tensor_class.new_tensor = new_tensor_placed


def _install_pinning(tensor_class: Any) -> None:
    """Pinned memory in name; locking the pages is a matter of its own."""

    @wraps(tensor_class.pin_memory)
    def pin_memory(self: Any, device: Any = None) -> Any:
        if self.device.type != "cpu":
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        return self if is_pinned(self) else pin(self.detach().clone())

    @wraps(tensor_class.is_pinned)
    def is_pinned(self: Any, device: Any = None) -> bool:
        return self.device.type == "cpu" and hasattr(self.untyped_storage(), _PINNED)

    tensor_class.pin_memory = pin_memory
    tensor_class.is_pinned = is_pinned


def pin(tensor: Any) -> Any:
    """Call the memory of a plain tensor pinned."""
    setattr(tensor.untyped_storage(), _PINNED, True)
    return tensor


def _placing(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def placing(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device") or _device.CURRENT_DEVICE
        if device is not None:
            kwargs["device"] = placed(device)
        if kwargs.pop("pin_memory", False):
            return pin(make(*args, **kwargs))
        return make(*args, **kwargs)

    return placing


def _pinning(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def pinning(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("pin_memory"):
            made = make(*args, **{**kwargs, "pin_memory": False})
            if made.device.type != "cpu":
                raise RuntimeError("Only dense CPU tensors can be pinned")
            return pin(made)
        return make(*args, **kwargs)

    return pinning


def _relearning(change: Callable[..., Any]) -> Callable[..., Any]:
    """What an op makes of integers depends on the default dtype."""

    @wraps(change)
    def changing(*args: Any) -> None:
        change(*args)
        plans().forget()

    return changing
