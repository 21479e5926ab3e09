"""Describes one call of an operation between ranks, with everything that the ranks must agree on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from replayer.torch_types import TorchAny
from traces.model.trace import NONE


@dataclass
class RankValues:
    """The input of one rank.

    `values` is flat, or None if unknown. In an all-to-all, `sends` is the number of elements for each rank.
    """

    values: torch.Tensor | None
    sends: list[int] | None = None


Combine = Callable[[list[RankValues]], torch.Tensor | None]


@dataclass(frozen=True, eq=False)
class GroupCall:
    """An operation that this rank calls.

    `combine` computes the outputs from the inputs of all ranks. `pair` is the sender and receiver of a send or receive. If
    there are no inputs, `like` holds tensors of the right size and dtype. In operations with different sizes per rank, `sends`
    has the number of elements that this rank sends to each rank, and `wants` has the number that it receives from each rank.
    All ranks must pass the same `detail`, such as the reduction. Inputs are multiplied by `factor`.
    """

    name: str
    inputs: Sequence[TorchAny]
    outputs: Sequence[TorchAny]
    combine: Combine | None
    pair: tuple[int, int] | None = None
    device: int = NONE
    like: Sequence[TorchAny] = ()
    sends: list[int] | None = None
    wants: list[int] | None = None
    detail: str = ""
    factor: torch.Tensor | float | None = None

    @property
    def tensors(self) -> list[TorchAny]:
        return [*self.inputs, *self.outputs, *self.like]

    @property
    def channel(self) -> str:
        """Return the name of the sequence of operations to which this call belongs."""
        return "all" if self.pair is None else f"{self.pair[0]}-{self.pair[1]}"

    def members(self, size: int) -> list[int]:
        return list(range(size)) if self.pair is None else sorted(set(self.pair))

    def without_values(self) -> GroupCall:
        return replace(self, inputs=(), like=self.inputs or self.like, combine=None, factor=None)
