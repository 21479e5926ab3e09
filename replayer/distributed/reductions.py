# mypy: allow-untyped-calls
"""Implements the reductions of NCCL collectives.

    reduction = Reduction.of(dist.ReduceOp.AVG, [gradients])    # raises the errors of PyTorch's NCCL backend
    reduction.combine([RankValues(ones), RankValues(threes)])   # twos; None if a rank does not know its values
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from replayer.distributed.collective_values import is_uniform, known_of_all
from replayer.distributed.group_call import RankValues
from replayer.tensor.planning.cuda_dtypes import scalar_type
from replayer.torch_types import TorchAny

_BITWISE = ("BAND", "BOR", "BXOR")
_PREMULTIPLIED = {torch.float16, torch.float32, torch.bfloat16, torch.float64}
_FLOAT8 = {dtype for name, dtype in vars(torch).items() if name.startswith(("float8_e4m3", "float8_e5m2"))}
_DTYPES = {
    *_PREMULTIPLIED, *_FLOAT8, torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64, torch.complex64, torch.complex128
}  # fmt: skip


def require_dense(tensors: Sequence[TorchAny], *, point_to_point: bool) -> None:
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise ValueError("Tensors must be CUDA and dense")
        channels_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        if not point_to_point and not tensor.is_contiguous() and not channels_last:
            raise ValueError("Tensors must be contiguous")
        if tensor.dtype not in _DTYPES:
            kind = scalar_type(tensor.dtype)
            raise TypeError(f"Input tensor data type is not supported for NCCL process group: {kind}")


@dataclass(frozen=True)
class Reduction:
    name: str
    factor: torch.Tensor | float | None = None

    @classmethod
    def of(cls, op: TorchAny, tensors: Sequence[TorchAny]) -> Reduction:
        names = dist.ReduceOp.RedOpType.__members__
        name = "SUM" if op is None else next(name for name, kind in names.items() if op == kind)
        if name in _BITWISE:
            raise ValueError(f"Cannot use ReduceOp.{name} with NCCL")
        dtypes = {tensor.dtype for tensor in tensors}
        if name == "PREMUL_SUM" and not dtypes <= _PREMULTIPLIED:
            raise TypeError("PreMulSum Data type must be half, float, bfloat16 or double")
        if dtypes & _FLOAT8:
            _require_float8_sums(dtypes)
        if name == "AVG" and torch.bool in dtypes:
            raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
        return cls(name, op.__getstate__()[1] if name == "PREMUL_SUM" else None)

    def combine(self, ranks: list[RankValues]) -> torch.Tensor | None:
        values = known_of_all(ranks)
        if values is None:
            return None
        reduce, dtype = _REDUCTIONS[self.name], values[0].dtype
        if dtype in _FLOAT8:
            values = [value.float() for value in values]
        if all(is_uniform(value) for value in values):
            return reduce(torch.stack([value[:1] for value in values])).to(dtype).expand(values[0].shape)
        return reduce(torch.stack(values)).to(dtype)


def _require_float8_sums(dtypes: set[torch.dtype]) -> None:
    if not dtypes <= {torch.float8_e4m3fn, torch.float8_e5m2}:
        raise RuntimeError("Unsupported Float8 type for NCCL reduction")
    if torch.cuda.get_device_capability() < (9, 0):
        raise dist.DistBackendError(
            "NCCL error: ncclInvalidArgument: Invalid value for an argument.\nLast error:\n"
            "FP8 reduction support begins with sm90 capable devices."
        )


def _sum(stacked: torch.Tensor) -> torch.Tensor:
    return stacked.sum(0)


def _mean(stacked: torch.Tensor) -> torch.Tensor:
    whole = not stacked.is_floating_point() and not stacked.is_complex()
    return stacked.sum(0).div(len(stacked), rounding_mode="trunc" if whole else None)


_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "SUM": _sum,
    "PREMUL_SUM": _sum,
    "AVG": _mean,
    "PRODUCT": lambda stacked: stacked.prod(0),
    "MIN": lambda stacked: stacked.amin(0),
    "MAX": lambda stacked: stacked.amax(0),
}
