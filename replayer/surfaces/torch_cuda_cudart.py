"""torch.cuda.cudart(): the few functions of the CUDA runtime that torch hands to scripts.

torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())    # how scripts mark a region for Nsight
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from replayer.state import gpu
from replayer.surfaces.seam import refusal


class RuntimeResult(IntEnum):
    """The results that the calls below can have, as `torch.cuda.check_error` compares them."""

    success = 0


class VirtualCudart:
    """Stands for the module `torch._C._cudart`. Every other name of the runtime raises NotEmulated."""

    cudaError = RuntimeResult

    def cudaGetErrorString(self, error: int) -> str:
        return "no error" if error == RuntimeResult.success else f"CUDA error {int(error)}"

    def cudaProfilerStart(self) -> RuntimeResult:
        """Nothing to do: the replay writes its own timeline, all of it."""
        return RuntimeResult.success

    def cudaProfilerStop(self) -> RuntimeResult:
        return RuntimeResult.success

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        memory = gpu().devices[device].memory
        return memory.free_bytes, memory.capacity_bytes

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return refusal(f"torch.cuda.cudart().{name}", "use the torch.cuda function for it")
