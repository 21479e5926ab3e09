"""Where a step of a script ends: one rule for recordings and for replays.

    cut = StepCut()
    cut.loader_entered()                # False: nothing to end yet
    cut.module_called(id(model), True)  # False: a forward pass with gradients
    cut.backward()
    cut.optimizer_stepped(True)         # True: a training step has ended
    cut.loader_entered()
    cut.module_called(id(model), False)
    cut.loader_entered()                # True: a batch was evaluated, and that step ends here

A *training step* ends when the first optimizer's `step` returns: several backward passes for one step (accumulated gradients)
are one step, and of several optimizers only the first ends any. An *evaluation step* is one batch evaluated without gradient.
It ends where the next batch is asked for, which is also where the data has come to its end; or, in loops without a DataLoader,
where the module that was called first is called again. So several models that see one batch share its step, and what is
left of validation never becomes a part of the training step after it. A script without optimizer consists of such steps.

Note [Called twice without gradient]
    A training step may begin without gradient: a teacher sees the batch, perhaps twice, before the student does. Once the
    script has been seen to train, modules called again therefore end nothing while a batch of a DataLoader is under way:
    there the loader's next entry tells. Before that, and between batches, they do.

Note [Inference with gradients on]
    A script that forgets `torch.no_grad` looks as if it were about to train. As long as no backward pass and no
    optimizer was ever seen, a module that was called for one batch and then for the next shows that it does not: the step
    ends just before the second call, and from then on at the loader, as without gradient. Without a DataLoader it has no steps.
"""

from __future__ import annotations

import weakref
from typing import Any


class StepCut:
    """Follows one thread of a script. The caller leaves out modules called within modules, loaders, backward or optimizers.

    Modules are told apart by any integers that stay theirs while they live, such as their ids.
    """

    def __init__(self) -> None:
        self._trains = False  # a backward pass or an optimizer was ever seen
        self._infers = False  # see Note [Inference with gradients on]
        self._last_batch_first: int | None = None  # the first module called for the batch before, if no step ended since
        self._batch = False  # a DataLoader gave a batch, and no step has ended since
        self._forget_calls()

    def _forget_calls(self) -> None:
        """Since the last step end or loader entry: the first module called, and what else there was."""
        self._first: int | None = None
        self._with_gradient = self._backward = False

    @property
    def evaluating(self) -> bool:
        """Whether modules were called since the last step end or loader entry, all without gradient, and no backward began."""
        if self._first is None or self._backward:
            return False
        return not self._with_gradient or (self._infers and not self._trains)

    def optimizer_stepped(self, is_first: bool) -> bool:
        """An optimizer's `step` has returned; `is_first`: that of the first optimizer. Returns whether a training step ends."""
        self._trains = True
        if is_first:
            self._end()
        return is_first

    def loader_entered(self) -> bool:
        """The script asks a DataLoader for a batch. Returns whether an evaluation step ends before that."""
        ends = self.evaluating
        if ends:
            self._end()
        elif self._batch and self._first is not None:
            self._last_batch_first = self._first
        self._batch = True
        self._forget_calls()
        return ends

    def loader_exhausted(self) -> None:
        """The loader entered last had no batch left; who cannot tell may leave this out."""
        self._batch = False

    def module_called(self, module: int, grad_enabled: bool) -> bool:
        """An outermost module is called. Returns whether an evaluation step ends just before."""
        ends = self._is_next_batch(module)
        if ends:
            self._end()
        if self._first is None:
            self._first = module
        self._with_gradient |= grad_enabled
        return ends

    def backward(self) -> None:
        """A backward pass begins."""
        self._trains = self._backward = True

    def _is_next_batch(self, module: int) -> bool:
        if self.evaluating:
            return module == self._first and not (self._trains and self._batch)
        if module == self._last_batch_first and not self._trains:
            self._infers = True
            return True
        return False

    def _end(self) -> None:
        self._last_batch_first = None
        self._batch = False
        self._forget_calls()


class FirstOptimizer:
    """Which optimizer ends a step: the first that ever stepped, or, when that is gone, the next that does."""

    def __init__(self) -> None:
        self._first: weakref.ref[Any] | None = None

    def is_(self, optimizer: object) -> bool:
        first = self._first() if self._first is not None else None
        if first is None:
            self._first, first = weakref.ref(optimizer), optimizer
        return first is optimizer
