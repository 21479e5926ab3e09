"""A plan describes an op's result tensors and the arguments that the op changes.

    plan.outcome    # New(meta, 96): `relu`; View(meta, (0, -1)): `x.t()`; Same((0, -1)): `x.add_(1)`
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import NamedTuple

import torch

from replayer.op_signature import OpSignature
from replayer.tensor.tensor_meta import TensorMeta, TensorMetaTable
from replayer.torch_types import TorchAny

# an argument's position or name, and the index in the argument's list (-1 if the argument is no list)
Where = tuple[int | str, int]


class New(NamedTuple):
    """Describes an op that returns a new tensor."""

    tensor_meta: TensorMeta
    size_bytes: int


class View(NamedTuple):
    """Describes an op that returns a view of an argument."""

    tensor_meta: TensorMeta
    of: Where


class Same(NamedTuple):
    """Describes an op that returns one of its arguments."""

    of: Where


class Constant(NamedTuple):
    """Describes an op that returns no tensor."""

    value: TorchAny


class Several(NamedTuple):
    parts: tuple[TorchAny, ...]


Outcome = New | View | Same | Constant | Several


class Reshaped(NamedTuple):
    """Describes an op that changes the shape, strides or memory of an argument."""

    of: Where
    tensor_meta: TensorMeta
    size_bytes: int
    rebound: Where | None  # for example, the argument b of `a.set_(b)`


class OutcomeKind(IntEnum):
    NEW = 0  # the op returns one new tensor
    SAME = 1  # a positional argument
    VIEW = 2  # the op returns a view of a positional argument, and writes nothing
    OTHER = 3


@dataclass(slots=True, eq=False)
class Plan:
    signature: OpSignature
    device: int
    outcome: Outcome
    writes: tuple[tuple[int | str, bool], ...]  # for each written argument, its position or name, and True if it is a list
    reshaped: tuple[Reshaped, ...]
    written: tuple[int, ...] | None = None  # positions of written arguments
    # the replayer calls this function after the op; arguments: (results, args, kwargs)
    set_values: Callable[[TorchAny, TorchAny, TorchAny], None] | None = field(init=False, default=None)
    kind: int = field(init=False, default=OutcomeKind.OTHER)
    tensor_meta: TorchAny = field(init=False, default=None)
    size_bytes: int = field(init=False, default=0)
    kept: bool = field(init=False, default=True)
    at: int = field(init=False, default=0)
    # arguments: (gpu, caller, args, kwargs)
    results: Callable[[TorchAny, TorchAny, TorchAny, TorchAny], TorchAny] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        outcome = self.outcome
        if self.reshaped or (isinstance(outcome, View) and self.writes):
            return
        if isinstance(outcome, New):
            self.kind, self.tensor_meta, self.size_bytes = int(OutcomeKind.NEW), *outcome
        elif isinstance(outcome, (Same, View)) and isinstance(outcome.of[0], int) and outcome.of[1] < 0:
            self.kind, self.at = int(OutcomeKind.SAME if isinstance(outcome, Same) else OutcomeKind.VIEW), outcome.of[0]
            self.tensor_meta = outcome.tensor_meta if isinstance(outcome, View) else None

    def make_by(self, results: Callable[[TorchAny, TorchAny, TorchAny, TorchAny], TorchAny]) -> None:
        self.kind, self.results = int(OutcomeKind.OTHER), results


def argument_at(where: Where, args: TorchAny, kwargs: TorchAny) -> TorchAny:
    name, index = where
    value = kwargs[name] if type(name) is str else args[name]
    return value if index < 0 else value[index]


class _NotPortable(Exception):
    pass


_STORED = tuple(field.name for field in fields(OpSignature) if field.init)


def packed(plan: Plan) -> bytes | None:
    described = tuple(getattr(plan.signature, name) for name in _STORED)
    try:
        outcome = _outcome_to_tuple(plan.outcome, plan.device)
        reshaped = [(of, _meta_to_tuple(meta, plan.device), size, rebound) for of, meta, size, rebound in plan.reshaped]
        return marshal.dumps((described, outcome, plan.writes, reshaped))
    except (_NotPortable, ValueError):  # `marshal` supports only some classes, and raises ValueError for other objects
        return None


def unpacked(data: bytes, metas: TensorMetaTable, device: int) -> Plan:
    signature, outcome, writes, reshaped = marshal.loads(data)
    changed = [Reshaped(of, _meta_of_tuple(meta, metas, device), size, rebound) for of, meta, size, rebound in reshaped]
    return Plan(OpSignature(*signature), device, _outcome_of_tuple(outcome, metas, device), writes, tuple(changed))


def _meta_to_tuple(meta: TensorMeta, device: int) -> TorchAny:
    if meta.index != device:
        raise _NotPortable
    return meta.in_all_ranks


def _meta_of_tuple(fields: TorchAny, metas: TensorMetaTable, device: int) -> TensorMeta:
    shape, stride, offset, dtype, *bits = fields
    return metas.of(shape, stride, offset, getattr(torch, dtype), device, *bits)


def _outcome_to_tuple(outcome: Outcome, device: int) -> TorchAny:
    if isinstance(outcome, New | View):
        return type(outcome).__name__, _meta_to_tuple(outcome.tensor_meta, device), outcome[1]
    if isinstance(outcome, Several):
        return "Several", [_outcome_to_tuple(part, device) for part in outcome.parts]
    return type(outcome).__name__, outcome[0]


def _outcome_of_tuple(fields: TorchAny, metas: TensorMetaTable, device: int) -> Outcome:
    match fields:
        case "New", meta, size_bytes:
            return New(_meta_of_tuple(meta, metas, device), size_bytes)
        case "View", meta, of:
            return View(_meta_of_tuple(meta, metas, device), of)
        case "Several", parts:
            return Several(tuple([_outcome_of_tuple(part, metas, device) for part in parts]))
        case "Same", of:
            return Same(of)
    return Constant(fields[1])
