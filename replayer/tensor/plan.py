"""Plans: what an op does to virtual tensors. The plan cache stores them.

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

Where = tuple[int | str, int]  # an argument's position or name, and its index in a list argument, or -1


class New(NamedTuple):
    """A new tensor on an allocation of `size_bytes`."""

    meta: TensorMeta
    size_bytes: int


class View(NamedTuple):
    """A tensor with metadata `meta` on the allocation of an argument."""

    meta: TensorMeta
    of: Where


class Same(NamedTuple):
    """An argument itself is the result."""

    of: Where


class Constant(NamedTuple):
    """A result that is not a tensor."""

    value: TorchAny


class Several(NamedTuple):
    """A tuple or list of outcomes. C++ accepts a list for either."""

    parts: tuple[TorchAny, ...]


Outcome = New | View | Same | Constant | Several


class Reshaped(NamedTuple):
    """An argument whose metadata the op changed. `rebound` is the argument whose allocation it took over, if any."""

    of: Where
    meta: TensorMeta
    size_bytes: int
    rebound: Where | None


class OutcomeKind(IntEnum):
    """Outcomes that dispatch creates itself. `Plan.results` creates the others."""

    NEW = 0  # one new tensor
    SAME = 1  # a positional argument itself, with nothing reshaped
    VIEW = 2  # a view of a positional argument, with nothing written
    OTHER = 3


@dataclass(slots=True, eq=False)
class Plan:
    """What one call does.

    `writes` names the arguments written into: (position or name, whether it is a list). The host forgets what it knew about the
    arguments at the positions `written`; None means that the call changes no content. `set_values`, if given, then sets what
    the host knows after the call.

    All outcomes share one class with a `kind`: dispatch reads its attributes at every op, and the interpreter reads attributes
    of one class faster than those of several.
    """

    signature: OpSignature
    device: int
    outcome: Outcome
    writes: tuple[tuple[int | str, bool], ...]
    reshaped: tuple[Reshaped, ...]
    written: tuple[int, ...] | None = None
    set_values: Callable[[TorchAny, TorchAny, TorchAny], None] | None = field(
        init=False, default=None
    )  # called with (results, args, kwargs)
    kind: int = field(init=False, default=OutcomeKind.OTHER)
    meta: TorchAny = field(init=False, default=None)  # for NEW and VIEW
    size_bytes: int = field(init=False, default=0)  # for NEW
    kept: bool = field(init=False, default=True)  # False: the result sizes hold for this call only
    at: int = field(init=False, default=0)  # for SAME and VIEW: the argument's position
    # for OTHER: called with (gpu, caller, args, kwargs)
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
        """Create the call's results with `results`."""
        self.kind, self.results = int(OutcomeKind.OTHER), results


def argument_at(where: Where, args: TorchAny, kwargs: TorchAny) -> TorchAny:
    name, index = where
    value = kwargs[name] if type(name) is str else args[name]
    return value if index < 0 else value[index]
