"""Records a training run. The patched PyTorch functions in tracer/surfaces call the recorder.

    recorder.enter_phase("backward"); ...; recorder.leave_phase("backward")
    recorder.optimizer_stepped(is_first=True)      # a step has ended

Note [Replays of a CUDA graph]
    Captured work runs on the GPU only when the CUDA graph is launched. The recorder therefore stores the calls that are
    reported during a capture, and reports the calls again at each launch. The first call is reported before the launch, and all
    other calls after the launch, because a launch cannot be split. The graph's whole GPU time belongs to the phase that the
    first call begins.
"""

from __future__ import annotations

import sys
import threading
from _thread import start_new_thread
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from tracer.communication import CommunicationRecorder
from tracer.own_cost import counted_as_cost
from tracer.recording_writer import RecorderParts, RecordingWriter
from tracer.repeated_steps import ENTER, EXHAUSTED, LEAVE, MODULE, OP, RECORDED, STEPPED
from tracer.schedule import Schedule
from tracer.step_recorder import CapturedReports, StepRecorder
from tracer.writing.output import FLUSH_NS, RecordingFile
from traces.model.layouts import Shape
from traces.model.run import LoaderSettings
from traces.model.trace import BatchKind, shapes_text
from traces.script.deferred_signals import deferred_signals
from traces.script.phase_rule import ASIDE, LOSS, READ
from traces.script.step_rule import Optimizers

# longest wait for another thread that holds the recorder's lock, at the end of the script
_LOCK_S = 0.5
_PAUSE_NS = 100_000_000  # how long the writing thread waits between checks


class Recorder:
    """Records one process. Any thread may call the public methods."""

    def __init__(
        self,
        output: RecordingFile,
        parts: RecorderParts,
        schedule: Schedule,
        optimizers: Optimizers,
        autograd_nodes: Callable[[], int] = int,
    ) -> None:
        self.cost = parts.cost
        self.clock = parts.cost.clock
        self.module_marks = None  # module calls are recorded as profiler ranges (surfaces/torch_nn_module.py)
        self.closed = False
        # the recorder holds this lock until `close`; a lock wakes a thread faster than an event
        self._until_close = threading.Lock()
        self._until_close.acquire()
        self._output, self._events, self._access = output, parts.events, parts.events.access
        self._profiler, self._facts = parts.profiler, parts.facts
        self._writer = RecordingWriter(output, parts, lambda: self.workload.signature)
        self.communication = CommunicationRecorder(self._writer, parts)
        self.steps = StepRecorder(parts, optimizers, schedule, self._writer, self.communication)
        self.workload = self.steps.script.workload
        self._schedule, self._autograd_nodes = schedule, autograd_nodes
        if schedule.compares_work:
            self.workload.on_every_call = self._outermost_module_called
        self._captured = WeakKeyDictionary[Any, CapturedReports]()  # keys: CUDA graphs

        # the methods of `CallListener`, stored as attributes for speed
        reports = self.steps.reports
        self.enter_phase = reports[ENTER]  # the phase is loader, h2d, zero_grad, backward, optimizer or other
        self.leave_phase = reports[LEAVE]
        self.loader_exhausted = reports[EXHAUSTED]  # the loader that was entered last has no more batches
        self.loss_called = partial(reports[OP], LOSS)
        self.aside_called = partial(reports[OP], ASIDE)  # the script clips or unscales gradients
        self.read_called = partial(reports[OP], READ)
        self.autograd_recorded = reports[RECORDED]  # autograd recorded an op after a backward pass
        self.optimizer_stepped = reports[STEPPED]  # an optimizer's `step` has returned
        self.module_called = reports[MODULE]  # arguments: the module's id, and True if gradients are enabled

    @property
    def phase(self) -> str:
        return self.steps.entered

    @counted_as_cost
    def make_way_for_profile(self) -> None:
        self._profiler.make_way()

    @property
    def begins_profile(self) -> bool:
        return self._profiler.is_beginning

    # --- phases and steps

    def modules_left(self) -> None:
        """Do nothing. Only replays use this hook."""

    def module_returned(self) -> None:
        if (error := sys.exception()) is not None:
            self._facts.failed(error)
        self.steps.has_returned = True

    @counted_as_cost
    def _outermost_module_called(
        self, module: object, inputs: Iterable[tuple[Shape, str]], autocast: str | None, grad_enabled: bool
    ) -> Callable[[], None] | None:
        # see Note [Windows for later kinds of steps] in schedule.py
        if not self._schedule.compares_work:
            self.workload.on_every_call = None
            return None
        called, before = (*inputs, autocast, grad_enabled), self._autograd_nodes()

        def returned() -> None:  # add the hashes, because replicas return in any order
            self.steps.work += hash((called, self._autograd_nodes() - before))

        return returned

    # --- CUDA graphs

    def capture_begins(self, graph: object) -> None:
        # see Note [Replays of a CUDA graph]
        with self.cost.lock:
            self.steps.catch_up()
            self.steps.capture = self._captured[graph] = CapturedReports()
            self.steps.is_unlike_others = True

    def capture_ends(self) -> None:
        self.steps.capture = None

    def replay_begins(self, graph: object) -> None:
        # see Note [Replays of a CUDA graph]
        for kind, argument in self._reports_of(graph)[:1]:
            self.steps.reports[kind](argument)

    def replay_ends(self, graph: object) -> None:
        for kind, argument in self._reports_of(graph)[1:]:
            self.steps.reports[kind](argument)
        self.steps.has_returned = True

    def _reports_of(self, graph: object) -> list[tuple[int, Any]]:
        captured = self._captured.get(graph)
        return captured.reports if captured is not None else []

    def compilation_begins(self) -> None:
        self.steps.compiled_ns.append(self.cost.clock.now_ns())

    # --- values and batches

    def batch(self, kind: BatchKind, loader: int, start_ns: int, end_ns: int, size_bytes: int) -> None:
        self._writer.batches.append((loader, kind, start_ns, end_ns - start_ns, size_bytes))
        self.cost.calls += 1

    def loader_of(self, loader: object, describe: Callable[[], LoaderSettings]) -> int:
        """Return the number of a DataLoader. The first call stores the DataLoader's settings."""
        return self._facts.loader(loader, describe)

    def read(self, op: str, dtype: str, values: Sequence[float]) -> None:
        self.steps.reads.append((op, dtype, values))  # needs no lock, because `list.append` is atomic
        self.cost.calls += 1

    @counted_as_cost
    def memory_peak_resets(self) -> None:
        self._facts.read_peaks(self._access)

    def workspaces_cleared(self) -> None:
        self._facts.workspaces_cleared()

    @counted_as_cost
    def add_result_size(self, op: str, searched: Shape, size: int) -> None:
        self.steps.found.append((self._output.text(op), self._output.text(shapes_text([searched])), size))

    # --- writing

    def write_regularly(self) -> None:
        """Start a thread that writes the recording if no training step ends for half a second."""
        # see Note [The writing thread] in recording_writer.py

        def write() -> None:
            pause_ns = FLUSH_NS
            while not self._until_close.acquire(timeout=pause_ns / 1e9):
                with self.cost.lock:
                    if not self.closed and not self._profiler.active and not self._writer.due_in_ns:
                        self._writer.flush_in_thread()
                        self.cost.excluded_ns = 0  # `excluded_ns` counts only time of the script's thread
                    pause_ns = self._writer.due_in_ns or _PAUSE_NS

        with suppress(RuntimeError):  # if the system starts no more threads, only the script's thread writes
            start_new_thread(write, ())  # `threading.enumerate()` does not list this thread

    # --- the end

    def script_ended(self) -> None:
        """End the last step. If the script trains in another thread than the main thread, do nothing."""
        if self.steps.script.thread == threading.main_thread().ident and self.cost.lock.acquire(timeout=_LOCK_S):
            try:
                self.steps.stop()
            finally:
                self.cost.lock.release()

    def close(self) -> None:
        """Write all data except an unfinished step. Give up after 0.5 s if another thread holds the recorder's lock."""
        has_lock = self.cost.lock.acquire(timeout=_LOCK_S)
        try:
            if not has_lock:
                if not self._access.is_calling:
                    return
                self._access.mark_lost("a call into CUDA did not return")
            self._close()
        finally:
            if has_lock:
                self.cost.lock.release()

    def _close(self) -> None:
        with deferred_signals():
            if self.closed:
                return
            self.closed = True
            self._until_close.release()
            self.steps.stop()
            self._writer.read_last_events()  # this comes first, because it finds out whether the device hangs
            self._profiler.stop(at_end=True)
            self.communication.read_flight_recorder(last=True)
            self._facts.failed(getattr(sys, "last_value", None))
            self._writer.close(self._events.taken, self.steps.reads, self.steps.found)
