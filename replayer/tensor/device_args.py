"""Translates device arguments. The device that is "cuda:0" in the script is "lazy:0" in PyTorch's C++ code.

backend_device("cuda")                                 # device(type='lazy', index=<current device>)
backend_arguments(("cuda:1", torch.half), {})   # ((device(type='lazy', index=1), torch.half), {})
"""

from __future__ import annotations

import os
import sys
from enum import Enum
from functools import cache

import torch

from replayer.state import gpu
from replayer.tensor.tensor_meta import BACKEND, OURS
from replayer.torch_types import Args, Kwargs, TorchAny

Arguments = tuple[tuple[TorchAny, ...], dict[str, TorchAny]]


def backend_device(device: TorchAny) -> TorchAny:
    """Convert the device "cuda" to "lazy", the device type of virtual tensors in C++. Return all other arguments unchanged.
    Raise CUDA's error "invalid device ordinal" for a missing GPU."""
    if type(device) is str:
        if not device.startswith("cuda"):
            return device
        device = torch.device(device)
    elif type(device) is int:
        device = torch.device("cuda", device)
    elif type(device) is not torch.device or device.type not in OURS:
        return device
    index = gpu().current.device() if device.index is None else device.index
    return _known_to_backend(checked_index(index))


def device_of_cuda(device: TorchAny) -> torch.device:
    """Convert the argument of `Tensor.cuda`. Raise PyTorch's error for other devices."""
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
    """Return `index`, and initialize torch.cuda if necessary. Raise torch.AcceleratorError if the device does not exist. Raise
    RuntimeError in a forked process that cannot use CUDA."""
    torch.cuda._lazy_init()  # type: ignore[no-untyped-call]
    if not 0 <= index < torch.cuda.device_count():
        raise CudaError.INVALID_DEVICE.to_torch()
    return index


def index_of(device: torch.device | None) -> int:
    if device is None or device.index is None:
        return gpu().current.device()
    return 0 if device.index == 0 else checked_index(device.index)


class CudaError(Enum):
    INVALID_VALUE = 1, "cudaErrorInvalidValue", "invalid argument"  # such as memory of a process that has ended
    INVALID_DEVICE = 101, "", "invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?"
    INVALID_HANDLE = 400, "cudaErrorInvalidResourceHandle", "invalid resource handle"
    ASSERT = 710, "cudaErrorAssert", "device-side assert triggered"
    CAPTURE_UNSUPPORTED = 900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"
    CAPTURE_INVALIDATED = 901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"
    CAPTURE_MERGE = 902, "cudaErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences"
    CAPTURE_ISOLATION = 905, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"
    CAPTURE_IMPLICIT = (
        906,
        "cudaErrorStreamCaptureImplicit",
        "operation would make the legacy stream depend on a capturing blocking stream",
    )
    CAPTURED_EVENT = 907, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"
    CAPTURE_UNJOINED = 904, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"

    def to_torch(self) -> torch.AcceleratorError:
        code, name, reason = self.value
        text = f"CUDA error: {reason}\n"
        if name:
            text += f"Search for `{name}' in {_PAGE} for more information.\n"
        if (self is CudaError.ASSERT or not SINCE_2_14) and os.environ.get("CUDA_LAUNCH_BLOCKING") != "1":
            text += (
                "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might"
                " be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
            )
        if not SINCE_2_14:
            text += "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
        error = torch.AcceleratorError(text)
        error.error_code = code  # type: ignore[attr-defined]  # a cudaError_t; C++ sets it on its own errors
        return error


def report_failed_assert(line: str) -> None:
    """Print the message of a failed CUDA assertion, and make later CUDA calls fail."""
    print(line, file=sys.stderr)
    gpu().launches.fail(CudaError.ASSERT.to_torch, now=os.environ.get("CUDA_LAUNCH_BLOCKING") == "1")


# Since PyTorch 2.14, the messages of CUDA errors are shorter.
SINCE_2_14 = tuple(int(number) for number in torch.__version__.split(".")[:2]) >= (2, 14)
_PAGE = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"


def backend_arguments(args: Args, kwargs: Kwargs) -> Arguments:
    if args:
        first = args[0]
        kind = type(first)
        if kind is str or kind is torch.device or kind is int:
            return (backend_device(first), *args[1:]), kwargs
    elif "device" in kwargs:
        return args, {**kwargs, "device": backend_device(kwargs["device"])}
    return args, kwargs
