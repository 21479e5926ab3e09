"""Remembers how the calls of a step were divided into phases, so that a step with the same calls need not be divided again.

    repeated.note(Meaning(ENTER, "zero_grad", CONTINUES, NONE, "zero_grad"), now_ns)    # `ScriptCut` has handled a report
    repeated.learn(Meaning(STEPPED, True, ENDS, NONE, ""), step, is_closed=True)        # the step has ended
    repeated.known[len(repeated.times_ns)]      # the next report, if the current step is like the one before
    repeated.ended(now_ns, start_ns)            # the same step at other times

Note [Steps repeat]
    Steps of a training loop make the same reports: zero_grad is entered, a module is called, and so on. `ScriptCut` is a state
    machine. If a step leaves the machine in the state in which the step began, then a second step with the same reports has
    the same segments. The recorder then only notes the time of each report. When a report differs, `ScriptCut` gets the
    reports of the step so far, with their times, and cuts the rest of the step as usual.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from traces.model.trace import NONE
from traces.script.phase_rule import Segment, new_segment
from traces.script.script_cut import CutStep

# Kinds of reports
ENTER, LEAVE, MODULE, OP, STEPPED, EXHAUSTED = range(6)
# What a report did: nothing, begin a segment now, begin a segment at an earlier boundary, end a phase, end the step
NOTHING, BEGINS, CONTINUES, LEAVES, ENDS = range(5)


class Meaning(NamedTuple):
    """A report and what it did."""

    kind: int
    argument: Any
    action: int
    boundary: int  # the number of the report at which a continued segment begins, NONE for the step's start
    entered: str  # the phase that has been entered by name and not left yet, or ""


class RepeatedSteps:
    """Holds the reported calls of one step, and their times in the current step."""

    def __init__(self) -> None:
        self.known: list[Meaning] = []  # the reports of a step, while the current step has made the same reports
        self.times_ns: list[int] = []  # of the current step's reports
        self._learning: list[Meaning] | None = []  # None if the current step cannot be learned
        self._names: list[str] = []  # of the segments of `known`
        self._ends: list[int] = []  # the numbers of the reports at which the segments end
        self._left = NONE  # the number of the report that left the last phase, NONE if another event followed

    def note(self, meaning: Meaning, now_ns: int) -> None:
        """Notes a report that `ScriptCut` has handled."""
        self.times_ns.append(now_ns)
        if self._learning is not None:
            self._learning.append(meaning)

    @property
    def last_left(self) -> int:
        """Returns the index of the report that last ended a phase."""
        learning = self._learning or []
        return max((number for number, of in enumerate(learning) if of.action == LEAVES), default=NONE)

    def give_up(self) -> None:
        """The current step cannot be learned."""
        self._learning = None

    def differs(self) -> list[tuple[Meaning, int]]:
        """Called if the reports of the current step differ from those of the remembered step. Returns the step's reports so
        far, with their times."""
        so_far = self.known[: len(self.times_ns)]
        self.known, self._learning = [], list(so_far)
        return list(zip(so_far, self.times_ns, strict=True))

    def learn(self, end: Meaning, step: CutStep, is_closed: bool) -> None:
        """Learns the step that `end` ended. `is_closed` says whether `ScriptCut` was in the same state at the start and at the
        end of the step."""
        learned, times_ns, self._learning = self._learning, [*self.times_ns, step.end_ns], []
        self.known, self.times_ns = [], []
        if learned is None or not is_closed or step.is_evaluation or not step.segments:
            return
        begins = [i if of.action == BEGINS else of.boundary for i, of in enumerate(learned) if of.action in (BEGINS, CONTINUES)]
        self._names = [segment.name for segment in step.segments]
        # If a step begins with the phase "other", the step has one more segment than reported phase starts.
        self._ends = [*begins, len(learned)][-len(self._names) :]
        lefts = [i for i, of in enumerate(learned) if of.action == LEAVES]
        self._left = NONE if step.left_ns is None or not lefts else lefts[-1]
        if (begins[:1] == [NONE] or len(self._names) > len(begins)) and self._cut(times_ns, step.segments[0].start_ns) == step:
            self.known = [*learned, end]

    def ended(self, now_ns: int, start_ns: int) -> CutStep:
        """The step has made all known reports. Returns the current step, and begins the next step."""
        times_ns, self.times_ns = self.times_ns, []
        return self._cut([*times_ns, now_ns], start_ns)

    def _cut(self, times_ns: list[int], start_ns: int) -> CutStep:
        segments: list[Segment] = []
        begin_ns = start_ns
        for name, end in zip(self._names, self._ends, strict=True):
            end_ns = start_ns if end == NONE else times_ns[end]
            segments.append(new_segment((name, begin_ns, end_ns)))
            begin_ns = end_ns
        return CutStep(False, segments, None if self._left == NONE else times_ns[self._left], times_ns[-1])
