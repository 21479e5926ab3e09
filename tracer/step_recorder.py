"""Divides the running script into steps and phases, and records a CUDA event at each boundary.

    steps = StepRecorder(...)
    steps.reports[ENTER]("backward")    # `ScriptSplitter` calls `steps` back at each boundary

Note [Segments on several streams]
    A segment (a phase of a step) begins and ends with CUDA events on the same stream. Usually, one event ends a segment and
    begins the next segment. If the script changes the current stream between two segments, the second segment begins with a
    separate event.

Note [Steps on one stream]
    If steps repeat on the default stream of one GPU, no BoundaryEvent is created. A RepeatedRun collects the CUDA events, and
    reads and writes them 128 steps at a time. If a step differs, its events so far become instances of BoundaryEvent. The rest
    of the step is recorded as usual.

Note [Interrupted reports]
    A signal handler of the script may run in the middle of a report. If the handler raises an exception, the recorder drops the
    current step. If the handler calls torch, the reports of these calls are ignored. An error of the recorder itself also drops
    the current step, and does not reach the script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from traceback import walk_tb
from typing import Any

from tracer.communication import CommunicationRecorder
from tracer.device.boundary_events import BoundaryEvent, EventStream
from tracer.device.device_access import DEFAULT_STREAM
from tracer.own_cost import SAMPLED, SLOW_NS, counted_as_cost
from tracer.recording_writer import TOGETHER, RecorderParts, RecordingWriter
from tracer.repeated_steps import (
    BEGINS,
    CONTINUES,
    ENDS,
    ENTER,
    KINDS,
    LEAVE,
    LEAVES,
    MODULE,
    NEW_TENSOR,
    NOTHING,
    OP,
    RECORDED,
    STEPPED,
    UNKNOWN,
    Meaning,
    RepeatedSteps,
    StepPlan,
)
from tracer.schedule import Schedule
from tracer.writing.ended_steps import DataParallelStage, EndedStep, Found, Read
from tracer.writing.output import say
from traces.comparison.thresholds import FEWEST_CLEAN_STEPS
from traces.model.trace import NONE, StepKind, Untimed
from traces.script.patching import OUR_MODULES
from traces.script.phase_rule import PLAIN, Segment, new_segment
from traces.script.script_splitter import CutStep, ScriptSplitter
from traces.script.step_rule import Optimizers


def is_own(error: BaseException) -> bool:
    """Return True if the recorder or torch raised the error. A signal handler of the script may raise errors, too."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    return isinstance(error, Exception) and all(name.startswith((*OUR_MODULES, "torch.")) for name in names)


def _stream_of(event: BoundaryEvent | None) -> EventStream | None:
    return None if event is None else event.of


class CapturedReports:
    # see Note [Replays of a CUDA graph] in recorder.py

    def __init__(self) -> None:
        self.reports: list[tuple[int, Any]] = []
        self._thread = get_ident()

    def notes(self, kind: int, argument: Any) -> bool:
        """Store a call that was made by the thread that captures the CUDA graph. Return False for calls by other threads."""
        if get_ident() != self._thread:
            return False
        self.reports.append((kind, argument))
        return True


class StepRecorder:
    """Receives the calls of `ScriptSplitter` (script_splitter.py). All calls hold the recorder's lock."""

    def __init__(
        self,
        parts: RecorderParts,
        optimizers: Optimizers,
        schedule: Schedule,
        writer: RecordingWriter,
        communication: CommunicationRecorder,
    ) -> None:
        self._optimizers = optimizers
        self.script = ScriptSplitter[int](self, optimizers)  # `threading.get_ident()` identifies the threads
        self.cost = parts.cost
        self.has_returned = False  # True if a module has returned, but `script` has not been notified yet
        self.capture: CapturedReports | None = None  # the capture of a CUDA graph that is in progress
        # True if the script captured a CUDA graph, or a report was interrupted, since the last step ended
        self.is_unlike_others = False
        self._has_failed = False
        self.compiled_ns: list[int] = []  # times since the last step's end at which torch.compile began to compile something
        self.reads: list[Read] = []  # values read since the last step ended
        self.found: list[Found] = []  # sizes found since the last step ended
        self.work = 0  # hash of the work of the outermost modules since the last step ended
        self._events, self._schedule, self.profiler = parts.events, schedule, parts.profiler
        self._writer, self._communication, self._threads = writer, communication, parts.threads
        self._clock, self._failed = parts.cost.clock, parts.facts.failed
        self._repeated = RepeatedSteps()
        self._state: tuple[object, ...] = ()  # state of `script` at the start of the current step
        self._action = NOTHING  # effect of the current report
        self._boundary = NONE  # number of the report at which the script left the current phase
        self._is_catching_up = False  # True while `script` gets reports that already have events
        self._ended: CutStep | None = None  # the step that the current report has ended
        self._start_ns = NONE  # start of the current step; NONE before the first event of the first step
        self._start: BoundaryEvent | None = None  # the event at the start of the current step
        # events that begin a segment but end none; keys: host times of the boundaries
        self._begins: dict[int, BoundaryEvent] = {}
        self._open: BoundaryEvent | None = None  # the start of the current segment
        self._stages: list[DataParallelStage] = []
        self.has_run_replicas = False  # see Note [The first replicas] in surfaces/torch_nn_parallel.py
        self._clean_steps = 0  # number of steps without the profiler before the first profile
        report = self._reporter()
        # one function for each kind of report
        self.reports: list[Callable[..., None]] = [partial(report, kind) for kind in range(KINDS)]
        self._is_unusual = True  # False if after a repeated step, only writing the file is left to do

    # --- reports

    def _reporter(self) -> Callable[..., None]:
        # see Note [Steps repeat] in repeated_steps.py, Note [Steps on one stream] and Note [Interrupted reports]
        cost, repeated, cuda, access = self.cost, self._repeated, self._events.cuda, self._events.access
        perf_ns, offset_ns, lock = cost.perf_ns, cost.clock.offset_ns, cost.lock
        current_device, current_handle = cuda.current_device, cuda.current_handle
        captures, profiles, this_thread = access.captures, access.script_profiles, get_ident
        is_reporting = False

        def report(kind: int, argument: Any = None, detail: Any = None) -> None:
            nonlocal is_reporting
            began_ns = perf_ns()
            if detail is not None:  # reports that come from a captured CUDA graph have no detail
                if kind == MODULE:
                    argument = argument, detail  # `detail` is True if gradients are enabled
                else:
                    self._failed(detail)  # `detail` is the error that ended a phase
            with lock:
                if is_reporting:
                    return
                is_reporting = True
                try:
                    of_kind, of_argument, records, checks, then = (
                        repeated.advance() if this_thread() == repeated.thread else UNKNOWN
                    )
                    if of_kind != kind or of_argument != argument:
                        self._report_other(kind, argument, began_ns + offset_ns)
                    else:
                        repeated.times_ns.append(began_ns + offset_ns)
                        if kind == MODULE:
                            self.has_returned = False
                        if then is not None:
                            then(began_ns + offset_ns)
                        elif records or checks:
                            stream: Any = repeated.stream
                            if (
                                checks
                                and (
                                    current_handle(stream.device) != DEFAULT_STREAM
                                    or (repeated.has_several_devices and current_device() != stream.device)
                                )
                            ) or captures or profiles:
                                self._leave_stream()
                                self._act(began_ns + offset_ns)
                            elif records:
                                access.is_calling = True
                                repeated.unused.popleft().record(stream.stream)
                                access.is_calling = False
                except BaseException as error:
                    was_calling, access.is_calling = access.is_calling, False
                    if was_calling and isinstance(error, RuntimeError) and is_own(error):
                        self._failed_to_record(error)
                    else:
                        self._drop_step(error)
                finally:
                    is_reporting = False
                if repeated.weight:
                    cost.calls += 1
                    cost.spent_ns += (perf_ns() - began_ns - cost.excluded_ns) * repeated.weight
                    cost.excluded_ns = 0

        return report

    @property
    def entered(self) -> str:
        repeated = self._repeated
        if repeated.known and repeated.times_ns:
            return repeated.known[(len(repeated.times_ns) - 1) % len(repeated.known)].entered
        return self.script.entered

    def catch_up(self) -> None:
        repeated = self._repeated
        if repeated.known:
            self._leave_stream()
            thread = self.script.thread or get_ident()
            self._is_catching_up = True
            try:
                for meaning, time_ns in repeated.differs():
                    self._apply(meaning.kind, meaning.argument, thread, time_ns)
            finally:
                self._is_catching_up = False

    def _drop_step(self, error: BaseException) -> None:
        """Drop the current step. Raise the script's own errors again."""
        # see Note [Interrupted reports]
        self._writer.end_run()
        self._repeated.forget()
        self._events.hand_out()
        self._stages, self.reads, self.found = [], [], []
        self.is_unlike_others = self._is_unusual = True
        self.script.drop_step(get_ident(), self._clock.now_ns())
        if not is_own(error):
            raise error
        if not self._has_failed:
            say(f"the recorder failed in step {self._writer.number}, the script continues: {error!r}")
        self._has_failed = True

    def stop(self) -> None:
        self.catch_up()
        self.script.stop(self._threads.script_thread, self._clock.now_ns())
        self._repeated.forget()

    def _report_other(self, kind: int, argument: Any, now_ns: int) -> None:
        if self.capture is not None and self.capture.notes(kind, argument):
            return None
        script, repeated, thread = self.script, self._repeated, get_ident()
        is_beside = script.thread is not None and script.thread != thread
        if is_beside and not (kind == STEPPED and argument):
            if self.entered != "backward" and (kind == MODULE or (kind == ENTER and argument != "loader")):
                self.profiler.all_threads = True
            self._writer.steps_of_other_threads += kind == STEPPED and self.entered != "backward"
            return self._apply(kind, argument, thread, now_ns)  # only an optimizer's step in a backward pass has an effect
        self.catch_up()
        if is_beside or script.thread is None:
            repeated.give_up()
        if self.has_returned:
            script.module_returned()
            self.has_returned = False
        self._action, self._boundary, self._ended = NOTHING, NONE, None
        self._apply(kind, argument, thread, now_ns)
        meaning = Meaning(kind, argument, self._action, self._boundary, script.entered)
        if self._ended is None:
            repeated.add_call(meaning, now_ns)
            return None
        before, self._state = self._state, script.state
        if self._action != ENDS or kind != STEPPED:
            repeated.give_up()
        repeated.learn(meaning, self._ended, before == self._state and not script.workload.is_open)
        return self._follow()

    def _apply(self, kind: int, argument: Any, thread: int, now_ns: int) -> None:
        script = self.script
        if kind == ENTER:
            is_new = argument == NEW_TENSOR
            script.enter(thread, "h2d" if is_new else argument, now_ns, moves_tensor=not is_new)
        elif kind == LEAVE:
            script.leave(thread, "h2d" if argument == NEW_TENSOR else argument, now_ns)
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

    def _act(self, now_ns: int) -> None:
        """Handle a report that begins or ends a segment, in a repeated step without a `RepeatedRun`."""
        times_ns = self._repeated.times_ns
        of = self._repeated.known[len(times_ns) - 1]
        if of.action == LEAVES:
            self._events.record(now_ns, _stream_of(self._open))
        elif of.action == BEGINS:
            self._begin(now_ns)
        elif of.action == CONTINUES:
            self._continue_from(self._start_ns if of.boundary == NONE else times_ns[of.boundary])

    def _failed_to_record(self, error: RuntimeError) -> None:
        if not is_own(error):
            raise error
        self._leave_stream(has_failed=True)
        self._events.untimed = self._events.access.failed(error)

    def _follow(self) -> None:
        # see Note [Steps on one stream]
        repeated, access, start = self._repeated, self._events.access, self._start
        plan, stream = repeated.plan, _stream_of(start)
        repeated.is_plain = (
            bool(repeated.known)
            and not self._is_unusual
            and not access.script_profiles.has_attached
            and (not access.is_used if stream is None else stream.is_default)
        )
        if repeated.is_plain and plan is not None:
            repeated.stream, repeated.weight = stream, 0
            repeated.has_several_devices = stream is not None and self._events.cuda.device_count() > 1
            run = self._writer.begin_run(plan, stream, start, self._start_ns)
            run.take_events(SAMPLED, self._events.cuda.event)
            repeated.times_ns, repeated.unused = run.times_ns, run.unused
        repeated.expect(self.script.thread, self._repeats, self._act)

    def _leave_stream(self, has_failed: bool = False) -> None:
        """Stop using the `RepeatedRun`, and record the rest of the current step as usual. `has_failed` is True if recording the
        last CUDA event raised an error."""
        repeated, run = self._repeated, self._writer.run
        if run is None:
            return
        self._writer.end_run()
        self._start = self._open = run.start
        own = run.boundaries(run.events[: len(run.events) - has_failed], run.times_ns)
        self._events.taken = sorted([*own, *self._events.taken], key=lambda event: event.host_ns)
        repeated.is_plain, repeated.stream, repeated.times_ns, repeated.weight = False, None, run.times_ns, 1
        repeated.expect(repeated.thread, self._repeats, self._act)
        self.script.phases.begin_ns = self._start_ns

    def _did(self, action: int) -> None:
        if self._action != NOTHING:
            self._repeated.give_up()
        self._action = action

    # --- DataParallel stages

    def begin_stage(self, stream: Any = None, takes_event: bool = True) -> tuple[int, BoundaryEvent | None]:
        now_ns = self._clock.now_ns()
        self.reports[OP](PLAIN)
        return now_ns, self._communication.event_on(stream) if takes_event else None

    @counted_as_cost
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
        if name != "loader" and not self._is_catching_up:
            self._did(LEAVES)
            self._events.record(now_ns, _stream_of(self._open))

    def set_up_ends(self, thread: int, now_ns: int) -> None:
        self._repeated.give_up()
        self._start_ns, self._start = NONE, None
        self._begins.clear()

    def step_evaluates(self, is_evaluation: bool) -> None:
        """Do nothing."""

    def more_recorded(self) -> None:
        """Return None, because nothing is recorded yet."""

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
            self._open = events.record(boundary_ns)  # this event was not recorded, because the previous step did not need it
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

    def _repeats(self, now_ns: int) -> None:
        repeated, events, writer, run = self._repeated, self._events, self._writer, self._writer.run
        if (
            run is None
            or events.taken
            or events.untimed
            or self._stages
            or self.is_unlike_others
            or self.compiled_ns
            or events.access.captures
            or (repeated.stream is None and events.access.is_used)
        ):
            self._leave_stream()
            plan, times_ns = repeated.plan, [self._start_ns, *repeated.ended()]
            assert plan is not None
            self._finish(CutStep(False, [], times_ns[plan.left], now_ns), plan, times_ns)
            return self._follow()
        run.steps += 1
        if self.reads or self.found:
            run.values[writer.number] = self.reads, self.found
            self.reads, self.found = [], []
        if not repeated.weight:
            self.cost.calls += run.plan.times
        self._clean_steps += 1
        step_ns, self._start_ns = now_ns - self._start_ns, now_ns
        repeated.weight = int(step_ns > SLOW_NS)
        if not writer.number % SAMPLED:
            repeated.weight = repeated.weight or SAMPLED
            run.take_events(SAMPLED, events.cuda.event)
        writer.number += 1
        if run.steps >= TOGETHER or now_ns + step_ns >= writer.due_ns:
            self._flush_after_repeated_step(step_ns)
        return None

    def _flush_after_repeated_step(self, step_ns: int) -> None:
        cost, access = self.cost, self._events.access
        began_ns = cost.perf_ns()
        self._writer.flush_if_due(step_ns)
        took_ns = cost.perf_ns() - began_ns
        cost.spent_ns += took_ns - cost.excluded_ns
        cost.excluded_ns = took_ns if self._repeated.weight else 0  # this report has a separate weight
        if access.device_lost:
            self._leave_stream()

    def _finish(self, step: CutStep, plan: StepPlan | None = None, times_ns: Sequence[int] = ()) -> None:
        is_evaluation, segments, left_ns, now_ns = step
        # on the GPU, a training step ends when the optimizer returns
        last = None if is_evaluation or left_ns is None else self._event_at(left_ns)
        if last is None:
            last = self._events.record(now_ns, _stream_of(self._open))
        if segments or plan is not None:
            self._keep(is_evaluation, segments, now_ns, last, plan, times_ns)
        else:
            self._events.untimed = Untimed.NO  # these events will be read with the events of the next step
        self._begins, self._stages = {}, []
        communication = self._communication
        has_looked = communication.has_flight and communication.read_flight_recorder_if_due()
        if has_looked or self.profiler.paused:  # this time does not belong to any step
            now_ns = self._clock.now_ns()
            last = self._events.record(now_ns)
        step_ns = now_ns - self._start_ns
        self._start_ns, self._start = now_ns, last
        self.script.phases.begin_ns = now_ns
        self.cost.steps_ended(self._writer.number)
        self._writer.flush_if_due(step_ns)

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
        # A step takes longer than usual if it captures a CUDA graph or runs a profiler.
        is_unlike_others = self.is_unlike_others or untimed in (Untimed.CAPTURE, Untimed.PROFILE)
        has_compiled = any(compiled_ns < end_ns for compiled_ns in self.compiled_ns)
        self.compiled_ns = [compiled_ns for compiled_ns in self.compiled_ns if compiled_ns >= end_ns]
        is_unlike_others |= has_compiled and self._schedule.replaces_step(is_evaluation)
        kind = self._kind(is_evaluation, is_unlike_others, has_compiled)
        ended = EndedStep(
            self._writer.number,
            kind,
            start_ns,
            end_ns,
            segments,
            start,
            end,
            self._begins,
            taken,
            self._stages,
            self.reads,
            self.found,
            untimed,
            plan,
            times_ns,
        )
        # Clear the lists before writing, so that a failed write does not leave this step's values in the next step.
        self.reads, self.found = [], []
        if is_evaluation and has_compiled:
            self._writer.note_compiling_evaluation()
        self._writer.add(ended)
        if not is_unlike_others:
            names = tuple(segment.name for segment in segments) if plan is None else plan.names
            self._schedule.end_step(is_evaluation, names, self._optimizers.first_number, self.work, compiled=has_compiled)
        self.work = 0
        self.is_unlike_others = False
        if self.profiler.wanted or self.profiler.paused:
            self._turn_profiler()
        self._is_unusual = (
            not self._schedule.is_settled or self.profiler.wanted or self.profiler.paused or self._communication.has_flight
        )

    def _kind(self, is_evaluation: bool, is_unlike_others: bool, has_compiled: bool) -> StepKind:
        """Return WARMUP for steps that compile, that capture a CUDA graph, or that the profiler did not record completely.
        Return AFTER_PROFILE for steady steps after a profile of the script, if enough steady steps ran before the profile.
        Return the kind from `Schedule.kind` for all other steps."""
        kind = self._schedule.kind(is_evaluation)
        is_lost = kind is StepKind.PROFILED and not self.profiler.is_recording  # the profile began late or ended early
        if is_lost or (is_unlike_others and not is_evaluation):
            return StepKind.WARMUP
        if kind is StepKind.STEADY:
            if has_compiled:  # compiling takes more time than many steps together
                return StepKind.WARMUP
            if not self._events.access.script_profiles.has_attached:  # see Note [Steps after a profile] in profile.py
                self._clean_steps += 1
            elif self._clean_steps >= FEWEST_CLEAN_STEPS:
                return StepKind.AFTER_PROFILE
        return kind

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
