"""Wraps PyTorch's functions for the recorder. Each file wraps one part of PyTorch. Each wrapper notifies the recorder of a
call, and then calls PyTorch's function."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

_SURFACES = (
    "torch_utils_data torch_tensor torch_sizes torch_nn_module torch_nn_parallel torch_nn_parallel_distributed"
    " torch_phases torch_optim torch_distributed torch_profiler torch_cuda_graphs torch_cuda_memory torch_compile"
    " os_exit"
)


def install_all(torch: ModuleType) -> None:
    for name in _SURFACES.split():
        import_module(f"tracer.surfaces.{name}").install(torch)
