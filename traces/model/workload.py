"""What a script trains, told without looking at kernels: its parameters, modules, input shapes and optimizer.

A phase-grained trace has times and nothing that says of what. The recorder and the replayer see the script's modules and
batches, so each notes a `WorkloadSignature` in the header of what it writes, and two traces of phases can be told apart by it.

    recorded = WorkloadSignature(parameters=25_557_032, parameter_bytes=102_228_128, modules={"Conv2d": 53, ...},
                                 inputs=(InputTensor((32, 3, 224, 224), "float32"),), batch_bytes=19_267_840, optimizer="SGD")
    compare_workloads(recorded, replayed)
    # WorkloadMatch(Likeness.OTHER_BATCH_SIZE, ("inputs 32x3x224x224 float32 recorded, 8x3x224x224 float32 here",))

A field is None where its writer did not see it, and then says nothing. `with_model` takes plain numbers and names, so that this
package needs no torch.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from traces.model.layouts import IMAGES, Shape
from traces.model.typed_json import from_json, to_json

_COUNTS = ("parameters", "trainable_parameters", "parameter_bytes", "batch_bytes", "training_modules")
_NAMES = ("optimizer", "autocast")

# What tells two models of the same parts apart, and what it is called where one signature lacks it.
_OF_LATER_RELEASES = {"module_order": "the order of modules", "training_modules": "training mode"}


@dataclass(frozen=True, slots=True)
class InputTensor:
    """One tensor that the script hands to its outermost module, without its device."""

    shape: Shape
    dtype: str  # torch dtype name, "float32"

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"


@dataclass(frozen=True, slots=True)
class WorkloadSignature:
    """See the module. `parameters` counts elements; shared ones count once."""

    parameters: int | None = None
    parameter_bytes: int | None = None
    modules: Mapping[str, int] | None = None  # how many modules of each class name, containers included
    inputs: tuple[InputTensor, ...] | None = None  # of a training step's first call of the outermost module
    batch_bytes: int | None = None  # of all tensors of a batch, labels included
    optimizer: str | None = None  # class name
    trainable_parameters: int | None = None  # those that require gradients
    autocast: str | None = None  # the dtype that torch.autocast was on with at that call, "float16"; "off" without
    module_order: str | None = None  # a digest of class and own parameters' shapes of each module, in order
    training_modules: int | None = None  # how many modules were in training mode at that call

    def to_json(self) -> dict[str, Any]:
        """What is stored in a trace's header: only the fields that are known."""
        known: dict[str, Any] = to_json(self)
        if self.inputs is not None:
            known["inputs"] = [[list(tensor.shape), tensor.dtype] for tensor in self.inputs]
        if self.modules is not None:
            known["modules"] = dict(sorted(self.modules.items()))
        return known

    @classmethod
    def from_json(cls, stored: object) -> WorkloadSignature:
        """The inverse of `to_json`. Raises ValueError for anything that it does not write; unknown keys are left out."""
        try:
            made = from_json(cls, stored)
        except ValueError as error:
            raise ValueError(f"no workload signature: {error}") from None
        sizes = [size for tensor in made.inputs or () for size in tensor.shape]
        if min([*(getattr(made, name) or 0 for name in _COUNTS), *(made.modules or {}).values(), *sizes], default=0) < 0:
            raise ValueError("the workload signature has a count below 0")
        return made

    def with_model(
        self,
        parameters: Iterable[tuple[int, int]],
        class_names: Iterable[str],
        trainable: int | None = None,
        shapes: Iterable[Iterable[Shape]] | None = None,
    ) -> WorkloadSignature:
        """The signature of a model added: (elements, bytes) of each of its parameters, the class name of each module in order,
        how many elements require gradients, and the shapes of each module's own parameters (None: it is not known).

        Models of one script add up: a teacher and a student, a generator and a discriminator.
        """
        class_names = list(class_names)
        elements, sizes = zip(*parameters, strict=True) if (parameters := list(parameters)) else ((), ())
        return replace(
            self,
            parameters=(self.parameters or 0) + sum(elements),
            trainable_parameters=None if trainable is None else (self.trainable_parameters or 0) + trainable,
            parameter_bytes=(self.parameter_bytes or 0) + sum(sizes),
            modules=dict(Counter(class_names) + Counter(self.modules or {})),
            module_order=None if shapes is None else _digest(self.module_order, zip(class_names, shapes, strict=True)),
        )


def _digest(before: str | None, parts: Iterable[tuple[str, Iterable[Shape]]]) -> str:
    text = "\n".join(f"{name} {' '.join(map(str, shapes))}" for name, shapes in parts)
    return hashlib.sha256(f"{before or ''}\n{text}".encode()).hexdigest()[:16]


class Likeness(Enum):
    """What two signatures say of two runs."""

    SAME = "same"
    OTHER_BATCH_SIZE = "another batch size"
    OTHER_MODEL = "another model"
    CANNOT_BE_TOLD = "cannot be told"


@dataclass(frozen=True, slots=True)
class WorkloadMatch:
    """`reasons` are what differs, or, of the same workload, what is alike; sentences without a full stop. `not_compared` is
    what may differ all the same, for one signature was written before there was such a thing."""

    likeness: Likeness
    reasons: tuple[str, ...]
    not_compared: tuple[str, ...] = ()


def compare_workloads(recorded: WorkloadSignature, other: WorkloadSignature) -> WorkloadMatch:
    """Compare what both know. The same workload needs a model and a batch that both have told; to be another, one
    difference is enough. Input shapes that differ in their first dimension alone are another batch size."""
    model = _differing(recorded, other, *_COUNTS[:3], *_NAMES)
    if recorded.modules is not None and other.modules is not None and recorded.modules != other.modules:
        model += _differing_modules(recorded.modules, other.modules)
    elif None not in (recorded.module_order, other.module_order) and recorded.module_order != other.module_order:
        model.append("the same modules, but in another order or with parameters of other shapes")
    model += _differing(recorded, other, "training_modules")
    if recorded.inputs is not None and other.inputs is not None and recorded.inputs != other.inputs:
        said = f"inputs {_listed(recorded.inputs)} recorded, {_listed(other.inputs)} here"
        if model or not differ_in_batch_size_alone(recorded.inputs, other.inputs):
            model.append(said)
        else:
            return WorkloadMatch(Likeness.OTHER_BATCH_SIZE, (said,))
    if model:
        return WorkloadMatch(Likeness.OTHER_MODEL, tuple(model))
    if batch := _differing(recorded, other, "batch_bytes"):
        return WorkloadMatch(Likeness.OTHER_BATCH_SIZE, tuple(batch))
    names = [field.name for field in fields(recorded)]
    alike = [name for name in names if getattr(recorded, name) is not None and getattr(other, name) is not None]
    if not {"parameters", "modules"} & set(alike) or not {"inputs", "batch_bytes"} & set(alike):
        return WorkloadMatch(Likeness.CANNOT_BE_TOLD, ("not both tell their model and the size of a batch",))
    lacking = tuple(said for name, said in _OF_LATER_RELEASES.items() if name not in alike)
    if any(len(tensor.shape) in IMAGES for tensor in recorded.inputs or ()):
        lacking += ("memory layouts",)
    return WorkloadMatch(Likeness.SAME, ("the same " + ", ".join(name.replace("_", " ") for name in alike),), lacking)


def _differing(recorded: WorkloadSignature, other: WorkloadSignature, *names: str) -> list[str]:
    pairs = [(name, getattr(recorded, name), getattr(other, name)) for name in names]
    return [
        f"{name.replace('_', ' ')} {_figure(a)} recorded, {_figure(b)} here"
        for name, a, b in pairs
        if a is not None and b is not None and a != b
    ]


def _differing_modules(recorded: Mapping[str, int], other: Mapping[str, int]) -> list[str]:
    """The class whose count differs most."""
    name = max(sorted(recorded.keys() | other.keys()), key=lambda of: abs(recorded.get(of, 0) - other.get(of, 0)))
    return [f"{recorded.get(name, 0)} modules {name} recorded, {other.get(name, 0)} here"]


def differ_in_batch_size_alone(recorded: tuple[InputTensor, ...], other: tuple[InputTensor, ...]) -> bool:
    """Whether inputs that are not equal are so up to their first dimension."""
    return [(t.shape[1:], len(t.shape), t.dtype) for t in recorded] == [(t.shape[1:], len(t.shape), t.dtype) for t in other]


def _listed(inputs: tuple[InputTensor, ...]) -> str:
    return " and ".join(map(str, inputs)) or "none"


def _figure(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value
