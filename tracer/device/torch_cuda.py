"""Calls PyTorch's C functions for streams and events, because the Python functions of torch.cuda take 3 to 9 us each.

CPU builds of PyTorch do not contain the C functions for streams and events (`torch/_C/__init__.pyi`, PyTorch 2.13 and 2.14.1).

Note [Events are never destroyed]
    PyTorch destroys a CUDA event together with its Python object. After a sticky CUDA error, PyTorch prints a warning for each
    destroyed event (`~CUDAEvent` in c10/cuda/CUDAEvent.h). The recorder therefore never destroys events, and reuses old events.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any


class TorchCuda:
    def __init__(self, torch: Any) -> None:
        bindings = torch._C
        self.current_device: Callable[[], int] = getattr(bindings, "_cuda_getDevice", _missing)
        # The current stream's handle, as an integer
        self.current_handle: Callable[[int], int] = getattr(bindings, "_cuda_getCurrentRawStream", _missing)
        self.has_context: Callable[[int], bool] = getattr(bindings, "_cuda_hasPrimaryContext", _missing)
        self.current_stream: Callable[[int], Any] = torch.cuda.current_stream
        self.device_count: Callable[[], int] = torch.cuda.device_count
        self.is_initialized: Callable[[], bool] = torch.cuda.is_initialized
        self.synchronize: Callable[[int], None] = torch.cuda.synchronize
        self.is_current_stream_capturing: Callable[[], bool] = getattr(bindings, "_cuda_isCurrentStreamCapturing", _missing)
        self._new_event: Callable[[], Any] = partial(getattr(bindings, "_CudaEventBase", _missing), enable_timing=True)

    def event(self) -> Any:
        # see Note [Events are never destroyed]
        event = self._new_event()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(event))
        return event


def _missing(*_: object, **__: object) -> Any:
    raise RuntimeError("this build of torch has no CUDA")
