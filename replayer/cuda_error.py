"""Creates the exceptions that PyTorch raises for errors of the CUDA runtime.

    raise CudaError.INVALID_HANDLE.to_torch()    # torch.AcceleratorError: CUDA error: invalid resource handle
"""

from __future__ import annotations

import os
from enum import Enum

import torch

# PyTorch 2.14 shortened the messages of CUDA errors.
SINCE_2_14 = tuple(int(number) for number in torch.__version__.split(".")[:2]) >= (2, 14)
_PAGE = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"


class CudaError(Enum):
    INVALID_VALUE = 1, "cudaErrorInvalidValue", "invalid argument"  # for example, for memory of a process that has ended
    INITIALIZATION = 3, "cudaErrorInitializationError", "initialization error"  # for example, if a forked process uses CUDA
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
