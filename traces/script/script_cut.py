"""Cuts a running script into steps and phases and reports them to a listener, the recorder or the replayer.

    cut = ScriptCut(listener, optimizers)
    cut.enter(thread, "loader", now_ns)             # listener.segment_begins(thread, "loader", now_ns)
    cut.leave(thread, "loader", now_ns)             # listener.phase_left(...)
    cut.module_called(thread, id(model), True, now_ns)      # listener.segment_begins(thread, "forward", now_ns)
    cut.enter(thread, "backward", now_ns)
    cut.leave(thread, "backward", now_ns)
    cut.optimizer_stepped(thread, True, now_ns)     # listener.step_ends(thread, CutStep(...))

`traces/script/step_rule.py` decides where steps end, and `traces/script/phase_rule.py` decides the phase of an event. This
module combines them:

Note [The script's thread]
    Steps and phases belong to one thread: the one that steps the first optimizer or, before that, the first that loads a batch
    or calls a module. Work of other threads (replicas, prefetchers, autograd's device threads) counts in the current phase of
    this thread. Until the thread is known, all threads are treated as it.

Note [Set-up is no step]
    Work before the first batch (a dry run, allocator warm-up) is not part of the first step, unless the script has trained by
    then. The same holds for work before an optimizer is made, such as moving the model to the device. After that, a loop
    without a DataLoader begins with its first phase other than "other". If there were only ops without a module and a loss
    until then (a batch created on the device), it begins with the first zero_grad.

Note [Forward before backward]
    The recorder does not see single ops, so a model without modules shows no forward pass. If a loss or backward pass comes
    without a forward pass or loss since the last backward pass, the time since the last phase is the forward pass.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

from traces.script.phase_rule import ASIDE, LOSS, PLAIN, PhaseCut, Segment
from traces.script.step_rule import Optimizers, StepCut, StepEnd
from traces.script.workload_observer import WorkloadObserver

ThreadT = TypeVar("ThreadT")
ThreadT_contra = TypeVar("ThreadT_contra", contravariant=True)

# For each class of op (traces/script/phase_rule.py): whether such an op would begin a new segment.
Turns = tuple[bool, bool, bool]
_NO_TURNS: Turns = (False, False, False)


class CutStep(NamedTuple):
    """A finished step. Its segments cover it from its first event without gaps."""

    is_evaluation: bool
    segments: list[Segment]
    left_ns: int | None  # when its last phase was left, if that was entered by name and nothing followed
    end_ns: int


class ScriptListener(Protocol[ThreadT_contra]):
    """Handles the events of a script. Times are those passed to ScriptCut."""

    def segment_begins(self, thread: ThreadT_contra, name: str, now_ns: int) -> None:
        """A segment begins, and the previous one ends."""

    def phase_left(self, thread: ThreadT_contra, name: str, now_ns: int) -> None:
        """A phase that was entered by name is left. Its segment lasts until the next one begins."""

    def set_up_ends(self, thread: ThreadT_contra, now_ns: int) -> None:
        """All segments so far were set-up. See Note [Set-up is no step]."""

    def step_evaluates(self, is_evaluation: bool) -> None:
        """Whether the current step is an evaluation step, as far as known."""

    def step_ends(self, thread: ThreadT_contra, step: CutStep) -> None:
        """A step has ended."""

    def more_recorded(self) -> bool | None:
        """Whether the current recorded step contains another call of the module; None if no recording is followed."""


class ScriptCut(Generic[ThreadT]):
    """A script's position in its steps and phases. `thread` identifies the calling thread; times are integer nanoseconds."""

    def __init__(self, listener: ScriptListener[ThreadT], optimizers: Optimizers) -> None:
        self._listener = listener
        self._steps, self._phases = StepCut(optimizers), PhaseCut()
        self.workload = WorkloadObserver()
        self._thread: ThreadT | None = None
        self._has_steps = False
        self._called_module = self._in_module = False
        self._optimizers = optimizers
        self._optimizers_made = 0  # number seen so far

    @property
    def current(self) -> str:
        """The phase of the current segment, "" before the first event of a step."""
        return self._phases.current

    @property
    def entered(self) -> str:
        """The phase that was entered by name and not left yet, or ""."""
        return self._phases.current if self._phases.inside else ""

    @property
    def segments(self) -> list[Segment]:
        """The finished segments of the current step."""
        return self._phases.segments

    @property
    def turns(self) -> Turns:
        """For each class of op: whether such an op on the script's thread would begin a new segment."""
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
            # No forward pass is implied by the first event of a script, or by a backward pass right after another.
            if not ends and self.current != "backward" and (self.current or self._has_steps):
                self._forward_before(thread, now_ns)
        if self._phases.enter(phase, now_ns):
            self._begun(thread, now_ns)

    def leave(self, thread: ThreadT, phase: str, now_ns: int) -> None:
        """The script leaves a phase by name. No effect unless it is the current phase."""
        if self._is_script(thread) and self.entered == phase:
            self._phases.leave(phase, now_ns, open_ended=phase == "loader")
            self._listener.phase_left(thread, phase, now_ns)

    def op(self, thread: ThreadT, kind: int, now_ns: int) -> None:
        """An op of this class begins, or something that implies such ops (a loss function call, a read of a value)."""
        if self._is_script(thread):
            if kind == LOSS:
                self._forward_before(thread, now_ns)
            self._op(thread, kind, now_ns)

    def module_called(self, thread: ThreadT, module: int, grad_enabled: bool, now_ns: int) -> None:
        """An outermost module is called: a forward pass begins or continues."""
        if not self._is_script(thread, shows=True) or self._phases.inside:
            return
        self._see_optimizers(thread, now_ns)
        self._called_module = self._in_module = True
        self._end(thread, self._steps.module_called(module, grad_enabled, self._listener.more_recorded), now_ns)
        self._listener.step_evaluates(self._steps.evaluating)
        self._op(thread, PLAIN, now_ns)

    def module_returned(self) -> None:
        """The last called outermost module has returned."""
        self._in_module = False

    def loader_exhausted(self, thread: ThreadT) -> None:
        """The last entered loader had no batch left."""
        if self._is_script(thread):
            self._steps.loader_exhausted()

    def optimizer_stepped(self, thread: ThreadT, is_first: bool, now_ns: int) -> None:
        """An optimizer's `step` has returned. `is_first`: this optimizer ends steps."""
        if is_first:
            self._thread = thread
        if self._is_script(thread):
            self._end(thread, self._steps.optimizer_stepped(is_first), now_ns)

    def stop(self, thread: ThreadT, now_ns: int) -> None:
        """The script ends. An evaluated batch counts as a step; a training step without its optimizer step does not."""
        self._end(thread, self._steps.at_stop, now_ns)

    def _is_script(self, thread: ThreadT, *, shows: bool = False) -> bool:
        """Whether this is the script's thread. `shows`: the event identifies it. See Note [The script's thread]."""
        if self._thread is None:
            if shows:
                self._thread = thread
            return True
        return self._thread == thread

    def _op(self, thread: ThreadT, kind: int, now_ns: int) -> None:
        if self._phases.op(kind, now_ns):
            self._begun(thread, now_ns)

    def _begun(self, thread: ThreadT, now_ns: int) -> None:
        """A segment has begun. It may be the first after set-up."""
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
        if phases.current == "backward" and not phases.inside:  # the weights were then updated by hand
            self._op(thread, PLAIN, now_ns)
        self._has_steps = True
        left_ns = phases.boundary_ns
        self.workload.step_ended(is_evaluation=ends == StepEnd.EVALUATION)
        step = CutStep(ends == StepEnd.EVALUATION, phases.close(now_ns), left_ns, now_ns)
        self._listener.step_ends(thread, step)
