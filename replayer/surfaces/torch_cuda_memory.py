"""Patches torch.cuda.memory to report the memory of the virtual GPU (device/caching_allocator.py).

torch.cuda.max_memory_allocated()    # as on the recorded GPU, to the byte
print(torch.cuda.memory_summary())
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from types import ModuleType

from replayer.errors import NotEmulated, require
from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.device.request_log import RequestKind
from replayer.memory.device.settings import SettingsError, parse_settings
from replayer.memory.device.stats import StatsDict
from replayer.state import gpu
from replayer.surfaces.patching import refusal, refuse, refuse_construction
from replayer.torch_types import TorchAny
from traces.model.machine import Machine
from traces.script.patching import patch

_POOL = "remove the pool; the allocator's own pools are emulated"
_CACHE = "leave the cache on, or set its limits in PYTORCH_ALLOC_CONF"
_ALLOCATOR = "use torch's own allocator, which is emulated; other allocators need a GPU"
_BLAS = "set cublas_workspace_size instead; both share one workspace"
_PINNED = "only C++ code calls this function; use torch.Tensor.pin_memory"

_OF_GRAPH_TREES = [
    f"_cuda_{name}"
    for name in ("beginAllocateCurrentStreamToPool checkPoolLiveAllocations getCheckpointState setCheckpointPoolState".split())
]
REFUSED_C = {
    "_cuda_cudaHostAllocator": ("torch.cuda.memory._host_allocator", _PINNED),
    "_cuda_getAllocator": ("torch.cuda.memory._get_current_allocator", _ALLOCATOR),
    "_cuda_customAllocator": ("torch.cuda.memory.CUDAPluggableAllocator", _ALLOCATOR),
    "_cuda_changeCurrentAllocator": ("torch.cuda.memory.change_current_allocator", _ALLOCATOR),
    **{name: (f"torch._C.{name}", _POOL) for name in _OF_GRAPH_TREES},
    "_cuda_setCublasLtWorkspaceSize": ("torch.backends.cuda.cublaslt_workspace_size(size)", _BLAS),
}

REFUSED_CLASSES = {"CUDAPluggableAllocator": _ALLOCATOR}
REFUSED = {"_use_uvm": _ALLOCATOR}

_NO_ALLOCATOR = "Allocator not initialized for device "

# first PyTorch release with each statistic
STATS_SINCE = {"num_oom_rejections": (2, 12), "reserved_bytes_by_private_pools": (2, 13)}


def memory_of(index: int, missing: str = "Invalid device argument ") -> DeviceMemory:
    devices = gpu().devices
    if not 0 <= index < len(devices):
        raise RuntimeError(f"{missing}{chr(index % 256)}: did you call init?")  # PyTorch prints the device index as a character
    return devices[index].memory


class RawBlocks:
    def __init__(self) -> None:
        self._handles: dict[int, AllocationHandle] = {}

    def allocate(self, size_bytes: int, stream: int) -> int:
        if size_bytes < 0:
            raise ValueError(f"Invalid memory size: {size_bytes}. caching_allocator_alloc requires a non-negative size.")
        here = gpu()
        try:
            handle = here.devices[here.current.device()].allocator.malloc(size_bytes, stream)
        except OutOfMemory as full:
            raise full.to_torch() from None
        if handle is None:
            return 0
        self._handles[handle.address] = handle
        return handle.address

    def delete(self, address: int) -> None:
        if not address:
            return
        require(address in self._handles, f"invalid device pointer: {address:#x}")
        handle = self._handles.pop(address)
        handle.allocator.free(handle)


def stats_of_release(stats: StatsDict, torch_version: str) -> StatsDict:
    running = Machine(torch=torch_version)
    return {key: value for key, value in stats.items() if not running.is_before(*STATS_SINCE.get(key, (0, 0)))}


def enable_caching(enabled: bool) -> None:
    if not enabled:
        raise NotEmulated("torch.cuda.caching_allocator_enable(False)", _CACHE)


def apply_settings(text: str) -> None:
    try:
        for device in gpu().devices:
            device.memory.apply(parse_settings(text, device.memory.settings))
    except SettingsError as error:
        raise ValueError(str(error)) from None


def install(torch_module: ModuleType) -> None:
    c: TorchAny = torch_module._C
    cuda: TorchAny = torch_module.cuda
    module: TorchAny = cuda.memory
    raw = RawBlocks()

    def memory(device: TorchAny) -> DeviceMemory | None:
        return None if not cuda.is_initialized() else memory_of(module._get_device_index(device, optional=True))

    def amount(name: str, of: Callable[[DeviceMemory], int]) -> Callable[..., int]:
        @wraps(getattr(module, name))
        def bytes_of_device(device: TorchAny = None) -> int:
            device_memory = memory(device)
            return 0 if device_memory is None else of(device_memory)

        return bytes_of_device

    def allocated_bytes(device_memory: DeviceMemory) -> int:
        if device_memory.requests is not None:
            device_memory.requests.add_event(RequestKind.LOOK)
        return device_memory.usage.allocated_bytes

    def list_gpu_processes(device: TorchAny = None) -> str:
        index = module._get_device_index(device, optional=True)
        used_mib = memory_of(index).usage.used_bytes / (1 << 20)
        return f"GPU:{index}\nprocess {os.getpid():>10d} uses {used_mib:>12.3f} MB GPU memory"

    def empty_cache() -> None:
        for device in gpu().devices:
            device.memory.empty_cache()

    def blas_bytes() -> int:
        here = gpu()
        return here.blas.size_bytes(here.current.device())

    patch(c, **{name: refusal(call, advice) for name, (call, advice) in REFUSED_C.items()})
    refuse_construction(module, "torch.cuda", REFUSED_CLASSES)
    refuse(module, "torch.cuda.memory", REFUSED)
    patch(
        c,
        _cuda_memoryStats=lambda index: stats_of_release(memory_of(index).usage.stats(), torch_module.__version__),
        _cuda_resetPeakMemoryStats=lambda index: memory_of(index).usage.reset_peak(),
        _cuda_resetAccumulatedMemoryStats=lambda index: memory_of(index).usage.reset_accumulated(),
        _cuda_emptyCache=empty_cache,
        _cuda_setMemoryFraction=lambda fraction, index: memory_of(index, _NO_ALLOCATOR).set_memory_fraction(fraction),
        _cuda_getMemoryFraction=lambda index: memory_of(index, _NO_ALLOCATOR).usage.allowed_fraction,
        _cuda_cudaCachingAllocator_raw_alloc=raw.allocate,
        _cuda_cudaCachingAllocator_raw_delete=raw.delete,
        _cuda_cudaCachingAllocator_enable=enable_caching,
        _cuda_cudaCachingAllocator_is_enabled=lambda: True,
        _cuda_cudaCachingAllocator_set_allocator_settings=apply_settings,
        _accelerator_setAllocatorSettings=apply_settings,
        _cuda_getAllocatorBackend=lambda: "native",
        _cuda_clearCublasWorkspaces=lambda: gpu().blas.clear(),
        _cuda_setCublasWorkspaceSize=lambda size_bytes: gpu().blas.choose(size_bytes),
        _cuda_resetCublasWorkspaceSize=lambda: gpu().blas.choose(None),
        _cuda_resetCublasLtWorkspaceSize=lambda: gpu().blas.choose(None),
        _cuda_getCublasWorkspaceSize=blas_bytes,
        _cuda_getCublasLtWorkspaceSize=blas_bytes,
    )
    for owner in (cuda, module):
        patch(
            owner,
            memory_allocated=amount("memory_allocated", allocated_bytes),
            max_memory_allocated=amount("max_memory_allocated", lambda device_memory: device_memory.usage.peak_allocated_bytes),
            memory_reserved=amount("memory_reserved", lambda device_memory: device_memory.usage.reserved_bytes),
            max_memory_reserved=amount("max_memory_reserved", lambda device_memory: device_memory.usage.peak_reserved_bytes),
            list_gpu_processes=list_gpu_processes,
        )
