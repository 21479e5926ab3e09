"""Cuts the running script into steps and phases, and takes a CUDA event at each boundary.

    steps = StepRecorder(...)
    steps.script.enter(thread, "backward", now_ns)      # `ScriptCut` calls `steps` back at each boundary

It also holds the data of the current step: DataParallel stages, values that the host read, data-dependent sizes.
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
from tracer.writing.step_writer import EndedStep, Found, PhasePart, Read
from traces.model.trace import NONE, StepKind, Untimed
from traces.script.phase_rule import PLAIN
from traces.script.script_cut import CutStep, ScriptCut
from traces.script.step_rule import Optimizers


class StepRecorder:
    """The listener of `ScriptCut` (traces/script/script_cut.py). The recorder's lock guards it."""

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
        self.script = ScriptCut[int](self, optimizers)  # threads by `threading.get_ident()`
        self.cost = cost
        self.has_captured = False  # whether a CUDA graph was captured since the last step ended
        self.reads: list[Read] = []  # since the last step ended
        self.found: list[Found] = []  # since the last step ended
        self._taken, self._schedule, self._profiler = taken, schedule, profiler
        self._writer, self._communication, self._threads = writer, communication, threads
        self._clock = cost.clock
        self._start_ns = NONE  # of the current step; NONE before the first event of the first step
        self._at: dict[int, BoundaryEvent] = {}  # by the host's time
        self._parts: list[PhasePart] = []

    # --- DataParallel stages

    @property
    def profiling(self) -> bool:
        """Whether the recorder's torch.profiler is attached and records ranges."""
        return self._profiler.active

    @costed
    def begin_part(self, stream: Any = None) -> tuple[int, BoundaryEvent | None]:
        """A DataParallel stage begins; returns what `end_part` needs. It may also begin a forward pass."""
        now_ns = self._clock.now_ns()
        self.script.op(threading.get_ident(), PLAIN, now_ns)
        return now_ns, self._taken.take(stream)

    @costed
    def end_part(self, name: str, begun: tuple[int, BoundaryEvent | None], stream: Any = None, thread: str = "") -> None:
        """The stage ends. `thread`: role of a thread that was created for it (see `ThreadRows`)."""
        start_ns, begin = begun
        self._profiler.all_threads |= thread.startswith("replica")
        end_ns, end = self._clock.now_ns(), self._taken.take(stream)
        self._parts.append(PhasePart(name, self._threads.row(thread), start_ns, end_ns, begin, end))

    # --- what ScriptCut reports

    def segment_begins(self, thread: int, name: str, now_ns: int) -> None:
        """Take an event, unless there is already one where the previous phase ended."""
        segments = self.script.segments
        if not segments and self._start_ns != NONE:
            return  # the first segment begins with its step, which has an event
        if self._start_ns == NONE:
            self._start_ns = now_ns
        if not segments or segments[-1].end_ns == now_ns:
            self._take_event(now_ns)

    def phase_left(self, thread: int, name: str, now_ns: int) -> None:
        """Take an event. A loader segment lasts until the next segment begins."""
        if name != "loader":
            self._take_event(now_ns)

    def set_up_ends(self, thread: int, now_ns: int) -> None:
        """Set-up is over; the first step begins with the next call."""
        self._start_ns = NONE
        self._at.clear()

    def step_evaluates(self, is_evaluation: bool) -> None:
        """Nothing to do before the step ends."""

    def more_recorded(self) -> None:
        """Returns None: the recorder follows no recording."""

    def step_ends(self, thread: int, step: CutStep) -> None:
        """Keep the step until the GPU has passed its events. Write earlier steps that are done."""
        now_ns, left_ns = step.end_ns, step.left_ns
        if not step.is_evaluation and left_ns is not None and left_ns in self._at:
            self._at[now_ns] = self._at[left_ns]  # the step ended on the GPU when the optimizer returned
        else:
            self._take_event(now_ns)
        if step.segments:
            self._keep(step)
        last = self._at.get(now_ns)
        self._at, self._parts = {}, []
        self._taken.handed_out()
        self._start_ns = now_ns
        looked = self._communication.look_if_due()
        if self._profiler.paused or looked:  # this time is outside all steps
            self._start_ns = self._clock.now_ns()
            self._take_event(self._start_ns)
        elif last is not None:
            self._at[now_ns] = last
        self._threads.note_script_thread(thread)
        self._writer.flush_if_due()

    def _keep(self, step: CutStep) -> None:
        segments = step.segments
        start_ns = self._start_ns if self._start_ns != NONE else segments[0].start_ns
        # A step begins where the previous one ended. Its time before the first event belongs to its first segment.
        segments[0] = segments[0]._replace(start_ns=start_ns)
        taken, untimed = self._taken.handed_out()
        ended = EndedStep(
            self._writer.number, self._kind(step.is_evaluation, untimed), start_ns, step.end_ns, segments, self._at, taken,
            self._parts, self.reads, self.found, untimed,
        )  # fmt: skip
        # If a signal handler raises here, the step is lost, but never written twice.
        self.reads, self.found = [], []
        self._writer.add(ended)
        if not self.has_captured and untimed not in (Untimed.CAPTURE, Untimed.PROFILE):
            self._schedule.end_step(step.is_evaluation)
        self.has_captured = False
        self._turn_profiler()

    def _kind(self, is_evaluation: bool, untimed: Untimed) -> StepKind:
        """The step's kind. The schedule does not count steps that capture a graph or that the script profiles.

        Neither is clean: the script's profiler slows the host as the recorder's does."""
        if is_evaluation:
            return StepKind.EVALUATION
        if self.has_captured or untimed == Untimed.CAPTURE:
            return StepKind.WARMUP
        return StepKind.PROFILED if untimed == Untimed.PROFILE else self._schedule.kind(is_evaluation)

    def _turn_profiler(self) -> None:
        """Begin or end profiling between two steps. That time does not count as recording overhead per step."""
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
