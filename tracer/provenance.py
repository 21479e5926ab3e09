"""Collects the software versions, devices and settings of a recording, but no names of people or machines.

    facts = ProcessFacts(torch, rank=0, config=RecordConfig("kernel"))
    facts.device_row(0)     # row of cuda:0 in `facts.devices`; added on the first call
    facts.machine()         # Machine(torch="2.13.0+cu126", cuda="12.6", cudnn=91002, ...), for replays
    facts.run(...)          # Run(source="trace record", clock="unix", script=Script("train.py"), ...), for replays
    facts.provenance()      # {"date": "2026-11-23", "environment": {...}}, for people

Paths are stored relative to the script's folder.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import re
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from tracer.device.device_access import DeviceAccess
from traces.compiled.compiled_code import compiled_code
from traces.model.json_facts import Json
from traces.model.machine import DeviceProperties, Machine, TorchSettings
from traces.model.run import RECORDER, LoaderSettings, ProfilerUse, RecorderNotes, Run, Script
from traces.model.trace import NONE, Device
from traces.names.cublas_workspace import keeps_workspaces, workspace_bytes
from traces.script.configuration import RecordConfig

# environment variables that change how PyTorch uses a GPU
_SETTINGS = re.compile(
    r"(CUDA|CUDNN|CUBLAS|NCCL|GLOO|PYTORCH|TORCH|HIP|ROCR|OMP|MKL)_|(WORLD_SIZE|RANK|LOCAL_RANK|LOCAL_WORLD_SIZE)$"
)
_PRIVATE = re.compile(r"TOKEN|KEY|SECRET|PASSW|USER|HOST|ADDR|IFNAME|SOCKET", re.IGNORECASE)

_PATH = re.compile(r"(?<![\w.])~?/[^\s=,;:'\"]+")


class ProcessFacts:
    """Collects facts about one recorded process. GPU properties are read after the script has used the GPU, because reading the
    properties may initialize CUDA."""

    def __init__(self, torch: ModuleType, rank: int, config: RecordConfig) -> None:
        self.devices: list[Device] = []
        self._torch = torch
        self.rank = rank
        self._config = config
        self._is_distributed = False
        self._models: list[weakref.ref[Any]] = []
        self._reducers: list[dict[str, Json]] = []
        self._loaders: list[LoaderSettings] = []
        self.compiling_evaluations: list[int] = []  # numbers of the evaluation steps in which code was compiled
        self._loader_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._oom_text: str | None = None
        self._cublas_bytes: int | None = None
        self._cleared_workspaces = False
        self._versions: dict[str, Json] = {}  # empty until the script has used the GPU
        self._version = _own_version()  # looked up once, because the lookup reads files and the header is written often
        self._base = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "environment": _environment(),
        }
        self._script = _script()
        self._argv = tuple(without_paths(word, _folder()) for word in sys.argv[1:])

    def joined_group(self, rank: int) -> None:
        self.rank = rank
        self._is_distributed = True
        self.devices = [replace(device, rank=rank) for device in self.devices]

    def distributes(self, model: object) -> None:
        self._models.append(weakref.ref(model))
        self._reducers.append({})

    def read_reducers(self) -> None:
        for number, model in enumerate(self._models):
            if (alive := model()) is not None:
                self._reducers[number] = _reducer(alive._get_ddp_logging_data())

    def device_row(self, index: int) -> int:
        for row, device in enumerate(self.devices):
            if device.index == index:
                return row
        # torch has cached the properties, so this call does not reach the device
        properties = self._torch.cuda.get_device_properties(index)
        known = DeviceProperties.of({name: getattr(properties, name) for name in dir(properties) if not name.startswith("_")})
        self._versions = self._versions or _versions(self._torch)
        self.devices.append(Device(self.rank, index, properties.name, properties.total_memory, known))
        return len(self.devices) - 1

    def current_device_row(self) -> int:
        return self.device_row(self._torch.cuda.current_device())

    @property
    def extent(self) -> tuple[int, ...]:
        return self.rank, self._is_distributed, len(self.devices), len(self._loaders), len(self._models)

    def loader(self, loader: object, describe: Callable[[], LoaderSettings]) -> int:
        number = self._loader_numbers.get(loader)
        if number is None:
            number = self._loader_numbers[loader] = len(self._loaders)
            self._loaders.append(describe())
        return number

    def run(self, step_ns: float, cost_ns: int, set_up_ns: int, profiler: ProfilerUse) -> Run:
        share = round(cost_ns / step_ns, 6) if step_ns else 0.0
        recorder = RecorderNotes(self._version, cost_ns, share, set_up_ns, self._config)
        loaders = tuple(self._loaders)
        compiled = compiled_code(self.compiling_evaluations)
        return Run(RECORDER, "unix", self._script, self._argv, loaders, recorder, profiler, compiled=compiled)

    def provenance(self) -> dict[str, Json]:
        self.read_reducers()
        logged = [reducer for reducer in self._reducers if reducer]
        return {**self._base, "ddp": logged} if logged else dict(self._base)

    def machine(self) -> Machine:
        torch = self._torch
        return Machine(
            torch=str(torch.__version__),
            **self._versions,
            python=platform.python_version(),
            system=f"{platform.system()} {platform.machine()}",
            processors=os.cpu_count(),
            oom_text=self._oom_text,
            cublas_bytes=self._cublas_bytes,
            settings=TorchSettings.of_process(torch),
        )

    def lacks(self, has_profile: bool) -> list[str]:
        lacks = [] if has_profile else ["host events", "kernels", "shapes", "memory events"]
        if not self.devices:
            used = self._torch.cuda.is_initialized()
            lacks.append(f"device time: the script {'ended before its first step' if used else 'used no GPU here'}")
        if self._is_distributed and has_profile:
            lacks.append("collectives that PyTorch starts in C++ (DistributedDataParallel's buckets), except in profiled steps")
        return lacks

    def failed(self, error: BaseException | None) -> None:
        if error is not None and isinstance(error, self._torch.OutOfMemoryError):
            self._oom_text = str(error)

    def at_end(self, access: DeviceAccess) -> None:
        cuda = self._torch.cuda
        self.read_peaks(access)
        for row, device in enumerate(self.devices):
            memory_info = access.attempt(cuda.mem_get_info, device.index)
            if memory_info is not None:
                free_bytes, total_bytes = memory_info
                outside_bytes = max(total_bytes - free_bytes - cuda.memory_reserved(device.index), 0)
                self.devices[row] = replace(device, outside_bytes=outside_bytes)
        if self.devices:
            held_bytes = access.attempt(self._kept_workspace_bytes)
            self._cublas_bytes = held_bytes or (None if self._cleared_workspaces else held_bytes)

    def workspaces_cleared(self) -> None:
        """The script frees the cuBLAS workspaces. If cuBLAS holds no workspace at the end, it is unknown whether cuBLAS keeps
        workspaces."""
        self._cleared_workspaces = True

    def read_peaks(self, access: DeviceAccess) -> None:
        for row, device in enumerate(self.devices):
            peak_bytes = access.attempt(self._torch.cuda.max_memory_allocated, device.index)
            self.devices[row] = replace(device, peak_bytes=max(device.peak_bytes, peak_bytes or 0))

    def _kept_workspace_bytes(self) -> int | None:
        """Return the total size of the cuBLAS workspaces in bytes, or None if unknown."""
        torch, machine = self._torch, self.machine()
        keeps = keeps_workspaces(machine.release, is_amd=machine.cuda is None)
        if not keeps or getattr(torch._C, "_cuda_isHistoryEnabled", bool)():
            return None
        configured = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
        sizes_bytes = {}
        for device in self.devices:
            properties = device.properties
            sizes_bytes[device.index] = workspace_bytes(
                properties.major or 0, properties.gcnArchName, machine.release, configured
            )
        held_bytes = 0
        for segment in torch.cuda.memory_snapshot():
            size_bytes = sizes_bytes.get(segment["device"], NONE)
            for block in segment["blocks"]:
                if block["state"] == "active_allocated" and block.get("requested_size", block["size"]) == size_bytes:
                    held_bytes += size_bytes
        return held_bytes


def _own_version() -> str | None:
    try:
        return metadata.version("trace-replay")
    except metadata.PackageNotFoundError:
        return None


def _versions(torch: ModuleType) -> dict[str, Json]:
    return {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": _cudnn_version(torch),
        "nccl": _nccl_version(torch),
        "driver": _driver_version(torch),
    }


def _cudnn_version(torch: ModuleType) -> int | None:
    """Return a version such as 92400. This function does not call `torch.backends.cudnn.version`. If the installed cuDNN is too
    old for PyTorch, only the first call of `version` raises an error. If the recorder called `version` first, the script would
    not see the error about the old cuDNN."""
    return torch._C._cudnn.getVersionInt() if hasattr(torch._C, "_cudnn") else None


def _nccl_version(torch: ModuleType) -> str | None:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()[:3]))
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def _driver_version(torch: ModuleType) -> str | None:
    """Return the version of the NVIDIA driver, such as "535.104". If the driver version cannot be read, return the latest CUDA
    version that the driver supports, such as "CUDA 12.4"."""
    path = Path("/sys/module/nvidia/version")
    if path.exists():
        return path.read_text(encoding="ascii", errors="replace").strip()
    number = torch._C._cuda_getDriverVersion() if hasattr(torch._C, "_cuda_getDriverVersion") else 0
    return f"CUDA {number // 1000}.{number % 1000 // 10}" if number else None


def _reducer(log: dict[str, Any]) -> dict[str, Any]:
    sizes = log.get("rebuilt_bucket_sizes") or log.get("bucket_sizes") or ""
    facts = {
        "bucket_bytes": [int(size) for size in sizes.split(",") if size.strip().isdigit()],
        "dtypes": log.get("dtypes"),
        "backend": log.get("backend_name"),
        "world_size": log.get("world_size"),
        "iterations": log.get("iteration"),
        "backward_compute_ns": log.get("avg_backward_compute_time"),
        "backward_communication_ns": log.get("avg_backward_comm_time"),
        "overlap_ns": log.get("avg_backward_compute_comm_overlap_time"),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _script() -> Script | None:
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is None:
        return None
    module = getattr(main, "__spec__", None)
    try:
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:  # the script's file was deleted, or the script came from a pipe
        digest = "unknown"
    return Script(Path(file).name, None if module is None else module.name, digest)


def _folder() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve().parent if file else None


def _environment() -> dict[str, str]:
    folder = _folder()
    return {
        name: without_paths(value, folder)
        for name, value in sorted(os.environ.items())
        if _SETTINGS.match(name) and not _PRIVATE.search(name)
    }


def without_paths(text: str, folder: Path | None) -> str:
    """Shorten absolute paths in a text. Paths in the script's folder become relative. Of all other paths, only the file name is
    kept.

    >>> without_paths("--data=/mnt/ann/sets/cifar", Path("/mnt/ann/project"))
    '--data=.../cifar'
    """

    def cut(match: re.Match[str]) -> str:
        path = Path(match[0])
        if folder is not None and path.is_relative_to(folder):
            return str(path.relative_to(folder))
        return f".../{path.name}"

    return _PATH.sub(cut, text)
