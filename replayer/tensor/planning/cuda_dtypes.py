"""Raises PyTorch's errors for ops with dtypes that the CUDA kernels do not support.

    require_kernel(torch.ops.aten.mm.default, (integers, integers))     # "addmm_cuda" not implemented for 'Long'

The file cuda_dtypes.json lists the unsupported dtypes, measured on an NVIDIA H200 with PyTorch 2.11 (benchmarks/gpu_rules.py).
PyTorch's OpInfo database lacks some ops. These ops were called in PyTorch 2.14 on the simulated device of tests/cuda to find
the unsupported dtypes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

from replayer.torch_types import TorchAny
from traces.names.collectives import SCALAR_TYPES

TABLE = Path(__file__).with_suffix(".json")
_DTYPES = {getattr(torch, dtype, None): scalar for scalar, dtype in SCALAR_TYPES.items()}
_INDICES = (torch.int64, torch.int32, torch.bool)


def require_kernel(func: torch._ops.OpOverload, args: Sequence[TorchAny]) -> None:
    name = op_name(func)
    missing = _missing().get(name) or _missing().get(name.replace(".Scalar", ".Tensor"))
    tensors = [] if missing is None else [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    if missing is None or not tensors or tensors[0].layout is not torch.strided or not all(map(torch.Tensor.numel, tensors)):
        return
    dtype = tensors[0].dtype
    if any(tensor.dtype not in (dtype, *_INDICES) for tensor in tensors):
        return  # The kernel works in a common dtype.
    if dtype is torch.bool and any(type(value) in (int, float) for value in args):
        return  # The scalar's dtype is the common one.
    scalar = scalar_type(dtype)
    if scalar in missing:
        raise no_kernel(missing[scalar], scalar)


_CPU_REFUSED = re.compile(r'"(\w+)" not implemented for \'(\w+)\'')
# Ops for which CUDA supports more dtypes than the CPU, even without counting float16, bfloat16 and complex32.
_WIDER_ON_CUDA = frozenset({"abs", "flip", "isin", "median", "nanmedian", "nansum", "trace"})


def refusal_like(func: torch._ops.OpOverload, of_cpu: Exception) -> RuntimeError | None:
    """Convert a CPU kernel's error about a dtype to CUDA's error, or return None if CUDA supports the dtype."""
    refused = _CPU_REFUSED.match(str(of_cpu))
    name = op_name(func)
    if refused is None or name.partition(".")[0] in _WIDER_ON_CUDA:
        return None
    kernel = next(iter(_missing().get(name, {}).values()), refused[1].replace("_cpu", "_cuda"))
    return no_kernel(kernel, refused[2])


def scalar_type(dtype: torch.dtype) -> str:
    """Return the dtype's name in C++ error messages, such as "Half"."""
    return _DTYPES.get(dtype, str(dtype))


def op_name(func: torch._ops.OpOverload) -> str:
    return f"{str(func._schema.name).removeprefix('aten::').removesuffix('_')}.{func._overloadname}"


@cache
def _missing() -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, list[str]]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return {op: {name: kernel for kernel, names in kernels.items() for name in names} for op, kernels in table.items()}


def no_kernel(kernel: str, scalar: str) -> RuntimeError:
    return _refusal_type()(f"\"{kernel}\" not implemented for '{scalar}'")


@cache
def _refusal_type() -> type[RuntimeError]:
    try:
        torch.bincount(torch.zeros(1))
    except RuntimeError as error:
        return type(error)
    return NotImplementedError
