"""Replaces "cuda:0" in arguments of PyTorch functions by "lazy:0", because PyTorch without CUDA rejects "cuda:0".

backend_device("cuda")                                 # device(type='lazy', index=<current device>)
backend_arguments(("cuda:1", torch.half), {})   # ((device(type='lazy', index=1), torch.half), {})
"""

from __future__ import annotations

import os
import sys
from functools import cache

import torch

from replayer.cuda_error import CudaError
from replayer.state import gpu
from replayer.tensor.tensor_meta import BACKEND, OURS
from replayer.torch_types import Args, Kwargs, TorchAny

Arguments = tuple[tuple[TorchAny, ...], dict[str, TorchAny]]


def backend_device(device: TorchAny) -> TorchAny:
    """Raise CUDA's error for a missing GPU."""
    if type(device) is str:
        if not device.startswith("cuda"):
            return device
        device = torch.device(device)
    elif type(device) is int:
        device = torch.device("cuda", device)
    elif type(device) is not torch.device or device.type not in OURS:
        return device
    return _known_to_backend(current_index() if device.index is None else checked_index(device.index))


def device_of_cuda(device: TorchAny) -> torch.device:
    """Convert the argument of `Tensor.cuda` to a device. Raise PyTorch's error if the argument is not a GPU."""
    made = backend_device("cuda" if device is None else device)
    if isinstance(made, str):
        made = torch.device(made)
    if not isinstance(made, torch.device):
        raise TypeError(f"cuda(): argument 'device' (position 1) must be torch.device, not {type(made).__name__}")
    if made.type != BACKEND:
        raise RuntimeError("Invalid device, must be cuda device")
    return made


@cache
def _known_to_backend(index: int) -> torch.device:
    return torch.device(BACKEND, index)


def checked_index(index: int) -> int:
    """Raise torch.AcceleratorError for a missing GPU."""
    torch.cuda._lazy_init()  # type: ignore[no-untyped-call]
    if not 0 <= index < torch.cuda.device_count():
        raise CudaError.INVALID_DEVICE.to_torch()
    return index


def current_index() -> int:
    torch.cuda._lazy_init()  # type: ignore[no-untyped-call]
    return gpu().current.device()


def index_of(device: torch.device | None) -> int:
    if device is None or device.index is None:
        return current_index()
    return 0 if device.index == 0 else checked_index(device.index)


def report_failed_assert(line: str) -> None:
    """Print the message of a failed CUDA assertion. Later CUDA calls raise an error, as on a real GPU."""
    print(line, file=sys.stderr)
    gpu().launches.fail(CudaError.ASSERT.to_torch, now=os.environ.get("CUDA_LAUNCH_BLOCKING") == "1")


def backend_arguments(args: Args, kwargs: Kwargs) -> Arguments:
    if args:
        return (backend_device(args[0]), *args[1:]), kwargs
    if "device" in kwargs:
        return args, {**kwargs, "device": backend_device(kwargs["device"])}
    return args, kwargs
