"""Writes the rows of a step after the GPU has passed the step's events.

    writer = StepWriter(output, facts)
    writer.write(step, rank=0)      # rows of steps, phases, stages, values and sizes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracer.device.boundary_events import BoundaryEvent
from tracer.provenance import ProcessFacts
from tracer.writing.output import RecordingFile
from traces.model.trace import NONE, StepKind, Untimed
from traces.script.phase_rule import Segment

_ON_DEVICE = ("device", "device_start_ns", "device_end_ns")
_NOT_KNOWN = (NONE, NONE, NONE)
# columns written for each step and for each phase segment
_STEP = ("rank", "number", "start_ns", "duration_ns", "kind", "untimed")
_PHASE = ("step", "name", "start_ns", "duration_ns", *_ON_DEVICE)

Read = tuple[int, int, Sequence[float]]  # string ids of the op and the dtype, then the values
Found = tuple[int, int, int]  # string ids of the op and the searched shape, then the size of the result


@dataclass
class DataParallelStage:
    """Describes one DataParallel stage within a phase, such as scatter or one replica's parallel_apply."""

    name: str
    thread: int
    start_ns: int
    end_ns: int
    begin: BoundaryEvent | None
    end: BoundaryEvent | None


@dataclass(slots=True)
class EndedStep:
    """Holds the data of a step that has ended on the host. The GPU may not have passed the events of such a step yet."""

    number: int
    kind: StepKind
    start_ns: int
    end_ns: int
    segments: Sequence[Segment]
    events: dict[int, BoundaryEvent]  # events by the host time of their boundary
    begins: dict[int, BoundaryEvent]  # the same for events that only begin a segment
    taken: list[BoundaryEvent]  # all events in order, including events of stages
    stages: list[DataParallelStage]
    reads: list[Read]
    found: list[Found] = field(default_factory=list)
    untimed: Untimed = Untimed.NO


class StepWriter:
    """Writes steps whose events have been read."""

    def __init__(self, output: RecordingFile, facts: ProcessFacts) -> None:
        self._output = output
        self._facts = facts
        self._reads = 0
        self._device_rows: dict[int, int] = {}  # by device

    def write(self, step: EndedStep, rank: int) -> None:
        output, segments, times, text = self._output, step.segments, self._device_times, self._output.strings.add
        begun_ns = step.start_ns
        values = rank, step.number, begun_ns, step.end_ns - begun_ns, step.kind, step.untimed
        row = output.add_all("steps", [(_STEP, *values)])
        end, begin = step.events.get, step.begins.get
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
            inside = (i for i, segment in enumerate(step.segments) if segment.start_ns <= stage.start_ns < segment.end_ns)
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
        """Writes data-dependent result sizes. `step` is the row of the step, or NONE outside any step."""
        for op, shapes, size in found:
            self._output.add("sizes", rank=rank, step=step, op=op, shapes=shapes, size=size)

    def write_reads(self, reads: list[Read], step: int, rank: int) -> None:
        """Writes values that the host read. `step` is the row of the step, or NONE outside any step."""
        for op, dtype, values in reads:
            for value in values:
                self._output.add("values", rank=rank, step=step, read=self._reads, op=op, dtype=dtype, value=value)
            self._reads += 1

    def _device_times(self, begin: BoundaryEvent | None, end: BoundaryEvent | None) -> tuple[int, int, int]:
        """Returns the device's row, and the times (ns) at which the GPU passed the two events.

        If a time is unknown, or if the events are on different streams, all values are NONE.
        """
        if begin is None or end is None or begin.of is not end.of or begin.ticks_ns == NONE or end.ticks_ns == NONE:
            return _NOT_KNOWN
        device, offset_ns = begin.of.device, begin.of.clock.offset_ns
        row = self._device_rows.get(device)
        if row is None:
            row = self._device_rows[device] = self._facts.device_row(device)
        return row, begin.ticks_ns + offset_ns, end.ticks_ns + offset_ns
