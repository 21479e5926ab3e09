"""Defines the recorder. The wrappers around torch functions (tracer/surfaces) report calls to the recorder.

The recorder passes steps and phases to `step_recorder.py`, collectives to `communication.py`, and rows to
`recording_writer.py`. Each phase boundary costs a few microseconds, which count as recording overhead.

    recorder.enter_phase("backward"); ...; recorder.leave_phase("backward")
    recorder.optimizer_stepped(is_first=True)      # a step has ended

Note [Replays of a CUDA graph]
    Captured work runs on the device only when the graph is replayed. Calls reported during a capture are therefore kept and
    repeated at each replay, as on the virtual GPU. For example, each replay of a graph with a whole training step ends one
    step. The launch of a graph cannot be split. So the first call is repeated before the launch, and the other calls after the
    launch. All device time of the graph belongs to the phase that the first call begins.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from tracer.communication import CommunicationRecorder
from tracer.device.boundary_events import BoundaryEvents
from tracer.device.clock import EpochClock
from tracer.device.device_access import DeviceAccess
from tracer.device.taken_events import TakenEvents
from tracer.own_cost import OwnCost, costed
from tracer.profile import Profiler
from tracer.provenance import ProcessFacts
from tracer.recording_writer import HeaderSources, RecordingWriter
from tracer.schedule import Schedule
from tracer.step_recorder import StepRecorder
from tracer.thread_rows import ThreadRows
from tracer.writing.flight_recorder import FlightRecorder
from tracer.writing.output import RecordingFile
from traces.model.layouts import Shape
from traces.model.run import LoaderSettings
from traces.model.trace import BatchKind, shapes_text
from traces.script.deferred_signals import deferred_signals
from traces.script.phase_rule import ASIDE, LOSS
from traces.script.step_rule import Optimizers
from traces.script.workload_observer import WorkloadObserver

# At the end of the script, the recorder waits this long for a thread that holds the recorder's lock.
_LOCK_S = 0.5


class CapturedCalls:
    """Keeps the calls that one thread reports while it captures a graph. See Note [Replays of a CUDA graph]."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self._thread = threading.get_ident()

    def notes(self, call: Callable[..., None], *args: Any) -> bool:
        """Keeps a call of the capturing thread. Returns False for other threads, because their calls must be made now."""
        if threading.get_ident() != self._thread:
            return False
        self.calls.append(partial(call, *args))
        return True


class Recorder:
    """Records one process. Any thread may call the public methods."""

    def __init__(
        self,
        output: RecordingFile,
        events: BoundaryEvents,
        access: DeviceAccess,
        schedule: Schedule,
        profiler: Profiler,
        facts: ProcessFacts,
        clock: EpochClock,
        rank: int,
        optimizers: Optimizers,
        flight: FlightRecorder | None = None,
    ) -> None:
        self.clock = clock
        self.cost = OwnCost(clock)
        self.closed = False
        self._output, self._access, self._profiler, self._facts = output, access, profiler, facts
        self._taken = TakenEvents(events, access)
        self._threads = ThreadRows(rank)
        sources = HeaderSources(self._threads, profiler, flight, lambda: self.workload.signature, self.cost)
        self._writer = RecordingWriter(rank, output, facts, events, access, sources)
        self.communication = CommunicationRecorder(self._writer, self._taken, access, facts, flight, self.cost)
        self.steps = StepRecorder(
            optimizers, self._taken, schedule, profiler, self._writer, self.communication, self._threads, self.cost
        )
        self._script = self.steps.script
        self._capture: CapturedCalls | None = None  # in progress
        self._captured = WeakKeyDictionary[Any, CapturedCalls]()  # keyed by graph

    @property
    def phase(self) -> str:
        """Returns the name of the phase that the script has entered and not yet left, or ""."""
        return self._script.entered

    @property
    def workload(self) -> WorkloadObserver:
        """Returns the collector of the workload signature."""
        return self._script.workload

    @costed
    def make_way_for_profile(self) -> None:
        """Prepares for a torch profiler that the script or the recorder is about to start."""
        self._profiler.make_way()

    @property
    def begins_profile(self) -> bool:
        """Returns whether a profile that starts now belongs to the recorder."""
        return self._profiler.is_beginning

    # --- phases and steps

    @costed
    def enter_phase(self, name: str) -> None:
        """Records that the script enters the phase loader, h2d, zero_grad, backward, optimizer or other."""
        if self._capture is not None and self._capture.notes(self.enter_phase, name):
            return
        self._script.enter(threading.get_ident(), name, self.clock.now_ns())

    @costed
    def leave_phase(self, name: str) -> None:
        self._note_failure()
        if self._capture is not None and self._capture.notes(self.leave_phase, name):
            return
        self._script.leave(threading.get_ident(), name, self.clock.now_ns())

    @costed
    def loader_exhausted(self) -> None:
        """Records that the last entered loader had no batch left."""
        self._script.loader_exhausted(threading.get_ident())

    def module_marks(self, module: object) -> None:
        """Returns None, because module calls are recorded as profiler ranges (surfaces/torch_nn_module.py)."""

    def modules_left(self) -> None:
        """Does nothing."""

    @costed
    def module_called(self, module: object, grad_enabled: bool) -> None:
        """Records a call of an outermost module. A forward pass begins or continues."""
        if self._capture is not None and self._capture.notes(self.module_called, module, grad_enabled):
            return
        self._script.module_called(threading.get_ident(), id(module), grad_enabled, self.clock.now_ns())

    def module_returned(self) -> None:
        """Records that the outermost module has returned."""
        self._note_failure()
        if self._capture is None or not self._capture.notes(self.module_returned):
            self._script.module_returned()

    @costed
    def loss_called(self) -> None:
        if self._capture is not None and self._capture.notes(self.loss_called):
            return
        self._script.op(threading.get_ident(), LOSS, self.clock.now_ns())

    @costed
    def aside_called(self) -> None:
        """Records work outside forward and backward, such as clipping, unscaling or reading a value."""
        if self._capture is not None and self._capture.notes(self.aside_called):
            return
        self._script.op(threading.get_ident(), ASIDE, self.clock.now_ns())

    @costed
    def optimizer_stepped(self, is_first: bool) -> None:
        """Records that an optimizer's `step` has returned."""
        if self._capture is not None and self._capture.notes(self.optimizer_stepped, is_first):
            return
        self._script.optimizer_stepped(threading.get_ident(), is_first, self.clock.now_ns())

    # --- CUDA graphs

    def capture_begins(self, graph: object) -> None:
        """Records the begin of a capture of this thread's stream. See Note [Replays of a CUDA graph]."""
        self._capture = CapturedCalls()
        self._captured[graph] = self._capture
        self.steps.has_captured = True

    def capture_ends(self) -> None:
        """Records that the capture has ended or failed."""
        self._capture = None

    def replay_begins(self, graph: object) -> None:
        """Prepares for the replay of a graph. The first captured call begins the graph's forward pass."""
        calls = self._calls_of(graph)
        if calls:
            calls[0]()

    def replay_ends(self, graph: object) -> None:
        """Makes the other captured calls after the graph was launched. All work of the graph belongs to the current segment."""
        for call in self._calls_of(graph)[1:]:
            call()

    def _calls_of(self, graph: object) -> list[Callable[[], None]]:
        captured = self._captured.get(graph)
        return captured.calls if captured is not None else []

    def _note_failure(self) -> None:
        """Keeps the text of an out-of-memory error, because a replay uses the same wording."""
        error = sys.exception()
        if error is not None:
            self._facts.failed(error)

    # --- values and batches

    @costed
    def batch(self, kind: BatchKind, loader: int, start_ns: int, end_ns: int, size_bytes: int) -> None:
        """Records a batch. The script has waited for the batch, or a loader's thread has copied it into pinned memory."""
        self._output.add(
            "batches",
            rank=self._writer.rank,
            loader=loader,
            kind=kind,
            start_ns=start_ns,
            duration_ns=end_ns - start_ns,
            bytes=size_bytes,
        )

    def loader_of(self, loader: object, describe: Callable[[], LoaderSettings]) -> int:
        """Returns the number of a DataLoader. `describe` is called at the loader's first batch."""
        return self._facts.loader(loader, describe)

    @costed
    def read(self, op: str, dtype: str, values: Sequence[float]) -> None:
        """Records `values` that the host read from a device in the current step."""
        self.steps.reads.append((self._output.text(op), self._output.text(dtype), values))

    @costed
    def found(self, op: str, searched: Shape, size: int) -> None:
        """Records the result size of an op with a data-dependent size (nonzero, unique). The size NONE means unknown."""
        self.steps.found.append((self._output.text(op), self._output.text(shapes_text([searched])), size))

    # --- the end

    def close(self) -> None:
        """Writes all data at the end of the script. An unfinished training step is dropped.

        If another thread hangs in a CUDA call while it holds the lock, the file is written without the lock.
        """
        has_lock = self.cost.lock.acquire(timeout=_LOCK_S)
        try:
            if not has_lock:
                if not self._access.is_calling:
                    return
                self._access.lose("a call into CUDA did not return")
            self._close()
        finally:
            if has_lock:
                self.cost.lock.release()

    def _close(self) -> None:
        with deferred_signals():
            if self.closed:
                return
            self.closed = True
            self._script.stop(self._threads.script_thread, self.clock.now_ns())
            self._profiler.stop(at_end=True)
            self.communication.look(last=True)
            self._facts.failed(getattr(sys, "last_value", None))
            self._writer.close(self._taken.taken, self.steps.reads, self.steps.found)
