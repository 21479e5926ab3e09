"""What an op does to virtual tensors, written down: the vocabulary of the plan cache.

plan.outcome    # New(meta, 96): `relu`; View(meta, (0, -1)): `x.t()`; Same((0, -1)): `x.add_(1)`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from replayer.op_signature import OpSignature
from replayer.tensor.tensor_meta import TensorMeta
from replayer.torch_types import TorchAny

Where = tuple[int | str, int]  # an argument by position or name, and its index in a list, or -1


class New(NamedTuple):
    """A new tensor on an allocation of `size_bytes`."""

    meta: TensorMeta
    size_bytes: int


class View(NamedTuple):
    """A tensor with metadata `meta` on the allocation of an argument."""

    meta: TensorMeta
    of: Where


class Same(NamedTuple):
    """An argument itself."""

    of: Where


class Constant(NamedTuple):
    """No tensor."""

    value: TorchAny


class Several(NamedTuple):
    """A tuple or list of outcomes; C++ takes a list for either."""

    parts: tuple[TorchAny, ...]


Outcome = New | View | Same | Constant | Several


class Reshaped(NamedTuple):
    """An argument whose metadata the op changed. `rebound` names the argument whose allocation it took over, if any."""

    of: Where
    meta: TensorMeta
    size_bytes: int
    rebound: Where | None


class OutcomeKind(IntEnum):
    """The outcomes that dispatch makes itself; `Plan.results` makes the others."""

    NEW = 0  # one new tensor
    SAME = 1  # a positional argument itself, and nothing reshaped
    VIEW = 2  # a view of a positional argument, and nothing written
    OTHER = 3


@dataclass(slots=True, eq=False)
class Plan:
    """What one call does. `writes` names the arguments written into: (position or name, whether it is a list). What the host
    knows of those at the positions `written` is forgotten; where that is not all, `set_values` says what it knows afterwards.
    `written` is None of calls that change no content.

    One class with a `kind`, not one per outcome: dispatch reads its attributes at every op, and the interpreter reads those of
    one class faster than those of several.
    """

    signature: OpSignature
    device: int
    outcome: Outcome
    writes: tuple[tuple[int | str, bool], ...]
    reshaped: tuple[Reshaped, ...]
    written: tuple[int, ...] | None = None
    set_values: Callable[[TorchAny, TorchAny, TorchAny], None] | None = field(
        init=False, default=None
    )  # of (results, args, kwargs)
    kind: int = field(init=False, default=OutcomeKind.OTHER)
    meta: TorchAny = field(init=False, default=None)  # of NEW and VIEW
    size_bytes: int = field(init=False, default=0)  # of NEW
    kept: bool = field(init=False, default=True)  # False: the sizes of its results hold for this call only
    at: int = field(init=False, default=0)  # of SAME and VIEW: the argument's position
    # of OTHER: from (gpu, caller, args, kwargs)
    results: Callable[[TorchAny, TorchAny, TorchAny, TorchAny], TorchAny] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        outcome = self.outcome
        if self.reshaped or (isinstance(outcome, View) and self.writes):
            return
        if isinstance(outcome, New):
            self.kind, self.meta, self.size_bytes = int(OutcomeKind.NEW), *outcome
        elif isinstance(outcome, (Same, View)) and isinstance(outcome.of[0], int) and outcome.of[1] < 0:
            self.kind, self.at = int(OutcomeKind.SAME if isinstance(outcome, Same) else OutcomeKind.VIEW), outcome.of[0]
            self.meta = outcome.meta if isinstance(outcome, View) else None

    def make_by(self, results: Callable[[TorchAny, TorchAny, TorchAny, TorchAny], TorchAny]) -> None:
        """Let `results` make what the call returns."""
        self.kind, self.results = int(OutcomeKind.OTHER), results


def argument_at(where: Where, args: TorchAny, kwargs: TorchAny) -> TorchAny:
    name, index = where
    value = kwargs[name] if type(name) is str else args[name]
    return value if index < 0 else value[index]
