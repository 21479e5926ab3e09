"""Patches functions of torch.cuda such as `device_count` and `get_device_properties`.

    torch.cuda.set_device(1)     # AcceleratorError: CUDA error: invalid device ordinal ... , if one GPU was recorded
"""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType
from typing import Self

import torch

from replayer.cuda_error import CudaError
from replayer.errors import require, warn_once_at_script
from replayer.state import STATE, describe_gpu, gpu, host_memory, in_bad_fork
from replayer.surfaces.patching import ignore, refusal, refuse, refuse_construction
from replayer.tensor.device_args import checked_index
from replayer.torch_types import TorchAny, TorchFunction
from traces.model.machine import DeviceProperties
from traces.script.patching import patch


class RuntimeResult(IntEnum):
    """Replaces `torch.cuda.cudart().cudaError`."""

    success = 0

    @classmethod
    def _missing_(cls, code: object) -> RuntimeResult:
        assert isinstance(code, int)
        result = int.__new__(cls, code)
        result._name_, result._value_ = "???", code
        return result

    def __str__(self) -> str:
        return f"cudaError.{self.name}"


_ALREADY_REGISTERED, _NOT_REGISTERED = RuntimeResult(712), RuntimeResult(713)
_TEXTS: dict[int, str] = {
    0: "no error",
    2: "out of memory",
    3: "initialization error",
    100: "no CUDA-capable device is detected",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
    719: "unspecified launch failure",
    801: "operation not supported",
    **{error.value[0]: error.value[2].partition("\n")[0] for error in CudaError},
}


class VirtualCudart:
    """Replaces the module `torch._C._cudart`."""

    cudaError = RuntimeResult

    def cudaGetErrorString(self, error: int) -> str:
        return _TEXTS.get(error, "unrecognized error code")

    def cudaProfilerStart(self) -> RuntimeResult:
        return RuntimeResult.success

    cudaProfilerStop = cudaProfilerStart

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> RuntimeResult:
        return RuntimeResult.success if host_memory().register(address, size_bytes) else _ALREADY_REGISTERED

    def cudaHostUnregister(self, address: int) -> RuntimeResult:
        return RuntimeResult.success if host_memory().unregister(address) else _NOT_REGISTERED

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        memory = gpu().devices[checked_index(device)].memory
        return memory.usage.free_bytes, memory.usage.capacity_bytes

    def __getattr__(self, name: str) -> TorchFunction:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return refusal(f"torch.cuda.cudart().{name}", "use the corresponding torch.cuda function")


_MIB = 1 << 20


@dataclass(frozen=True, repr=False)
class TorchDeviceProperties(DeviceProperties):
    """Replaces PyTorch's `_CudaDeviceProperties`. Sizes are in bytes, frequencies in kHz, and unknown properties are 0."""

    name: str = ""
    total_memory: int = 0
    uuid: uuid.UUID | None = None
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0

    @classmethod
    def create(cls, name: str, capacity_bytes: int, known: DeviceProperties, index: int = 0) -> Self:
        """Return the properties of a GPU. Its UUID and other identifiers are invented."""
        unknown: dict[str, TorchAny] = dict.fromkeys(vars(known), 0) | {"gcnArchName": ""}
        card: dict[str, TorchAny] = {"uuid": uuid.uuid5(uuid.NAMESPACE_OID, f"{name}/{index}"), "pci_bus_id": index + 1}
        return cls(name=name, total_memory=capacity_bytes, **card, **unknown | known.known())

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name.startswith("_") or name in vars(self)]

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // _MIB}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={(self.L2_cache_size or 0) // _MIB}MB)"
        )


_NVML = "recordings do not contain this value; guard the call, or use nvidia-smi on the recorded machine"
_KERNELS = "custom kernels cannot be timed from a recording; run this part without them"
_NCCL = "use torch.distributed or nn.DataParallel instead"
_TUNING = "tuning needs a real GPU, and the recording already contains the chosen kernels; leave it out"
_WHOLE = "the recording is of a whole GPU, which a replay cannot partition"
_GDS = "there is no GPU memory to read files into; load through host memory"

REFUSED = {**dict.fromkeys(("temperature", "power_draw", "clock_rate", "memory_usage"), _NVML), "_compile_kernel": _KERNELS}

REFUSED_PARTS = {"get_num_locality_domains": _WHOLE, "is_localization_supported": _WHOLE}
REFUSED_TUNABLE = {"tune_gemm_in_file": _TUNING, "mgpu_tune_gemm_in_file": _TUNING}

_TUNED = (
    "enable tuning_enable set_max_tuning_duration get_max_tuning_duration set_max_tuning_iterations get_max_tuning_iterations"
    " set_filename get_filename get_results get_validators read_file set_rotating_buffer_size get_rotating_buffer_size"
    " set_numerical_check_tolerances set_cublaslt_requested_algo_count get_cublaslt_requested_algo_count"
    " wildcard_fallback_enable".split()
)
_OF_NCCL = "unique_id init_rank all_reduce reduce broadcast all_gather reduce_scatter".split()

REFUSED_C = {
    "_cuda_getCurrentSolverHandle": ("torch.cuda.current_solver_handle", "call torch.linalg instead"),
    "_cuda_getStreamFromExternal": ("torch.cuda.get_stream_from_external", "use torch.cuda.Stream"),
    "_cuda_record_untuned_enable": ("torch.cuda.tunable.record_untuned_enable", _TUNING),
    **{f"_cuda_tunableop_{name}": (f"torch.cuda.tunable.{name}", _TUNING) for name in _TUNED},
    **{f"_nccl_{name}": (f"torch.cuda.nccl.{name}", _NCCL) for name in _OF_NCCL},
    **{f"_gds_{name}": (f"torch.cuda.gds.gds_{name}", _GDS) for name in ("register_buffer", "deregister_buffer")},
}

IGNORED_C: dict[str, tuple[object, str]] = {
    "_cuda_ipc_collect": (None, "shared memory is freed with its last tensor, so there is nothing to collect"),
    "_cuda_getCurrentBlasHandle": (0x5555_0000_1000, "scripts call this to load cuBLAS early, which a replay does not need"),
    "_cuda_set_cudnn_benchmark_limit": (None, "the recording has the algorithms that cuDNN chose"),
    "_cuda_get_cudnn_benchmark_limit": (10, "torch's default"),
    "_cuda_get_conv_benchmark_empty_cache": (False, "nothing is benchmarked, so no cache needs emptying"),
    "_cuda_tunableop_is_enabled": (False, "it is off by default, and cannot be switched on"),
    "_cuda_tunableop_tuning_is_enabled": (False, "off, because TunableOp is off"),
    "_cuda_record_untuned_is_enabled": (False, "it is off by default, and cannot be switched on"),
}

_ASSUMED_NCCL = "2.19.0"  # in a replay, NCCL's kernels have the names of this version

# these checks require a PyTorch build for the GPU, but a replay does not need such a build
_BUILD_CHECKS = {"_check_capability", "_check_cubins", "_register_triton_kernels"}


class CudaDriver:
    def __init__(self) -> None:
        self._visible: int | None = None  # CUDA reads CUDA_VISIBLE_DEVICES only once

    def start(self) -> None:
        visible = self.device_count()
        require(visible, "No CUDA GPUs are available")
        gpu()
        self._visible = visible

    def device_count(self) -> int:
        """Return the number of GPUs in CUDA_VISIBLE_DEVICES. Like CUDA, read this variable only once."""
        if self._visible is not None:
            return self._visible
        if in_bad_fork():
            return 0
        recorded = len(describe_gpu().devices)
        if os.environ.get("CUDA_VISIBLE_DEVICES") is None:
            return recorded
        return min(recorded, len(torch.cuda._parse_visible_devices()))

    def available_devices(self) -> int:
        if not in_bad_fork():
            gpu()
            self._visible = self.device_count()
        return self.device_count()


def refuse_c_functions(torch_module: ModuleType) -> None:
    c: TorchAny = torch_module._C
    for name in dir(c):
        if name.startswith(("_cuda_", "_nccl_")):
            patch(c, **{name: refusal(f"torch._C.{name}", "this version of the virtual GPU does not support it")})


def _refuse_or_ignore(cuda: TorchAny, c: TorchAny) -> None:
    patch(c, **{name: refusal(call, advice) for name, (call, advice) in REFUSED_C.items()})
    ignore(c, IGNORED_C)
    refuse(cuda, "torch.cuda", REFUSED)
    refuse(cuda.tunable, "torch.cuda.tunable", REFUSED_TUNABLE)
    refuse_construction(cuda.gds, "torch.cuda.gds", {"GdsFile": _GDS})
    refuse(cuda.green_contexts, "torch.cuda.green_contexts", REFUSED_PARTS)
    refuse(cuda.GreenContext, "torch.cuda.GreenContext", {"create": _WHOLE, "max_workqueue_concurrency": _WHOLE})
    partition = getattr(cuda.green_contexts, "SMPartition", None)
    refuse(partition, "torch.cuda.green_contexts.SMPartition", {"from_device": _WHOLE})
    refuse_construction(cuda.green_contexts, "torch.cuda.green_contexts", {"GreenContext": _WHOLE, "SMPartition": _WHOLE})


def install(torch_module: ModuleType) -> None:
    driver = CudaDriver()
    cuda: TorchAny = torch_module.cuda
    c: TorchAny = torch_module._C
    known: dict[int, tuple[TorchAny, TorchDeviceProperties]] = {}

    def properties_of(index: int) -> TorchDeviceProperties:
        device = gpu().devices[index]
        if index not in known or known[index][0] is not device:
            made = TorchDeviceProperties.create(device.name, device.memory.usage.capacity_bytes, device.properties, index)
            known[index] = device, made
        return known[index][1]

    def exchange_device(index: int) -> int:
        if index < 0:
            return -1
        checked_index(index)
        before = gpu().current.device()
        gpu().current.set_device(index)
        return before

    def set_device(index: int) -> None:
        checked_index(index)
        gpu().current.set_device(index)

    def maybe_exchange_device(index: int) -> int:
        return exchange_device(index)  # a separate function, because Dynamo needs two different functions

    def arch_flags() -> str:
        capabilities = {(p.major, p.minor) for p in map(properties_of, range(driver.device_count()))}
        return " ".join(f"sm_{major}{minor}" for major, minor in sorted(capabilities))

    _refuse_or_ignore(cuda, c)
    patch(
        c,
        _has_cuda=True,
        _cuda_init=driver.start,
        _cuda_isInBadFork=in_bad_fork,
        _cuda_getDeviceCount=driver.available_devices,
        _cuda_getDevice=lambda: gpu().current.device(),
        _cuda_setDevice=set_device,
        _cuda_exchangeDevice=exchange_device,
        _cuda_maybeExchangeDevice=maybe_exchange_device,
        _cuda_hasPrimaryContext=lambda index: cuda.is_initialized(),
        _cuda_canDeviceAccessPeer=lambda device, peer: device != peer,
        _cuda_getArchFlags=arch_flags,
        _cuda_getCompiledVersion=_compiled_version,
        _cuda_sleep=_sleep,
        _cuda_synchronize=lambda: gpu().streams.synchronize_device(gpu().current.device()),
        _cuda_set_sync_debug_mode=_set_sync_debug_mode,
        _cuda_get_sync_debug_mode=lambda: STATE.sync_debug_mode,
        _CudaDeviceProperties=TorchDeviceProperties,
        _nccl_version=_nccl_version,
        _nccl_version_suffix=lambda: b"",
    )
    patch(
        cuda,
        _is_in_bad_fork=in_bad_fork,
        _exchange_device=exchange_device,
        _maybe_exchange_device=maybe_exchange_device,
        _cudart=VirtualCudart(),
        _CudaDeviceProperties=TorchDeviceProperties,
        _get_device_properties=properties_of,
        device_count=driver.device_count,  # PyTorch's function would call NVML
        has_magma=True,
        _initialized=False,
        _queued_calls=[call for call in cuda._queued_calls if call[0].__name__ not in _BUILD_CHECKS],
    )
    patch(cuda.nccl, is_available=lambda tensors: False)  # makes comm.reduce_add copy tensors


def _sleep(cycles: int) -> None:
    require(isinstance(cycles, int), "torch.cuda._sleep(): expected 'int'")
    gpu().launches.spin(max(cycles, 0), gpu().current.device())


def _set_sync_debug_mode(mode: int) -> None:
    warn_once_at_script(
        "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
    )
    require(mode in (0, 1, 2), "invalid value of debug_mode, expected one of 0,1,2")
    STATE.sync_debug_mode = mode


def _compiled_version() -> int:
    major, minor = (torch.version.cuda or "0.0").split(".")[:2]
    return 1000 * int(major) + 10 * int(minor)


def _nccl_version() -> int:
    recorded = None if in_bad_fork() else describe_gpu().machine.nccl
    exact = re.match(r"(\d+)\.(\d+)\.(\d+)", recorded or _ASSUMED_NCCL)
    major, minor, patch = map(int, exact.groups()) if exact is not None else (0, 0, 0)
    return major << 32 | minor << 16 | patch
