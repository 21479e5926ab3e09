"""Wraps the functions that reset PyTorch's memory peak, and the function that frees the cuBLAS workspaces.

    torch.cuda.reset_peak_memory_stats()            # the recorder reads the memory peak before the script resets it
    torch.accelerator.reset_peak_memory_stats()
    torch._C._cuda_clearCublasWorkspaces()          # PyTorch Lightning calls this function at the end
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tracer.state import started
from traces.script.patching import patch_around


def install(torch: ModuleType) -> None:
    """Tell the recorder when the script resets PyTorch's memory peak or frees the cuBLAS workspaces."""

    def reset(reset: Any, *args: Any) -> Any:
        if (to := started()) is not None:
            to.memory_peak_resets()
        return reset(*args)

    def clear(clear: Any) -> Any:
        if (to := started()) is not None:
            to.workspaces_cleared()
        return clear()

    if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
        patch_around(torch._C, _cuda_clearCublasWorkspaces=clear)
    names = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
    patch_around(torch._C, **{name: reset for name in names if hasattr(torch._C, name)})
