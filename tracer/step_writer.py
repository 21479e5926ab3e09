"""Writes the rows of a step once the GPU has passed its events.

writer = StepWriter(output, facts)
writer.write(step, rank=0)      # rows of steps, phases, parts, values and sizes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracer.boundary_events import BoundaryEvent
from tracer.output import RecordingFile
from tracer.provenance import ProcessFacts
from traces.model import NONE, Origin, StepKind, Untimed
from traces.phases import Segment

Read = tuple[int, int, Sequence[float]]  # string ids of the op and the dtype, and the values
Found = tuple[int, int, int]  # string ids of the op and the searched shape, and the size of the result


@dataclass
class PhasePart:
    """A region of nn.DataParallel within a phase: scatter, one replica's parallel_apply..."""

    name: str
    thread: int
    start_ns: int
    end_ns: int
    begin: BoundaryEvent | None
    end: BoundaryEvent | None


@dataclass
class EndedStep:
    """A step that has ended on the host; the GPU may not have passed its events yet."""

    number: int
    kind: StepKind
    start_ns: int
    end_ns: int
    segments: Sequence[Segment]
    events: dict[int, BoundaryEvent]  # by host time of the boundary
    taken: list[BoundaryEvent]  # these and those of parts, in the order in which they were taken
    parts: list[PhasePart]
    reads: list[Read]
    found: list[Found] = field(default_factory=list)
    untimed: Untimed = Untimed.NO


class StepWriter:
    """Writes steps whose events have been read."""

    def __init__(self, output: RecordingFile, facts: ProcessFacts) -> None:
        self._output = output
        self._facts = facts
        self._reads = 0

    def write(self, step: EndedStep, rank: int) -> None:
        row = self._output.add(
            "steps",
            rank=rank,
            number=step.number,
            start_ns=step.start_ns,
            duration_ns=step.end_ns - step.start_ns,
            kind=step.kind,
            untimed=step.untimed,
        )
        first_phase = self._output.count("phases")
        for segment in step.segments:
            self._output.add(
                "phases",
                step=row,
                name=self._output.text(segment.name),
                start_ns=segment.start_ns,
                duration_ns=segment.end_ns - segment.start_ns,
                origin=Origin.MEASURED,
                **self._device_times(step.events.get(segment.start_ns), step.events.get(segment.end_ns)),
            )
        for part in step.parts:
            inside = (i for i, segment in enumerate(step.segments) if segment.start_ns <= part.start_ns < segment.end_ns)
            phase = next(inside, None)
            self._output.add(
                "parts",
                phase=NONE if phase is None else first_phase + phase,
                name=self._output.text(part.name),
                thread=part.thread,
                start_ns=part.start_ns,
                duration_ns=part.end_ns - part.start_ns,
                origin=Origin.MEASURED,
                **self._device_times(part.begin, part.end),
            )
        self.write_reads(step.reads, row, rank)
        self.write_found(step.found, row, rank)

    def write_found(self, found: list[Found], step: int, rank: int) -> None:
        """Sizes of data-dependent results in the step of that row, or outside any step (NONE)."""
        for op, shapes, size in found:
            self._output.add("sizes", rank=rank, step=step, op=op, shapes=shapes, size=size)

    def write_reads(self, reads: list[Read], step: int, rank: int) -> None:
        """Values that the host read in the step of that row, or outside any step (NONE)."""
        for op, dtype, values in reads:
            for value in values:
                self._output.add("values", rank=rank, step=step, read=self._reads, op=op, dtype=dtype, value=value)
            self._reads += 1

    def _device_times(self, begin: BoundaryEvent | None, end: BoundaryEvent | None) -> dict[str, int]:
        """Nothing where they are not known: between different streams, too, nobody knows when what was done."""
        if begin is None or end is None or (begin.device, begin.stream) != (end.device, end.stream):
            return {}
        if begin.time_ns == NONE or end.time_ns == NONE:
            return {}
        return {"device": self._facts.device_row(begin.device), "device_start_ns": begin.time_ns, "device_end_ns": end.time_ns}
