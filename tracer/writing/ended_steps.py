"""Contains classes for training steps that have ended but are not yet written to the file.

    run = RepeatedRun(plan, stream, start, start_ns=0, number=16)
    run.steps.append(RepeatedStep([5, 9], [event, event], [], []))
    run.forget(1, end)      # the first step was written
    run.unpack()            # the others, as instances of EndedStep
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tracer.device.boundary_events import BoundaryEvent, EventStream
from tracer.repeated_steps import StepPlan
from traces.model.trace import NONE, StepKind, Untimed
from traces.script.phase_rule import Segment

Read = tuple[str, str, Sequence[float]]  # the op's name, the dtype, and the values
Found = tuple[int, int, int]  # indices of the op's name and the searched shape in the string table, then the size of the result


@dataclass
class DataParallelStage:
    name: str
    thread: int
    start_ns: int
    end_ns: int
    begin: BoundaryEvent | None
    end: BoundaryEvent | None


@dataclass(slots=True)
class EndedStep:
    number: int
    kind: StepKind
    start_ns: int
    end_ns: int
    segments: Sequence[Segment]
    start: BoundaryEvent | None  # the event at the start, which may belong to the previous step
    end: BoundaryEvent | None  # the event at the end; if the optimizer ended the step, it was recorded earlier
    begins: dict[int, BoundaryEvent]  # events that only begin a segment, by the host time of their boundary
    taken: list[BoundaryEvent]  # all events in order, including events of stages
    stages: list[DataParallelStage]
    reads: list[Read]
    found: list[Found] = field(default_factory=list)
    untimed: Untimed = Untimed.NO
    plan: StepPlan | None = None  # of a repeated step, whose `segments` are empty
    times_ns: Sequence[int] = ()  # of a repeated step, see `StepPlan`


class RepeatedStep(NamedTuple):
    times_ns: list[int]  # of its reports
    events: list[Any]  # torch's CUDA events
    reads: list[Read]
    found: list[Found]


class RepeatedRun:
    def __init__(
        self, plan: StepPlan, stream: EventStream | None, start: BoundaryEvent | None, start_ns: int, number: int
    ) -> None:
        self.plan, self.stream = plan, stream
        self.start, self.start_ns, self.number = start, start_ns, number  # of the first of `steps`
        self.steps: list[RepeatedStep] = []
        self.asked_ns = NONE  # host time at which the last event of the first step was found unfinished

    def forget(self, count: int, end: BoundaryEvent | None) -> None:
        if count:
            self.start, self.start_ns = end, self.steps[count - 1].times_ns[-1]
            self.number += count
            del self.steps[:count]

    def unpack(self) -> list[EndedStep]:
        ended = []
        for times_ns, events, reads, found in self.steps:
            taken = [] if self.stream is None else self.boundaries(events, times_ns)
            end, start_ns, end_ns = taken[-1] if taken else None, self.start_ns, times_ns[-1]
            ended.append(
                EndedStep(
                    self.number, StepKind.STEADY, start_ns, end_ns, (), self.start, end, {}, taken, [], reads, found,
                    plan=self.plan, times_ns=[start_ns, *times_ns],
                )
            )  # fmt: skip
            self.start, self.start_ns, self.number = end, end_ns, self.number + 1
        if ended and ended[0].taken and self.asked_ns != NONE:
            ended[0].taken[-1].not_before_ns = self.asked_ns
        self.steps, self.asked_ns = [], NONE
        return ended

    def boundaries(self, events: list[Any], times_ns: list[int]) -> list[BoundaryEvent]:
        assert self.stream is not None
        return [
            BoundaryEvent.at(event, self.stream, times_ns[report])
            for event, report in zip(events, self.plan.report_of_event, strict=False)
        ]
