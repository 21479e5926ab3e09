"""Describes the modules, inputs and optimizer of a training script.

    observer = WorkloadObserver()
    observer.batch_loaded(19_267_840)
    observer.module_called(model, [((32, 3, 224, 224), "float32")])
    observer.optimizer_stepped("SGD")
    observer.step_ended(is_evaluation=False)
    observer.signature          # WorkloadSignature(parameters=25_557_032, ...)

The description covers the first training step or, if the script does not train, the first evaluation step. The next steps show
which input sizes vary, see Note [Inputs of varying size] in workload.py.

Note [A second attempt]
    After running out of memory, a script may call its model again with a smaller batch. The second call is then used instead of
    the first. This case differs from accumulated gradients, because no backward pass has completed before the second call.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any

from traces.model.layouts import Shape
from traces.model.workload import InputTensor, WorkloadSignature, differ_in_batch_size_alone

# A function of this type is called before a module's `forward`. The arguments are the module, the shapes and dtypes of the
# module's inputs, autocast's dtype, and whether gradients are enabled. The result may be a function to call after `forward`.
OnCall = Callable[[Any, Iterable[tuple[Shape, str]], str | None, bool], Callable[[], None] | None]


_LATER_STEPS = 8


class WorkloadObserver:
    def __init__(self) -> None:
        self.signature: WorkloadSignature | None = None
        self.is_open = True  # False if the signature no longer changes
        self.is_provisional = True  # False after the first training step
        self._later_steps = 0  # number of steps that will still show which sizes vary
        self._described = 0  # `id()` of the first module of the described step
        self.on_every_call: OnCall | None = None
        self._thread = 0
        self.forget()

    def forget(self) -> None:
        # weak references, so that models can be freed
        self._modules: dict[int, weakref.ref[Any]] = {}
        self._inputs: tuple[InputTensor, ...] | None = None
        self._has_gradients = False
        self._batch_bytes: int | None = None
        self._optimizer: str | None = None
        self._autocast: str | None = None
        self._training = 0

    @property
    def so_far(self) -> WorkloadSignature | None:
        return self._signature() if self.is_provisional and self._modules else self.signature

    def batch_loaded(self, size_bytes: int | None) -> None:
        if self._batch_bytes is None:
            self._batch_bytes = size_bytes

    def module_called(self, module: Any, inputs: Iterable[tuple[Shape, str]], autocast: str | None = None) -> None:
        thread = threading.get_ident()
        self._thread = self._thread or thread
        if self._thread != thread:
            return
        if self._inputs is None:
            self._inputs, self._autocast = tuple(starmap(InputTensor, inputs)), autocast
        elif not self._has_gradients and id(module) == next(iter(self._modules)):  # Note [A second attempt]
            again = tuple(starmap(InputTensor, inputs))
            if differ_in_batch_size_alone(self._inputs, again):
                self._inputs = again
        if id(module) not in self._modules:
            self._modules[id(module)] = weakref.ref(module)
            if self.is_provisional:  # frozen TorchScript modules have no training flag
                self._training += sum(getattr(part, "training", False) for part in parts_of(module))

    def backward_passed(self) -> None:
        self._has_gradients = True

    def optimizer_stepped(self, class_name: str) -> None:
        self._optimizer = class_name

    def step_ended(self, is_evaluation: bool) -> None:
        if self.is_open and (self._modules or self._batch_bytes is not None):
            first = next(iter(self._modules), 0)
            if self.is_provisional and (self.signature is None or not is_evaluation):
                self.signature, self._described, self._later_steps = self._signature(), first, _LATER_STEPS
            elif self._later_steps and self.signature is not None and self.is_provisional == is_evaluation:
                self._later_steps -= 1
                if first == self._described:
                    self.signature = self.signature.with_later_step(self._inputs, self._batch_bytes)
            self.is_provisional &= is_evaluation
            self.is_open = self.is_provisional or self._later_steps > 0
        self.forget()

    def _signature(self) -> WorkloadSignature:
        outermost = [module for seen in self._modules.values() if (module := seen()) is not None]
        signature = WorkloadSignature(
            inputs=self._inputs, batch_bytes=self._batch_bytes, optimizer=self._optimizer, autocast=self._autocast,
            training_modules=self._training if outermost else None,
        )  # fmt: skip
        return with_modules(signature, outermost)


def with_modules(signature: WorkloadSignature, outermost: Sequence[Any]) -> WorkloadSignature:
    """Add modules to a workload signature. Shared modules and parameters count once."""
    modules = {id(part): part for module in outermost for part in parts_of(module)}
    if not modules:
        return signature
    parameters = {id(p): p for module in outermost for p in initialized_parameters(module)}
    sizes = [(p.numel(), p.numel() * p.element_size()) for p in parameters.values()]
    trainable = sum(p.numel() for p in parameters.values() if p.requires_grad)
    names = [type(module).__name__ for module in modules.values()]
    shapes = [[tuple(p.shape) for p in initialized_parameters(module, recurse=False)] for module in modules.values()]
    return signature.with_model(sizes, names, trainable, shapes)


def parts_of(module: Any) -> list[Any]:
    """Return a module and all its submodules. A RemoteModule that was received by RPC has no submodules."""
    found, waiting = {}, [module]
    while waiting:
        part = waiting.pop()
        if part is not None and id(part) not in found:
            found[id(part)] = part
            waiting += reversed(list(getattr(part, "_modules", {}).values()))
    return list(found.values())


def initialized_parameters(module: Any, *, recurse: bool = True) -> list[Any]:
    """Return the parameters that have a shape. Parameters of lazy modules have no shape before the first forward pass."""
    of_parts = (getattr(part, "_parameters", {}).values() for part in (parts_of(module) if recurse else [module]))
    found = {id(parameter): parameter for of in of_parts for parameter in of if parameter is not None}
    return [parameter for parameter in found.values() if not hasattr(parameter, "materialize")]
