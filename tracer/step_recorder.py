"""Divides the running script into steps and phases, and records a CUDA event at each boundary.

    steps = StepRecorder(...)
    steps.report(ENTER, "backward")     # `ScriptSplitter` calls `steps` back at each boundary

Note [Segments on several streams]
    A segment (a phase of a step) begins and ends with CUDA events on the same stream. Usually, one event ends a segment and
    begins the next segment. If the script changes the current stream between two segments, the second segment begins with a
    separate event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import exception
from threading import get_ident
from typing import Any

from tracer.communication import CommunicationRecorder
from tracer.device.boundary_events import BoundaryEvent, BoundaryEvents, EventStream
from tracer.own_cost import OwnCost, costed
from tracer.profile import Profiler
from tracer.recording_writer import RecordingWriter
from tracer.repeated_steps import (
    BEGINS,
    CONTINUES,
    ENDS,
    ENTER,
    LEAVE,
    LEAVES,
    MODULE,
    NOTHING,
    OP,
    RECORDED,
    STEPPED,
    Meaning,
    RepeatedSteps,
    StepPlan,
)
from tracer.schedule import Schedule
from tracer.writing.step_writer import DataParallelStage, EndedStep, Found, Read
from tracer.writing.thread_rows import ThreadRows
from traces.comparison.thresholds import FEWEST_CLEAN_STEPS
from traces.model.trace import NONE, StepKind, Untimed
from traces.script.phase_rule import PLAIN, Segment, new_segment
from traces.script.script_splitter import CutStep, ScriptSplitter
from traces.script.step_rule import Optimizers


class CapturedReports:
    """Stores the calls that one thread makes during the capture of a CUDA graph."""

    # see Note [Replays of a CUDA graph] in recorder.py

    def __init__(self) -> None:
        self.reports: list[tuple[int, Any]] = []
        self._thread = get_ident()

    def notes(self, kind: int, argument: Any) -> bool:
        """Store a call, or return False if the current thread is not the capturing thread."""
        if get_ident() != self._thread:
            return False
        self.reports.append((kind, argument))
        return True


class StepRecorder:
    """Implements the listener of `ScriptSplitter` (script_splitter.py). The recorder's lock protects all calls."""

    def __init__(
        self,
        optimizers: Optimizers,
        events: BoundaryEvents,
        schedule: Schedule,
        profiler: Profiler,
        writer: RecordingWriter,
        communication: CommunicationRecorder,
        threads: ThreadRows,
        cost: OwnCost,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.script = ScriptSplitter[int](self, optimizers)  # threads are identified by `threading.get_ident()`
        self.cost = cost
        self.has_returned = False  # True if a module has returned that `script` takes for running
        self.capture: CapturedReports | None = None  # in progress
        self.has_captured = False  # True if a CUDA graph was captured since the last step ended
        self.reads: list[Read] = []  # values read since the last step ended
        self.found: list[Found] = []  # sizes found since the last step ended
        self._events, self._schedule, self.profiler = events, schedule, profiler
        self._writer, self._communication, self._threads = writer, communication, threads
        self._clock, self._failed = cost.clock, failed
        self._offset_ns = cost.clock.offset_ns
        self._repeated = RepeatedSteps()
        self._state: tuple[object, ...] = ()  # of `script` when the current step began
        self._action = NOTHING  # what the current report has done
        self._boundary = NONE  # the number of the report at which the current phase was left
        self._is_catching_up = False  # True while `script` gets reports that already have events
        self._ended: CutStep | None = None  # the step that the current report has ended
        self._start_ns = NONE  # start of the current step, NONE before the first event of the first step
        self._start: BoundaryEvent | None = None  # the event at the start of the current step
        self._begins: dict[int, BoundaryEvent] = {}  # events that only begin a segment, by the host time of their boundary
        self._open: BoundaryEvent | None = None  # the start of the current segment
        self._stages: list[DataParallelStage] = []
        self.has_run_replicas = False  # see Note [The first replicas] in surfaces/torch_nn_parallel.py
        self._clean_steps = 0  # before the first profile
        self._is_unusual = True  # False if a repeated step is a clean step, after which nothing but the file needs attention

    # --- reports

    def report(self, kind: int, argument: Any = None) -> None:
        # see Note [Steps repeat] in repeated_steps.py
        cost = self.cost
        began_ns = cost.perf_ns()
        if kind == LEAVE and (error := exception()) is not None:
            self._failed(error)
        if self.capture is not None and self.capture.notes(kind, argument):
            return
        with cost.lock:
            now_ns, repeated = began_ns + self._offset_ns, self._repeated
            times_ns, known = repeated.times_ns, repeated.known
            meaning = known[len(times_ns)] if known else None
            if meaning is None or meaning[0] != kind or meaning[1] != argument or get_ident() != self.script.thread:
                self._report_other(kind, argument, get_ident(), now_ns)
            elif (action := meaning[2]) == ENDS:
                self._repeats(repeated.ended(now_ns, self._start_ns), repeated.plan)
            else:
                times_ns.append(now_ns)
                if action == LEAVES:
                    opened = self._open
                    self._events.record(now_ns, None if opened is None else opened.of)
                elif action == BEGINS:
                    self._begin(now_ns)
                elif action == CONTINUES:
                    boundary = meaning[3]
                    self._continue_from(self._start_ns if boundary == NONE else times_ns[boundary])
                if kind == MODULE:
                    self.has_returned = False
            cost.calls += 1
            cost.spent_ns += cost.perf_ns() - began_ns - cost.excluded_ns
            cost.excluded_ns = 0

    @property
    def entered(self) -> str:
        repeated = self._repeated
        if repeated.known and repeated.times_ns:
            return repeated.known[len(repeated.times_ns) - 1].entered
        return self.script.entered

    def catch_up(self) -> None:
        """Process the calls of the current step that were stored but not processed yet."""
        repeated = self._repeated
        if repeated.known:
            thread = self.script.thread or get_ident()
            self._is_catching_up = True
            try:
                for meaning, time_ns in repeated.differs():
                    self._tell(meaning.kind, meaning.argument, thread, time_ns)
            finally:
                self._is_catching_up = False

    def stop(self) -> None:
        self.catch_up()
        self.script.stop(self._threads.script_thread, self._clock.now_ns())

    def _report_other(self, kind: int, argument: Any, thread: int, now_ns: int) -> None:
        script, repeated = self.script, self._repeated
        is_beside = script.thread is not None and script.thread != thread
        if is_beside and not (kind == STEPPED and argument):
            if kind == MODULE:
                self.profiler.all_threads = True
            return self._tell(kind, argument, thread, now_ns)  # only an optimizer's step in a backward pass has an effect
        self.catch_up()
        if is_beside or script.thread is None:
            repeated.give_up()
        if self.has_returned:
            script.module_returned()
            self.has_returned = False
        self._action, self._boundary, self._ended = NOTHING, NONE, None
        self._tell(kind, argument, thread, now_ns)
        meaning = Meaning(kind, argument, self._action, self._boundary, script.entered)
        if self._ended is None:
            repeated.add_call(meaning, now_ns)
            return
        before, self._state = self._state, script.state
        if self._action != ENDS or kind != STEPPED:
            repeated.give_up()
        repeated.learn(meaning, self._ended, before == self._state and not script.workload.is_open)

    def _tell(self, kind: int, argument: Any, thread: int, now_ns: int) -> None:
        script = self.script
        if kind == ENTER:
            script.enter(thread, argument, now_ns)
        elif kind == LEAVE:
            script.leave(thread, argument, now_ns)
        elif kind == MODULE:
            module, grad_enabled = argument
            script.module_called(thread, module, grad_enabled, now_ns)
        elif kind == OP:
            script.op(thread, argument, now_ns)
        elif kind == STEPPED:
            script.optimizer_stepped(thread, argument, now_ns)
        elif kind == RECORDED:
            script.autograd_recorded(thread, argument, now_ns)
        else:
            script.loader_exhausted(thread)

    def _did(self, action: int) -> None:
        if self._action != NOTHING:
            self._repeated.give_up()
        self._action = action

    # --- DataParallel stages

    def begin_stage(self, stream: Any = None, takes_event: bool = True) -> tuple[int, BoundaryEvent | None]:
        """Begin a stage of nn.DataParallel, and return its start time and its first CUDA event."""
        now_ns = self._clock.now_ns()
        self.report(OP, PLAIN)
        return now_ns, self._take_on(stream) if takes_event else None

    @costed
    def _take_on(self, stream: Any) -> BoundaryEvent | None:
        return self._events.take_on(stream)

    @costed
    def end_stage(self, name: str, begun: tuple[int, BoundaryEvent | None], stream: Any = None, thread: str = "") -> None:
        start_ns, begin = begun
        self.profiler.all_threads |= thread.startswith("replica")
        end_ns, end = self._clock.now_ns(), self._events.take_on(stream)
        self._stages.append(DataParallelStage(name, self._threads.row(thread), start_ns, end_ns, begin, end))

    # --- callbacks of ScriptSplitter

    def segment_begins(self, thread: int, name: str, now_ns: int) -> None:
        if self._is_catching_up:
            return
        segments = self.script.phases.segments
        boundary_ns = segments[-1].end_ns if segments else self._start_ns
        if boundary_ns == NONE:
            self._start_ns = now_ns
        if boundary_ns == NONE or (segments and boundary_ns == now_ns):
            self._did(BEGINS)
            self._begin(now_ns)
        else:
            self._did(CONTINUES)
            self._boundary = self._repeated.last_left if segments else NONE
            self._continue_from(boundary_ns)

    def phase_left(self, thread: int, name: str, now_ns: int) -> None:
        """Record a CUDA event at the end of a phase, except for the phase "loader"."""
        if name != "loader" and not self._is_catching_up:
            self._did(LEAVES)
            self._events.record(now_ns, self._stream_of(self._open))

    def set_up_ends(self, thread: int, now_ns: int) -> None:
        self._repeated.give_up()
        self._start_ns, self._start = NONE, None
        self._begins.clear()

    def step_evaluates(self, is_evaluation: bool) -> None:
        """Do nothing, because `step_ends` receives the same value in `CutStep.is_evaluation`."""

    def more_recorded(self) -> None:
        """Return None, because only a replay knows how many model calls were recorded."""

    def step_ends(self, thread: int, step: CutStep) -> None:
        self._did(ENDS)
        self._ended = step
        if self.script.thread is not None:
            self._threads.note_script_thread(self.script.thread)
        self._finish(step)

    def _begin(self, now_ns: int) -> None:
        # see Note [Segments on several streams]
        before, begin = self._open, self._events.record(now_ns)
        self._open = begin
        if begin is None or before is None or before.of is begin.of:
            return
        if before.of.device == begin.of.device:
            self._begins[now_ns] = begin
            self._events.record(now_ns, before.of)

    def _continue_from(self, boundary_ns: int) -> None:
        events = self._events
        before = self._open = self._event_at(boundary_ns)
        if before is None and events.untimed == Untimed.NO:
            self._open = events.record(boundary_ns)  # left out because the previous step did not need this event
        elif before is not None and not events.is_current(before.of):
            begin = self._open = events.record(self._clock.now_ns())
            if begin is not None:
                self._begins[boundary_ns] = begin

    def _event_at(self, boundary_ns: int) -> BoundaryEvent | None:
        if boundary_ns == self._start_ns and self._start is not None:
            return self._start
        for event in reversed(self._events.taken):
            if event.host_ns == boundary_ns and self._begins.get(boundary_ns) is not event:
                return event
        return None

    @staticmethod
    def _stream_of(event: BoundaryEvent | None) -> EventStream | None:
        return None if event is None else event.of

    def _repeats(self, times_ns: list[int], plan: StepPlan | None) -> None:
        assert plan is not None
        events, writer, left = self._events, self._writer, plan.left
        taken = events.taken
        if (
            self._is_unusual
            or events.untimed
            or self._begins
            or self._stages
            or self.has_captured
            or events.access.profiles.has_attached
            or len(taken) != plan.events - (2 if left == NONE else 1)
        ):
            return self._finish(CutStep(False, [], None if left == NONE else times_ns[left], times_ns[-1]), plan, times_ns)
        # The following lines do the same as `_finish` for an ordinary step, but ten times as fast.
        now_ns = times_ns[-1]
        end = events.record(now_ns, self._stream_of(self._open)) if left == NONE else taken[plan.event_of_end[-1] - 1]
        ended = EndedStep(
            writer.number, StepKind.STEADY, times_ns[0], now_ns, (), self._start, end, {}, taken, [], self.reads, self.found,
            Untimed.NO, plan, times_ns,
        )  # fmt: skip
        events.taken, self.reads, self.found = [], [], []
        self._clean_steps += 1
        self._start_ns, self._start = now_ns, end
        self.script.phases.begin_ns = now_ns
        writer.add(ended)
        writer.flush_if_due()
        return None

    def _finish(self, step: CutStep, plan: StepPlan | None = None, times_ns: Sequence[int] = ()) -> None:
        is_evaluation, segments, left_ns, now_ns = step
        # on the GPU, a training step ends when the optimizer returns
        last = None if is_evaluation or left_ns is None else self._event_at(left_ns)
        if last is None:
            last = self._events.record(now_ns, self._stream_of(self._open))
        if segments or plan is not None:
            self._keep(is_evaluation, segments, now_ns, last, plan, times_ns)
        else:
            self._events.untimed = Untimed.NO  # the events are read together with the events of the next step
        self._begins, self._stages = {}, []
        communication = self._communication
        has_looked = communication.has_flight and communication.read_flight_recorder_if_due()
        if has_looked or self.profiler.paused:  # this time does not belong to any step
            now_ns = self._clock.now_ns()
            last = self._events.record(now_ns)
        self._start_ns, self._start = now_ns, last
        self.script.phases.begin_ns = now_ns
        self._writer.flush_if_due()

    def _keep(
        self, is_evaluation: bool, segments: list[Segment], end_ns: int, end: BoundaryEvent | None, plan: StepPlan | None,
        times_ns: Sequence[int],
    ) -> None:  # fmt: skip
        if plan is not None:
            start_ns = times_ns[0]
        else:
            name, start_ns, first_end_ns = segments[0]
            if self._start_ns != NONE:  # the first phase of a script begins with a CUDA event
                start_ns = self._start_ns
                segments[0] = new_segment((name, start_ns, first_end_ns))
        start = self._event_at(start_ns)
        taken, untimed = self._events.hand_out()
        # A step is not representative if the script captured a CUDA graph or ran a profiler during the step.
        is_unlike_others = self.has_captured or untimed in (Untimed.CAPTURE, Untimed.PROFILE)
        kind = self._schedule.kind(is_evaluation)
        is_lost = kind is StepKind.PROFILED and not self.profiler.is_recording  # the window began late or ended early
        if is_lost or (is_unlike_others and not is_evaluation):
            kind = StepKind.WARMUP
        elif kind is StepKind.STEADY:
            if not self._events.access.is_after_profile:
                self._clean_steps += 1
            elif self._clean_steps >= FEWEST_CLEAN_STEPS:
                kind = StepKind.AFTER_PROFILE
        ended = EndedStep(
            self._writer.number, kind, start_ns, end_ns, segments, start, end, self._begins, taken, self._stages, self.reads,
            self.found, untimed, plan, times_ns,
        )
        # The lists `reads` and `found` are emptied before the step is written. An exception in a signal handler therefore
        # cannot cause the lists to be written twice.
        self.reads, self.found = [], []
        self._writer.add(ended)
        if not is_unlike_others:
            self._schedule.end_step(is_evaluation)
        self.has_captured = False
        if self.profiler.wanted or self.profiler.paused:
            self._turn_profiler()
        self._is_unusual = (
            not self._schedule.is_settled
            or self.profiler.wanted
            or self.profiler.paused
            or self._communication.has_flight
        )

    def _turn_profiler(self) -> None:
        began_ns = self._clock.perf_ns()
        schedule, profiler, number = self._schedule, self.profiler, self._writer.number
        if schedule.profile == "prepare" and profiler.must_wait:
            schedule.postpone()
        profiler.end_step(number - 1)
        profiler.begin_step(number, schedule.profile)
        if not profiler.wanted:
            schedule.give_up()
        elif schedule.profile == "record" and not profiler.active:
            schedule.lose_window()
            profiler.begin_step(number, schedule.profile)
        self.cost.excluded_ns += self._clock.perf_ns() - began_ns
