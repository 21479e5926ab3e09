"""Translates device arguments. The device "cuda:i" in the script is "lazy:i" in C++.

backend_device("cuda")                                 # device(type='lazy', index=<current device>)
backend_arguments(("cuda:1", torch.half), {})   # ((device(type='lazy', index=1), torch.half), {})
"""

from __future__ import annotations

import os
import sys
from functools import cache

import torch

from replayer.state import gpu
from replayer.tensor.tensor_meta import BACKEND, OURS
from replayer.torch_types import TorchAny

Arguments = tuple[tuple[TorchAny, ...], dict[str, TorchAny]]


def backend_device(device: TorchAny) -> TorchAny:
    """Return the C++ device for a device argument of any form. Arguments that do not name a CUDA device are returned unchanged.

    Raises CUDA's error for a device that the trace does not have.
    """
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


@cache
def _known_to_backend(index: int) -> torch.device:
    return torch.device(BACKEND, index)


def checked_index(index: int) -> int:
    """Return `index` if this device exists. Like every use of a device, the function initializes torch.cuda.

    Raises torch.AcceleratorError with CUDA's message if the device does not exist. Raises RuntimeError in a forked child of a
    process that used the device.
    """
    torch.cuda._lazy_init()  # type: ignore[no-untyped-call]
    if not 0 <= index < torch.cuda.device_count():
        raise invalid_device_ordinal()
    return index


def index_of(device: torch.device | None) -> int:
    """Return the index of a device, or the current index if the device has no index.

    Raise the same errors as `checked_index`.
    """
    if device is None or device.index is None:
        return gpu().current.device()
    return 0 if device.index == 0 else checked_index(device.index)


def invalid_device_ordinal() -> torch.AcceleratorError:
    """Return CUDA's error for a device that does not exist."""
    return _cuda_error(101, "invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?")


def invalid_resource_handle() -> torch.AcceleratorError:
    return _cuda_error(400, "invalid resource handle")


def not_permitted_in_capture() -> torch.AcceleratorError:
    """Return CUDA's error for a call that waits for the device, or queries its progress, while a stream captures a graph."""
    return _cuda_error(900, "operation not permitted when stream is capturing")


def broken_capture() -> torch.AcceleratorError:
    """Return CUDA's error at the end of a graph capture in which the host waited for the device."""
    return _cuda_error(901, "operation failed due to a previous error during capture")


def unjoined_capture() -> torch.AcceleratorError:
    """Return CUDA's error at the end of a graph capture if a stream joined the capture and was never waited for."""
    return _cuda_error(904, "capturing stream has unjoined work")


def failed_assertion() -> torch.AcceleratorError:
    """Return CUDA's error after a kernel's assertion failed."""
    return _cuda_error(710, "device-side assert triggered")


def report_failed_assert(line: str) -> None:
    """Print a kernel's failed assertion as CUDA does, and let the next wait for the device raise CUDA's error."""
    print(line, file=sys.stderr)
    gpu().launches.fail(failed_assertion, now=os.environ.get("CUDA_LAUNCH_BLOCKING") == "1")


_NAMES = {
    400: "cudaErrorInvalidResourceHandle",
    710: "cudaErrorAssert",
    900: "cudaErrorStreamCaptureUnsupported",
    901: "cudaErrorStreamCaptureInvalidated",
    904: "cudaErrorStreamCaptureUnjoined",
}
_ASSERT = 710
# Since PyTorch 2.14, an error that the failing call itself caused gives no advice about asynchronous kernels, and no error
# mentions TORCH_USE_CUDA_DSA.
_SAYS_LESS = tuple(int(number) for number in torch.__version__.split(".")[:2]) >= (2, 14)
_PAGE = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"


def _cuda_error(code: int, reason: str) -> torch.AcceleratorError:
    text = f"CUDA error: {reason}\n"
    if code in _NAMES:
        text += f"Search for `{_NAMES[code]}' in {_PAGE} for more information.\n"
    if (code == _ASSERT or not _SAYS_LESS) and os.environ.get("CUDA_LAUNCH_BLOCKING") != "1":
        text += (
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might"
            " be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        )
    if not _SAYS_LESS:
        text += "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    error = torch.AcceleratorError(text)
    error.error_code = code  # type: ignore[attr-defined]  # a cudaError_t; C++ sets it on its own errors
    return error


def backend_arguments(args: tuple[TorchAny, ...], kwargs: dict[str, TorchAny]) -> Arguments:
    """Translate the device argument in the arguments of `Tensor.to`. The device is the first argument or a keyword argument."""
    if args:
        first = args[0]
        kind = type(first)
        if kind is str or kind is torch.device or kind is int:
            return (backend_device(first), *args[1:]), kwargs
    elif "device" in kwargs:
        return args, {**kwargs, "device": backend_device(kwargs["device"])}
    return args, kwargs
