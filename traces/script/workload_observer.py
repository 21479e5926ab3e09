"""Fills a workload signature (traces/model/workload.py) from what a script calls: the same code in the recorder and the
replayer.

    observer = WorkloadObserver()
    observer.batch_loaded(19_267_840)
    observer.module_called(model, [((32, 3, 224, 224), "float32")])
    observer.optimizer_stepped("SGD")
    observer.step_ended(is_evaluation=False)
    observer.signature          # WorkloadSignature(parameters=25_557_032, ...)

The signature is that of the first training step; of a script that only evaluates, that of its first batch. Once it is known,
`is_open` is False and nothing more is looked at.

Note [A second attempt]
    A script may catch that memory ran out and call its model again with a smaller batch. No backward pass has gone through
    by then, unlike between the batches of accumulated gradients: so a later call of the same model with another batch size
    takes the place of the first one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import starmap
from typing import Any

from traces.model.layouts import Shape
from traces.model.workload import InputTensor, WorkloadSignature, differ_in_batch_size_alone

# Takes a module, shape and dtype of each tensor it is called with, the dtype of autocast or "off", and whether gradients are
# on; returns what is called when the module returns.
OnCall = Callable[[Any, Iterable[tuple[Shape, str]], str | None, bool], Callable[[], None]]


class WorkloadObserver:
    """Notes the outermost modules of the step under way. Threads other than the first that calls a module are left out."""

    def __init__(self) -> None:
        self.signature: WorkloadSignature | None = None
        self.is_open = True
        self.on_every_call: OnCall | None = None  # told of each call before anybody else is
        self._thread = 0
        self.forget()

    def forget(self) -> None:
        """What came so far was set-up, or a step that is over."""
        # By id, and weakly: a model that the script drops takes its memory with it.
        self._modules: dict[int, weakref.ref[Any]] = {}
        self._inputs: tuple[InputTensor, ...] | None = None
        self._has_gradients = False
        self._batch_bytes: int | None = None
        self._optimizer: str | None = None
        self._autocast: str | None = None
        self._training = 0  # modules in training mode, of those called

    @property
    def so_far(self) -> WorkloadSignature | None:
        """The signature, or while it is open what the step under way has shown of it; None if it has called no module."""
        return self._signature() if self.is_open and self._modules else self.signature

    def batch_loaded(self, size_bytes: int | None) -> None:
        """A DataLoader gave a batch (None: without tensors); of a step's several the first counts."""
        if self._batch_bytes is None:
            self._batch_bytes = size_bytes

    def module_called(self, module: Any, inputs: Iterable[tuple[Shape, str]], autocast: str | None = None) -> None:
        """An outermost torch.nn.Module is called with tensors of these shapes and dtypes; `autocast` as in the signature."""
        self._thread = self._thread or threading.get_ident()
        if self._thread != threading.get_ident():
            return
        if self._inputs is None:
            self._inputs, self._autocast = tuple(starmap(InputTensor, inputs)), autocast
        elif not self._has_gradients and id(module) == next(iter(self._modules)):  # Note [A second attempt]
            again = tuple(starmap(InputTensor, inputs))
            if differ_in_batch_size_alone(self._inputs, again):
                self._inputs = again
        if id(module) not in self._modules:
            self._modules[id(module)] = weakref.ref(module)
            # Frozen TorchScript is in neither mode.
            self._training += sum(getattr(part, "training", False) for part in module.modules())

    def backward_passed(self) -> None:
        """A backward pass has gone through."""
        self._has_gradients = True

    def optimizer_stepped(self, class_name: str) -> None:
        """The optimizer that ends the step has stepped."""
        self._optimizer = class_name

    def step_ended(self, is_evaluation: bool) -> None:
        """Work out the signature, unless there is one of a step of this kind."""
        if self.is_open and (self._modules or self._batch_bytes is not None):
            if self.signature is None or not is_evaluation:
                self.signature = self._signature()
            self.is_open = is_evaluation
        self.forget()

    def _signature(self) -> WorkloadSignature:
        outermost = [module for seen in self._modules.values() if (module := seen()) is not None]
        signature = WorkloadSignature(
            inputs=self._inputs, batch_bytes=self._batch_bytes, optimizer=self._optimizer, autocast=self._autocast
        )
        found = with_modules(signature, outermost)
        return replace(found, training_modules=self._training) if outermost else found


def with_modules(signature: WorkloadSignature, outermost: Iterable[Any]) -> WorkloadSignature:
    """The signature of these torch.nn.Modules added, each part and parameter of them once; without any, `signature` itself."""
    outermost = list(outermost)
    modules = {id(part): part for module in outermost for part in module.modules()}
    if not modules:
        return signature
    parameters = {id(p): p for module in outermost for p in module.parameters()}
    sizes = [(p.numel(), p.numel() * p.element_size()) for p in parameters.values()]
    trainable = sum(p.numel() for p in parameters.values() if p.requires_grad)
    names = [type(module).__name__ for module in modules.values()]
    shapes = [[tuple(p.shape) for p in module.parameters(recurse=False)] for module in modules.values()]
    return signature.with_model(sizes, names, trainable, shapes)
