"""Patches `torch.cuda.jiterator`, which compiles elementwise CUDA kernels at run time.

    half = torch.cuda.jiterator._create_jit_fn("template <typename T> T half(T x) { return x / 2; }")
    half(torch.ones(3, device="cuda")).shape
"""

from __future__ import annotations

from functools import reduce
from types import ModuleType

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from replayer.errors import NotEmulated, require
from replayer.state import computing, gpu
from replayer.surfaces.triton import kernel_signature
from replayer.tensor.planning.cuda_dtypes import scalar_type
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny
from traces.script.patching import patch

_UNNAMED = (torch.uint16, torch.uint32, torch.uint64)  # See typeName in ATen/cuda/jiterator_impl.h.


def launch(
    code: str, name: str, by_reference: bool, outputs: int, tensors: tuple[torch.Tensor, ...], scalars: dict[str, TorchAny]
) -> TorchAny:
    """See torch/csrc/cuda/Module.cpp and ATen/cuda/jiterator.cu."""
    require(all(tensor.is_cuda for tensor in tensors), "Jiterator is only supported on CUDA tensors")
    for tensor in tensors:
        if tensor.dtype in _UNNAMED:
            raise RuntimeError(
                'false INTERNAL ASSERT FAILED at "/pytorch/aten/src/ATen/cuda/jiterator_impl.h":56, please report a bug to'
                f" PyTorch. Unrecognized ScalarType: {scalar_type(tensor.dtype)}"
            )
        if tensor.is_floating_point() and tensor.element_size() == 1:
            raise RuntimeError(f"\n{code}\nThe compiler of CUDA rejects this function for {scalar_type(tensor.dtype)}.")
    if computing():
        raise NotEmulated("torch.cuda.jiterator under --values compute", "use `--values recorded`, the default")
    shared = [torch.empty_strided(tensor.shape, tensor.stride(), dtype=torch.float32, device="meta") for tensor in tensors]
    shape = reduce(torch.add, shared)
    _, dtype = elementwise_dtypes(*tensors, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
    made = [torch.empty_strided(shape.shape, shape.stride(), dtype=dtype, device=tensors[0].device) for _ in range(outputs)]
    virtual = [tensor for tensor in (*tensors, *made) if isinstance(tensor, VirtualTensor)]
    gpu().launches.launch(kernel_signature("jiterator", name, virtual), tensors[0].get_device())
    return made[0] if outputs == 1 else tuple(made)


def install(torch_module: ModuleType) -> None:
    patch(torch_module._C, _cuda_jiterator_compile_and_launch_kernel=launch)
