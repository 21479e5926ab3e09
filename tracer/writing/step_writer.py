"""Writes each training step to the file after the step's CUDA events have completed.

    writer = StepWriter(output, facts)
    writer.write(step, rank=0)      # rows of steps, phases, stages, values and sizes
    writer.add_rows(rank=0)         # before the output is written to the file

Note [Steps with one plan]
    Consecutive steps with the same `StepPlan` and all events on one stream are collected until the file is written. They are
    written as one block of times (traces/format/step_block.py). Readers compute the rows of the steps and phases.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tracer.device.boundary_events import BoundaryEvent, EventStream
from tracer.provenance import ProcessFacts
from tracer.repeated_steps import StepPlan
from tracer.writing.ended_steps import EndedStep, Found, Read, RepeatedRun
from tracer.writing.output import RecordingFile
from traces.format.step_block import StepBlock
from traces.model.trace import NONE, StepKind, Untimed

_ON_DEVICE = ("device", "device_start_ns", "device_end_ns")
_NOT_KNOWN = (NONE, NONE, NONE)
# columns that are written for each step, each value that the host read, and each phase
_STEP = ("rank", "number", "start_ns", "duration_ns", "kind", "untimed")
_VALUE = ("rank", "step", "read", "op", "dtype", "value")
_PHASE = ("step", "name", "start_ns", "duration_ns", *_ON_DEVICE)


@dataclass(slots=True)
class _StepsOfOnePlan:
    # see Note [Steps with one plan]

    plan: StepPlan
    stream: EventStream | None  # None without a GPU
    kind: StepKind
    number: int  # number of the first step
    times_ns: list[int]  # start of the first step, followed by the times of each step, see `StepPlan`
    ticks_ns: list[int]  # time at which the GPU reached the first step's start, followed by the times of each step's events
    steps: int = 0


class StepWriter:
    def __init__(self, output: RecordingFile, facts: ProcessFacts) -> None:
        self._output = output
        self._facts = facts
        self._reads = 0
        self._alike: _StepsOfOnePlan | None = None  # steps whose rows have not been added to `output`

    @property
    def has_steps(self) -> bool:
        return self._alike is not None

    def write(self, step: EndedStep) -> None:
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
            or len(taken) != plan.new_events
            or begin.ticks_ns == NONE
        ):
            self.add_rows()
            self._write_rows(step)
            return
        times_ns = step.times_ns
        alike = self._alike_with(plan, begin.of, step.kind, step.number, times_ns[0], begin.ticks_ns)
        row = self._output.count("steps") + alike.steps
        self.write_values([(row, step.reads, step.found)])
        alike.times_ns += times_ns[1:]
        alike.ticks_ns += passed_ns
        alike.steps += 1

    def _alike_with(
        self, plan: StepPlan, stream: EventStream | None, kind: StepKind, number: int, start_ns: int, start_ticks_ns: int
    ) -> _StepsOfOnePlan:
        """Return the group to which this step is added. If the calls of the step differ from the calls of the previous step, a
        new group begins."""
        alike = self._alike
        if (
            alike is None
            or alike.plan is not plan
            or alike.stream is not stream
            or alike.kind != kind
            or alike.number + alike.steps != number
            or alike.times_ns[-1] != start_ns
            or alike.ticks_ns[-1] != start_ticks_ns
        ):
            self.add_rows()
            alike = self._alike = _StepsOfOnePlan(plan, stream, kind, number, [start_ns], [start_ticks_ns])
        return alike

    def write_run(self, run: RepeatedRun, count: int, ticks_ns: list[int]) -> None:
        start_ticks_ns = NONE if run.start is None else run.start.ticks_ns
        alike = self._alike_with(run.plan, run.stream, StepKind.STEADY, run.number, run.start_ns, start_ticks_ns)
        row = self._output.count("steps") + alike.steps - run.number
        self.write_values((row + number, *of) for number, of in run.values.items() if number < run.number + count)
        alike.times_ns += run.times_ns[: count * run.plan.times]
        alike.ticks_ns += ticks_ns
        alike.steps += count

    def add_rows(self) -> None:
        alike, self._alike = self._alike, None
        if alike is None:
            return
        output, plan, stream = self._output, alike.plan, alike.stream
        names, on_device = list(map(output.strings.add, plan.names)), dict[str, Any]()
        if stream is not None:
            offset_ns = stream.clock.offset_ns
            on_device = {
                "device": self._facts.device_row(stream.device),
                "device_times": plan.new_events,
                "device_begins": plan.event_of_begin,
                "device_ends": plan.event_of_end,
                "device_times_ns": [ticks_ns + offset_ns for ticks_ns in alike.ticks_ns],
            }
        times = plan.times, names, plan.begins, plan.ends, alike.times_ns
        output.add_block(StepBlock(self._facts.rank, alike.number, alike.kind, alike.steps, *times, **on_device))

    def _write_rows(self, step: EndedStep) -> None:
        output, times, text = self._output, self._device_times, self._output.strings.add
        segments = step.segments if step.plan is None else step.plan.segments(list(step.times_ns))
        begun_ns = step.start_ns
        values = self._facts.rank, step.number, begun_ns, step.end_ns - begun_ns, step.kind, step.untimed
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
        self.write_values([(row, step.reads, step.found)])

    def write_values(self, steps: Iterable[tuple[int, list[Read], list[Found]]]) -> None:
        """Write the values and the result sizes that the host read from the GPU in each step. The number of a step is NONE for
        reads between steps."""
        text, rank = self._output.strings.add, self._facts.rank
        rows: list[tuple[object, ...]] = []
        for step, reads, found in steps:
            for op_text, shapes, size in found:
                self._output.add("sizes", rank=rank, step=step, op=op_text, shapes=shapes, size=size)
            for op, dtype, values in reads:
                names = text(op), text(dtype)
                rows += [(_VALUE, rank, step, self._reads, *names, value) for value in values]
                self._reads += 1
        self._output.add_all("values", rows)

    def _device_times(self, begin: BoundaryEvent | None, end: BoundaryEvent | None) -> tuple[int, int, int]:
        if begin is None or end is None or begin.of is not end.of or begin.ticks_ns == NONE or end.ticks_ns == NONE:
            return _NOT_KNOWN
        offset_ns = begin.of.clock.offset_ns
        return self._facts.device_row(begin.of.device), begin.ticks_ns + offset_ns, end.ticks_ns + offset_ns
