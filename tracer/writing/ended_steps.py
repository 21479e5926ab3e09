"""Contains classes for training steps that have ended but are not yet written to the file.

    run = RepeatedRun(plan, stream, start, start_ns=0, number=16)
    run.times_ns += [5, 9]; run.events += [event, event]; run.steps += 1
    run.forget(1, end)      # the first step was written
    run.unpack()            # returns the other steps as instances of EndedStep
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracer.device.boundary_events import BoundaryEvent, EventStream
from tracer.repeated_steps import StepPlan
from traces.model.trace import NONE, StepKind, Untimed
from traces.script.phase_rule import Segment

Read = tuple[str, str, Sequence[float]]  # the op's name, the dtype, and the values
Found = tuple[int, int, int]  # string indices of the op's name and of the searched shape, and the size of the result


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
    end: BoundaryEvent | None  # the event at the step's end; if the optimizer ended the step, the event was recorded earlier
    begins: dict[int, BoundaryEvent]  # events that begin a segment but end none; keys: host times of the boundaries
    taken: list[BoundaryEvent]  # all events in order, including events of stages
    stages: list[DataParallelStage]
    reads: list[Read]
    found: list[Found] = field(default_factory=list)
    untimed: Untimed = Untimed.NO
    plan: StepPlan | None = None  # the plan of a repeated step; the step's `segments` are then empty
    times_ns: Sequence[int] = ()  # times of a repeated step, see `StepPlan`


class RepeatedRun:
    """Collects the times and CUDA events of consecutive steps that have the same `StepPlan`, including the current step."""

    def __init__(
        self, plan: StepPlan, stream: EventStream | None, start: BoundaryEvent | None, start_ns: int, number: int
    ) -> None:
        self.plan, self.stream = plan, stream
        self.start, self.start_ns, self.number = start, start_ns, number  # start and number of the first step
        self.steps = 0  # number of ended steps
        # all steps share one list, because creating a list for each step takes longer
        self.times_ns: list[int] = []  # times of the reports
        self.events: list[Any] = []  # torch's CUDA events: first the recorded ones, and then `unused`
        self.unused = deque[Any]()
        self.values: dict[int, tuple[list[Read], list[Found]]] = {}  # keys: numbers of the steps
        self.asked_ns = NONE  # host time at which the last event of the first step was found unfinished

    def take_events(self, steps: int, new_event: Callable[[], Any]) -> None:
        """Reserve the CUDA events that the next steps will need."""
        if self.stream is None:
            return
        free, missing = self.stream.free, steps * self.plan.new_events - len(self.unused)
        free += [new_event() for _ in range(missing - len(free))]
        taken = free[len(free) - missing :]
        del free[len(free) - missing :]
        self.events += taken
        self.unused += taken

    def free_unused(self) -> None:
        if self.stream is not None:
            self.stream.free += self.unused
            del self.events[len(self.events) - len(self.unused) :]
            self.unused.clear()

    def forget(self, count: int, end: BoundaryEvent | None) -> None:
        if count:
            self.start, self.start_ns = end, self.times_ns[count * self.plan.times - 1]
            self.number += count
            self.steps -= count
            del self.times_ns[: count * self.plan.times], self.events[: count * self.plan.new_events]
            self.values = {number: values for number, values in self.values.items() if number >= self.number}

    def unpack(self) -> list[EndedStep]:
        ended, times, events, start, start_ns = [], self.plan.times, self.plan.new_events, self.start, self.start_ns
        for step in range(self.steps):
            times_ns = self.times_ns[step * times : (step + 1) * times]
            taken = self.boundaries(self.events[step * events : (step + 1) * events], times_ns)
            end, end_ns, number = taken[-1] if taken else None, times_ns[-1], self.number + step
            reads, found = self.values.get(number, ([], []))
            ended.append(
                EndedStep(
                    number, StepKind.STEADY, start_ns, end_ns, (), start, end, {}, taken, [], reads, found,
                    plan=self.plan, times_ns=[start_ns, *times_ns],
                )
            )  # fmt: skip
            start, start_ns = end, end_ns
        if ended and ended[0].taken and self.asked_ns != NONE:
            ended[0].taken[-1].not_before_ns = self.asked_ns
        self.forget(self.steps, start)
        self.asked_ns = NONE
        return ended

    def boundaries(self, events: list[Any], times_ns: list[int]) -> list[BoundaryEvent]:
        stream = self.stream
        if stream is None:
            return []
        numbers = self.plan.report_of_event
        return [BoundaryEvent.at(event, stream, times_ns[i]) for event, i in zip(events, numbers, strict=False)]
