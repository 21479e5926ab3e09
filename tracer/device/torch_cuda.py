"""Calls PyTorch's C functions for streams and events, because each call of the Python functions takes 3 to 9 µs.

CPU builds of PyTorch lack these functions.

Note [Events are never destroyed]
    PyTorch destroys a CUDA event together with its Python object. After a sticky CUDA error, PyTorch prints a warning for each
    destroyed event (`~CUDAEvent` in c10/cuda/CUDAEvent.h). The recorder therefore never destroys events, and reuses old events.

Note [Times between events]
    PyTorch's `elapsed_time` queries both events again (`CUDAEvent::elapsed_time`). The recorder has already queried the last
    event, so it calls `cudaEventElapsedTime` directly. PyTorch loads CUDA's runtime library for all libraries of the process
    (`_load_global_deps` in torch/__init__.py). If the function is not found there, as with ROCm, the recorder calls PyTorch.
    `cudaEventElapsedTime` may create a CUDA context on the current device of the thread. If the events belong to another
    device, the recorder also calls PyTorch, which first switches to the device of the events.

Note [Whether a device has a context]
    The driver reports whether a device's primary context is active. Some drivers and layers above the driver do not implement
    this query and always report an inactive context. Memory can only be allocated in a context, so a device on which PyTorch's
    allocator holds memory has a context, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any


class TorchCuda:
    def __init__(self, torch: Any) -> None:
        bindings = torch._C
        self.current_device: Callable[[], int] = getattr(bindings, "_cuda_getDevice", _missing)
        # this function returns the current stream's handle as an integer
        self.current_handle: Callable[[int], int] = getattr(bindings, "_cuda_getCurrentRawStream", _missing)
        self.set_device: Callable[[int], None] = getattr(bindings, "_cuda_setDevice", _missing)
        self._has_primary_context: Callable[[int], bool] = getattr(bindings, "_cuda_hasPrimaryContext", _missing)
        self._memory_bytes: Callable[[int], int] = torch.cuda.memory_reserved
        self.current_stream: Callable[[int], Any] = torch.cuda.current_stream
        self.device_count: Callable[[], int] = torch.cuda.device_count
        self.is_initialized: Callable[[], bool] = torch.cuda.is_initialized
        self.synchronize: Callable[[int], None] = torch.cuda.synchronize
        self.is_current_stream_capturing: Callable[[], bool] = getattr(bindings, "_cuda_isCurrentStreamCapturing", _missing)
        self._runtime = ctypes.PyDLL(None)
        self._has_runtime = hasattr(self._runtime, "cudaEventElapsedTime") and hasattr(self._runtime, "cudaGetLastError")
        if self._has_runtime:
            self._runtime.cudaEventElapsedTime.argtypes = [ctypes.c_void_p] * 3
        self._new_event: Callable[[], Any] = partial(getattr(bindings, "_CudaEventBase", _missing), enable_timing=True)

    def has_context(self, device: int) -> bool:
        # see Note [Whether a device has a context]
        if self._has_primary_context(device):
            return True
        try:
            return self._memory_bytes(device) > 0
        except RuntimeError:  # if the script installs its own allocator, statistics are missing
            return False

    def event(self) -> Any:
        # see Note [Events are never destroyed]
        event = self._new_event()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(event))
        return event

    def elapsed_ms(self, events: Sequence[Any], device: int) -> Sequence[float]:
        """Return the time (ms) from each completed CUDA event to the next. Raise RuntimeError for a CUDA error."""
        # see Note [Times between events]
        if not self._has_runtime or self.current_device() != device:
            return list(map(type(events[0]).elapsed_time, events[:-1], events[1:]))
        handles = [event.cuda_event for event in events]
        found = (ctypes.c_float * (len(events) - 1))()
        first = ctypes.addressof(found)
        places = range(first, first + ctypes.sizeof(found), ctypes.sizeof(ctypes.c_float))
        code = max(map(self._runtime.cudaEventElapsedTime, places, handles[:-1], handles[1:]))
        if code:
            self._runtime.cudaGetLastError()  # clear the error, because a later check of the script would report it
            raise CudaCallError(code)
        return memoryview(found).cast("B").cast("f").tolist()  # this is faster than `list(found)`


class CudaCallError(RuntimeError):
    def __init__(self, error_code: int) -> None:
        super().__init__(f"CUDA error: {error_code}")
        self.error_code = error_code


def _missing(*_: object, **__: object) -> Any:
    raise RuntimeError("this build of torch has no CUDA")
