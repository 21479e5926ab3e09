"""Writes the recording to its file. A step is written after its CUDA events have completed.

    writer.add(step)            # the step has ended on the host
    writer.write_done()         # write the steps that the GPU has finished, in order
    writer.flush_if_due(step_ns=1_000_000)  # append to the file, if a write will be due before the next step ends
    writer.read_last_events()   # at the end of the script
    writer.close(taken, reads, found)   # write the rest

Note [The writing thread]
    The script's thread writes to the file at the end of a step, twice a second. If no step ends in time, a thread of the
    recorder writes (`Recorder.write_regularly`). Writing in the script's thread takes only a third of the CPU time. Another
    thread would wait for Python's global lock after each system call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import sub
from statistics import median
from typing import Any

from tracer.device.boundary_events import BoundaryEvent, BoundaryEvents, EventStream
from tracer.device.device_access import PATIENCE_NS
from tracer.own_cost import OwnCost
from tracer.profile import Profiler
from tracer.provenance import ProcessFacts
from tracer.repeated_steps import StepPlan
from tracer.writing.collectives import CollectiveWriter
from tracer.writing.ended_steps import EndedStep, Found, Read, RepeatedRun
from tracer.writing.flight_recorder import FlightRecorder
from tracer.writing.output import FLUSH_NS, RecordingFile
from tracer.writing.step_writer import StepWriter
from tracer.writing.thread_rows import ThreadRows
from traces.model.trace import NONE, BatchKind, StepKind, Trace, Untimed
from traces.model.workload import WorkloadSignature
from traces.script.deferred_signals import deferred_signals

# maximum number of steps that wait in memory for the GPU; if more steps wait, the oldest steps are written without GPU times
_PENDING_STEPS = 1024
_USUAL_OF = 1024  # number of recent steps from which the usual step time is computed
# number of steps that are processed at once, which is faster
TOGETHER = 128
# shortest time between two updates of the file's header
FIGURES_NS = 10_000_000_000
_BATCH = ("rank", "loader", "kind", "start_ns", "duration_ns", "bytes")  # columns of the table "batches"


@dataclass(frozen=True)
class RecorderParts:
    """Groups the objects that RecordingWriter, StepRecorder and the recorder of collectives all use."""

    facts: ProcessFacts
    events: BoundaryEvents
    profiler: Profiler
    threads: ThreadRows
    cost: OwnCost
    flight: FlightRecorder | None = None


class RecordingWriter:
    def __init__(
        self, output: RecordingFile, parts: RecorderParts, workload: Callable[[], WorkloadSignature | None]
    ) -> None:
        self.pending: deque[EndedStep] = deque()
        self.run: RepeatedRun | None = None  # the steps that follow those in `pending`
        self.collectives = CollectiveWriter(output, parts.facts)
        self.number = 0  # number of the next step
        self.steps_of_other_threads = 0  # number of optimizer steps in threads other than that of the recorded steps

        # The rows do not contain the rank. Threads append without a lock, because `list.append` is atomic.
        self.batches: list[tuple[int, BatchKind, int, int, int]] = []
        # the durations of the latest steps without the profiler, and of the latest other steps
        self._clean_ns, self._other_ns = deque[int](maxlen=_USUAL_OF), deque[int](maxlen=_USUAL_OF)
        self._read = 0  # number of steps at the last read of CUDA events
        self.due_ns = 0  # Unix time at which collected data should be written
        self._output, self._parts, self._workload = output, parts, workload
        self._facts, self._events, self._access = parts.facts, parts.events, parts.events.access
        self._step_writer = StepWriter(output, parts.facts)
        self._written_extent: tuple[Any, ...] = ()  # state of the last written header
        self._written_ns = 0

    def joined_group(self, rank: int) -> None:
        self._facts.joined_group(rank)
        self._parts.threads.joined_group(rank)

    def add(self, step: EndedStep) -> None:
        self.number += 1
        (self._clean_ns if step.kind is StepKind.STEADY else self._other_ns).append(step.end_ns - step.start_ns)
        self.pending.append(step)

    def note_compiling_evaluation(self) -> None:
        self._facts.compiling_evaluations.append(self.number)

    def begin_run(self, plan: StepPlan, stream: EventStream | None, start: BoundaryEvent | None, start_ns: int) -> RepeatedRun:
        self.run = RepeatedRun(plan, stream, start, start_ns, self.number)
        return self.run

    def end_run(self) -> None:
        if self.run is not None:
            self._unpack(self.run)
            self.run.free_unused()
            self.number, self.run = self.run.number, None

    def _unpack(self, run: RepeatedRun) -> None:
        for step in run.unpack():
            self._clean_ns.append(step.end_ns - step.start_ns)
            self.pending.append(step)

    @property
    def has_steps(self) -> bool:
        return bool(self.pending or (self.run is not None and self.run.steps))

    def write_done(self) -> None:
        access, events, run = self._access, self._events, self.run
        closed = access.closed
        if closed is Untimed.CAPTURE:
            return
        if run is not None and (self.pending or access.device_lost or run.steps > _PENDING_STEPS):
            self._unpack(run)
        done, pending = 0, self.pending
        # Read all CUDA events first. Each event makes the conversion from the GPU's clock to the CPU's clock more accurate.
        if (
            pending
            and events.are_done(pending[-1].taken)
            and events.read_finished([event for step in pending for event in step.taken])
        ):
            done = len(pending)
        else:
            for step in pending:
                if not events.read_finished(step.taken) and not access.device_lost:
                    break
                done += 1
        for _ in range(max(done, len(self.pending) - _PENDING_STEPS)):
            self._step_writer.write(self.pending.popleft())
        may_read = closed is None and not access.device_lost
        if run is not None and run.steps and not self.pending and (may_read or run.stream is None):
            self._write_run(run)
        self.collectives.write_done()

    def _write_run(self, run: RepeatedRun) -> None:
        done, plan, stream, ticks_ns, end = run.steps, run.plan, run.stream, list[int](), None
        if stream is not None:
            events, at_ns = run.events[: done * plan.new_events], run.times_ns[: done * plan.times]
            host_ns = [at_ns[report :: plan.times] for report in plan.report_of_event]
            ticks_ns, run.asked_ns = self._events.read_in_order(stream, events, host_ns, run.asked_ns)
            done, end = len(ticks_ns) // plan.new_events, stream.clock.last
        if done:
            ends_ns = run.times_ns[plan.times - 1 : done * plan.times : plan.times]
            self._clean_ns.extend(map(sub, ends_ns, [run.start_ns, *ends_ns]))
            self._step_writer.write_run(run, done, ticks_ns)
            run.forget(done, end)

    def flush_if_due(self, step_ns: int) -> None:
        """Write to the file now if a write will be due before the next step ends."""
        # see Note [The writing thread]
        due = self._parts.cost.clock.now_ns() + step_ns >= self.due_ns
        waiting = len(self.pending) + (0 if self.run is None else self.run.steps)
        if due or waiting >= TOGETHER:
            with deferred_signals():
                self._flush(self._parts.cost.clock.perf_ns, due)

    def flush_in_thread(self) -> None:
        # see Note [The writing thread]
        self._events.enter_thread()
        # measure CPU time, because wall time would include waits for Python's global lock
        self._flush(self._parts.cost.clock.thread_ns, True)

    def _flush(self, timer: Callable[[], int], due: bool) -> None:
        cost = self._parts.cost
        cost.steps_ended(self.number)
        began_ns = timer()
        self.write_done()
        read_ns = timer()
        cost.read_events(read_ns - began_ns, self.number - self._read)
        self._read = self.number
        if due:
            self._add_rows()
            self._output.flush(self._changed_header())
            cost.appended(timer() - read_ns)
            self.due_ns = self._output.due_ns + cost.clock.offset_ns

    def _add_rows(self) -> None:
        self._step_writer.add_rows()
        if self.batches:
            count = len(self.batches)
            self._output.add_all("batches", [(_BATCH, self._facts.rank, *batch) for batch in self.batches[:count]])
            del self.batches[:count]

    @property
    def due_in_ns(self) -> int:
        if not self.number or not (self.has_steps or self.batches or self._output.has_rows or self._step_writer.has_steps):
            return FLUSH_NS
        return max(self.due_ns - self._parts.cost.clock.now_ns(), 0)

    def read_last_events(self) -> None:
        """Wait for the last CUDA events, but only for a limited time, because the GPU may hang."""
        access = self._access
        self.end_run()
        for step in self.pending:
            if not self._events.read_finished_within(step.taken, PATIENCE_NS):
                if access.closed is None:
                    access.mark_lost("its work did not finish, so its last events were not read")
                return

    def close(self, taken: list[BoundaryEvent], reads: list[Read], found: list[Found]) -> None:
        self.end_run()
        for step in self.pending:
            self._step_writer.write(step)
        self.pending.clear()
        self._events.read_finished(taken)  # this call does not wait for the events, because another rank may never arrive
        self.collectives.write_done(at_end=True)
        self._step_writer.write_values([(NONE, reads, found)])
        self._add_rows()
        self._output.flush(self._header())
        self._facts.at_end(self._access)
        self._output.close(self._header())

    def _changed_header(self) -> Trace | None:
        of = self._parts
        extent = len(of.threads.threads), of.facts.extent, of.profiler.use(), self._workload(), self._access.device_lost
        now_ns = of.cost.clock.perf_ns()
        if extent == self._written_extent and now_ns < self._written_ns + FIGURES_NS:
            return None
        self._written_extent, self._written_ns = extent, now_ns
        return self._header()

    def _header(self) -> Trace:
        of = self._parts
        provenance = self._facts.provenance()
        lacks = self._facts.lacks(has_profile=bool(of.profiler.use().steps))
        if of.flight is not None:
            lacks += of.flight.lacks()
            provenance |= {"flight_recorder": facts} if (facts := of.flight.facts()) else {}
        step_ns = median(self._clean_ns or self._other_ns or [0])
        run = self._facts.run(step_ns, of.cost.per_step_ns, of.cost.set_up_ns, of.profiler.use())
        if run.recorder is not None and self._access.device_lost:
            run = replace(run, recorder=replace(run.recorder, device_lost=self._access.device_lost))
        return Trace(
            grain="phase",
            devices=self._facts.devices,
            threads=of.threads.threads,
            machines={of.facts.rank: of.facts.machine()},
            runs={of.facts.rank: run},
            provenance=provenance,
            workload=self._workload(),
            problems={"threads-train": self.steps_of_other_threads} if self.steps_of_other_threads else {},
            lacks=lacks,
        )
