"""Replaces the functions of PyTorch and Python that a script can call to reach a GPU.

Each file is named after the module that it patches, so torch_cuda.py patches `torch.cuda`.

    start(lambda: VirtualGpu(...))      # replayer.state
    install_all(torch)                  # this process now has a GPU, created at first use
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from replayer import torch_shortcuts
from replayer.surfaces.torch_cuda import refuse_c_functions
from replayer.tensor.tensor import VirtualTensor

_SURFACES = (
    "gc_collect os_exit torch_cuda torch_cuda_streams torch_cuda_random"
    " torch_cuda_mem_pool torch_cuda_gpu_trace"
    " torch_cuda_graphs"  # install this after torch_cuda and torch_cuda_mem_pool
    " nvml"  # after torch_cuda
    " torch_cuda_nvtx torch_cuda_comm torch_cuda_memory torch_cuda_memory_snapshot torch_backends"
    " torch_accelerator"  # install this after torch_cuda and torch_cuda_memory
    " torch_tensor torch_nested torch_fake_tensor torch_jit torch_tensor_subclass torch_func"
    " torch_utils_python_dispatch torch_pin_memory torch_cuda_tensors torch_nn_module torch_storage torch_serialization"
    " torch_amp torch_autograd torch_optim torch_utils_data torch_nn_parallel torch_nn_sync_batch_norm torch_distributed"
    " torch_distributed_gloo"
    " torch_distributed_checkpoint torch_distributed_functional_collectives torch_distributed_rpc torch_multiprocessing"
    " torch_profiler torch_compile triton torch_cuda_jiterator torch_utils_cpp_extension"
)


def surfaces() -> list[ModuleType]:
    return [import_module(f"replayer.surfaces.{name}") for name in _SURFACES.split()]


def install_all(torch_module: ModuleType) -> None:
    refuse_c_functions(torch_module)
    for surface in surfaces():
        surface.install(torch_module)
    torch_shortcuts.install(VirtualTensor)
