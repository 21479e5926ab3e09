"""Finds the steps and phases of a running script, for the recorder or the replayer.

    splitter = ScriptSplitter(listener, optimizers)
    splitter.enter(thread, "loader", now_ns)             # listener.segment_begins(thread, "loader", now_ns)
    splitter.leave(thread, "loader", now_ns)             # listener.phase_left(...)
    splitter.module_called(thread, id(model), True, now_ns)      # listener.segment_begins(thread, "forward", now_ns)
    splitter.enter(thread, "backward", now_ns)
    splitter.leave(thread, "backward", now_ns)
    splitter.optimizer_stepped(thread, True, now_ns)     # listener.step_ends(thread, CutStep(...))

Note [The script's thread]
    Steps and phases are those of the thread that calls `step` of the first optimizer. Before the first call of an optimizer,
    they are those of the first thread that loads a batch, calls a module or starts a backward pass. The work of all other
    threads, such as autograd's threads, counts in the current phase of this thread.

Note [Set-up is no step]
    Work before the first batch, such as a dry run, is not part of the first training step. Work before an optimizer is created,
    such as moving the model to the device, is also excluded. If the script has no DataLoader, the first step begins with the
    first phase after this work.

Note [Forward before backward]
    The recorder does not see ops, so it does not see the forward pass of a model without modules. If a loss or backward pass
    begins without a forward pass before it, the time since the last phase counts as the forward pass. Note [After a backward
    pass] in phase_rule.py explains when a forward pass begins between two backward passes.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

from traces.script.phase_rule import ASIDE, FORWARD, LOSS, PLAIN, READ, PhaseSplitter, Segment
from traces.script.step_rule import Optimizers, StepEnd, StepSplitter
from traces.script.workload_observer import WorkloadObserver

ThreadT = TypeVar("ThreadT")
ThreadT_contra = TypeVar("ThreadT_contra", contravariant=True)

# for each class of ops in phase_rule.py: True if such an op begins a new segment
BeginsSegment = tuple[bool, bool, bool, bool]
_BEGINS_NONE: BeginsSegment = (False, False, False, False)


class CutStep(NamedTuple):
    is_evaluation: bool
    segments: list[Segment]
    # the time at which the last phase was left, or None after any later event
    left_ns: int | None
    end_ns: int


class ScriptListener(Protocol[ThreadT_contra]):
    def segment_begins(self, thread: ThreadT_contra, name: str, now_ns: int) -> None:
        """Called when a phase begins."""

    def phase_left(self, thread: ThreadT_contra, name: str, now_ns: int) -> None: ...

    def set_up_ends(self, thread: ThreadT_contra, now_ns: int) -> None:
        # see Note [Set-up is no step]
        """Called when the script's setup ends. Earlier segments belong to no step."""

    def step_evaluates(self, is_evaluation: bool) -> None:
        """Called with True in an evaluation step."""

    def step_ends(self, thread: ThreadT_contra, step: CutStep) -> None:
        """Called when a step has ended."""

    def more_recorded(self) -> bool | None:
        """Return True if the model will be called again in this step, as it was in the recorded step. Return None if this is
        unknown."""


class ScriptSplitter(Generic[ThreadT]):
    def __init__(self, listener: ScriptListener[ThreadT], optimizers: Optimizers) -> None:
        self._listener = listener
        self._steps, self.phases = StepSplitter(optimizers), PhaseSplitter()
        self.workload = WorkloadObserver()
        self.thread: ThreadT | None = None
        # classes of ops that do not begin a phase, see Note [Ops between recorded phases] in step_tracker.py
        self.unseen: tuple[int, ...] = ()
        self.is_before_batch = False  # see Note [Ops before the batch] in phase_rule.py
        self._has_steps = False
        self._called_module = self.is_in_module = False
        self._optimizers = optimizers
        self._optimizers_made = 0

    @property
    def current(self) -> str:
        return self.phases.current

    @property
    def entered(self) -> str:
        return self.phases.current if self.phases.inside else ""

    @property
    def state(self) -> tuple[object, ...]:
        return self.thread, self._has_steps, self._called_module, self.is_in_module, *self._steps.state, *self.phases.state

    @property
    def is_undecided(self) -> bool:
        return self._steps.is_undecided

    @property
    def begins_segment(self) -> BeginsSegment:
        begins, unseen = self.phases.begins_phase, self.unseen
        if self.phases.inside:
            return _BEGINS_NONE
        plain = ASIDE if self.is_before_batch else PLAIN
        return PLAIN not in unseen and begins(plain), begins(LOSS), ASIDE not in unseen and begins(ASIDE), begins(READ)

    def enter(self, thread: ThreadT, phase: str, now_ns: int, *, moves_tensor: bool = True) -> None:
        if self.thread != thread and self._is_other_thread(thread, shows=phase in ("loader", "backward")):
            return
        if self._optimizers_made != self._optimizers.made:
            self._see_optimizers(thread, now_ns)
        if phase == "loader":
            self._end(thread, self._steps.loader_entered(), now_ns)
            if not self._has_steps:
                self._drop_set_up(thread, now_ns)
        elif phase == "h2d":
            if moves_tensor and not self.is_in_module:
                self._end(thread, self._steps.copied(self._listener.more_recorded), now_ns)
        elif phase == "zero_grad":
            if not self._called_module:
                self._drop_ops_of_set_up(thread, now_ns)
        elif phase == "backward":
            ends = self._steps.backward()
            self._end(thread, ends, now_ns)
            self._listener.step_evaluates(False)
            # If a script begins with a backward pass, no forward phase is added before the backward pass.
            if not ends and (self.phases.current or self._has_steps):
                self._forward_before(thread, now_ns)
        elif phase == "other" and not self.phases.begins_at_copy:
            return
        if self.phases.enter(phase, now_ns):
            self._begun(thread, now_ns)

    def leave(self, thread: ThreadT, phase: str, now_ns: int) -> None:
        if self.thread != thread and self._is_other_thread(thread):
            return
        phases = self.phases
        if phases.inside and phases.current == phase:
            phases.leave(phase, now_ns, open_ended=phase == "loader")
            self._listener.phase_left(thread, phase, now_ns)

    def op(self, thread: ThreadT, kind: int, now_ns: int) -> None:
        if kind in self.unseen or (self.thread != thread and self._is_other_thread(thread)):
            return
        if kind == LOSS:
            self._forward_before(thread, now_ns)
        if self.phases.op(ASIDE if kind == PLAIN and self.is_before_batch else kind, now_ns):
            self._begun(thread, now_ns)

    def autograd_recorded(self, thread: ThreadT, uses_gradients: bool, now_ns: int) -> None:
        if self.phases.is_after_backward and (self.thread == thread or not self._is_other_thread(thread)):
            # Ops after a backward pass may update the weights, so they do not mark the beginning of a forward pass.
            kind = FORWARD if uses_gradients and not self._steps.ends_at_backward else PLAIN
            if self.phases.op(kind, now_ns):
                self._begun(thread, now_ns)

    def module_called(self, thread: ThreadT, module: int, grad_enabled: bool, now_ns: int) -> None:
        if (self.thread != thread and self._is_other_thread(thread, shows=True)) or self.phases.inside:
            return
        if self._optimizers_made != self._optimizers.made:
            self._see_optimizers(thread, now_ns)
        self._called_module = self.is_in_module = True
        self._end(thread, self._steps.module_called(module, grad_enabled, self._listener.more_recorded), now_ns)
        self._listener.step_evaluates(self._steps.evaluating)
        if self.phases.op(FORWARD if grad_enabled and module >= 0 else PLAIN, now_ns):
            self._begun(thread, now_ns)

    def module_returned(self) -> None:
        self.is_in_module = False

    def loader_exhausted(self, thread: ThreadT) -> None:
        if self.thread == thread or not self._is_other_thread(thread):
            self._steps.loader_exhausted()

    def optimizer_stepped(self, thread: ThreadT, is_first: bool, now_ns: int) -> None:
        """Handle the return of an optimizer's `step`. A training step ends when the script calls `step` of its first
        optimizer."""
        if is_first:
            self.thread = thread
        elif self.phases.inside and self.phases.current == "backward":
            return self._steps.stepped_in_backward()
        if self.thread != thread and self._is_other_thread(thread):
            return
        self._end(thread, self._steps.optimizer_stepped(is_first), now_ns)

    def stop(self, thread: ThreadT, now_ns: int) -> None:
        """Handle the end of the script. An unfinished step is dropped."""
        self._end(thread, self._steps.at_stop, now_ns)
        self._steps.drop_step()

    def drop_step(self, thread: ThreadT, now_ns: int) -> None:
        """Drop the unfinished step. The next phase begins a new one."""
        self._steps.drop_step()
        self.phases.close(now_ns)
        self.phases.begin_ns = None
        self.is_in_module = False
        self.workload.forget()
        self._listener.set_up_ends(thread, now_ns)

    def _is_other_thread(self, thread: ThreadT, *, shows: bool = False) -> bool:
        # see Note [The script's thread]
        if self.thread is None and shows:
            self.thread = thread
            return False
        return self.thread is not None

    def _begun(self, thread: ThreadT, now_ns: int) -> None:
        phases = self.phases
        if not self._has_steps and phases.segments and {segment.name for segment in phases.segments} == {"other"}:
            phases.segments.clear()
            self.workload.forget()
            self._listener.set_up_ends(thread, now_ns)
        self._listener.segment_begins(thread, phases.current, now_ns)

    def _forward_before(self, thread: ThreadT, now_ns: int) -> None:
        phases = self.phases
        if phases.current in ("forward", "loss", "backward"):
            return
        for segment in reversed(phases.segments):
            if segment.name in ("forward", "loss"):
                return
            if segment.name == "backward":
                break
        if phases.op(PLAIN, now_ns if phases.current or phases.begin_ns is None else phases.begin_ns):
            self._begun(thread, now_ns)

    def _drop_set_up(self, thread: ThreadT, now_ns: int) -> None:
        phases = self.phases
        names = {phases.current, *(segment.name for segment in phases.segments)}
        if phases.current and not self._has_steps and not names & {"loader", "backward"}:
            phases.close(now_ns)
            self.workload.forget()
            self._listener.set_up_ends(thread, now_ns)

    def _see_optimizers(self, thread: ThreadT, now_ns: int) -> None:
        self._optimizers_made = self._optimizers.made
        self._drop_set_up(thread, now_ns)

    def _drop_ops_of_set_up(self, thread: ThreadT, now_ns: int) -> None:
        names = {self.phases.current, *(segment.name for segment in self.phases.segments)}
        if "forward" in names and "loss" not in names:
            self._drop_set_up(thread, now_ns)

    def _end(self, thread: ThreadT, ends: StepEnd, now_ns: int) -> None:
        if not ends:
            return
        phases = self.phases
        if phases.current == "backward" and phases.op(PLAIN, now_ns):
            self._begun(thread, now_ns)
        self._has_steps = True
        left_ns = phases.boundary_ns
        is_evaluation = ends == StepEnd.EVALUATION
        self.workload.step_ended(is_evaluation)
        segments, phases.begin_ns = phases.close(now_ns), now_ns
        self._listener.step_ends(thread, CutStep(is_evaluation, segments, left_ns, now_ns))
