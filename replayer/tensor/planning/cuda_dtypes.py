"""Raises PyTorch's errors for dtypes that CUDA kernels do not support.

    require_kernel(torch.ops.aten.mm.default, (integers, integers))     # "addmm_cuda" not implemented for 'Long'

The file cuda_dtypes.json lists the dtypes that each op rejects on an NVIDIA H100 or H200 with PyTorch 2.11.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

from replayer.torch_types import Kwargs, Op, TorchAny
from traces.model.row_order import lists_by_key
from traces.names.dtypes import SCALAR_TYPES

TABLE = Path(__file__).with_suffix(".json")
_DTYPES = {getattr(torch, dtype, None): scalar for scalar, dtype in SCALAR_TYPES.items()}
_INDICES = (torch.int64, torch.int32, torch.bool)
HALVES = (torch.float16, torch.bfloat16)


def require_kernel(func: Op, args: Sequence[TorchAny], kwargs: Kwargs) -> None:
    name = _key(func, args, kwargs)
    missing = _kernels().get(name) or _of_tensors(name)
    tensors = tensors_of(args) if missing else []
    if not missing or not tensors or any(tensor.layout is not torch.strided for tensor in tensors):
        return
    if _has_empty(tensors) and name not in _table()["refused_if_empty"]:
        return
    dtype = tensors[0].dtype
    pointwise = torch.Tag.pointwise in func.tags
    others = [tensor for tensor in tensors[1:] if pointwise or tensor.dim()]  # other ops accept scalars of any dtype
    if any(tensor.dtype not in (dtype, *((torch.bool,) if pointwise else _INDICES)) for tensor in others):
        return
    if dtype is torch.bool and _has_scalar(func, args):
        return
    scalar = scalar_type(kwargs.get("dtype") or dtype)
    if missing.get(scalar):
        raise no_kernel(missing[scalar], scalar)


_OF_SPARSE = {
    "_sparse_addmm": "addmm_sparse_cuda", "addmm": "addmm_sparse_cuda", "mm": "addmm_sparse_cuda", "mv": "addmm_sparse_cuda",
    "bmm": "bmm_sparse_cuda",
}  # fmt: skip


def require_sparse_kernel(func: Op, args: Sequence[TorchAny]) -> None:
    kernel = _OF_SPARSE.get(op_name(func).partition(".")[0])
    tensors = tensors_of(args) if kernel else []
    sparse = next((tensor for tensor in tensors if tensor.layout is torch.sparse_coo), None)
    if sparse is None or tensors[-1].layout is not torch.strided or not sparse.host._nnz():  # type: ignore[attr-defined]
        return
    dtype = sparse.dtype
    if dtype.itemsize < 4 or not (dtype.is_floating_point or dtype.is_complex):
        raise no_kernel(kernel, scalar_type(dtype))  # type: ignore[arg-type]


def _key(func: Op, args: Sequence[TorchAny], kwargs: Kwargs) -> str:
    """Some keys in cuda_dtypes.json contain a string argument, such as "scatter_reduce.two amax"."""
    name = op_name(func)
    if name == "clamp.Tensor" and len(tensors_of([*args, *kwargs.values()])) == 2:  # native/TensorCompare.cpp
        return "clamp_max.Tensor" if len(args) < 2 or args[1] is None else "clamp_min.Tensor"
    keys = _keys_with_string().get(name)
    if keys is None:
        return name
    defaults = [argument.default_value for argument in func._schema.arguments]
    text = next((value for value in (*args, *kwargs.values(), *defaults) if isinstance(value, str)), None)
    if text is None:
        return name
    return f"{name} {text}" if f"{name} {text}" in keys else keys[0]


def _of_tensors(name: str) -> dict[str, str] | None:
    op, _, overload = name.partition(".")
    if "scalar" not in overload.lower():
        return None
    others = (overload.replace("Scalar", "Tensor"), "Tensor", "Tensor_Tensor", "default")
    return next((kernels for other in others if (kernels := _kernels().get(f"{op}.{other}"))), None)


@cache
def _keys_with_string() -> dict[str, list[str]]:
    return lists_by_key((key.partition(" ")[0], key) for key in _kernels() if " " in key)


def _has_scalar(func: Op, args: Sequence[TorchAny]) -> bool:
    pairs = zip(func._schema.arguments, args, strict=False)
    return any(type(value) in (int, float) and isinstance(argument.type, torch._C.NumberType) for argument, value in pairs)


_CPU_REFUSED = re.compile(r'"(\w+)" not implemented for \'(\w+)\'')


def refusal_like(func: Op, args: Sequence[TorchAny], kwargs: Kwargs, of_cpu: Exception) -> RuntimeError | None:
    """If a CPU kernel rejects a dtype, return the error that CUDA would raise, or None if CUDA supports the dtype."""
    refused = _CPU_REFUSED.match(str(of_cpu))
    if refused is None:
        return None
    name, scalar = _key(func, args, kwargs), refused[2]
    if func._schema.overload_name.endswith("out"):
        packet = name.partition(".")[0]
        name = next((key for key in _table()["measured"] if key.partition(".")[0] == packet), name)
    kernels = _kernels().get(name, {})
    measured = name in _table()["measured"] and not (kwargs.get("dtype") and any(map(torch.is_tensor, args)))
    accepts_empty = name in _table()["accepted_if_empty"]
    if (accepts_empty and _has_empty(tensors_of(args))) or (measured and scalar not in kernels):
        return None
    kernel = kernels.get(scalar) or next(filter(None, kernels.values()), refused[1].replace("_cpu", "_cuda"))
    return no_kernel(kernel, scalar)


def compares_dtypes(refused: Exception) -> bool:
    text = str(refused)
    return len({word for word in re.findall(r"[A-Z]\w+", text) if word in SCALAR_TYPES}) == 2 or any(
        words in text for words in ("mixed dtype", "different dtypes", "expected dtype")
    )


def scalar_type(dtype: torch.dtype) -> str:
    return _DTYPES.get(dtype, str(dtype))


def op_name(func: Op) -> str:
    return f"{str(func._schema.name).removeprefix('aten::').removesuffix('_')}.{func._overloadname}"


def tensors_of(arguments: TorchAny) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


def _has_empty(tensors: list[torch.Tensor]) -> bool:
    return any(tensor.numel() == 0 for tensor in tensors)


@cache
def _table() -> dict[str, TorchAny]:
    made: dict[str, TorchAny] = json.loads(TABLE.read_text(encoding="utf-8"))
    return made


@cache
def _kernels() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for part in ("measured", "simulated"):
        for op, kernels in _table()[part].items():
            found.setdefault(op, {}).update({name: kernel for kernel, names in kernels.items() for name in names})
    return found


def no_kernel(kernel: str, scalar: str) -> RuntimeError:
    return _refusal_type()(f"\"{kernel}\" not implemented for '{scalar}'")


@cache
def _refusal_type() -> type[RuntimeError]:
    try:
        torch.bincount(torch.zeros(1))
    except RuntimeError as error:
        return type(error)
    return NotImplementedError
