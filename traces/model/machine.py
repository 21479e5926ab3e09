"""Describes the machine and the software versions of a recording. Unknown fields are None.

    trace.machine_of(0).cuda                                    # "12.6"
    trace.devices[0].properties.multi_processor_count           # 84
    from_kineto({"computeMajor": 8, "numSms": 84}).major        # 8
    to_kineto(DeviceProperties(major=8))                        # {"computeMajor": 8}
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from traces.model.json_facts import Json
from traces.model.typed_json import fitting


@dataclass(frozen=True)
class DeviceProperties:
    """Stores GPU properties, named as in `torch.cuda.get_device_properties`. Sizes are in bytes, bus widths in bits and clock
    rates in kHz. Identifiers such as a UUID are not recorded."""

    major: int | None = None
    minor: int | None = None
    multi_processor_count: int | None = None
    warp_size: int | None = None
    max_threads_per_block: int | None = None
    max_threads_per_multi_processor: int | None = None
    regs_per_multiprocessor: int | None = None
    shared_memory_per_block: int | None = None
    shared_memory_per_block_optin: int | None = None
    shared_memory_per_multiprocessor: int | None = None
    L2_cache_size: int | None = None
    clock_rate: int | None = None
    memory_clock_rate: int | None = None
    memory_bus_width: int | None = None
    is_integrated: int | None = None
    is_multi_gpu_board: int | None = None
    gcnArchName: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        return fitting(cls, {name: int(value) if isinstance(value, bool) else value for name, value in values.items()})

    @property
    def capability(self) -> tuple[int, int]:
        return self.major or 0, self.minor or 0

    def completed_by(self, other: DeviceProperties) -> DeviceProperties:
        return DeviceProperties(**other.known() | self.known())

    def known(self) -> dict[str, Json]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


UNKNOWN_PROPERTIES = DeviceProperties()


@dataclass(frozen=True)
class TorchSettings:
    """Stores the PyTorch settings that affect GPU work, such as TF32."""

    tf32_matmul: bool | None = None  # whether matrix products may use TF32
    tf32_cudnn: bool | None = None  # whether cuDNN may use TF32
    cudnn_benchmark: bool | None = None  # torch.backends.cudnn.benchmark
    deterministic: bool | None = None  # whether PyTorch or cuDNN must use deterministic kernels
    allocator: str | None = None  # value of PYTORCH_ALLOC_CONF

    @classmethod
    def of_process(cls, torch: Any) -> Self:
        """Return the current settings of `torch` in this process."""
        return cls(
            tf32_matmul=_allows_tf32(torch.backends.cuda.matmul),
            tf32_cudnn=_allows_tf32(torch.backends.cudnn),
            cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
            deterministic=bool(torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic),
            allocator=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
        )


def _allows_tf32(backend: Any) -> bool:
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:
        return bool(backend.fp32_precision == "tf32")


DEFAULT_SETTINGS = TorchSettings()


@dataclass(frozen=True)
class Machine:
    """Describes the machine and the software of one rank."""

    # "2.13.0+cu126", or a range for imported recordings ("1.13 to 2.3")
    torch: str | None = None
    cuda: str | None = None  # torch.version.cuda, or the CUDA runtime's version
    hip: str | None = None  # version of HIP, on AMD GPUs
    cudnn: int | None = None  # such as 91002
    nccl: str | None = None  # version of NCCL
    # "570.86.15", or "CUDA 12.8" if only the CUDA version is known
    driver: str | None = None
    python: str | None = None  # version of Python
    system: str | None = None  # operating system
    processors: int | None = None  # number of CPU cores
    oom_text: str | None = None  # PyTorch's out-of-memory message, as a template
    cublas_bytes: int | None = None  # memory of the cuBLAS handles of all devices when the script ends
    settings: TorchSettings = DEFAULT_SETTINGS

    @property
    def release(self) -> tuple[int, int] | None:
        exact = re.match(r"(\d+)\.(\d+)\.\d", self.torch or "")
        return (int(exact[1]), int(exact[2])) if exact is not None else None

    def is_before(self, major: int, minor: int) -> bool:
        torch = self.torch or ""
        versions = [(int(a), int(b)) for a, b in re.findall(r"(\d+)\.(\d+)", torch)[:2]]
        return bool(versions) and max(versions) < (major, minor) and "newer" not in torch


# From Kineto's `deviceProperties` to torch's names
_OF_KINETO = {
    "computeMajor": "major",
    "computeMinor": "minor",
    "numSms": "multi_processor_count",
    "multiProcessorCount": "multi_processor_count",
    "warpSize": "warp_size",
    "maxThreadsPerBlock": "max_threads_per_block",
    "maxThreadsPerMultiprocessor": "max_threads_per_multi_processor",
    "maxThreadsPerMultiProcessor": "max_threads_per_multi_processor",
    "regsPerMultiprocessor": "regs_per_multiprocessor",
    "sharedMemPerBlock": "shared_memory_per_block",
    "sharedMemPerBlockOptin": "shared_memory_per_block_optin",
    "sharedMemPerMultiprocessor": "shared_memory_per_multiprocessor",
    "maxSharedMemoryPerMultiProcessor": "shared_memory_per_multiprocessor",
}
# Kineto has two names for some properties. Exports contain the first one.
_TO_KINETO = {ours: theirs for theirs, ours in reversed(_OF_KINETO.items())}


def from_kineto(properties: Mapping[str, object]) -> DeviceProperties:
    return DeviceProperties.of({_OF_KINETO.get(name, name): value for name, value in properties.items()})


def to_kineto(properties: DeviceProperties) -> dict[str, Json]:
    return {_TO_KINETO.get(name, name): value for name, value in properties.known().items()}


def runtime_version(number: object) -> str | None:
    """Convert the number of a CUDA runtime version, such as 12040, to "12.4"."""
    return f"{number // 1000}.{number % 1000 // 10}" if type(number) is int and number >= 1000 else None


def hip_version(number: object) -> str | None:
    """Convert the number of a HIP runtime version, such as 60443483, to "6.4.43483"."""
    if type(number) is not int or number < 10_000_000:
        return None
    return f"{number // 10_000_000}.{number % 10_000_000 // 100_000}.{number % 100_000}"
