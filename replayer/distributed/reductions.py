# mypy: allow-untyped-calls
"""Reductions of collectives, with NCCL's rules.

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
from replayer.torch_types import TorchAny

_BITWISE = ("BAND", "BOR", "BXOR")


@dataclass(frozen=True)
class Reduction:
    """`name` is the name of a dist.ReduceOp. PREMUL_SUM has a `factor`, by which each rank multiplies its input."""

    name: str
    factor: torch.Tensor | float | None = None

    @classmethod
    def of(cls, op: TorchAny, tensors: Sequence[TorchAny]) -> Reduction:
        """None means a sum."""
        names = dist.ReduceOp.RedOpType.__members__
        name = "SUM" if op is None else next(name for name, kind in names.items() if op == kind)
        if name in _BITWISE:
            raise ValueError(f"Cannot use ReduceOp.{name} with NCCL")
        if name == "AVG" and any(tensor.dtype is torch.bool for tensor in tensors):
            raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
        return cls(name, op.__getstate__()[1] if name == "PREMUL_SUM" else None)

    def combine(self, ranks: list[RankValues]) -> torch.Tensor | None:
        values = known_of_all(ranks)
        if values is None:
            return None
        reduce = _REDUCTIONS[self.name]
        if all(is_uniform(value) for value in values):
            return reduce(torch.stack([value[:1] for value in values])).to(values[0].dtype).expand(values[0].shape)
        return reduce(torch.stack(values)).to(values[0].dtype)


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
