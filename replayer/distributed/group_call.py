"""Describes one call of a collective, send or receive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from replayer.torch_types import TorchAny
from traces.model.trace import NONE


@dataclass
class RankValues:
    values: torch.Tensor | None  # the tensor is flat; None if the values are unknown
    sends: list[int] | None = None  # number of elements that this rank sends to each rank in an all-to-all


Combine = Callable[[list[RankValues]], torch.Tensor | None]


@dataclass(frozen=True, eq=False)
class GroupCall:
    name: str
    inputs: Sequence[TorchAny]
    outputs: Sequence[TorchAny]
    combine: Combine | None  # computes the outputs of this rank from the inputs of all ranks
    pair: tuple[int, int] | None = None  # (sender, receiver)
    device: int = NONE
    like: Sequence[TorchAny] = ()
    sends: list[int] | None = None
    wants: list[int] | None = None
    detail: str = ""
    factor: torch.Tensor | float | None = None

    @property
    def tensors(self) -> list[TorchAny]:
        return [*self.inputs, *self.outputs, *self.like]

    def members(self, size: int) -> list[int]:
        return list(range(size)) if self.pair is None else sorted(set(self.pair))

    def without_values(self) -> GroupCall:
        return replace(self, inputs=(), like=self.inputs or self.like, combine=None, factor=None)
