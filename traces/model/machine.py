"""What a recording knows of the machine and the software that it was made with.

The recorder (`tracer/provenance.py`) and the importer (`traces/kineto/ranks.py`) fill these; a trace's header holds one
`Machine` per rank and the properties of each device; the replayer, `trace info` and the exporters read them. A field that
nobody told is None.

    trace.machine_of(0).cuda                                    # "12.6"
    trace.devices[0].properties.multi_processor_count           # 84
    from_kineto({"computeMajor": 8, "numSms": 84}).major        # 8
    to_kineto(DeviceProperties(major=8))                        # {"computeMajor": 8}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from traces.model.typed_json import fitting


@dataclass(frozen=True)
class DeviceProperties:
    """A device under the names of `torch.cuda.get_device_properties`; bytes, bits, kHz.

    Its name and total memory are `Device.name` and `Device.total_memory_bytes`; what names the very card (uuid, PCI ids) is not
    recorded.
    """

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
        """The properties among `values`, by torch's names; what is of another type than torch's is left out."""
        return fitting(cls, {name: int(value) if isinstance(value, bool) else value for name, value in values.items()})

    def completed_by(self, other: DeviceProperties) -> DeviceProperties:
        """These, and of `other` what these do not know."""
        return DeviceProperties(**other.known() | self.known())

    def known(self) -> dict[str, Any]:
        """By name, what is known."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in told.items() if value is not None}


UNKNOWN_PROPERTIES = DeviceProperties()


@dataclass(frozen=True)
class TorchSettings:
    """Settings of PyTorch that change what runs on a GPU, as they were when the recording was made."""

    tf32_matmul: bool | None = None  # torch.backends.cuda.matmul.allow_tf32
    tf32_cudnn: bool | None = None  # torch.backends.cudnn.allow_tf32
    cudnn_benchmark: bool | None = None
    deterministic: bool | None = None  # torch.use_deterministic_algorithms or torch.backends.cudnn.deterministic
    allocator: str | None = None  # PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF


DEFAULT_SETTINGS = TorchSettings()


@dataclass(frozen=True)
class Machine:
    """What one rank's process ran on and with."""

    torch: str | None = None  # "2.13.0+cu126"; of an imported recording what its format tells: "1.13 to 2.3"
    cuda: str | None = None  # torch.version.cuda, "12.6"; of an imported recording the CUDA runtime's
    hip: str | None = None
    cudnn: int | None = None  # torch.backends.cudnn.version(): 91002
    nccl: str | None = None  # "2.27.5"
    driver: str | None = None  # "570.86.15", or "CUDA 12.8" where only what it supports is known
    python: str | None = None
    system: str | None = None  # "Linux x86_64"
    processors: int | None = None
    oom_text: str | None = None  # how this PyTorch words an out-of-memory error
    cublas_bytes: int | None = None  # what cuBLAS's handles held on all devices when the script had ended
    settings: TorchSettings = DEFAULT_SETTINGS

    @property
    def release(self) -> tuple[int, int] | None:
        """PyTorch's major and minor version, if it is told exactly."""
        exact = re.match(r"(\d+)\.(\d+)\.\d", self.torch or "")
        return (int(exact[1]), int(exact[2])) if exact is not None else None

    def is_before(self, major: int, minor: int) -> bool:
        """Whether PyTorch was surely older than that release, also where only a range is told: "1.8 to 1.9"."""
        told = re.findall(r"(\d+)\.(\d+)", self.torch or "")
        return bool(told) and max((int(a), int(b)) for a, b in told[:2]) < (major, minor) and "newer" not in (self.torch or "")


# Kineto's names in `deviceProperties` of what torch has a name for; some recordings spell three of them as CUDA does.
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
_TO_KINETO = {ours: theirs for theirs, ours in reversed(_OF_KINETO.items())}  # the first spelling of each


def from_kineto(properties: Mapping[str, object]) -> DeviceProperties:
    """One of Kineto's `deviceProperties`; "major" and "minor" are torch's own names in some recordings."""
    return DeviceProperties.of({_OF_KINETO.get(name, name): value for name, value in properties.items()})


def to_kineto(properties: DeviceProperties) -> dict[str, Any]:
    """As Kineto would write them; what it has no name for keeps torch's."""
    return {_TO_KINETO.get(name, name): value for name, value in properties.known().items()}


def runtime_version(number: object) -> str | None:
    """A CUDA version as torch.version writes it, "12.4", of the runtime's number, 12040; None for what is none."""
    return f"{number // 1000}.{number % 1000 // 10}" if type(number) is int and number >= 1000 else None


def hip_version(number: object) -> str | None:
    """A HIP version, "6.4.43483", of the runtime's number, 60443483; None for what is none."""
    if type(number) is not int or number < 10_000_000:
        return None
    return f"{number // 10_000_000}.{number % 10_000_000 // 100_000}.{number % 100_000}"
