"""Describes the workload of a training script: parameters, modules, input shapes and optimizer.

    recorded = WorkloadSignature(parameters=25_557_032, parameter_bytes=102_228_128, modules={"Conv2d": 53, ...},
                                 inputs=(InputTensor((32, 3, 224, 224), "float32"),), batch_bytes=19_267_840, optimizer="SGD")
    compare_workloads(recorded, replayed)
    # WorkloadMatch(Sameness.OTHER_BATCH_SIZE, ("batch bytes 19,267,840 in the first trace, 9,633,920 in the second",))

Workload signatures show whether two recordings are of the same model. Fields with the value None are not compared.

Note [Inputs of varying size]
    The sizes of inputs may differ between steps, for example if sentences are padded to the longest sentence of a batch. Two
    runs of a script then begin with inputs of different sizes. The first steps of a run show which sizes vary. Varying sizes
    are not compared, and neither is the size of a batch in bytes. The number of samples in the smaller last batch of an epoch
    is ignored. If the number of inputs varies, only the first inputs are compared. A recurrent network, for example, has no
    hidden state in its first call.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from itertools import takewhile

from traces.model.json_facts import Json
from traces.model.layouts import IMAGES, Shape
from traces.model.typed_json import from_json, to_json

_COUNTS = ("parameters", "trainable_parameters", "parameter_bytes", "batch_bytes", "training_modules")
_NAMES = ("optimizer", "autocast")

_WRAPPERS = ("OptimizedModule", "DataParallel", "DistributedDataParallel")  # OptimizedModule: of torch.compile
_LOSS = "Loss"  # class names of losses end with this word

_OF_LATER_RELEASES = ("module_order", "training_modules")  # fields that later releases added
# names of fields in messages about equal programs
_WORDS = {
    "parameters": "number of parameters",
    "parameter_bytes": "size of the parameters",
    "batch_bytes": "size of a batch",
    "trainable_parameters": "number of trainable parameters",
    "module_order": "order of modules",
    "training_modules": "training mode",
}


@dataclass(frozen=True, slots=True)
class InputTensor:
    shape: Shape
    dtype: str

    def is_like(self, other: InputTensor) -> bool:
        return (self.dtype, len(self.shape)) == (other.dtype, len(other.shape))

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"


@dataclass(frozen=True, slots=True)
class WorkloadSignature:
    parameters: int | None = None  # counts the elements of all parameters, shared ones only once
    parameter_bytes: int | None = None
    modules: Mapping[str, int] | None = None  # number of modules by class name, including containers
    # inputs of the outermost module, in its first call in a training step
    inputs: tuple[InputTensor, ...] | None = None
    batch_bytes: int | None = None
    optimizer: str | None = None
    trainable_parameters: int | None = None
    autocast: str | None = None  # torch.autocast dtype ("float16") of the first call, or "off"
    # digest of each module's class and parameter shapes, in order
    module_order: str | None = None
    training_modules: int | None = None  # modules in training mode during the first call
    # for each input, the dimensions whose sizes differ between the first steps, see Note [Inputs of varying size]
    varying_dimensions: tuple[tuple[int, ...], ...] | None = None

    def to_json(self) -> dict[str, Json]:
        known: dict[str, Json] = to_json(self)
        if self.inputs is not None:
            known["inputs"] = [[list(tensor.shape), tensor.dtype] for tensor in self.inputs]
        if self.modules is not None:
            known["modules"] = dict(sorted(self.modules.items()))
        return known

    @classmethod
    def from_json(cls, stored: object) -> WorkloadSignature:
        """Create a workload signature from JSON. Raises ValueError for invalid values."""
        try:
            made = from_json(cls, stored)
        except ValueError as error:
            raise ValueError(f"invalid workload signature: {error}") from None
        sizes = [size for tensor in made.inputs or () for size in tensor.shape]
        if min([*(getattr(made, name) or 0 for name in _COUNTS), *(made.modules or {}).values(), *sizes], default=0) < 0:
            raise ValueError("the workload signature contains a negative count")
        return made

    def with_model(
        self,
        parameters: Iterable[tuple[int, int]],
        class_names: Iterable[str],
        trainable: int | None = None,
        shapes: Iterable[Iterable[Shape]] | None = None,
    ) -> WorkloadSignature:
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

    def with_later_step(self, inputs: tuple[InputTensor, ...] | None, batch_bytes: int | None) -> WorkloadSignature:
        """Update the signature with the inputs and the batch size in bytes of a later step of the same kind."""
        # see Note [Inputs of varying size]
        ours = self.inputs
        if not ours or not inputs:
            return self
        pairs = list(zip(ours, inputs, strict=False))
        alike = list(takewhile(lambda pair: pair[0].is_like(pair[1]), pairs))
        if len(alike) < max(len(ours), len(inputs)):
            if not alike:
                return replace(self, inputs=None, batch_bytes=None, varying_dimensions=None)
            known = self.varying_dimensions and self.varying_dimensions[: len(alike)]
            kept = replace(self, inputs=ours[: len(alike)], varying_dimensions=known)
            return kept.with_later_step(inputs[: len(alike)], batch_bytes)
        known = self.varying_dimensions or ((),) * len(ours)
        is_smaller = _is_smaller_batch(inputs, ours)
        sizes_of = (enumerate(zip(one.shape, other.shape, strict=True)) for one, other in pairs)
        varying = tuple(
            tuple(at for at, (a, b) in sizes if at in before or (a != b and not (is_smaller and at == 0)))
            for sizes, before in zip(sizes_of, known, strict=True)
        )
        other_bytes = not is_smaller and None not in (batch_bytes, self.batch_bytes) and batch_bytes != self.batch_bytes
        return replace(
            self,
            batch_bytes=None if any(varying) or other_bytes else self.batch_bytes,
            varying_dimensions=varying if any(varying) else None,
        )

    def at_batch(self, batch: int, recorded: int) -> WorkloadSignature:
        if not self.inputs:
            return self
        grown = [(batch, *of.shape[1:]) if of.shape[:1] == (recorded,) else of.shape for of in self.inputs]
        inputs = tuple(InputTensor(shape, of.dtype) for shape, of in zip(grown, self.inputs, strict=True))
        batch_bytes = None if self.batch_bytes is None else self.batch_bytes * batch // recorded
        return replace(self, inputs=inputs, batch_bytes=batch_bytes)


def _digest(before: str | None, parts: Iterable[tuple[str, Iterable[Shape]]]) -> str:
    text = "\n".join(f"{name} {' '.join(map(str, shapes))}" for name, shapes in parts)
    return hashlib.sha256(f"{before or ''}\n{text}".encode()).hexdigest()[:16]


class Sameness(Enum):
    SAME_PROGRAM = "same program"
    OTHER_SHAPES = "same ops, other shapes"
    OTHER_DTYPES = "same ops and shapes, other dtypes"
    OTHER_LAYOUTS = "same ops and shapes, other memory layouts"
    OTHER_COMPILATION = "same program, compiled differently"
    OTHER_BATCH_SIZE = "same model, another batch size"
    OTHER_PARALLELISM = "same model, parallelized differently"
    OTHER_PROGRAM = "another program"
    CANNOT_BE_TOLD = "cannot be told"


@dataclass(frozen=True, slots=True)
class WorkloadMatch:
    sameness: Sameness
    reasons: tuple[str, ...]
    not_compared: tuple[str, ...] = ()


def compare_workloads(recorded: WorkloadSignature, other: WorkloadSignature) -> WorkloadMatch:
    """Compare the signatures of two scripts. If only the first dimensions of inputs differ, the result is OTHER_BATCH_SIZE."""
    recorded, other = _without_optional(recorded, other), _without_optional(other, recorded)
    varies = recorded.varying_dimensions or other.varying_dimensions
    words = _WORDS | ({"inputs": "inputs apart from sizes that vary"} if varies else {})
    recorded, other = _without_varying(recorded, other), _without_varying(other, recorded)
    model = _differing(recorded, other, *_COUNTS[:3], *_NAMES)
    if recorded.modules is not None and other.modules is not None and recorded.modules != other.modules:
        model += _differing_modules(recorded.modules, other.modules)
    elif None not in (recorded.module_order, other.module_order) and recorded.module_order != other.module_order:
        model.append("same modules, but their order or parameter shapes differ")
    model += _differing(recorded, other, "training_modules")
    if recorded.inputs is not None and other.inputs is not None and recorded.inputs != other.inputs:
        inputs_text = f"inputs {_listed(recorded.inputs)} in the first trace, {_listed(other.inputs)} in the second"
        if model or not differ_in_batch_size_alone(recorded.inputs, other.inputs):
            model.append(inputs_text)
        else:
            return WorkloadMatch(Sameness.OTHER_BATCH_SIZE, (inputs_text,))
    if model:
        return WorkloadMatch(Sameness.OTHER_PROGRAM, tuple(model))
    if batch := _differing(recorded, other, "batch_bytes"):
        if _may_be_other_batch_size(recorded, other):
            return WorkloadMatch(Sameness.OTHER_BATCH_SIZE, tuple(batch))
        reason = f"the model's inputs have the same shapes, but other parts of a batch, such as the labels, differ: {batch[0]}"
        return WorkloadMatch(Sameness.OTHER_SHAPES, (reason,))
    names = [field.name for field in fields(recorded)]
    alike = [name for name in names if getattr(recorded, name) is not None and getattr(other, name) is not None]
    if not {"parameters", "modules"} & set(alike) or not {"inputs", "batch_bytes"} & set(alike):
        return WorkloadMatch(Sameness.CANNOT_BE_TOLD, ("model or batch size is missing from one trace",))
    lacking = tuple(_WORDS[name] for name in _OF_LATER_RELEASES if name not in alike)
    if any(len(tensor.shape) in IMAGES for tensor in recorded.inputs or ()):
        lacking += ("memory layouts",)
    return WorkloadMatch(Sameness.SAME_PROGRAM, ("the same " + ", ".join(words.get(name, name) for name in alike),), lacking)


def _is_smaller_batch(inputs: tuple[InputTensor, ...], usual: tuple[InputTensor, ...]) -> bool:
    """Return True if the first dimension of the first input is smaller than usual, and if the first dimension of every other
    input is unchanged or has changed in the same way."""
    changes = {(a.shape[:1], b.shape[:1]) for a, b in zip(inputs, usual, strict=True) if a.shape[:1] != b.shape[:1]}
    first = inputs[0].shape[:1], usual[0].shape[:1]
    return changes == {first} and first[0] < first[1]


def _without_varying(of: WorkloadSignature, beside: WorkloadSignature) -> WorkloadSignature:
    """If an input size varies in one of two signatures, set the size to 0, because varying sizes are not compared."""
    both = [signature.varying_dimensions for signature in (of, beside) if signature.varying_dimensions is not None]
    if not both:
        return of
    inputs = of.inputs
    if inputs is not None and all(len(inputs) == len(varying) for varying in both):
        dimensions = [{at for own in of_input for at in own} for of_input in zip(*both, strict=True)]
        inputs = tuple(
            InputTensor(tuple(0 if at in own else size for at, size in enumerate(tensor.shape)), tensor.dtype)
            for tensor, own in zip(inputs, dimensions, strict=True)
        )
    return replace(of, inputs=inputs, batch_bytes=None, varying_dimensions=None)


def _without_optional(of: WorkloadSignature, beside: WorkloadSignature) -> WorkloadSignature:
    """Remove wrapper modules (such as DataParallel) and loss modules, because scripts that train the same network may differ in
    these modules."""
    if of.modules is None or beside.modules is None:
        return of
    left_out = {name for name in _WRAPPERS if name in of.modules and of.modules[name] != beside.modules.get(name)}
    if not any(name.endswith(_LOSS) for name in beside.modules):
        left_out |= {name for name in of.modules if name.endswith(_LOSS)}
    if not left_out:
        return of
    count = sum(of.modules[name] for name in left_out)
    training = None if of.training_modules is None else max(of.training_modules - count, 0)
    modules = {name: count for name, count in of.modules.items() if name not in left_out}
    return replace(of, modules=modules, module_order=None, training_modules=training)


def _differing(recorded: WorkloadSignature, other: WorkloadSignature, *names: str) -> list[str]:
    pairs = [(name, getattr(recorded, name), getattr(other, name)) for name in names]
    return [
        f"{name.replace('_', ' ')} {_figure(a)} in the first trace, {_figure(b)} in the second"
        for name, a, b in pairs
        if a is not None and b is not None and a != b
    ]


def _differing_modules(recorded: Mapping[str, int], other: Mapping[str, int]) -> list[str]:
    name = max(sorted(recorded.keys() | other.keys()), key=lambda of: abs(recorded.get(of, 0) - other.get(of, 0)))
    return [f"{name} modules: {recorded.get(name, 0)} in the first trace, {other.get(name, 0)} in the second"]


def differ_in_batch_size_alone(recorded: tuple[InputTensor, ...], other: tuple[InputTensor, ...]) -> bool:
    return [(t.shape[1:], len(t.shape), t.dtype) for t in recorded] == [(t.shape[1:], len(t.shape), t.dtype) for t in other]


def _may_be_other_batch_size(recorded: WorkloadSignature, other: WorkloadSignature) -> bool:
    """Return False if two batches must differ in more than the number of samples. If batches differ only in the number of
    samples, the sizes of both batches are multiples of the size of one sample. One sample has at least one byte for each
    element of the model's inputs."""
    sample = sum(math.prod(tensor.shape[1:]) for tensor in recorded.inputs or other.inputs or () if tensor.shape)
    return math.gcd(recorded.batch_bytes or 0, other.batch_bytes or 0) >= sample


def _listed(inputs: tuple[InputTensor, ...]) -> str:
    return " and ".join(map(str, inputs)) or "none"


def _figure(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value
