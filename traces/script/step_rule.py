"""Where a step of a script ends: one rule for recordings and for replays.

    cut = StepCut(optimizers)
    cut.loader_entered()                # StepEnd.NOTHING: nothing to end yet
    cut.module_called(id(model), True)  # NOTHING: a forward pass with gradients
    cut.backward()
    cut.optimizer_stepped(True)         # TRAINING: a training step has ended
    cut.loader_entered()
    cut.module_called(id(model), False)
    cut.loader_entered()                # EVALUATION: a batch was evaluated, and that step ends here

A *training step* ends when the first optimizer's `step` returns: several backward passes for one step (accumulated gradients)
are one step, and of several optimizers only the first ends any. An *evaluation step* is one batch evaluated without gradient.
It ends where the next batch is asked for, which is also where the data has come to its end; or, in loops without a DataLoader,
where the module that was called first is called again. So several models that see one batch share its step, and what is
left of validation never becomes a part of the training step after it. A script that never goes backward consists of such steps.

Note [Called twice without gradient]
    A training step may begin without gradient: a teacher sees the batch, perhaps twice, before the student does. Once the
    script has been seen to train, modules called again therefore end nothing while a batch of a DataLoader is under way:
    there the loader's next entry tells. Before that, and between batches, they do.

Note [Inference with gradients on]
    A script that forgets `torch.no_grad` looks as if it were about to train. As long as no backward pass and no
    optimizer was ever seen, a module that was called for one batch and then for the next shows that it does not: the step
    ends just before the second call, and from then on at the loader, as without gradient. Without a DataLoader all
    of it is one step, which ends with the script, if that has no optimizer either.

Note [As much as the recording's step]
    A replay of inference knows what its recording calls a step: one pass, or all of a generation's. Whoever follows a recording
    may say so (`more_recorded`): as long as the recorded step holds another such call, a module called again ends nothing; and
    where it holds none, it ends the step although gradients are on. While a DataLoader gives the batches, that decides.

Note [The next batch is copied]
    A script that has neither trained nor made an optimizer, and has no DataLoader, begins its next step already where it copies
    to the device after its module has returned.

Note [Training without an optimizer]
    While no optimizer object exists, the script updates its weights itself (`p.data -= lr * p.grad`), and no call tells when
    it has done so. Its training step ends where the next one begins: after a backward pass, when the next batch is asked for,
    or when an outermost module is called with gradient, or when the module that this step began with is called again,
    with or without gradient. (Another module called without gradient is a metric.) A script of plain tensors, which has shown
    neither a module nor a DataLoader, gives no sign before its next backward pass begins, so its steps end there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from enum import IntEnum
from typing import Any


class StepEnd(IntEnum):
    """Which kind of step ends at an event; NOTHING is false."""

    NOTHING = 0
    TRAINING = 1
    EVALUATION = 2


class Optimizers:
    """The optimizers of a process that are alive: whether there are any, and which one ends steps."""

    def __init__(self) -> None:
        self._alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._first: weakref.ref[Any] | None = None
        self.made = 0  # so far, those that are gone included

    def add(self, optimizer: object) -> None:
        """An optimizer was made."""
        self.made += id(optimizer) not in self._alive
        self._alive[id(optimizer)] = optimizer

    def __bool__(self) -> bool:
        return len(self._alive) > 0

    @property
    def class_name(self) -> str | None:
        """The class of the one that ends steps, or will by all appearances: of those alive the first that was made."""
        first = self._first() if self._first is not None else None
        chosen = first if first is not None else next(iter(self._alive.values()), None)
        return None if chosen is None else type(chosen).__name__

    def is_first(self, optimizer: object) -> bool:
        """Whether it ends a step: the first that ever stepped does, or, when that is gone, the next that steps."""
        first = self._first() if self._first is not None else None
        if first is None:
            self.add(optimizer)
            self._first, first = weakref.ref(optimizer), optimizer
        return first is optimizer


class StepCut:
    """Follows one thread of a script. The caller leaves out modules called within modules, loaders, backward or optimizers.

    Modules are told apart by any integers that stay theirs while they live, such as their ids.
    """

    def __init__(self, optimizers: Optimizers) -> None:
        self._optimizers = optimizers
        self._of_plain_tensors = True  # neither a module nor a DataLoader was ever seen
        self._updates_by_hand = False  # a training step has ended without an optimizer
        self._trains = False  # a backward pass or an optimizer was ever seen
        self._infers = False  # see Note [Inference with gradients on]
        self._last_batch_first: int | None = None  # the first module called for the batch before, if no step ended since
        self._batch = False  # a DataLoader gave a batch, and no step has ended since
        self._asked = False  # since the last call of a module, whether another one was recorded
        self._more: bool | None = None
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

    @property
    def at_stop(self) -> StepEnd:
        """What ends when the script does: an evaluated batch, or the last step of a script that updates its weights itself."""
        if self._updates_by_hand and self._updated_by_hand:
            return StepEnd.TRAINING
        only_forward = self._first is not None and self._only_infers
        return StepEnd.EVALUATION if self.evaluating or only_forward else StepEnd.NOTHING

    @property
    def _updated_by_hand(self) -> bool:
        """Whether a backward pass has begun that no optimizer will follow."""
        return self._backward and not self._optimizers

    def optimizer_stepped(self, is_first: bool) -> StepEnd:
        """An optimizer's `step` has returned; `is_first`: that of the first optimizer."""
        self._trains = True
        return self._end(StepEnd.TRAINING if is_first else StepEnd.NOTHING)

    def loader_entered(self) -> StepEnd:
        """The script asks a DataLoader for a batch. What ends, ends before that."""
        self._of_plain_tensors = False
        last_batch_first = self._first if self._batch else None
        ends = self._end(self._ends_by_hand() or (StepEnd.EVALUATION if self.evaluating else StepEnd.NOTHING))
        if not ends and last_batch_first is not None:
            self._last_batch_first = last_batch_first
        self._batch = True
        self._forget_calls()
        return ends

    def loader_exhausted(self) -> None:
        """The loader entered last had no batch left; who cannot tell may leave this out."""
        self._batch = False

    def module_called(self, module: int, grad_enabled: bool, more_recorded: Callable[[], bool | None] | None = None) -> StepEnd:
        """An outermost module is called. What ends, ends just before.

        `more_recorded`: whether the recorded step that is followed holds another call; None where that is not known. See
        Note [As much as the recording's step].
        """
        self._of_plain_tensors = False
        ends = StepEnd.NOTHING
        if grad_enabled or module == self._first:
            ends = self._ends_by_hand()
        more = self._holds_more(more_recorded) if module == self._first else None
        if not ends and not more:
            self._infers |= more is False and self._only_infers
            ends = StepEnd.EVALUATION if self._is_next_batch(module) else StepEnd.NOTHING
        self._end(ends)
        self._asked = False
        if self._first is None:
            self._first = module
        self._with_gradient |= grad_enabled
        return ends

    def copied(self, more_recorded: Callable[[], bool | None] | None = None) -> StepEnd:
        """The script copies to the device, not within a module's call. See Note [The next batch is copied]."""
        if not self._only_infers or self._batch or self._first is None:
            return StepEnd.NOTHING
        more = self._holds_more(more_recorded)
        self._infers |= more is False
        return self._end(StepEnd.EVALUATION if self.evaluating and not more else StepEnd.NOTHING)

    def _holds_more(self, more_recorded: Callable[[], bool | None] | None) -> bool | None:
        """See Note [As much as the recording's step]. Asked once for each call."""
        if not self._asked:
            silent = self._batch or self._backward
            self._asked, self._more = True, None if silent or more_recorded is None else more_recorded()
        return self._more

    @property
    def _only_infers(self) -> bool:
        return not self._trains and not self._optimizers

    def backward(self) -> StepEnd:
        """A backward pass begins. What ends, ends just before: see Note [Training without an optimizer]."""
        ends = self._end(self._ends_by_hand() if self._of_plain_tensors else StepEnd.NOTHING)
        self._trains = self._backward = True
        return ends

    def _ends_by_hand(self) -> StepEnd:
        if not self._updated_by_hand:
            return StepEnd.NOTHING
        self._updates_by_hand = True
        return StepEnd.TRAINING

    def _is_next_batch(self, module: int) -> bool:
        if self.evaluating:
            return module == self._first and not (self._trains and self._batch)
        if module == self._last_batch_first and not self._trains:
            self._infers = True
            return True
        return False

    def _end(self, ends: StepEnd) -> StepEnd:
        if ends:
            self._last_batch_first = None
            self._batch = False
            self._forget_calls()
        return ends
