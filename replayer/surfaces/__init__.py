"""What a script sees of torch under replay: one patched surface per file, named after it.

start(lambda: VirtualGpu(...))      # replayer.state
install_all(torch)                  # from then on this process has a GPU, made at its first use
"""

from __future__ import annotations

from types import ModuleType


def install_all(torch_module: ModuleType) -> None:
    """Patch every surface, in a fixed order, once per process."""
    from replayer.surfaces import (
        torch_accelerator,
        torch_amp,
        torch_autograd,
        torch_backends,
        torch_backends_cudnn_rnn,
        torch_batch_norm,
        torch_compile,
        torch_cuda,
        torch_cuda_comm,
        torch_cuda_graphs,
        torch_cuda_memory,
        torch_cuda_memory_snapshot,
        torch_cuda_nvtx,
        torch_cuda_random,
        torch_cuda_streams,
        torch_cuda_tensors,
        torch_distributed,
        torch_distributed_functional_collectives,
        torch_multiprocessing,
        torch_nn_module,
        torch_nn_parallel,
        torch_optim,
        torch_pin_memory,
        torch_profiler,
        torch_serialization,
        torch_tensor,
        torch_utils_data,
    )

    for surface in (
        torch_cuda,  # first: it refuses every C function of CUDA, and those after it take theirs back
        torch_cuda_streams,  # takes back streams and events
        torch_cuda_random,  # generators, which torch.cuda asks for once it is started
        torch_cuda_graphs,  # refusals that are classes
        torch_cuda_nvtx,  # a C module of its own
        torch_cuda_comm,  # C functions that only builds with CUDA have
        torch_cuda_memory,  # takes back the allocator's functions
        torch_cuda_memory_snapshot,  # and those about its history
        torch_backends,  # needs the devices' functions for cuDNN's checks
        torch_backends_cudnn_rnn,  # and what recurrent layers ask of it
        torch_batch_norm,  # what a batch norm comes to
        torch_accelerator,  # answers by torch.cuda, so all of that must stand
        torch_tensor,  # moves tensors to the devices above
        torch_pin_memory,  # wraps factories that torch_tensor may have replaced, takes back the host allocator's functions
        torch_cuda_tensors,  # wraps methods that torch_tensor may have replaced
        torch_nn_module,  # moves modules by moving tensors
        torch_serialization,  # loads onto devices
        torch_amp,  # the rest wraps torch's Python and is free of order: autocast's state,
        torch_autograd,  # the script's phases: backward,
        torch_optim,  # zero_grad, optimizer and the end of a step,
        torch_utils_data,  # loader;
        torch_nn_parallel,  # and the parts of nn.DataParallel;
        torch_distributed,  # process groups, which communicate on the devices,
        torch_distributed_functional_collectives,  # also as ops,
        torch_multiprocessing,  # processes that are told which rank they are,
        torch_profiler,  # profilers, which start no device,
        torch_compile,  # and the compiler, which is not run
    ):
        surface.install(torch_module)
