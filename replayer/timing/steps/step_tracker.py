"""Finds the script's current training step and phase, and the matching recorded step.

    tracker.enter(thread, "backward")
    tracker.leave(thread, "backward")
    tracker.optimizer_stepped(thread, is_first=True)    # a training step has ended

Note [Times of evaluation steps]
    Evaluation steps take the times of recorded evaluation steps. When a step begins, the replay does not know whether it is a
    training step. If all earlier steps had the recorded kinds, the replay assumes the kind of the recorded step with the same
    number. Otherwise, the replay assumes the kind of the previous step, unless gradients are disabled when a batch is loaded.
    With disabled gradients, the replay assumes an evaluation step. If the assumption is wrong, the rest of the step takes the
    times of the other kind of step.

Note [Several model calls in one step]
    One recorded inference step may contain many calls of the model, such as all tokens of a generated text. If the recorded
    step has enough unused calls of the same ops, another model call belongs to the same step of the script.

Note [Waits between phases]
    The recorder counts a synchronization between two phases as part of the second phase. In a recording without kernels, the
    time of a phase therefore begins when the previous phase ends.

Note [Sleeping between phases]
    If a script sleeps between two phases, the recorded time of the second phase contains the sleep. If the recording has
    kernels, the second phase of the replay therefore begins before the sleep. Otherwise, the sleep would count twice.

Note [Ops between recorded phases]
    The recorder of phases sees no single ops. When a recording without ops, or with CUDA graphs that the script captured, is
    replayed, an op such as `aten::add` therefore begins no phase if the next recorded phase begins with a call, such as a copy
    to the GPU. The op then belongs to the current phase, as in the recording. An op that creates a tensor, or an op such as
    `aten::_foreach_mul_`, begins a phase only if "other" is the next recorded phase. If "other" comes next and a backward pass
    has ended, any op begins "other".

Note [Phase times from the library]
    The library of measured models has the GPU time of each phase, but no host times. The CPU therefore runs at this machine's
    pace, up to one step ahead of the GPU.
"""

from __future__ import annotations

from collections.abc import Callable

from replayer.op_signature import OpSignature
from replayer.recording.library_pace import COUNTED_ELSEWHERE_NS, LibraryPace, ModelCall
from replayer.recording.recorded_step import LEADING, RecordedSegment, RecordedStep
from replayer.timing.clock import machine_unix_ns
from replayer.timing.host_threads import HostThread
from replayer.timing.matcher import Histories, SegmentMatcher, StepMatcher
from replayer.timing.scheduler import StreamScheduler
from replayer.timing.steps.data_parallel import DataParallelStages, OpenStage
from replayer.timing.steps.phase_remainder import PhaseRemainder
from replayer.timing.timeline.timeline_writer import LoaderWait
from traces.compiled.compiled_code import COMPILE_NS
from traces.model.trace import NONE, Origin, StepKind
from traces.model.workload import Sameness, WorkloadSignature, compare_workloads
from traces.script.configuration import ReplayConfig
from traces.script.phase_rule import ASIDE, LOSS, PLAIN
from traces.script.script_splitter import CutStep, ScriptSplitter
from traces.script.step_rule import Optimizers
from traces.script.workload_observer import WorkloadObserver

_ENTERED = ("loader", "h2d", "zero_grad", "backward", "optimizer")  # a call of a wrapped function begins each of these phases


class LibraryPhases:
    def __init__(self, library: LibraryPace, slowdown: float = 1.0) -> None:
        self.pace, self._slowdown = library, slowdown
        self._segments: dict[str, RecordedSegment] = {}  # one object for each phase, because the object stores caches
        self._before_backward_ns = 0

    def begin(self, name: str) -> RecordedSegment | None:
        known = self.pace.phase(name)
        if known is None:
            return None
        device_ns, origin = round(known[0] * self._slowdown) if known[0] > COUNTED_ELSEWHERE_NS else known[0], known[1]
        if name == "backward":
            device_ns -= min(self._before_backward_ns, device_ns // 10)
            self._before_backward_ns = 0
        return self._segment(name, device_ns, origin)

    def end(self, name: str, recorded: RecordedSegment | None, device_ns: int) -> None:
        if recorded is not None and recorded.device_ns == COUNTED_ELSEWHERE_NS:
            self._before_backward_ns += device_ns
        elif name == "forward":
            self._before_backward_ns = 0

    def take_call(self) -> ModelCall | None:
        call = self.pace.take_call()
        if call is not None:
            self.pace.called(call)
        return call

    def prolonged(self, name: str, before_ns: int, call: ModelCall) -> RecordedSegment:
        return self._segment(name, before_ns + max(round(call.phases_ns["forward"] * self._slowdown), 1), call.origin)

    def _segment(self, name: str, device_ns: int, origin: Origin) -> RecordedSegment:
        recorded = self._segments.setdefault(name, RecordedSegment(name))
        recorded.device_ns, recorded.origin = device_ns, origin
        return recorded


class WorkloadCheck:
    def __init__(self, recorded: WorkloadSignature | None, script: WorkloadObserver, *, trains: bool) -> None:
        self._recorded = recorded  # workload of a training step if the recorded program trains
        self._script, self._trains = script, trains
        self._is_same, self._is_final = True, False

    def is_same(self, evaluates: bool) -> bool:
        """Return False if the script differs from the recorded program. `evaluates` is True in an evaluation step."""
        recorded, script = self._recorded, self._script
        if recorded is None or self._is_final:
            return self._is_same
        # A program for inference often changes the shapes of its inputs, so compare only its first step.
        seen = (None if self._trains else script.signature) or script.so_far
        self._is_final = not script.is_provisional
        if seen is not None:
            if self._trains and script.is_provisional and (evaluates or seen is script.signature):
                # Batches that a script validates before it trains may have another size, so compare only the model.
                seen = WorkloadSignature(parameters=seen.parameters, modules=seen.modules)
            sameness = compare_workloads(recorded, seen).sameness
            self._is_same = sameness in (Sameness.SAME_PROGRAM, Sameness.CANNOT_BE_TOLD)
        return self._is_same


class StepTracker:
    def __init__(self, scheduler: StreamScheduler, optimizers: Optimizers, config: ReplayConfig) -> None:
        self.recording = recording = scheduler.recording
        self._scheduler = scheduler
        self._strict = config.strict
        self._pad_loader = config.loader == "recorded"
        self.script = ScriptSplitter[HostThread](self, optimizers)
        self.stages = DataParallelStages(scheduler)
        self.remainder = PhaseRemainder(scheduler, strict=config.strict)
        self.grads_enabled: Callable[[], bool] | None = None
        self.launches_graph: OpSignature | None = None  # launch of the CUDA graph that contains the current calls
        self._evaluates = False  # the current step takes its times from an evaluation step
        self._histories: Histories = {}
        self.step = self._matcher(recording.choice.training(0))
        self.segment: SegmentMatcher | None = None
        self.begins_segment = (True, True, True, True)  # for each class of op, True if such an op begins another segment
        self.trained = self._evaluated = 0
        self._compiled = len(COMPILE_NS)  # number of compilations before the current step
        self._should_train = False  # the script has followed the recorded order so far, and a training step is next
        self._is_recorded = bool(recording.steps)  # the recording contains the step that the script runs now
        self._follows = True  # the script's training and evaluation steps have followed the recorded order so far
        trains = bool((recording.trace.steps.kind != StepKind.EVALUATION).any())
        self._workload = WorkloadCheck(recording.trace.workload, self.script.workload, trains=trains)
        self._uses_gpu = False
        self._owed_ns = 0  # part of the recorded host time before the step's first phase that must still pass
        self._step_start_ns = NONE
        self._done: list[tuple[str, int, int, int, int, int]] = []
        self._begun_ns = self._begun_device_ns = 0
        self._by_phases = recording.trace.grain == "phase" and recording.library_pace is None
        self._has_kernels = recording.trace.grain == "kernel"
        self._sees_no_ops = self._by_phases or recording.has_phases_of_recorder
        self._left_ns = NONE  # time at which the host left the current phase or step, see Note [Waits between phases]
        self._slept_ns = NONE  # how long the script had slept when it left the current phase
        self._wall_ns = scheduler.clock.now_ns()
        self._loader_ns = 0
        self._clock_paused_for_loader = False  # True if the clock is paused for the current call of the loader
        self._asked_ns: dict[int, tuple[int, int]] = {}
        self._failed = False  # the phase that was left last ended with an exception
        self._at_call: tuple[SegmentMatcher | None, int] = None, 0
        self._ops_in: dict[tuple[bool, str, int], int] = {}
        # See Note [Phase times from the library].
        self._library = None if recording.library_pace is None else LibraryPhases(recording.library_pace, recording.slowdown)
        self._step_done_ns = 0  # time at which the device finished the previous step, if times come from the library

    def op(self, thread: HostThread, phase_class: int, now_ns: int) -> SegmentMatcher:
        self.script.op(thread, phase_class, now_ns)
        self._see_phase()
        segment = self.segment
        # No segment is open for an op of another thread. After a step that ended inside a named phase, no segment is open for
        # the first op either.
        if segment is None:
            segment = self._begin(self.script.thread or thread, self.script.current or "other")
        return segment

    def _see_phase(self) -> None:
        # see Note [Ops between recorded phases]
        if self._sees_no_ops:
            following = self.step.following()
            is_other = following[:1] in ([], ["other"])
            begins_with_call = next((name for name in following if name != "other"), "") in _ENTERED
            begins_with_call &= not (is_other and self.script.phases.is_after_backward)
            self.script.unseen = (PLAIN,) * begins_with_call + (ASIDE,) * (not is_other)
        else:
            self.script.is_before_batch = self.step.is_before_batch(self.segment if self.script.current == "other" else None)
        self.begins_segment = self.script.begins_segment

    def loss_called(self, thread: HostThread) -> None:
        if self.begins_segment[LOSS]:
            self.script.op(thread, LOSS, self._scheduler.clock.now_ns())
        self._see_phase()

    def forward_begins(self, thread: HostThread) -> None:
        self.script.autograd_recorded(thread, True, self._scheduler.clock.now_ns())
        self._see_phase()

    def _matcher(self, step: RecordedStep) -> StepMatcher:
        return StepMatcher(step, self.recording.keys, self._histories)

    @property
    def number(self) -> int:
        return self.trained + self._evaluated

    @property
    def row_of_values(self) -> int:
        """Return the index of the recorded step whose values `loss.item()` and similar calls return in the replay."""
        if self._is_recorded:
            return self.recording.steps[self.number].row
        count = self._evaluated if self._evaluates else self.trained
        return self.recording.choice.of_values(count, self._evaluates).row

    def module_called(self, thread: HostThread, module: int, grad_enabled: bool) -> None:
        self.script.module_called(thread, module, grad_enabled, self._scheduler.clock.now_ns())
        self._see_phase()
        if self._library is not None:
            self._charge_call(thread, self._library)

    def enter(self, thread: HostThread, name: str, moves_tensor: bool = True) -> None:
        self.script.enter(thread, name, self._scheduler.clock.now_ns(), moves_tensor=moves_tensor)
        begins_undecided_step = name in ("loader", "h2d") and self.script.entered == name and self.script.is_undecided
        if begins_undecided_step and self.grads_enabled is not None:
            evaluates = not self.grads_enabled()
            if evaluates or (self.trained and not self._is_recorded):
                self.step_evaluates(evaluates)
        self._see_phase()
        if name == "loader":
            self._asked_ns[thread.row] = machine_unix_ns(), max(self._scheduler.clock.now_ns(), thread.host_ns)

    def leave(self, thread: HostThread, name: str, failed: bool = False) -> None:
        """End a phase. `failed` is True if the call that belongs to the phase raised an exception, for example StopIteration
        from the loader."""
        self._failed = failed
        # Always resume the clock. Otherwise the script would hang.
        if name == "loader" and self._clock_paused_for_loader:
            self._clock_paused_for_loader = False
            self._scheduler.clock.resume()
        self.script.leave(thread, name, self._scheduler.clock.now_ns())
        self._see_phase()
        if name == "loader" and (asked_ns := self._asked_ns.pop(thread.row, None)):
            own_ns, recorded_ns = asked_ns
            present_ns = max(self._scheduler.clock.now_ns(), thread.host_ns)
            wait = LoaderWait(own_ns, machine_unix_ns(), recorded_ns, present_ns)
            self._scheduler.timeline.loader_wait(wait)

    def optimizer_stepped(self, thread: HostThread, is_first: bool) -> None:
        """Called after each `optimizer.step()`. If the script has several optimizers, only the optimizer that the script called
        first ends the training step."""
        self.script.optimizer_stepped(thread, is_first, self._scheduler.clock.now_ns())
        self._see_phase()

    # --- what ScriptSplitter reports (traces/script/script_splitter.py)

    def segment_begins(self, thread: HostThread, name: str, now_ns: int) -> None:
        if self.segment is None and not self._done and name not in ("loader", "other"):
            self._begin_before(thread, name)
        self._finish(thread, now_ns)
        self._begin(thread, name)
        if name == "loader" and self._pad_loader and not self._clock_paused_for_loader:
            self._clock_paused_for_loader = True
            self._scheduler.clock.pause()  # if the clock can pause, only the recorded wait counts

    def phase_left(self, thread: HostThread, name: str, now_ns: int) -> None:
        if name == "loader":
            self._leave_loader(thread, now_ns)
        elif self._by_phases:
            self._left_ns = thread.host_ns
        else:
            self._slept_ns = self._scheduler.clock.slept_ns

    def set_up_ends(self, thread: HostThread, now_ns: int) -> None:
        """End the setup. Work before the first batch is not part of a training step."""
        self._finish(thread, now_ns)
        if self._library is not None:
            self._library.pace.set_up_ends()
        self.remainder.forget()
        self.step = self._matcher(self.recording.choice.training(0))
        self._scheduler.stats.restart()
        self._step_start_ns = NONE
        self._done.clear()
        self.stages.clear()

    def step_evaluates(self, is_evaluation: bool, is_certain: bool = False) -> None:
        # see Note [Times of evaluation steps]
        if is_evaluation == self._evaluates or (is_evaluation and self._should_train and not is_certain):
            return
        choice = self.recording.choice
        chosen = choice.evaluation(self._evaluated) if is_evaluation else choice.training(self.trained)
        # The backward pass may run inside a CUDA graph, where PyTorch calls no hook. So a step that launches a graph may train
        # the model although no backward pass was seen.
        launch = self.launches_graph
        if is_evaluation and launch and self.trained and self.grads_enabled is not None and self.grads_enabled():
            exact = self.recording.keys[launch].exact
            if not chosen.calls(exact) or self.step.step.calls(exact):
                return
        self._evaluates = is_evaluation
        driven_by = self.step.step
        stands_in = is_evaluation and chosen.kind != StepKind.EVALUATION and driven_by.kind != StepKind.WARMUP
        if stands_in or chosen is driven_by:
            return
        step = self._matcher(chosen)
        self.segment = step.take_over(self.step, self.segment)
        self.stages.switch_segment(self.segment)
        self.step = step

    def more_recorded(self) -> bool | None:
        # see Note [Several model calls in one step]
        step, segment = self.step.step, self.segment
        if step.kind != StepKind.EVALUATION or not step.has_kernels or segment is None or segment.recorded is None:
            return None
        (of, calls), self._at_call = self._at_call, (segment, segment.calls)
        return segment.has_as_much_left(calls if of is segment else 0)

    def step_ends(self, thread: HostThread, step: CutStep) -> None:
        scheduler, evaluation = self._scheduler, step.is_evaluation
        self.step_evaluates(evaluation, is_certain=True)
        self._finish(thread, step.end_ns)
        self._charge_unvisited(thread)
        row = self.step.step.row
        if self._library is not None:
            row = self._library.pace.step_ended(trained=not evaluation)
            thread.host_ns = max(thread.host_ns, self._step_done_ns)
            self._step_done_ns = scheduler.work_end_ns(thread.host_ns)
        scheduler.wait(thread.host_ns)
        for row_of_stage in self.stages.pop_rows():
            scheduler.timeline.stage(*row_of_stage)
        for done in self._done:
            scheduler.timeline.phase(*done)
        self._done.clear()
        self._owed_ns = 0
        self._at_call = None, 0
        driven_by = self.step.step
        if evaluation:
            kind = StepKind.EVALUATION
        else:  # the first step fills the plan cache
            is_slow = not self.trained or driven_by.kind == StepKind.WARMUP or len(COMPILE_NS) > self._compiled
            kind = StepKind.WARMUP if is_slow else StepKind.STEADY
        self._compiled = len(COMPILE_NS)
        start_ns = thread.host_ns if self._step_start_ns == NONE else self._step_start_ns
        scheduler.timeline.step(self.number, start_ns, thread.host_ns, kind, row)
        self._step_start_ns = thread.host_ns
        self._left_ns = thread.host_ns if self._by_phases else NONE
        self._count(keep=self.number > 0 and not (evaluation and self.trained))
        recorded = self.recording.steps[self.number :][:1]
        self._follows &= bool(recorded) and (recorded[0].kind == StepKind.EVALUATION) is evaluation
        self._evaluated += evaluation
        self.trained += not evaluation
        # see Note [Times of evaluation steps]
        following = self.recording.steps[self.number :][:1] if self._follows else []
        self._is_recorded = bool(following)
        self._evaluates = following[0].kind == StepKind.EVALUATION if following else evaluation
        self._should_train = self._is_recorded and not self._evaluates
        choice = self.recording.choice
        self.step = self._matcher(choice.evaluation(self._evaluated) if self._evaluates else choice.training(self.trained))

    def _leave_loader(self, thread: HostThread, ended_ns: int) -> None:
        segment = self.segment
        self._loader_ns += ended_ns - self._begun_ns
        # If a call of the loader returns no batch, an evaluation step may follow instead of a training step. The script then
        # waits for the recorded time in the loader's next call, or at the end of the phase.
        if segment is not None and segment.recorded is not None and not self._failed:
            thread.position_in(segment, segment.position_ns)
            segment.mark_reached(thread, segment.recorded.host_ns)
            due_ns = self._begun_ns + segment.recorded.wait_ns
            if self._pad_loader and due_ns > ended_ns:
                self._scheduler.wait(due_ns)
                ended_ns = due_ns
        thread.host_ns = max(thread.host_ns, ended_ns)

    def _begin_before(self, thread: HostThread, name: str) -> None:
        # see Note [Before the first phase] in phase_rule.py
        segments = self.step.step.segments
        recorded = segments.get(("other", LEADING))
        if recorded is None:
            is_counted = next(iter(segments), ("", 0))[0] == name
            if self.script.phases.segments and not is_counted:
                self._begin(thread, "other")
        elif self.script.phases.segments or (self._uses_gpu and recorded.is_host_only):
            self._begin(thread, "other")
        elif recorded.is_host_only:
            self._owed_ns = recorded.host_ns

    def _begin(self, thread: HostThread, name: str) -> SegmentMatcher:
        if name == "loader":
            self._scheduler.wait(thread.host_ns)
        self.step.of_same_program = self.remainder.sameness is Sameness.SAME_PROGRAM
        self.segment = self.step.segment(name, same_workload=self._workload.is_same(self._evaluates))
        if self._library is not None and (timed := self._library.begin(name)) is not None:
            self.segment.recorded = timed
        self._begun_ns = thread.host_ns if self._left_ns == NONE or self.segment.recorded is None else self._left_ns
        self._left_ns = NONE
        self._begun_device_ns = self._scheduler.work_end_ns(self._begun_ns)
        self.stages.enter(self.segment, self._begun_ns, self._begun_device_ns)
        if self._step_start_ns == NONE:
            self._step_start_ns = self._begun_ns
            self._scheduler.stats.restart()
        self.segment.charged_before_ns = sum(self._scheduler.stats.charged_ns.values())
        return self.segment

    def _charge_call(self, thread: HostThread, library: LibraryPhases) -> None:
        # see Note [Phase times from the library]
        call = library.take_call()
        if call is None:
            return
        segment = self.segment or self._begin(thread, "forward")
        before_ns = self._scheduler.work_end_ns(max(thread.host_ns, self._scheduler.clock.now_ns())) - self._begun_device_ns
        if segment.recorded is not None:
            before_ns = max(before_ns, segment.recorded.device_ns)
        segment.recorded = library.prolonged(segment.name, max(before_ns, 0), call)

    def _finish(self, thread: HostThread, now_ns: int) -> None:
        segment, self.segment = self.segment, None
        if segment is None:
            return
        self._drop_if_another(segment)
        scheduler, recorded = self._scheduler, segment.recorded
        thread.position_in(segment, segment.position_ns)
        for lane in segment.lanes.values():
            if lane.thread is not None:
                thread.wait_for(lane.thread)
        due_ns, left_ns = thread.host_ns, NONE
        self._uses_gpu |= segment.ops > 0
        if self._uses_gpu and not self.remainder.is_other_program:
            due_ns, self._owed_ns = due_ns + self._owed_ns, 0
        if recorded is not None and self._uses_gpu:  # skip this for scripts that do not use the GPU
            # the recorded host time includes waits
            if recorded.phase_grained or (self._by_phases and segment.name != "loader"):
                self._top_up(segment, 1.0)
                if self._left_ns != NONE:
                    left_ns = max(self._left_ns, self._begun_ns + recorded.host_ns)
                due_ns = max(due_ns, self._begun_ns + recorded.host_ns)
            else:
                self.remainder.add_gpu_work(segment, thread)
                if not self.remainder.is_other_program:
                    due_ns += max(recorded.host_ns - thread.position_ns, 0)
                    due_ns = max(due_ns, self._begun_ns + recorded.least_host_ns)
        if segment.name == "loader":  # time of the script's own work after the batch has arrived
            self._loader_ns += max(now_ns - thread.host_ns, 0)
            if self._pad_loader and recorded is not None:
                due_ns = max(due_ns, self._begun_ns + recorded.host_ns)
        elif now_ns > due_ns and recorded is not None:
            in_time_ns = due_ns if self._library is None else max(due_ns, self._begun_device_ns + recorded.device_ns)
            scheduler.stats.lag_ns += max(now_ns - in_time_ns, 0)
        if self._slept_ns != NONE:  # see Note [Sleeping between phases]
            now_ns -= self._scheduler.clock.slept_ns - self._slept_ns
            self._slept_ns = NONE
        thread.host_ns = max(due_ns, now_ns)
        self._ops_in[self._evaluates, segment.name, segment.count] = segment.ops
        self.stages.leave(len(self._done))
        self._left_ns = left_ns
        end_ns = thread.host_ns if left_ns == NONE else left_ns
        mark_ns = scheduler.work_end_ns(end_ns)
        origin = recorded.origin if recorded is not None and recorded.phase_grained else Origin.EXACT
        if self._library is not None:
            self._library.end(segment.name, recorded, mark_ns - self._begun_device_ns)
        device_start_ns = self._begun_device_ns - (0 if recorded is None else recorded.beside_ns)
        self._done.append((segment.name, self._begun_ns, end_ns, device_start_ns, mark_ns, int(origin)))

    def _drop_if_another(self, segment: SegmentMatcher) -> None:
        if segment.recorded is not None and segment.recorded.phase_grained and not self._workload.is_same(self._evaluates):
            segment.recorded = None

    def _top_up(self, segment: SegmentMatcher, share: float) -> None:
        recorded = segment.recorded
        if recorded is None:
            return
        # the recording has the time of only one device; replicas do the same work
        for device in {self._scheduler.home, *segment.ops_on}:
            until_ns = self._begun_device_ns + int(recorded.device_ns * share)
            self._scheduler.fill(device, self._begun_device_ns, until_ns, recorded.name, recorded.origin)

    def add_gpu_work_so_far(self, thread: HostThread) -> None:
        segment = self.segment
        if segment is not None:
            self._drop_if_another(segment)
        if segment is None or segment.recorded is None:
            return
        if not segment.recorded.phase_grained:
            self.remainder.add_gpu_work_so_far(segment, thread)
            return
        if self.stages.add_gpu_work_so_far():
            return
        expected = self._ops_in.get((self._evaluates, segment.name, segment.count), 0)
        self._top_up(segment, min(segment.ops / expected, 1.0) if expected else 1.0)

    def begin_stage(self, thread: HostThread, name: str, device: int) -> OpenStage:
        if self.begins_segment[PLAIN]:
            self.op(thread, PLAIN, self._scheduler.clock.now_ns())
        return self.stages.begin(thread, name, device)

    def _charge_unvisited(self, thread: HostThread) -> None:
        if self._evaluates and self.step.step.kind != StepKind.EVALUATION:
            return
        unvisited = self.step.unvisited()
        goes_back_less = any(recorded.phase_grained and recorded.name == "backward" for recorded, _ in unvisited)
        for recorded, name_visited in unvisited:
            if name_visited and not goes_back_less:
                self._begin(thread, recorded.name)
                self._finish(thread, self._scheduler.clock.now_ns())
            else:
                # The time of a phase without kernels includes idle time, so it is not added to the times of kernels.
                whole_phase_ns = 0 if self._has_kernels or recorded.name == "loader" else max(recorded.device_ns, 0)
                self._scheduler.stats.uncharged_ns += recorded.work_ns or whole_phase_ns

    def _count(self, *, keep: bool) -> None:
        stats, now_ns = self._scheduler.stats, self._scheduler.clock.now_ns()
        stats.end_step(now_ns - self._wall_ns - stats.waited_ns - self._loader_ns, keep=keep)
        self._wall_ns = now_ns
        self._loader_ns = 0

    def stop(self, thread: HostThread) -> None:
        # With `--strict`, NotExact is raised if a phase ends before all its recorded kernels have run. The script may stop in
        # the middle of a phase. Such an incomplete last phase is therefore not ended with `--strict`.
        unplayed = self._strict and self.segment is not None and self.segment.unmatched_ns > 0
        if not unplayed:
            self.script.stop(thread, self._scheduler.clock.now_ns())
        if self.segment is not None or self.number:
            self._scheduler.block(thread, self._scheduler.work_end_ns(thread.host_ns))
        self.segment = None


def switch_to_step_with(tracker: StepTracker, signature: OpSignature) -> SegmentMatcher | None:
    """If the current recorded step lacks the op with these shapes, switch to a recorded step that has it."""
    # see Note [Training steps of several shapes] in step_choice.py
    segment, recording = tracker.segment, tracker.recording
    if segment is None or (segment.recorded is not None and segment.recorded.phase_grained):
        return None
    place, (exact, _, named), present = (segment.name, segment.count), recording.keys[signature], tracker.step
    if segment.recorded is not None and exact in segment.recorded.exact:
        return None
    others = recording.choice.steps_with(present.step, place, exact)
    if not others and segment.recorded is not None and signature.shapes and present.nearest is None:
        others = recording.choice.nearest_steps(present.step, place, named, signature.shapes)
        present.nearest = [other.row for other in others]
    fitting = [other for other in others if segment.fits(other.segments[place])]
    if not fitting or any(other is present.step for other in others):
        return None
    chosen = min(fitting, key=lambda other: other.row not in (present.nearest or ()))
    step = StepMatcher(chosen, recording.keys, present.histories)
    step.nearest = present.nearest
    tracker.segment = switched = step.take_over(tracker.step, segment)
    if switched is not None:
        if segment.recorded is None:  # a phase without recorded calls has no calls to remember
            switched.match(signature)
        switched.position_ns = switched.reached_before_latest_ns
    tracker.stages.switch_segment(switched)
    tracker.step = step
    return switched
