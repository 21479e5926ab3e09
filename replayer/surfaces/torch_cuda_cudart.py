"""Emulates the CUDA runtime functions of `torch.cuda.cudart()`.

torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())    # marks a region for Nsight
torch.cuda.cudart().cudaHostRegister(x.data_ptr(), x.nbytes, 0)    # pins the script's own memory
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from replayer.state import gpu, host_memory
from replayer.surfaces.patching import refusal
from replayer.tensor.device_args import checked_index
from replayer.torch_types import TorchAny


class RuntimeResult(IntEnum):
    success = 0
    errorHostMemoryAlreadyRegistered = 712
    errorHostMemoryNotRegistered = 713


_TEXTS: dict[int, str] = {
    RuntimeResult.success: "no error",
    RuntimeResult.errorHostMemoryAlreadyRegistered: "part or all of the requested memory range is already mapped",
    RuntimeResult.errorHostMemoryNotRegistered: "pointer does not correspond to a registered memory region",
}


class VirtualCudart:
    """Replaces the module `torch._C._cudart`. Unsupported CUDA runtime functions raise NotEmulated."""

    cudaError = RuntimeResult

    def cudaGetErrorString(self, error: int) -> str:
        return _TEXTS.get(error, f"CUDA error {int(error)}")

    def cudaProfilerStart(self) -> RuntimeResult:
        """Do nothing, because a replay records its whole timeline."""
        return RuntimeResult.success

    def cudaProfilerStop(self) -> RuntimeResult:
        return RuntimeResult.success

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> RuntimeResult:
        if host_memory().register(address, size_bytes):
            return RuntimeResult.success
        return RuntimeResult.errorHostMemoryAlreadyRegistered

    def cudaHostUnregister(self, address: int) -> RuntimeResult:
        if host_memory().unregister(address):
            return RuntimeResult.success
        return RuntimeResult.errorHostMemoryNotRegistered

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        memory = gpu().devices[checked_index(device)].memory
        return memory.usage.free_bytes, memory.usage.capacity_bytes

    def __getattr__(self, name: str) -> Callable[..., TorchAny]:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return refusal(f"torch.cuda.cudart().{name}", "use the corresponding torch.cuda function")
