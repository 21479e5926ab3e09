"""Describes one call of a collective, send or receive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from replayer.torch_types import TorchAny
from traces.model.trace import NONE


@dataclass
class RankValues:
    """The input of one rank.

    `values` is a flat tensor, or None if the values are unknown. In an all-to-all, `sends` has the number of elements that this
    rank sends to each rank.
    """

    values: torch.Tensor | None
    sends: list[int] | None = None


Combine = Callable[[list[RankValues]], torch.Tensor | None]


@dataclass(frozen=True, eq=False)
class GroupCall:
    """An operation between ranks that this rank calls.

    `combine` computes the outputs of this rank from the inputs of all ranks. `pair` holds the two ranks of a send or receive:
    first the sender, then the receiver. If the call has no inputs, `like` has tensors that show the size and dtype of the data.
    If sizes differ between ranks, `sends` and `wants` list how many elements this rank sends to and receives from each rank.
    `detail`, for example the type of reduction, must be the same on all ranks. The inputs are multiplied by `factor`, if it is
    given.
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
        """Return the channel name. Operations between the same ranks are in one channel, and their order matters."""
        return "all" if self.pair is None else f"{self.pair[0]}-{self.pair[1]}"

    def members(self, size: int) -> list[int]:
        return list(range(size)) if self.pair is None else sorted(set(self.pair))

    def without_values(self) -> GroupCall:
        return replace(self, inputs=(), like=self.inputs or self.like, combine=None, factor=None)
