"""Decides when a training or evaluation step of a script ends.

    splitter = StepSplitter(optimizers)
    splitter.loader_entered()                # StepEnd.NOTHING: no step has begun
    splitter.module_called(id(model), True)  # NOTHING: a forward pass with gradients
    splitter.backward()
    splitter.optimizer_stepped(True)         # TRAINING: a training step has ended
    splitter.loader_entered()
    splitter.module_called(id(model), False)
    splitter.loader_entered()                # EVALUATION: the step of an evaluated batch ends here

A training step ends when the method `step` of the script's first optimizer returns. An evaluation step processes one batch
without gradients, and ends when the script requests the next batch. Without a DataLoader, an evaluation step ends when the
script calls its model again. The last batches of an epoch may have no optimizer step. If the script then evaluates a batch,
the step that contains this evaluation is a training step.

Note [The first optimizer]
    A script may replace its optimizer, for example Adam by LBFGS. The new optimizer becomes the first optimizer when it makes a
    step. The old one must have made at least two steps since the new optimizer's previous step.
    The optimizers of a GAN, in contrast, take turns. If the old optimizer makes a step before the third step of the new one,
    the old one becomes the first optimizer again. After that, another optimizer becomes the first one only if it makes eight
    steps while the first one makes none. This must be at least twice as many steps as in any earlier period of this kind.

Note [Called twice without gradient]
    A training step may call a teacher model twice without gradients. If the script has an optimizer and uses a batch from a
    DataLoader, the second call of a model therefore does not end a step.

Note [Calls without a new batch]
    A new batch is a batch from a DataLoader, or a copy to the GPU outside modules. After a training step that used a new batch,
    a script may call models without gradients before it gets the next batch. Some scripts do so after each training step, for
    example to compute a metric or to compare with the averaged weights. Such calls belong to the next training step. Other
    scripts do so only after some training steps, for example to generate a sample or to validate with data on the GPU. Such
    calls are one evaluation step. The end of a DataLoader counts as a new batch, so calls after an epoch are an evaluation
    step, too.

Note [Evaluation through another module]
    A script may train one module and evaluate another, for example the module inside DistributedDataParallel. Without a
    DataLoader, the last of several evaluation steps then ends when the script has copied a new batch and calls its model with
    gradients. A call of a teacher model is no evaluation step: the last training step also began with a call of the teacher.

Note [Inference with gradients on]
    Without `torch.no_grad`, inference looks like the start of training, until the script calls the model for a second batch
    without a backward pass. The first step then ends just before the second call. If the script has neither a DataLoader nor an
    optimizer, its whole run is one step.

Note [Steps of recorded inference]
    A step of inference may be one forward pass, or all forward passes that generate a text. In a replay, the recording shows
    this (`more_recorded`). While the recorded step contains another call of the model, a repeated call does not end the step.

Note [The next batch is copied]
    In a script without an optimizer and a DataLoader, a step begins with the first copy to the GPU after the model has
    returned. Tensors that the script creates on the GPU with `torch.tensor` do not count, because a loop that generates text
    creates each position in this way.

Note [Compiled functions]
    If torch.compile compiles a function that calls the model, the call of the model is not seen. A call of a compiled function
    therefore counts like a call of a module. Small compiled functions before the first module, for example to create a mask, do
    not start a step.

Note [Training without an optimizer]
    A script without an optimizer updates the weights itself (`p.data -= lr * p.grad`), and no call shows the update. The
    training step then ends when the script requests the next batch or calls its model again. If a script uses neither a module
    nor a DataLoader, its steps end just before backward passes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from enum import IntEnum
from typing import Any

# last part of the names of the recorder's step ranges, which distinguishes them from step ranges of the script's own profiler
RECORDERS_MARK = " (trace record)"
_STOPPED = 8  # see Note [The first optimizer]
# see Note [Calls without a new batch]
# the newest batch: it belongs to an earlier step, a module has used it, nothing has used it yet, or the DataLoader has ended
_BEFORE, _USED, _NEW, _ENDED = range(4)
# when a model was last called without a new batch: before the last training step, before the last step, or after the last step
_LONG_AGO, _EARLIER, _NOW = range(3)


class StepEnd(IntEnum):
    NOTHING = 0
    TRAINING = 1
    EVALUATION = 2


class Optimizers:
    def __init__(self) -> None:
        self._alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.made = 0  # number of all optimizers so far, including deleted ones
        self._numbers: dict[int, int] = {}  # numbers of optimizers by `id()`, in order of creation
        # see Note [The first optimizer]; the keys of dictionaries are the numbers of other optimizers
        self._first: weakref.ref[Any] | None = None
        self.first_number = self._previous_number = 0  # 0 means: no optimizer
        self._steps = 0  # number of steps of the first optimizer
        self._steps_before: dict[int, int] = {}  # steps of the first optimizer before the other one's last step
        self._steps_since: dict[int, int] = {}  # steps of the other optimizer since the first one's last step
        self._most_between = 0  # the largest number of steps that another optimizer made between two steps of the first
        self._take_turns: set[int] = set()

    def __reduce__(self) -> tuple[type, tuple[()]]:  # wrappers can be pickled, see tracer/state.py
        return Optimizers, ()

    def add(self, optimizer: object) -> int:
        """Return the optimizer's number."""
        if id(optimizer) not in self._alive:
            self._alive[id(optimizer)] = optimizer
            self.made += 1
            self._numbers[id(optimizer)] = self.made
        return self._numbers[id(optimizer)]

    def __bool__(self) -> bool:
        return len(self._alive) > 0

    @property
    def class_name(self) -> str | None:
        first = self._first() if self._first is not None else None
        chosen = first if first is not None else next(iter(self._alive.values()), None)
        return None if chosen is None else type(chosen).__name__

    def is_first(self, optimizer: object) -> bool:
        """Return True if this weight update by `optimizer` ends a training step."""
        steps, first = self._steps_since, None if self._first is None else self._first()
        if first is not optimizer:
            number = self.add(optimizer)
            if first is not None and not self._replaces_first(number):
                steps[number] = steps.get(number, 0) + 1
                self._steps_before[number] = self._steps
                return False
            self._first, self._previous_number, self.first_number = weakref.ref(optimizer), self.first_number, number
            self._steps = self._most_between = 0
            self._steps_before.clear()
            steps.clear()
        if steps:
            self._most_between = max(self._most_between, *steps.values())
            steps.clear()
        self._steps += 1
        return True

    def _replaces_first(self, number: int) -> bool:
        # see Note [The first optimizer]
        if self._steps_since.get(number, 0) >= max(_STOPPED, 2 * self._most_between):
            return True
        if number in self._take_turns:
            return False
        if self._steps <= 2 and number == self._previous_number:
            self._take_turns.update((self.first_number, *self._steps_since))
            return True
        return self._steps >= self._steps_before.get(number, 0) + 2


class StepSplitter:
    def __init__(self, optimizers: Optimizers) -> None:
        self._optimizers = optimizers
        self._of_plain_tensors = True
        self._updates_by_hand = False
        self._steps_in_backward = self._steps_outside = False  # whether optimizers have stepped in or outside backward passes
        self._trains = False
        self._infers = False
        # the outermost module of the previous batch, or None if a step has ended since then
        self._last_batch_first: int | None = None
        self._batch = False  # a DataLoader returned a batch, and no step has ended since
        self._goes_back = False  # a backward pass has run since the last step of an optimizer, and no step has ended since
        self._newest = _BEFORE
        self._called_again = _EARLIER
        self._evaluated: int | None = None  # first module of the previous step if this was an evaluation step
        self._trained: int | None = None  # first module of the last training step
        self._called_before = False  # whether a model was called without a new batch between the last two training steps
        self.trains_on_batches = False  # the last training step used a new batch
        self._asked = False
        self._more: bool | None = None
        self._forget_calls()

    def _forget_calls(self) -> None:
        self._first: int | None = None
        self._with_gradient = self._backward = False
        if self._called_again == _NOW:
            self._called_again = _EARLIER

    def _begin_step(self) -> None:
        self._last_batch_first = None
        self._batch = self._goes_back = False
        self._forget_calls()

    def drop_step(self) -> None:
        """Forget the calls of the unfinished step."""
        self._newest = _BEFORE
        self._begin_step()
        self._asked = False

    @property
    def state(self) -> tuple[object, ...]:
        return tuple(value for name, value in vars(self).items() if name != "_optimizers")

    @property
    def is_undecided(self) -> bool:
        return self._first is None and not self._backward

    @property
    def ends_at_backward(self) -> bool:
        return self._of_plain_tensors and self._updated_by_hand

    @property
    def evaluating(self) -> bool:
        if self._backward:
            return False
        if self._first is None:
            return self._called_again == _NOW and not self._called_before
        return not self._with_gradient or (self._infers and not self._trains)

    @property
    def at_stop(self) -> StepEnd:
        if self._updates_by_hand and self._updated_by_hand:
            return StepEnd.TRAINING
        only_forward = self._first is not None and self._only_infers
        if not (self.evaluating or only_forward):
            return StepEnd.NOTHING
        return StepEnd.TRAINING if self._goes_back else StepEnd.EVALUATION

    @property
    def _updated_by_hand(self) -> bool:
        return self._backward and (not self._optimizers or (self._steps_in_backward and not self._steps_outside))

    def stepped_in_backward(self) -> None:
        """Handle an optimizer that updates parameters during a backward pass. The training step continues."""
        self._trains = self._steps_in_backward = True

    def optimizer_stepped(self, is_first: bool) -> StepEnd:
        self._trains = True
        self._steps_outside |= is_first
        self._goes_back = False
        return self._end(StepEnd.TRAINING if is_first else StepEnd.NOTHING)

    def loader_entered(self) -> StepEnd:
        self._of_plain_tensors = False
        last_batch_first = self._first if self._batch else None
        ends = self._end(self._ends_by_hand() or (StepEnd.EVALUATION if self.evaluating else StepEnd.NOTHING))
        if not ends and last_batch_first is not None:
            self._last_batch_first = last_batch_first
        self._batch, self._newest = True, _NEW
        self._forget_calls()
        return ends

    def loader_exhausted(self) -> None:
        self._batch, self._newest = False, _ENDED

    def module_called(self, module: int, grad_enabled: bool, more_recorded: Callable[[], bool | None] | None = None) -> StepEnd:
        """Handle the call of an outermost module. `module` is the `id()` of the module, or a negative number for a compiled
        function."""
        # see Note [Steps of recorded inference] and Note [Compiled functions]
        if self._first is not None and module < 0 <= self._first:
            return StepEnd.NOTHING
        if self._first is not None and self._first < 0 <= module and not self._backward:
            self._forget_calls()
            if self._newest == _USED:
                self._newest = _NEW  # the compiled function did not use the batch
        self._of_plain_tensors = False
        ends = StepEnd.NOTHING
        if grad_enabled or module == self._first:
            ends = self._ends_by_hand()
        counts = grad_enabled or self._newest >= _NEW or not self.trains_on_batches
        more = self._holds_more(more_recorded) if module == self._first else None
        if not ends and not more and counts:
            self._infers |= more is False and self._only_infers
            ends = StepEnd.EVALUATION if self._is_next_batch(module, grad_enabled) else StepEnd.NOTHING
        ends = self._end(ends)
        self._asked = False
        self._newest = (_BEFORE, _USED, _USED, _BEFORE)[self._newest]
        if self._first is None and counts:
            self._first = module
        if not counts:
            self._called_again = _NOW
        self._with_gradient |= grad_enabled
        return ends

    def copied(self, more_recorded: Callable[[], bool | None] | None = None) -> StepEnd:
        # see Note [The next batch is copied]
        ends = StepEnd.NOTHING
        if self._first is None:
            ends = self._end(StepEnd.EVALUATION if self.evaluating else StepEnd.NOTHING)
        elif self._only_infers and not self._batch:
            more = self._holds_more(more_recorded)
            self._infers |= more is False
            ends = self._end(StepEnd.EVALUATION if self.evaluating and not more else StepEnd.NOTHING)
        self._newest = _NEW
        return ends

    def _holds_more(self, more_recorded: Callable[[], bool | None] | None) -> bool | None:
        if not self._asked:
            silent = self._batch or self._backward
            self._asked, self._more = True, None if silent or more_recorded is None else more_recorded()
        return self._more

    @property
    def _only_infers(self) -> bool:
        return not self._trains and not self._optimizers

    def backward(self) -> StepEnd:
        # see Note [Training without an optimizer]
        ends = self._end(self._ends_by_hand() if self.ends_at_backward else StepEnd.NOTHING)
        self._trains = self._backward = self._goes_back = True
        return ends

    def _ends_by_hand(self) -> StepEnd:
        if not self._updated_by_hand:
            return StepEnd.NOTHING
        self._updates_by_hand = True
        return StepEnd.TRAINING

    def _is_next_batch(self, module: int, grad_enabled: bool) -> bool:
        if self.evaluating:
            # see Note [Evaluation through another module]
            is_other = grad_enabled and self._newest == _NEW and self._first == self._evaluated != self._trained
            return (module == self._first or is_other) and (self._only_infers or not self._batch)
        if module == self._last_batch_first and not self._trains:
            self._infers = True
            return True
        return False

    def _end(self, ends: StepEnd) -> StepEnd:
        if ends and self._goes_back:
            ends = StepEnd.TRAINING
        if ends == StepEnd.TRAINING:
            self.trains_on_batches = self._newest in (_NEW, _USED)
            self._called_before = self._called_again != _LONG_AGO
            self._newest, self._called_again = _BEFORE, _LONG_AGO
            self._trained = self._first
        if ends:
            self._evaluated = self._first if ends == StepEnd.EVALUATION else None
            if self._newest == _USED:
                self._newest = _BEFORE
            self._begin_step()
        return ends
