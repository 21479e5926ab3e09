"""Recognizes training steps that make the same calls as the previous step, which saves recording time.

    repeated.add_call(Meaning(ENTER, "zero_grad", CONTINUES, NONE, "zero_grad"), now_ns)  # `ScriptSplitter` handled a report
    repeated.learn(Meaning(STEPPED, True, ENDS, NONE, ""), step, is_closed=True)        # the step has ended
    repeated.known[len(repeated.times_ns)]      # the next report, if the current step is like the one before
    times_ns = [start_ns, *repeated.ended()]     # the same step at other times
    repeated.plan.segments(times_ns)                # [Segment("other", ...), Segment("zero_grad", ...), ...]

Note [Steps repeat]
    In a training loop, each step usually reports the same calls as the previous step. For a repeated step, the recorder only
    stores the time of each call. When a call differs, `ScriptSplitter` gets all calls of the step so far, and divides the rest
    of the step as usual. The phases of repeated steps are computed when the steps are written (step_writer.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tracer.device.boundary_events import EventStream
from traces.model.trace import NONE
from traces.script.phase_rule import Segment, new_segment
from traces.script.script_splitter import CutStep

# Kinds of reports
KINDS = 7
ENTER, LEAVE, MODULE, OP, STEPPED, EXHAUSTED, RECORDED = range(KINDS)
# effects of a report: none, a segment begins now, a segment begins at an earlier boundary, a phase ends, the step ends
NOTHING, BEGINS, CONTINUES, LEAVES, ENDS = range(5)
OTHER = NONE  # a different report than expected


class Meaning(NamedTuple):
    kind: int
    argument: Any
    action: int
    boundary: int  # the number of the report at which a continued segment begins, NONE for the step's start
    entered: str  # the phase that was entered by name, or "" if it has been left


class StepPlan:
    """Segment k lasts from `times_ns[begins[k]]` to `times_ns[ends[k]]`."""

    __slots__ = ("begins", "ends", "event_of_begin", "event_of_end", "events", "left", "names", "report_of_event", "times")

    def __init__(self, reports: list[Meaning], names: list[str], ends: list[int], left: int) -> None:
        self.names = tuple(names)
        self.ends = [0 if end == NONE else end + 1 for end in ends]
        self.begins = [0, *self.ends[:-1]]
        self.left = NONE if left == NONE else left + 1
        at = [0, *(i + 1 for i, of in enumerate(reports) if of.action in (BEGINS, LEAVES))]
        # If a step has no optimizer call, the recorder adds a CUDA event at the end of the step.
        at += [len(reports) + 1] if left == NONE else []
        self.times, self.events = len(reports) + 1, len(at)
        self.report_of_event = [time - 1 for time in at[1:]]
        event_of = {time: event for event, time in enumerate(at)}
        if left != NONE:
            event_of[len(reports) + 1] = event_of[self.left]
        self.event_of_begin = [event_of[begin] for begin in self.begins]
        self.event_of_end = [event_of[end] for end in self.ends]

    def segments(self, times_ns: list[int]) -> list[Segment]:
        named = zip(self.names, self.begins, self.ends, strict=True)
        return [new_segment((name, times_ns[begin], times_ns[end])) for name, begin, end in named]

    def cut(self, times_ns: list[int]) -> CutStep:
        return CutStep(False, self.segments(times_ns), None if self.left == NONE else times_ns[self.left], times_ns[-1])


class RepeatedSteps:
    """Compares the calls of two steps, and stores the times of the current step's calls."""

    # makes objects smaller, and access to them faster
    __slots__ = (
        "_learning", "events", "expected", "has_several_devices", "is_plain", "is_reporting", "known", "plan", "stream",
        "thread", "times_ns", "weight",
    )  # fmt: skip

    def __init__(self) -> None:
        self.known: list[Meaning] = []  # the reports of a step, while the current step has made the same reports
        # the first four fields of each entry of `known`, because Python reads a plain tuple faster than a named tuple
        self.expected: list[tuple[int, Any, int, int]] = []
        self.thread: int | None = None  # that makes the reports
        # see Note [Steps on one stream] in step_recorder.py
        self.is_plain = False
        self.is_reporting = False  # see Note [Interrupted reports] in step_recorder.py
        self.stream: EventStream | None = None  # None without a GPU, and if `is_plain` is False
        self.events: list[Any] = []  # torch's CUDA events of the current step
        self.has_several_devices = False  # True if the current device may change
        self.weight = 1  # how many steps the time of a report counts for, see Note [What a step costs] in own_cost.py
        self.times_ns: list[int] = []  # of the current step's reports
        self._learning: list[Meaning] | None = []  # None if the current step cannot be learned
        self.plan: StepPlan | None = None  # of `known`

    def add_call(self, meaning: Meaning, now_ns: int) -> None:
        self.times_ns.append(now_ns)
        if self._learning is not None:
            self._learning.append(meaning)

    @property
    def last_left(self) -> int:
        learning = self._learning or []
        return max((number for number, of in enumerate(learning) if of.action == LEAVES), default=NONE)

    def give_up(self) -> None:
        self._learning = None

    def forget(self) -> None:
        self.known, self.expected, self.times_ns, self.events, self._learning = [], [], [], [], None
        self.is_plain, self.is_reporting, self.stream, self.weight = False, False, None, 1

    def differs(self) -> list[tuple[Meaning, int]]:
        """Stop comparing the steps. Return all calls of the current step with their times."""
        so_far = self.known[: len(self.times_ns)]
        self.known, self.expected, self._learning = [], [], list(so_far)
        return list(zip(so_far, self.times_ns, strict=True))

    def learn(self, end: Meaning, step: CutStep, is_closed: bool) -> None:
        learned, times_ns, self._learning = self._learning, [*self.times_ns, step.end_ns], []
        self.known, self.expected, self.times_ns = [], [], []
        if learned is None or not is_closed or step.is_evaluation or not step.segments:
            return
        begins = [i if of.action == BEGINS else of.boundary for i, of in enumerate(learned) if of.action in (BEGINS, CONTINUES)]
        names = [segment.name for segment in step.segments]
        if begins[:1] != [NONE] and len(names) <= len(begins):
            return
        ends = [*begins, len(learned)][-len(names) :]
        lefts = [i for i, of in enumerate(learned) if of.action == LEAVES]
        left = NONE if step.left_ns is None or not lefts else lefts[-1]
        # Treat consecutive copies to the GPU as one phase.
        learned = [
            of._replace(action=NOTHING) if of.action == LEAVES and i not in ends and i != left else of
            for i, of in enumerate(learned)
        ]
        plan = StepPlan(learned, names, ends, left)
        if plan.cut([step.segments[0].start_ns, *times_ns]) == step:
            self.known, self.plan = [*learned, end], plan
            self.expected = [tuple(of[:4]) for of in self.known]

    def ended(self) -> list[int]:
        """Begin a new step, and return the call times of the previous step."""
        times_ns, self.times_ns = self.times_ns, []
        return times_ns
