"""The recorder: cuts a running script into steps and phases, and records what the host waited for and read.

The surfaces report to it what the script does; it takes an event on the GPU at each boundary (`boundary_events.py`), and
writes steps, phases, values, batches, parts and collectives as they are done (`output.py`). It costs a few microseconds per
boundary and counts them. The same `ScriptCut` cuts a replay.

    recorder.enter_phase("backward"); ...; recorder.leave_phase("backward")
    recorder.optimizer_stepped(is_first=True)      # a step has ended
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from tracer.boundary_events import BoundaryEvent, BoundaryEvents
from tracer.clock import EpochClock
from tracer.collectives import CollectiveCall, CollectiveWriter, PendingCollective
from tracer.flight_recorder import FlightRecorder
from tracer.output import RecordingFile
from tracer.profile import Profiler
from tracer.provenance import ProcessFacts
from tracer.schedule import Schedule
from tracer.step_writer import EndedStep, Found, PhasePart, Read, StepWriter
from traces.deferred_signals import deferred_signals
from traces.model import NONE, BatchKind, Ending, Shape, Thread, Trace, shapes_text
from traces.phases import ASIDE, LOSS, PLAIN
from traces.run import LoaderSettings
from traces.script_cut import CutStep, ScriptCut
from traces.steps import Optimizers
from traces.workload_observer import WorkloadObserver

# Steps whose events the GPU has not passed yet. A host never runs this far ahead of its GPU; if it does, it may wait.
_PENDING_STEPS = 256
# Steps that are written together: one at a time would find the processor's caches cold each time.
_TOGETHER = 16
# After how long the header is written again for its figures alone (the recorder's overhead, say).
_FIGURES_NS = 10_000_000_000

T = TypeVar("T", bound=Callable[..., Any])


def _costed(method: T) -> T:
    """Count the time that `method` takes as the recorder's own."""

    @wraps(method)
    def costed(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        began_ns = self.clock.perf_ns()
        try:
            with self._lock:
                return method(self, *args, **kwargs)
        finally:
            self.cost_ns += self.clock.perf_ns() - began_ns

    return costed  # type: ignore[return-value]


class Recorder:
    """One process's recording. Every public method may be called from any thread."""

    def __init__(
        self,
        output: RecordingFile,
        events: BoundaryEvents,
        schedule: Schedule,
        profiler: Profiler,
        facts: ProcessFacts,
        clock: EpochClock,
        rank: int,
        optimizers: Optimizers,
        flight: FlightRecorder | None = None,
    ) -> None:
        """`optimizers` are those of the process.

        `flight` is for collectives that no surface sees; the profiler sees them itself, so with one there is none.
        """
        self.clock = clock
        self.flight = flight
        self.cost_ns = 0
        self.closed = False
        self._output, self._events, self._schedule, self._profiler, self._facts = output, events, schedule, profiler, facts
        self._rank = rank
        self._lock = threading.RLock()
        self._script = ScriptCut[int](self, optimizers)  # threads by `threading.get_ident()`
        self._script_thread = threading.get_ident()
        self._threads = [Thread(rank, threading.get_native_id(), threading.current_thread().name, "main")]
        self._thread_rows: dict[int | str, int] = {self._script_thread: 0}  # by role or identity
        self._number = 0
        self._start_ns = NONE  # of the current step; NONE before the first event of the first step
        self._at: dict[int, BoundaryEvent] = {}
        self._taken: list[BoundaryEvent] = []
        self._parts: list[PhasePart] = []
        self._pending: deque[EndedStep] = deque()
        self._steps_ns = 0  # time in steps so far
        self._reads: list[Read] = []  # since the last step ended
        self._found: list[Found] = []  # likewise
        self._written_extent: tuple[Any, ...] = ()  # of what the file's header holds
        self._written_ns = 0
        self._step_writer, self._collectives = StepWriter(output, facts), CollectiveWriter(output, facts)

    @property
    def phase(self) -> str:
        """The phase that was entered by name and not left yet, or "" within none."""
        return self._script.entered

    @property
    def workload(self) -> WorkloadObserver:
        """Notes what the script trains, until it is known."""
        return self._script.workload

    @_costed
    def make_way_for_profile(self) -> None:
        """The script or the recorder is about to start a torch profiler."""
        self._profiler.make_way()

    # --- phases and steps

    @_costed
    def enter_phase(self, name: str) -> None:
        """The script enters loader, h2d, zero_grad, backward, optimizer or other."""
        self._script.enter(threading.get_ident(), name, self.clock.now_ns())

    @_costed
    def leave_phase(self, name: str) -> None:
        self._script.leave(threading.get_ident(), name, self.clock.now_ns())

    @_costed
    def loader_exhausted(self) -> None:
        """The loader entered last had no batch left."""
        self._script.loader_exhausted(threading.get_ident())

    def module_marks(self, module: object) -> None:
        """None: calls of modules are recorded as ranges of the profiler (surfaces/torch_nn_module.py)."""

    def modules_left(self) -> None:
        """Nothing to do when an outermost call has returned."""

    @_costed
    def module_called(self, module: object, grad_enabled: bool) -> None:
        """An outermost module is called: a forward pass goes on or begins."""
        self._script.module_called(threading.get_ident(), id(module), grad_enabled, self.clock.now_ns())

    def module_returned(self) -> None:
        """The outermost module has returned."""
        self._script.module_returned()

    @_costed
    def loss_called(self) -> None:
        self._script.op(threading.get_ident(), LOSS, self.clock.now_ns())

    @_costed
    def aside_called(self) -> None:
        """Something that is neither forward nor backward: clipping, unscaling, a value read."""
        self._script.op(threading.get_ident(), ASIDE, self.clock.now_ns())

    @_costed
    def optimizer_stepped(self, is_first: bool) -> None:
        """An optimizer's `step` has returned."""
        self._script.optimizer_stepped(threading.get_ident(), is_first, self.clock.now_ns())

    # --- what ScriptCut reports (traces/script_cut.py)

    def segment_begins(self, thread: int, name: str, now_ns: int) -> None:
        """Take an event if the segment begins now: not if the phase before was left earlier, where there is one already."""
        segments = self._script.segments
        if not segments and self._start_ns != NONE:
            return  # a step's first segment begins with the step, whose event there is
        if self._start_ns == NONE:
            self._start_ns = now_ns
        if not segments or segments[-1].end_ns == now_ns:
            self._take_event(now_ns)

    def phase_left(self, thread: int, name: str, now_ns: int) -> None:
        """Take an event; the loader's segment goes on until the next one begins."""
        if name != "loader":
            self._take_event(now_ns)

    def set_up_ends(self, thread: int, now_ns: int) -> None:
        """The first step begins with what comes next."""
        self._start_ns = NONE
        self._at.clear()

    def step_evaluates(self, is_evaluation: bool) -> None:
        """Nothing to do before the step ends."""

    def more_recorded(self) -> None:
        """No recording is followed."""

    def _take_event(self, now_ns: int) -> None:
        event = self._events.take()
        if event is not None:
            self._at[now_ns] = event
            self._taken.append(event)

    def step_ends(self, thread: int, step: CutStep) -> None:
        """Keep the step until the GPU has passed its events, and write those whose events it has passed."""
        now_ns, left_ns, segments = step.end_ns, step.left_ns, step.segments
        if not step.is_evaluation and left_ns is not None and left_ns in self._at:
            self._at[now_ns] = self._at[left_ns]  # the GPU's step ended where the optimizer was left, whatever came since
        else:
            self._take_event(now_ns)
        if segments:
            start_ns = self._start_ns if self._start_ns != NONE else segments[0].start_ns
            # A step begins where the one before ended; what it did before its first event belongs to its first segment.
            segments[0] = segments[0]._replace(start_ns=start_ns)
            kind = self._schedule.kind(step.is_evaluation)
            ended = EndedStep(
                self._number, kind, start_ns, now_ns, segments, self._at, self._taken, self._parts, self._reads, self._found
            )
            # A signal's handler that raises here loses the step; it must not be there twice.
            self._reads, self._found = [], []
            self._number += 1
            self._steps_ns += now_ns - start_ns
            self._pending.append(ended)
            self._schedule.end_step(step.is_evaluation)
            self._turn_profiler()
        last = self._at.get(now_ns)
        self._at, self._taken, self._parts = {}, [], []
        self._start_ns = now_ns
        looked = self.flight is not None and self.flight.is_due()
        if looked:
            self._look()
        if self._profiler.paused or looked:  # that takes time that is no step's
            self._start_ns = self.clock.now_ns()
            self._take_event(self._start_ns)
        elif last is not None:
            self._at[now_ns] = last
        self._note_script_thread(thread)
        due = self._output.due
        if due or len(self._pending) >= _TOGETHER:
            with deferred_signals():
                self._write_done(wait=len(self._pending) > _PENDING_STEPS)
                if due:
                    self._output.flush(self._changed_header())

    def _turn_profiler(self) -> None:
        """The profiler's own work between two steps is no step's, so it does not count as the recorder's share of one."""
        began_ns = self.clock.perf_ns()
        self._profiler.end_step(self._number - 1)
        self._profiler.begin_step(self._number, self._schedule.profile)
        self.cost_ns -= self.clock.perf_ns() - began_ns

    # --- values, batches, collectives

    @_costed
    def joined(self, rank: int) -> None:
        """The script has joined a process group, which gives its rank; earlier rows get that rank in the end."""
        self._rank = rank
        self._facts.joined(rank)
        if self.flight is not None:
            self.flight.joined()
        self._threads = [replace(thread, rank=rank) for thread in self._threads]

    @_costed
    def distributes(self, model: object) -> None:
        """A DistributedDataParallel was made."""
        self._facts.distributes(model)

    @_costed
    def leaving(self, is_all: bool) -> None:
        """A process group is about to be destroyed (or all are), and with it what its models have logged."""
        self._facts.read_reducers()
        if is_all:
            self._look(last=True)

    def _look(self, last: bool = False) -> None:
        """Write the collectives that C++ started by itself."""
        if self.flight is None:
            return
        began_ns = self.clock.perf_ns()
        for call, duration_ns in self.flight.read(last):
            if duration_ns == NONE:
                self._collectives.write(call, self._rank, 0, Ending.UNSEEN)
            else:
                self._collectives.write(call, self._rank, duration_ns, Ending.SEEN, self._facts.current_device_row())
        self.flight.spent_ns += self.clock.perf_ns() - began_ns

    @_costed
    def batch(self, kind: BatchKind, loader: int, start_ns: int, end_ns: int, size_bytes: int) -> None:
        """A batch was waited for, or copied into pinned memory by a loader's pinning thread."""
        self._output.add(
            "batches",
            rank=self._rank,
            loader=loader,
            kind=kind,
            start_ns=start_ns,
            duration_ns=end_ns - start_ns,
            bytes=size_bytes,
        )

    def loader_of(self, loader: object, describe: Callable[[], LoaderSettings]) -> int:
        """The number of a DataLoader, described at its first batch."""
        return self._facts.loader(loader, describe)

    @_costed
    def read(self, op: str, dtype: str, values: Sequence[float]) -> None:
        """The host read `values` from a device; they belong to the current step, as in a replay."""
        self._reads.append((self._output.text(op), self._output.text(dtype), values))

    @_costed
    def found(self, op: str, searched: Shape, size: int) -> None:
        """An op with a data-dependent result size (nonzero, unique): the shape of its input, and that size (or NONE)."""
        self._found.append((self._output.text(op), self._output.text(shapes_text([searched])), size))

    @property
    def profiling(self) -> bool:
        """Whether torch.profiler is attached, so that ranges reach it."""
        return self._profiler.active

    @_costed
    def begin_part(self, stream: Any = None) -> tuple[int, BoundaryEvent | None]:
        """The beginning of a part, for `end_part`. Without a module's call it shows that a forward pass begins."""
        now_ns = self.clock.now_ns()
        self._script.op(threading.get_ident(), PLAIN, now_ns)
        return now_ns, self._take(stream)

    @_costed
    def end_part(self, name: str, begun: tuple[int, BoundaryEvent | None], stream: Any = None, thread: str = "") -> None:
        """`thread` is the role of a thread that is created for each part; see `_thread`."""
        start_ns, begin = begun
        self._profiler.all_threads |= thread.startswith("replica")
        self._parts.append(PhasePart(name, self._thread(thread), start_ns, self.clock.now_ns(), begin, self._take(stream)))

    def _take(self, stream: Any) -> BoundaryEvent | None:
        event = self._events.take(stream)
        if event is not None:
            self._taken.append(event)
        return event

    @_costed
    def begin_call(self, stream: Any) -> BoundaryEvent | None:
        """A collective is about to be called, or waited for, on this stream. Returns the event before it."""
        return self._take(stream)

    @_costed
    def communicated(
        self, call: CollectiveCall, begin: BoundaryEvent | None = None, stream: Any = None, ending: Ending = Ending.SEEN
    ) -> None:
        """It has returned and is done for the host; with an event `begin` it ends where the stream is now."""
        self._collectives.add(call, self._rank, begin, None if begin is None else self._take(stream), ending)
        self._write_collectives()

    @_costed
    def communicates(self, call: CollectiveCall, begin: BoundaryEvent, works: int) -> PendingCollective:
        """It has returned and is asynchronous, with so many works to wait for. The result is for `waited_for`."""
        return self._collectives.open(call, self._rank, begin, works)

    @_costed
    def waited_for(self, pending: PendingCollective, before: BoundaryEvent | None, stream: Any) -> None:
        """The stream has waited for one of the works of a collective, since the event `before`."""
        self._collectives.waited(pending, before, None if before is None else self._take(stream))
        self._write_collectives()

    def give_up_call(self, pending: PendingCollective) -> None:
        """Its works are gone without a wait. Takes no lock: finalizers call it at any time."""
        self._collectives.give_up(pending)

    def _write_collectives(self) -> None:
        if not self._pending and self._events.settle(self._taken):
            self._taken.clear()  # without steps they would pile up
        self._collectives.write_done()

    # --- writing

    def _write_done(self, wait: bool = False) -> None:
        """Write the steps that the GPU has finished, in order."""
        while self._pending and self._events.settle(self._pending[0].taken, wait):
            self._step_writer.write(self._pending.popleft(), self._rank)
        self._collectives.write_done()

    def _thread(self, role: str = "") -> int:
        """The row of the calling thread. Threads that are created for each step share a row by their `role`, "replica 1"."""
        ident = threading.get_ident()
        key = ident if ident == self._script_thread else role or ident
        row = self._thread_rows.get(key)
        if row is None:
            row = self._thread_rows[key] = len(self._threads)
            kind = role.partition(" ")[0]
            name = role if kind in ("replica", "backward") else threading.current_thread().name
            self._threads.append(
                Thread(self._rank, threading.get_native_id(), name, "backward" if kind == "backward" else "other")
            )
        return row

    def _note_script_thread(self, ident: int) -> None:
        """The first row is the script's thread's, whatever thread the recorder was made in."""
        if ident != self._script_thread:
            self._thread_rows.pop(self._script_thread)
            self._script_thread, self._thread_rows[ident] = ident, 0
            self._threads[0] = Thread(self._rank, threading.get_native_id(), threading.current_thread().name, "main")

    def _changed_header(self) -> Trace | None:
        """The header if it has changed since it was written, or if its figures are old; else None."""
        extent = len(self._threads), self._facts.extent, self._profiler.use(), self.workload.signature
        now_ns = self.clock.perf_ns()
        if extent == self._written_extent and now_ns < self._written_ns + _FIGURES_NS:
            return None
        self._written_extent, self._written_ns = extent, now_ns
        return self._header()

    def _header(self) -> Trace:
        provenance = self._facts.provenance()
        lacks = self._facts.lacks(has_profile=bool(self._profiler.wanted))
        if self.flight is not None:
            lacks += self.flight.lacks()
            provenance |= {"flight_recorder": facts} if (facts := self.flight.facts()) else {}
        return Trace(
            grain="phase",
            devices=self._facts.devices,
            threads=self._threads,
            machines={self._rank: self._facts.machine()},
            runs={self._rank: self._facts.run(self._number, self._steps_ns, self.cost_ns, self._profiler.use())},
            provenance=provenance,
            workload=self.workload.signature,
            lacks=lacks,
        )

    def close(self) -> None:
        """The script ends: write everything that is known. An unfinished training step is dropped."""
        with deferred_signals(), self._lock:
            if self.closed:
                return
            self.closed = True
            self._script.stop(self._script_thread, self.clock.now_ns())
            self._profiler.stop()
            self._write_done(wait=True)
            if self._events.settle(self._taken):  # but not for a rank that never comes
                self._collectives.write_done()
            self._collectives.write_open()
            self._look(last=True)
            self._step_writer.write_reads(self._reads, NONE, self._rank)
            self._step_writer.write_found(self._found, NONE, self._rank)
            self._facts.at_end()
            self._output.close(self._header())
