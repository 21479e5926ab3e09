"""Recognizes training steps that make the same calls as the previous step, which saves recording time.

    repeated.add_call(Meaning(ENTER, "zero_grad", CONTINUES, NONE, "zero_grad"), now_ns)  # `ScriptSplitter` handled a report
    repeated.learn(Meaning(STEPPED, True, ENDS, NONE, ""), step, is_closed=True)        # the step has ended
    repeated.advance()                              # the next report, if the current step repeats the previous step
    times_ns = [start_ns, *repeated.ended()]        # times at which the repeated step made its calls
    repeated.plan.segments(times_ns)                # [Segment("other", ...), Segment("zero_grad", ...), ...]

Note [Steps repeat]
    In a training loop, each step usually reports the same calls as the previous step. For a repeated step, the recorder only
    stores the time of each call. When a call differs, the recorder passes all calls of the step so far to `ScriptSplitter`.
    `ScriptSplitter` then divides the rest of the step as usual. The phases of repeated steps are computed when the steps are
    written (step_writer.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any, NamedTuple

from tracer.device.boundary_events import EventStream
from traces.model.trace import NONE
from traces.script.phase_rule import Segment, new_segment
from traces.script.script_splitter import CutStep

# Kinds of reports
KINDS = 7
ENTER, LEAVE, MODULE, OP, STEPPED, EXHAUSTED, RECORDED = range(KINDS)
NEW_TENSOR = "h2d of a new tensor"  # reported for `torch.tensor(5, device="cuda")`, which does not begin a step
# Effects of a report: nothing happens, a segment begins now, a segment begins at an earlier boundary, a phase ends, or the step
# ends.
NOTHING, BEGINS, CONTINUES, LEAVES, ENDS = range(5)
# The expected next report: its kind and argument, True if it records a CUDA event, True if the current stream must be checked,
# and a function to call instead.
Expected = tuple[int, Any, bool, bool, Callable[[int], None] | None]
UNKNOWN: Expected = NONE, None, False, False, None  # no report has this kind


class Meaning(NamedTuple):
    kind: int
    argument: Any
    action: int
    boundary: int  # number of the report at which a continued segment begins; NONE for the step's start
    entered: str  # name of the current phase, or "" if the script has left the phase


class StepPlan:
    """Describes steps that make the same reports. `times` is the number of reports in a step. `new_events` is the number of
    CUDA events that the recorder records in a step. Segment k lasts from `times_ns[begins[k]]` to `times_ns[ends[k]]`."""

    __slots__ = (
        "begins", "ends", "event_of_begin", "event_of_end", "left", "names", "new_events", "report_of_event", "times",
    )  # fmt: skip

    def __init__(self, reports: list[Meaning], names: list[str], ends: list[int], left: int) -> None:
        self.names = tuple(names)
        self.ends = [0 if end == NONE else end + 1 for end in ends]
        self.begins = [0, *self.ends[:-1]]
        self.left = left + 1
        at = [0, *(i + 1 for i, of in enumerate(reports) if of.action in (BEGINS, LEAVES))]
        self.times, self.new_events = len(reports) + 1, len(at) - 1  # the first event belongs to the previous step
        self.report_of_event = [time - 1 for time in at[1:]]
        event_of = {time: event for event, time in enumerate(at)}
        event_of[len(reports) + 1] = event_of[self.left]
        self.event_of_begin = [event_of[begin] for begin in self.begins]
        self.event_of_end = [event_of[end] for end in self.ends]

    def segments(self, times_ns: list[int]) -> list[Segment]:
        named = zip(self.names, self.begins, self.ends, strict=True)
        return [new_segment((name, times_ns[begin], times_ns[end])) for name, begin, end in named]

    def cut(self, times_ns: list[int]) -> CutStep:
        return CutStep(False, self.segments(times_ns), times_ns[self.left], times_ns[-1])


class RepeatedSteps:
    """Checks whether the current step makes the same calls as the previous step, and stores the time of each call."""

    # `__slots__` makes objects smaller, and their attributes faster
    __slots__ = (
        "_learning", "advance", "has_several_devices", "is_plain", "known", "plan", "stream", "thread",
        "times_ns", "unused", "weight",
    )  # fmt: skip

    def __init__(self) -> None:
        self.known: list[Meaning] = []  # the reports of a known step; empty if the current step has made other reports
        self.advance: Callable[[], Expected] = lambda: UNKNOWN  # returns what the next report is expected to be
        self.thread: int | None = None  # thread that makes the reports; None while no reports are known
        # see Note [Steps on one stream] in step_recorder.py
        self.is_plain = False
        self.stream: EventStream | None = None  # None without a GPU, and if `is_plain` is False
        self.unused = deque[Any]()  # torch's CUDA events that will be recorded next
        self.has_several_devices = False  # True if the current device may change
        self.weight = 1  # a report's time counts for this number of steps, see Note [What a step costs] in own_cost.py
        # times of the current step's reports; if `is_plain` is True, also of earlier steps' reports
        self.times_ns: list[int] = []
        self._learning: list[Meaning] | None = []  # None if the current step cannot be learned
        self.plan: StepPlan | None = None  # the plan that corresponds to `known`

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
        self.known, self.thread, self.times_ns, self._learning = [], None, [], None
        self.is_plain, self.stream, self.weight = False, None, 1

    def differs(self) -> list[tuple[Meaning, int]]:
        """Stop comparing the steps. Return all calls of the current step with their times."""
        so_far = self.known[: len(self.times_ns)]
        self.known, self.thread, self._learning = [], None, list(so_far)
        return list(zip(so_far, self.times_ns, strict=True))

    def learn(self, end: Meaning, step: CutStep, is_closed: bool) -> None:
        learned, times_ns, self._learning = self._learning, [*self.times_ns, step.end_ns], []
        self.known, self.thread, self.times_ns = [], None, []
        if learned is None or not is_closed or step.is_evaluation or not step.segments:
            return
        lefts = [i for i, of in enumerate(learned) if of.action == LEAVES]
        if step.left_ns is None or not lefts:  # for example, a step that called no optimizer
            return
        begins = [i if of.action == BEGINS else of.boundary for i, of in enumerate(learned) if of.action in (BEGINS, CONTINUES)]
        names = [segment.name for segment in step.segments]
        if begins[:1] != [NONE] and len(names) <= len(begins):
            return
        ends = [*begins, len(learned)][-len(names) :]
        left = lefts[-1]
        # Treat consecutive copies to the GPU as one phase.
        learned = [
            of._replace(action=NOTHING) if of.action == LEAVES and i not in ends and i != left else of
            for i, of in enumerate(learned)
        ]
        plan = StepPlan(learned, names, ends, left)
        if plan.cut([step.segments[0].start_ns, *times_ns]) == step:
            self.known, self.plan = [*learned, end], plan

    def expect(self, thread: int | None, ends: Callable[[int], None], acts: Callable[[int], None]) -> None:
        """Expect that `thread` makes the same reports (`known`) in each step. The first expected report is the next one of the
        current step. `ends` is called for the last report of a step. If `is_plain` is False, `acts` is called for each report
        that begins or ends a segment."""
        if not self.known:
            return
        on_stream, then = self.stream is not None, None if self.is_plain else acts
        expected: list[Expected] = []
        for kind, argument, action, *_ in self.known:
            records, checks = on_stream and action in (BEGINS, LEAVES), on_stream and action in (BEGINS, CONTINUES)
            calls = ends if action == ENDS else None if action == NOTHING else then
            expected.append((kind, argument, records, checks, calls))
        self.thread, self.advance = thread, islice(cycle(expected), len(self.times_ns), None).__next__

    def ended(self) -> list[int]:
        """Begin a new step, and return the times at which the previous step made its calls."""
        times_ns, self.times_ns = self.times_ns, []
        return times_ns
