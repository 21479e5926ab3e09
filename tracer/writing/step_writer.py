"""Writes each training step to the file after the step's CUDA events have completed.

    writer = StepWriter(output, facts)
    writer.write(step, rank=0)      # rows of steps, phases, stages, values and sizes
    writer.add_rows(rank=0)         # before the output is written to the file

Note [Steps with one plan]
    Consecutive steps with the same `StepPlan` and all events on one stream are collected until the file is written. Their rows
    are then computed together as columns, which takes a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from tracer.device.boundary_events import BoundaryEvent, EventStream, Times
from tracer.provenance import ProcessFacts
from tracer.repeated_steps import StepPlan
from tracer.writing.ended_steps import EndedStep, Found, Read, RepeatedRun
from tracer.writing.output import RecordingFile
from traces.model.trace import NONE, StepKind, Untimed

_ON_DEVICE = ("device", "device_start_ns", "device_end_ns")
_NOT_KNOWN = (NONE, NONE, NONE)
# columns written for each step, read value and phase segment
_STEP = ("rank", "number", "start_ns", "duration_ns", "kind", "untimed")
_VALUE = ("rank", "step", "read", "op", "dtype", "value")
_PHASE = ("step", "name", "start_ns", "duration_ns", *_ON_DEVICE)


class _StepsOfOnePlan(NamedTuple):
    # see Note [Steps with one plan]

    plan: StepPlan
    stream: EventStream | None  # without a GPU, None
    steps: list[tuple[int, StepKind]]  # number and kind
    times_ns: list[Times]  # arrays of shape (steps, times), see `StepPlan`
    passed_ns: list[Times]  # arrays of shape (steps, 1 + events): when the GPU reached the step's start and its events


class StepWriter:
    def __init__(self, output: RecordingFile, facts: ProcessFacts) -> None:
        self._output = output
        self._facts = facts
        self._reads = 0
        self._device_rows: dict[int, int] = {}  # by device
        self._alike: _StepsOfOnePlan | None = None  # steps whose rows have not been added to `output`

    @property
    def has_steps(self) -> bool:
        return self._alike is not None

    def write(self, step: EndedStep, rank: int) -> None:
        # see Note [Steps with one plan]
        taken, plan, begin = step.taken, step.plan, step.start
        of = None if begin is None else begin.of
        passed_ns = [event.ticks_ns for event in taken if event.of is of]
        is_on_one_stream = len(passed_ns) == len(taken)
        if step.untimed == Untimed.NO and NONE in (passed_ns if is_on_one_stream else [event.ticks_ns for event in taken]):
            step.untimed = Untimed.DEVICE_LOST
        if (
            plan is None
            or begin is None
            or step.untimed
            or step.begins
            or step.stages
            or not is_on_one_stream
            or len(taken) + 1 != plan.events
            or begin.ticks_ns == NONE
        ):
            self.add_rows(rank)
            self._write_rows(step, rank)
            return
        alike = self._alike_with(plan, begin.of, rank)
        if step.reads or step.found:
            row = self._output.count("steps") + len(alike.steps)
            self.write_reads(step.reads, row, rank)
            self.write_found(step.found, row, rank)
        alike.steps.append((step.number, step.kind))
        alike.times_ns.append(np.array([step.times_ns]))
        alike.passed_ns.append(np.array([[begin.ticks_ns, *passed_ns]]) + begin.of.clock.offset_ns)

    def _alike_with(self, plan: StepPlan, stream: EventStream | None, rank: int) -> _StepsOfOnePlan:
        alike = self._alike
        if alike is None or alike.plan is not plan or alike.stream is not stream:
            self.add_rows(rank)
            alike = self._alike = _StepsOfOnePlan(plan, stream, [], [], [])
        return alike

    def write_run(self, run: RepeatedRun, times_ns: Times, ticks_ns: Times, rank: int) -> None:
        """Write the first steps of a run.

        Args:
            times_ns: shape (steps, times), see `StepPlan`
            ticks_ns: shape (steps, events), when the GPU passed the events; without a GPU, shape (steps, 0)
        """
        count, stream = len(times_ns), run.stream
        alike = self._alike_with(run.plan, stream, rank)
        row = self._output.count("steps") + len(alike.steps)
        self._write_values(enumerate((step.reads for step in run.steps[:count]), row), rank)
        for number, step in enumerate(run.steps[:count], row):
            if step.found:
                self.write_found(step.found, number, rank)
        alike.steps.extend((number, StepKind.STEADY) for number in range(run.number, run.number + count))
        alike.times_ns.append(times_ns)
        if stream is not None and run.start is not None:
            begins_ns = np.concatenate(([run.start.ticks_ns], ticks_ns[:-1, -1]))
            alike.passed_ns.append(np.column_stack((begins_ns, ticks_ns)) + stream.clock.offset_ns)

    def add_rows(self, rank: int) -> None:
        alike, self._alike = self._alike, None
        if alike is None:
            return
        output, plan, count = self._output, alike.plan, len(alike.steps)
        times_ns = np.concatenate(alike.times_ns)
        on_device: dict[str, Times] = {}
        if alike.stream is not None:
            passed_ns = np.concatenate(alike.passed_ns)
            on_device = {
                "device": np.full(count * len(plan.names), self._device_row(alike.stream.device)),
                "device_start_ns": passed_ns[:, plan.event_of_begin].ravel(),
                "device_end_ns": passed_ns[:, plan.event_of_end].ravel(),
            }
        numbers, kinds = zip(*alike.steps, strict=True)
        row = output.add_columns(
            "steps",
            rank=np.full(count, rank),
            number=np.array(numbers),
            start_ns=times_ns[:, 0],
            duration_ns=times_ns[:, -1] - times_ns[:, 0],
            kind=np.array(kinds),
        )
        begins_ns, phases = times_ns[:, plan.begins], len(plan.names)
        output.add_columns(
            "phases",
            step=np.repeat(np.arange(row, row + count), phases),
            name=np.tile([output.text(name) for name in plan.names], count),
            start_ns=begins_ns.ravel(),
            duration_ns=(times_ns[:, plan.ends] - begins_ns).ravel(),
            **on_device,
        )

    def _write_rows(self, step: EndedStep, rank: int) -> None:
        output, times, text = self._output, self._device_times, self._output.strings.add
        segments = step.segments if step.plan is None else step.plan.segments(list(step.times_ns))
        begun_ns = step.start_ns
        values = rank, step.number, begun_ns, step.end_ns - begun_ns, step.kind, step.untimed
        row = output.add_all("steps", [(_STEP, *values)])
        begins, begin = step.begins.values(), step.begins.get
        events = {event.host_ns: event for event in step.taken if event not in begins}
        if step.start is not None:
            events[step.start_ns] = step.start
        if step.end is not None:
            events[step.end_ns] = step.end
        end = events.get
        first_phase = output.add_all(
            "phases",
            [
                (_PHASE, row, text(name), start_ns, end_ns - start_ns, *times(begin(start_ns) or end(start_ns), end(end_ns)))
                for name, start_ns, end_ns in segments
            ],
        )
        if not (step.stages or step.reads or step.found):
            return
        for stage in step.stages:
            inside = (i for i, segment in enumerate(segments) if segment.start_ns <= stage.start_ns < segment.end_ns)
            phase = next(inside, None)
            self._output.add(
                "parts",
                phase=NONE if phase is None else first_phase + phase,
                name=self._output.text(stage.name),
                thread=stage.thread,
                start_ns=stage.start_ns,
                duration_ns=stage.end_ns - stage.start_ns,
                **dict(zip(_ON_DEVICE, self._device_times(stage.begin, stage.end), strict=True)),
            )
        self.write_reads(step.reads, row, rank)
        self.write_found(step.found, row, rank)

    def write_found(self, found: list[Found], step: int, rank: int) -> None:
        for op, shapes, size in found:
            self._output.add("sizes", rank=rank, step=step, op=op, shapes=shapes, size=size)

    def write_reads(self, reads: list[Read], step: int, rank: int) -> None:
        """Writes values that the host read. `step` is NONE outside of steps."""
        self._write_values([(step, reads)], rank)

    def _write_values(self, steps: Iterable[tuple[int, list[Read]]], rank: int) -> None:
        text = cache(self._output.text)
        rows: list[tuple[object, ...]] = []
        for step, reads in steps:
            for op, dtype, values in reads:
                names = text(op), text(dtype)
                rows += [(_VALUE, rank, step, self._reads, *names, value) for value in values]
                self._reads += 1
        self._output.add_all("values", rows)

    def _device_times(self, begin: BoundaryEvent | None, end: BoundaryEvent | None) -> tuple[int, int, int]:
        if begin is None or end is None or begin.of is not end.of or begin.ticks_ns == NONE or end.ticks_ns == NONE:
            return _NOT_KNOWN
        offset_ns = begin.of.clock.offset_ns
        return self._device_row(begin.of.device), begin.ticks_ns + offset_ns, end.ticks_ns + offset_ns

    def _device_row(self, device: int) -> int:
        row = self._device_rows.get(device)
        if row is None:
            row = self._device_rows[device] = self._facts.device_row(device)
        return row
