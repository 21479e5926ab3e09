"""Cuts the running script into steps and phases, and takes a CUDA event at each boundary.

    steps = StepRecorder(...)
    steps.script.enter(thread, "backward", now_ns)      # `ScriptCut` calls `steps` back at each boundary

The class also holds the data of the current step: DataParallel stages, values that the host read, and data-dependent sizes.
"""

from __future__ import annotations

import threading
from typing import Any

from tracer.communication import CommunicationRecorder
from tracer.device.boundary_events import BoundaryEvent
from tracer.device.taken_events import TakenEvents
from tracer.own_cost import OwnCost, costed
from tracer.profile import Profiler
from tracer.recording_writer import RecordingWriter
from tracer.schedule import Schedule
from tracer.thread_rows import ThreadRows
from tracer.writing.step_writer import DataParallelStage, EndedStep, Found, Read
from traces.model.trace import NONE, StepKind, Untimed
from traces.script.phase_rule import PLAIN
from traces.script.script_cut import CutStep, ScriptCut
from traces.script.step_rule import Optimizers


class StepRecorder:
    """Implements the listener of `ScriptCut` (traces/script/script_cut.py). The recorder's lock guards this class."""

    def __init__(
        self,
        optimizers: Optimizers,
        taken: TakenEvents,
        schedule: Schedule,
        profiler: Profiler,
        writer: RecordingWriter,
        communication: CommunicationRecorder,
        threads: ThreadRows,
        cost: OwnCost,
    ) -> None:
        self.script = ScriptCut[int](self, optimizers)  # threads are identified by `threading.get_ident()`
        self.cost = cost
        self.has_captured = False  # True if a CUDA graph was captured since the last step ended
        self.reads: list[Read] = []  # values read since the last step ended
        self.found: list[Found] = []  # sizes found since the last step ended
        self._taken, self._schedule, self._profiler = taken, schedule, profiler
        self._writer, self._communication, self._threads = writer, communication, threads
        self._clock = cost.clock
        self._start_ns = NONE  # begin of the current step, NONE before the first event of the first step
        self._at: dict[int, BoundaryEvent] = {}  # events by the host time of their boundary
        self._stages: list[DataParallelStage] = []

    # --- DataParallel stages

    @property
    def profiling(self) -> bool:
        """Returns whether the recorder's torch.profiler is attached and records ranges."""
        return self._profiler.active

    @costed
    def begin_stage(self, stream: Any = None) -> tuple[int, BoundaryEvent | None]:
        """Begins a DataParallel stage, which may also begin a forward pass. Returns an argument for `end_stage`."""
        now_ns = self._clock.now_ns()
        self.script.op(threading.get_ident(), PLAIN, now_ns)
        return now_ns, self._taken.take(stream)

    @costed
    def end_stage(self, name: str, begun: tuple[int, BoundaryEvent | None], stream: Any = None, thread: str = "") -> None:
        """Records the end of a stage. `thread` is the role of a thread that was created for the stage (see `ThreadRows`)."""
        start_ns, begin = begun
        self._profiler.all_threads |= thread.startswith("replica")
        end_ns, end = self._clock.now_ns(), self._taken.take(stream)
        self._stages.append(DataParallelStage(name, self._threads.row(thread), start_ns, end_ns, begin, end))

    # --- callbacks of ScriptCut

    def segment_begins(self, thread: int, name: str, now_ns: int) -> None:
        """Takes an event, unless the end of the previous phase already has one."""
        segments = self.script.segments
        if not segments and self._start_ns != NONE:
            return  # the first segment begins with the step, which already has an event
        if self._start_ns == NONE:
            self._start_ns = now_ns
        if not segments or segments[-1].end_ns == now_ns:
            self._take_event(now_ns)

    def phase_left(self, thread: int, name: str, now_ns: int) -> None:
        """Takes an event at the end of a phase. A loader segment lasts until the next segment begins."""
        if name != "loader":
            self._take_event(now_ns)

    def set_up_ends(self, thread: int, now_ns: int) -> None:
        """Notes the end of set-up. The first step begins with the next call."""
        self._start_ns = NONE
        self._at.clear()

    def step_evaluates(self, is_evaluation: bool) -> None:
        """Does nothing, because evaluation steps are recorded when they end."""

    def more_recorded(self) -> None:
        """Returns None, because the recorder does not follow a recording."""

    def step_ends(self, thread: int, step: CutStep) -> None:
        """Keeps the step until the GPU has passed the step's events. Writes earlier steps that are done."""
        now_ns, left_ns = step.end_ns, step.left_ns
        if not step.is_evaluation and left_ns is not None and left_ns in self._at:
            self._at[now_ns] = self._at[left_ns]  # on the GPU, the step ended when the optimizer returned
        else:
            self._take_event(now_ns)
        if step.segments:
            self._keep(step)
        last = self._at.get(now_ns)
        self._at, self._stages = {}, []
        self._taken.handed_out()
        self._start_ns = now_ns
        looked = self._communication.look_if_due()
        if self._profiler.paused or looked:  # this time does not belong to any step
            self._start_ns = self._clock.now_ns()
            self._take_event(self._start_ns)
        elif last is not None:
            self._at[now_ns] = last
        self._threads.note_script_thread(thread)
        self._writer.flush_if_due()

    def _keep(self, step: CutStep) -> None:
        segments = step.segments
        start_ns = self._start_ns if self._start_ns != NONE else segments[0].start_ns
        # A step begins where the previous step ended. The time before the first event belongs to the first segment of the step.
        segments[0] = segments[0]._replace(start_ns=start_ns)
        taken, untimed = self._taken.handed_out()
        ended = EndedStep(
            self._writer.number, self._kind(step.is_evaluation, untimed), start_ns, step.end_ns, segments, self._at, taken,
            self._stages, self.reads, self.found, untimed,
        )  # fmt: skip
        # If a signal handler raises here, the step is lost. This order prevents writing a step twice.
        self.reads, self.found = [], []
        self._writer.add(ended)
        if not self.has_captured and untimed not in (Untimed.CAPTURE, Untimed.PROFILE):
            self._schedule.end_step(step.is_evaluation)
        self.has_captured = False
        self._turn_profiler()

    def _kind(self, is_evaluation: bool, untimed: Untimed) -> StepKind:
        """Returns the step's kind. The schedule does not count steps that capture a graph or that the script profiles.

        Such steps are not clean, because a profiler of the script slows the host as much as the recorder's profiler does.
        """
        if is_evaluation:
            return StepKind.EVALUATION
        if self.has_captured or untimed == Untimed.CAPTURE:
            return StepKind.WARMUP
        return StepKind.PROFILED if untimed == Untimed.PROFILE else self._schedule.kind(is_evaluation)

    def _turn_profiler(self) -> None:
        """Begins or ends profiling between two steps. That time does not count as recording overhead per step."""
        began_ns = self._clock.perf_ns()
        if self._schedule.profile == "prepare" and self._profiler.must_wait:
            self._schedule.postpone()
        self._profiler.end_step(self._writer.number - 1)
        self._profiler.begin_step(self._writer.number, self._schedule.profile)
        self.cost.spent_ns -= self._clock.perf_ns() - began_ns

    def _take_event(self, now_ns: int) -> None:
        event = self._taken.take()
        if event is not None:
            self._at[now_ns] = event
