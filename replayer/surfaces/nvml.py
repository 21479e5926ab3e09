"""Emulates NVIDIA's monitoring library NVML for torch.cuda and for the package `pynvml`.

    torch.cuda.utilization()                    # percentage of time with running kernels, since the last call
    import pynvml; pynvml.nvmlInit()            # the replayer's own `pynvml`, even if the package is installed
    pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used

Queries of temperature, power and clock rates raise `NVMLError_NotSupported`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from replayer.state import describe_gpu
from replayer.tensor.device_args import checked_index
from traces.script.patching import patch, patch_item

NOT_SUPPORTED = 3
_INVALID_ARGUMENT = 2
# reported if no driver version was recorded
ASSUMED_DRIVER = "550.54.15"


class NVMLError(Exception):
    def __init__(self, value: int = 999) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        texts = {NOT_SUPPORTED: "Not Supported", _INVALID_ARGUMENT: "Invalid Argument"}
        return texts.get(self.value, f"NVML error {self.value}")


class NVMLError_NotSupported(NVMLError):
    def __init__(self) -> None:
        super().__init__(NOT_SUPPORTED)


class NVMLError_DriverNotLoaded(NVMLError):
    """A replay never raises this exception."""


class Handle:
    def __init__(self, index: int) -> None:
        if not 0 <= index < len(describe_gpu().devices):
            raise NVMLError(_INVALID_ARGUMENT)
        self.index = index


class _Utilization:
    """Computes the GPU utilization since the script's last query. As on a real GPU, the utilization is updated at most six
    times per second."""

    _LEAST_NS = 1_000_000_000 // 6

    def __init__(self) -> None:
        self._asked_ns = self._work_ns = self._percent = 0

    def percent(self) -> int:
        now_ns, work_ns = describe_gpu().streams.host_now_ns(), describe_gpu().launches.work_ns()
        passed_ns = now_ns - self._asked_ns
        if passed_ns >= self._LEAST_NS:
            busy = (work_ns - self._work_ns) / passed_ns if self._asked_ns else 0.0
            self._percent = min(round(100 * busy), 100)
            self._asked_ns, self._work_ns = now_ns, work_ns
        return self._percent


def pynvml_module(utilization: _Utilization, cuda: Any) -> Any:
    module: Any = ModuleType("pynvml", "NVML of the virtual GPU of trace replay")
    module.__spec__ = ModuleSpec("pynvml", None)

    def memory(handle: Handle, version: int = 0) -> SimpleNamespace:
        of = describe_gpu().devices[handle.index].memory.usage
        return SimpleNamespace(total=of.capacity_bytes, free=of.free_bytes, used=of.used_bytes)

    def rates(handle: Handle) -> SimpleNamespace:
        percent = utilization.percent()
        return SimpleNamespace(gpu=percent, memory=percent)

    def processes(handle: Handle) -> list[SimpleNamespace]:
        if not cuda.is_initialized():
            return []
        used = describe_gpu().devices[handle.index].memory.usage.used_bytes
        unsliced = 0xFFFFFFFF  # the GPU is not divided into MIG instances
        own = SimpleNamespace(pid=os.getpid(), usedGpuMemory=used, gpuInstanceId=unsliced, computeInstanceId=unsliced)
        return [own]

    answers: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: None,
        "nvmlInitWithFlags": lambda flags: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(describe_gpu().devices),
        "nvmlDeviceGetHandleByIndex": Handle,
        "nvmlDeviceGetIndex": lambda handle: handle.index,
        "nvmlDeviceGetName": lambda handle: describe_gpu().devices[handle.index].name,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUtilizationRates": rates,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: describe_gpu().devices[handle.index].properties.capability,
        "nvmlDeviceGetComputeRunningProcesses": processes,
        "nvmlDeviceGetGraphicsRunningProcesses": lambda handle: [],
        "nvmlSystemGetDriverVersion": lambda: describe_gpu().machine.driver or ASSUMED_DRIVER,
    }
    patch(module, NVMLError=NVMLError, NVMLError_NotSupported=NVMLError_NotSupported, **answers)
    patch(module, NVMLError_DriverNotLoaded=NVMLError_DriverNotLoaded, NVML_ERROR_NOT_SUPPORTED=NOT_SUPPORTED)
    patch(module, NVML_TEMPERATURE_GPU=0, NVML_CLOCK_GRAPHICS=0, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2)

    def unknown(name: str) -> Callable[..., NoReturn]:
        if not name.startswith("nvml"):
            raise AttributeError(f"module 'pynvml' has no attribute {name!r}")

        def not_supported(*_args: object, **_options: object) -> NoReturn:
            raise NVMLError_NotSupported

        return not_supported

    patch(module, __getattr__=unknown)
    return module


def install(torch_module: ModuleType) -> None:
    cuda: Any = torch_module.cuda
    sampled = _Utilization()
    patch_item(sys.modules, "pynvml", pynvml_module(sampled, cuda))

    def index_of(device: Any) -> int:
        return checked_index(cuda._utils._get_device_index(device, optional=True))

    def device_memory_used(device: Any = None) -> int:
        return describe_gpu().devices[index_of(device)].memory.usage.used_bytes

    def utilization(device: Any = None) -> int:
        index_of(device)
        return sampled.percent()

    patch(cuda, utilization=utilization, device_memory_used=device_memory_used)
