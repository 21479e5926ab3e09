"""Cuts a running script into steps and phases: what the recorder and the replayer do alike, and what differs as a listener.

    cut = ScriptCut(listener, optimizers)
    cut.enter(thread, "loader", now_ns)             # listener.segment_begins(thread, "loader", now_ns)
    cut.leave(thread, "loader", now_ns)             # listener.phase_left(...)
    cut.module_called(thread, id(model), True, now_ns)      # listener.segment_begins(thread, "forward", now_ns)
    cut.enter(thread, "backward", now_ns)
    cut.leave(thread, "backward", now_ns)
    cut.optimizer_stepped(thread, True, now_ns)     # listener.step_ends(thread, CutStep(...))

Where steps end is decided by `traces/script/step_rule.py`, which phase an event belongs to by `traces/script/phase_rule.py`.
Here they are joined:

Note [The script's thread]
    Steps and phases are those of one thread: the one that steps the first optimizer, and until then the first that loads a
    batch or calls a module. What other threads do (replicas, prefetchers, autograd's device threads) is part of the phase that
    this thread is in. As long as no thread has shown itself, all are taken for it.

Note [Set-up is no step]
    What a script does before its first batch (a dry run, the warm-up of an allocator) is no part of its first step, unless
    it has trained by then; nor what it does before it makes an optimizer, as moving the model to the device. Loops without a
    DataLoader begin with their first phase after that which is not "other", or with the first zero_grad if until then there
    were only ops of no module and no loss: a batch drawn on the device, say.

Note [Forward before backward]
    The recorder sees no single ops, so a model without modules gives no sign of its forward pass. A loss or a backward pass
    with neither a forward pass nor a loss before it, since the last backward pass, shows that there was one: it
    is the time since the last phase.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

from traces.script.phase_rule import ASIDE, LOSS, PLAIN, PhaseCut, Segment
from traces.script.step_rule import Optimizers, StepCut, StepEnd
from traces.script.workload_observer import WorkloadObserver

ThreadT = TypeVar("ThreadT")
ThreadT_contra = TypeVar("ThreadT_contra", contravariant=True)

# For each class of op (traces/script/phase_rule.py), whether such an op would begin another segment.
Turns = tuple[bool, bool, bool]
_NO_TURNS: Turns = (False, False, False)


class CutStep(NamedTuple):
    """A step that has ended. Its segments tile it from its first event on."""

    is_evaluation: bool
    segments: list[Segment]
    left_ns: int | None  # when its last phase was left, if that was entered by name and nothing came after it
    end_ns: int


class ScriptListener(Protocol[ThreadT_contra]):
    """What is done at the events of a script. Times are those of the events as they were given."""

    def segment_begins(self, thread: ThreadT_contra, name: str, now_ns: int) -> None:
        """A segment of a phase begins, and the one before ends."""

    def phase_left(self, thread: ThreadT_contra, name: str, now_ns: int) -> None:
        """A phase that was entered by name is left; its segment lasts until the next one begins."""

    def set_up_ends(self, thread: ThreadT_contra, now_ns: int) -> None:
        """All segments so far were set-up. See Note [Set-up is no step]."""

    def step_evaluates(self, is_evaluation: bool) -> None:
        """Whether the step under way is an evaluation step, as far as it is known by now."""

    def step_ends(self, thread: ThreadT_contra, step: CutStep) -> None:
        """A step has ended."""

    def more_recorded(self) -> bool | None:
        """Whether the recorded step under way holds another call of the module; None where none is followed."""


class ScriptCut(Generic[ThreadT]):
    """Where the script is. `thread` is whatever identifies the calling thread; times are integer nanoseconds."""

    def __init__(self, listener: ScriptListener[ThreadT], optimizers: Optimizers) -> None:
        self._listener = listener
        self._steps, self._phases = StepCut(optimizers), PhaseCut()
        self.workload = WorkloadObserver()
        self._thread: ThreadT | None = None
        self._has_steps = False
        self._called_module = self._in_module = False
        self._optimizers = optimizers
        self._optimizers_made = 0  # as far as was seen

    @property
    def current(self) -> str:
        """The phase of the segment under way, "" before the first event of a step."""
        return self._phases.current

    @property
    def entered(self) -> str:
        """The phase that was entered by name and not left yet, or ""."""
        return self._phases.current if self._phases.inside else ""

    @property
    def segments(self) -> list[Segment]:
        """The segments of the step under way that have ended."""
        return self._phases.segments

    @property
    def turns(self) -> Turns:
        """By class of op: whether such an op of the script's thread would begin another segment."""
        turns = self._phases.turns
        return _NO_TURNS if self._phases.inside else (turns(PLAIN), turns(LOSS), turns(ASIDE))

    def enter(self, thread: ThreadT, phase: str, now_ns: int) -> None:
        """The script enters loader, h2d, zero_grad, backward, optimizer or other."""
        if not self._is_script(thread, shows=phase == "loader"):
            return
        self._see_optimizers(thread, now_ns)
        if phase == "loader":
            self._end(thread, self._steps.loader_entered(), now_ns)
            self._drop_set_up(thread, now_ns)
        elif phase == "h2d" and not self._in_module:
            self._end(thread, self._steps.copied(self._listener.more_recorded), now_ns)
        elif phase == "zero_grad" and not self._called_module:
            self._drop_ops_of_set_up(thread, now_ns)
        elif phase == "backward":
            ends = self._steps.backward()
            self._end(thread, ends, now_ns)
            self._listener.step_evaluates(False)
            # Neither a script's very first event nor one backward pass right after another shows a forward pass.
            if not ends and self.current != "backward" and (self.current or self._has_steps):
                self._forward_before(thread, now_ns)
        if self._phases.enter(phase, now_ns):
            self._begun(thread, now_ns)

    def leave(self, thread: ThreadT, phase: str, now_ns: int) -> None:
        """The script leaves a phase by name; without effect unless it is the one under way."""
        if self._is_script(thread) and self.entered == phase:
            self._phases.leave(phase, now_ns, open_ended=phase == "loader")
            self._listener.phase_left(thread, phase, now_ns)

    def op(self, thread: ThreadT, kind: int, now_ns: int) -> None:
        """An op of this class begins, or something that shows such ops (a call of a loss function, a read of a value)."""
        if self._is_script(thread):
            if kind == LOSS:
                self._forward_before(thread, now_ns)
            self._op(thread, kind, now_ns)

    def module_called(self, thread: ThreadT, module: int, grad_enabled: bool, now_ns: int) -> None:
        """An outermost module is called: a forward pass goes on or begins."""
        if not self._is_script(thread, shows=True) or self._phases.inside:
            return
        self._see_optimizers(thread, now_ns)
        self._called_module = self._in_module = True
        self._end(thread, self._steps.module_called(module, grad_enabled, self._listener.more_recorded), now_ns)
        self._listener.step_evaluates(self._steps.evaluating)
        self._op(thread, PLAIN, now_ns)

    def module_returned(self) -> None:
        """The outermost module that was called last has returned."""
        self._in_module = False

    def loader_exhausted(self, thread: ThreadT) -> None:
        """The loader that was entered last had no batch left."""
        if self._is_script(thread):
            self._steps.loader_exhausted()

    def optimizer_stepped(self, thread: ThreadT, is_first: bool, now_ns: int) -> None:
        """An optimizer's `step` has returned; `is_first`: that of the optimizer that ends steps."""
        if is_first:
            self._thread = thread
        if self._is_script(thread):
            self._end(thread, self._steps.optimizer_stepped(is_first), now_ns)

    def stop(self, thread: ThreadT, now_ns: int) -> None:
        """The script ends: an evaluated batch is a step, a training step that waits for its optimizer is not."""
        self._end(thread, self._steps.at_stop, now_ns)

    def _is_script(self, thread: ThreadT, *, shows: bool = False) -> bool:
        """Whether it is the script's thread; `shows`: what it does shows that. See Note [The script's thread]."""
        if self._thread is None:
            if shows:
                self._thread = thread
            return True
        return self._thread == thread

    def _op(self, thread: ThreadT, kind: int, now_ns: int) -> None:
        if self._phases.op(kind, now_ns):
            self._begun(thread, now_ns)

    def _begun(self, thread: ThreadT, now_ns: int) -> None:
        """A segment has begun, perhaps the first one that is not set-up."""
        phases = self._phases
        if not self._has_steps and phases.segments and {segment.name for segment in phases.segments} == {"other"}:
            phases.segments.clear()
            self.workload.forget()
            self._listener.set_up_ends(thread, now_ns)
        self._listener.segment_begins(thread, phases.current, now_ns)

    def _forward_before(self, thread: ThreadT, now_ns: int) -> None:
        """See Note [Forward before backward]."""
        names = [segment.name for segment in self._phases.segments] + [self._phases.current]
        while names and (name := names.pop()) != "backward":
            if name in ("forward", "loss"):
                return
        self._op(thread, PLAIN, now_ns)

    def _drop_set_up(self, thread: ThreadT, now_ns: int) -> None:
        phases = self._phases
        names = {phases.current, *(segment.name for segment in phases.segments)}
        if phases.current and not self._has_steps and not names & {"loader", "backward"}:
            phases.close(now_ns)
            self.workload.forget()
            self._listener.set_up_ends(thread, now_ns)

    def _see_optimizers(self, thread: ThreadT, now_ns: int) -> None:
        if self._optimizers_made != self._optimizers.made:
            self._optimizers_made = self._optimizers.made
            self._drop_set_up(thread, now_ns)

    def _drop_ops_of_set_up(self, thread: ThreadT, now_ns: int) -> None:
        names = {self._phases.current, *(segment.name for segment in self._phases.segments)}
        if "forward" in names and "loss" not in names:
            self._drop_set_up(thread, now_ns)

    def _end(self, thread: ThreadT, ends: StepEnd, now_ns: int) -> None:
        if not ends:
            return
        phases = self._phases
        if phases.current == "backward" and not phases.inside:  # the weights were updated by hand after it
            self._op(thread, PLAIN, now_ns)
        self._has_steps = True
        left_ns = phases.boundary_ns
        self.workload.step_ended(is_evaluation=ends == StepEnd.EVALUATION)
        step = CutStep(ends == StepEnd.EVALUATION, phases.close(now_ns), left_ns, now_ns)
        self._listener.step_ends(thread, step)
