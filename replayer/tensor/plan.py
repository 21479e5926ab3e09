"""What an op does to virtual tensors, written down: the vocabulary of the plan cache.

plan.outcome    # New(meta, 96): `relu`; View(meta, (0, -1)): `x.t()`; Same((0, -1)): `x.add_(1)`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from replayer.op_signature import OpSignature
from replayer.tensor.tensor_meta import TensorMeta

Where = tuple[int | str, int]  # an argument by position or name, and its index in a list, or -1


class New(NamedTuple):
    """A new tensor."""

    meta: TensorMeta
    size_bytes: int


class View(NamedTuple):
    """A tensor of look `meta` on the allocation of an argument."""

    meta: TensorMeta
    of: Where


class Same(NamedTuple):
    """An argument itself."""

    of: Where


class Constant(NamedTuple):
    """No tensor."""

    value: Any


class Several(NamedTuple):
    """A tuple or list of outcomes; C++ takes a list for either."""

    parts: tuple[Any, ...]


Outcome = New | View | Same | Constant | Several


class Reshaped(NamedTuple):
    """An argument that the op gave another look. `rebound` names the argument whose allocation it took over, if any."""

    of: Where
    meta: TensorMeta
    size_bytes: int
    rebound: Where | None


class Kind(IntEnum):
    """The shapes of outcome that the dispatch has a short way for."""

    NEW = 0  # one new tensor
    NEWS = 1  # several new tensors, or None among them
    SAME = 2  # a positional argument itself, and nothing reshaped
    VIEW = 3  # a view of a positional argument
    LENT = 4  # as NEW or NEWS, of an op that takes workspaces and gives each back before it takes anything else
    OTHER = 5


@dataclass(slots=True, eq=False)
class Plan:
    """What one call does. `writes` names the arguments written into: (position or name, whether it is a list)."""

    signature: OpSignature
    device: int
    outcome: Outcome
    writes: tuple[tuple[int | str, bool], ...]
    reshaped: tuple[Reshaped, ...]
    written: tuple[int, ...] = field(init=False)  # of `writes`, the tensors that are given by position,
    writes_otherwise: tuple[tuple[int | str, bool], ...] = field(init=False)  # and all others
    kind: int = field(init=False, default=Kind.OTHER)
    meta: Any = field(init=False, default=None)  # of NEW and VIEW
    size_bytes: int = field(init=False, default=0)  # of NEW
    news: tuple[Any, ...] = field(init=False, default=())  # of NEWS and LENT: (meta, size_bytes) or None
    at: int = field(init=False, default=0)  # of SAME and VIEW: the argument's position
    workspaces: tuple[tuple[int, ...], ...] = field(init=False, default=())  # see replayer.workspaces
    lends: tuple[tuple[int, ...], ...] = field(init=False, default=())  # of LENT: their sizes, before each of `news` and after
    folds: bool = field(init=False, default=False)  # see replayer.folding

    def __post_init__(self) -> None:
        self.written = tuple(at for at, listed in self.writes if isinstance(at, int) and not listed)
        self.writes_otherwise = tuple(write for write in self.writes if write[0] not in self.written)
        outcome = self.outcome
        if self.reshaped:
            return
        if isinstance(outcome, New):
            self.kind, self.meta, self.size_bytes = int(Kind.NEW), *outcome
        elif isinstance(outcome, Several) and all(isinstance(part, New) or part == Constant(None) for part in outcome.parts):
            self.kind = int(Kind.NEWS)
            self.news = tuple([tuple(part) if isinstance(part, New) else None for part in outcome.parts])
        elif isinstance(outcome, (Same, View)) and isinstance(outcome.of[0], int) and outcome.of[1] < 0:
            self.kind, self.at = int(Kind.SAME if isinstance(outcome, Same) else Kind.VIEW), outcome.of[0]
            self.meta = outcome.meta if isinstance(outcome, View) else None

    def borrow(self, workspaces: tuple[tuple[int, ...], ...]) -> None:
        """The op takes memory for itself."""
        if not workspaces:
            return
        self.workspaces = workspaces
        if self.kind not in (Kind.NEW, Kind.NEWS) or any(not _are_brief(sizes) for sizes in workspaces):
            self.kind = int(Kind.OTHER)
            return
        if self.kind == Kind.NEW:
            self.news = ((self.meta, self.size_bytes),)
        left = (sizes[::2] for sizes in workspaces)
        before = [next(left, ()), *[() if pair is None else next(left, ()) for pair in self.news]]
        self.lends = (*before, *left)
        self.kind = int(Kind.LENT)

    def compute_too(self) -> None:
        """The host may know what comes of it: no short way."""
        self.folds = True
        self.kind = int(Kind.OTHER)


def _are_brief(sizes: tuple[int, ...]) -> bool:
    """Whether each is given back (negative) at once."""
    return len(sizes) % 2 == 0 and all(taken == -back for taken, back in zip(sizes[::2], sizes[1::2], strict=True))
