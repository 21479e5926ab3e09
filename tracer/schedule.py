"""Decides which training steps are warm-up steps, profiled steps, or steps without the profiler.

    schedule = Schedule(warmup=3, clean=10, profiled=5)
    schedule.kind(False)        # StepKind.WARMUP: kind of the current step
    schedule.end_step(False, ("forward", "loss", "backward", "optimizer"), 1)     # the next step begins
    schedule.profile            # "", "prepare" (the profiler attaches; the step counts as warm-up) or "record"

Here, three training steps warm up, ten are timed without the profiler, and five are profiled. If the script never trains,
evaluation steps are counted instead.

Note [Windows for later kinds of steps]
    Two steps are of the same kind if they have the same sequence of phases and the same first optimizer. The first profile may
    miss a kind of step, for example validation, another network, or a gradient penalty in every 16th step. If steps of a kind
    were not profiled, the profiler runs again around the next step of this kind. Evaluation usually has several batches, so
    another batch is expected after the first one. The profiler attaches in that batch and records the third one. If a kind of
    step has never occurred three times in a row, the recorder expects its next step at the smallest distance between the first
    steps of two such rows. The number of profiles is limited.

    Steps of one kind may do different work, for example with a smaller last batch. The profiler also runs again for work that
    it has not recorded yet. Phases do not count as work, because a step that prints its loss has one more phase than other
    steps.

    A profile makes all later steps slower, so these profiles come after the first profile of training steps. Only evaluation
    steps may be profiled before this first profile. They are profiled after enough training steps without the profiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from traces.comparison.thresholds import FEWEST_CLEAN_STEPS
from traces.model.trace import StepKind

_MOST_WINDOWS = 6  # maximum number of profiles after the first profile
_MOST_WORK_WINDOWS = 4  # maximum number of profiles for kinds of work, after the first profile
_MOST_KINDS = 64
_MOST_UNSEEN = 2  # after one step of a kind, the profiler attaches in the next one, and records only the step after it
_EARLY = 1  # a profile of a single step begins one step early, and ends at most one step late

Phases = tuple[str, ...]
_Kinds = dict[tuple[object, ...], "_KindOfStep"]


@dataclass(slots=True, eq=False)
class _KindOfStep:
    last: int  # number of the last step of this kind
    began: int  # number of the first of the latest consecutive steps of this kind
    longest: int = 1  # the largest number of consecutive steps of this kind
    period: int = 0  # smallest distance between the first of consecutive steps and the first of the next ones; 0 if unknown
    is_profiled: bool = False

    @property
    def distance(self) -> int:
        """Return the number of steps from the last step of this kind to the next expected one, or 0 if it is unknown."""
        if self.longest > _MOST_UNSEEN or (self.longest > 1 and not self.period):
            return 1
        return self.began + self.period - self.last if self.period else 0

    @classmethod
    def occurs(cls, kinds: _Kinds, key: tuple[object, ...], number: int) -> _KindOfStep:
        """Return the kind of step number `number`."""
        known = kinds.get(key)
        if known is None:
            known = cls(number, number)
            if len(kinds) < _MOST_KINDS:
                kinds[key] = known
            else:
                known.is_profiled = True
        else:
            if number > known.last + 1:
                known.period, known.began = min(known.period or number, number - known.began), number
            known.longest = max(known.longest, number - known.began + 1)
            known.last = number
        return known


class _ProfilerWindow(NamedTuple):
    of: _KindOfStep
    prepare: int  # number of the step in which the profiler attaches
    last: int  # number of the last step to profile
    is_run: bool  # True if the profile covers consecutive steps


class Schedule:
    def __init__(self, warmup: int, clean: int, profiled: int) -> None:
        self._first_clean = warmup
        self._prepare = warmup + clean
        self._first_profiled = self._prepare + 1
        self._profiled = profiled
        self._end = self._first_profiled + profiled if profiled else 0
        # number of steps that may be replaced; the number is limited, because some scripts compile in every step
        self._replaceable = profiled
        self._count = 0
        self._has_trained = False
        # see Note [Windows for later kinds of steps]
        self._number = 0  # number of the current step
        self._kinds: _Kinds = {}
        self._kinds_of_work: _Kinds = {}
        self._window: _ProfilerWindow | None = None
        self._windows_left = _MOST_WINDOWS if profiled else 0
        self._work_windows_left = _MOST_WORK_WINDOWS if profiled else 0

    @property
    def profile(self) -> str:
        """Return "record" in a profiled step, "prepare" while torch.profiler starts, and otherwise ""."""
        if self._first_profiled <= self._count < self._end:
            return "record"
        if self._end and self._count == self._prepare:
            return "prepare"
        if self._window is None or self._number < self._window.prepare:
            return ""
        return "record" if self._number > self._window.prepare else "prepare"

    @property
    def is_settled(self) -> bool:
        return self._has_trained and self._count >= self._first_clean and not self._end

    @property
    def compares_work(self) -> bool:
        return self._work_windows_left > 0

    def kind(self, evaluation: bool) -> StepKind:
        """Return the kind of the current step. The first steps of a run, the first training step after evaluation steps, and
        the step in which the profiler starts are warm-up steps. `StepRecorder._kind` knows further warm-up steps."""
        if evaluation:
            return StepKind.EVALUATION
        profile = self.profile if self._end else ""
        if self._count < self._first_clean or self._is_first_training or profile == "prepare":
            return StepKind.WARMUP
        return StepKind.PROFILED if profile else StepKind.STEADY

    @property
    def _is_first_training(self) -> bool:
        return not self._has_trained and self._count > 0

    def postpone(self) -> None:
        if self._end and self._count == self._prepare:
            self._count -= 1
        self._window = None

    def replaces_step(self, evaluation: bool) -> bool:
        """Return True if compiling made this step unusable, so that another step should be profiled."""
        if not self._replaceable or self.kind(evaluation) is not StepKind.PROFILED:
            return False
        self._replaceable -= 1
        return True

    def lose_window(self) -> None:
        if self._first_profiled <= self._count < self._end:
            self._end = self._first_profiled + self._end - self._count
            self._count = self._prepare
        elif self._window is not None:
            self._window = self._window._replace(prepare=self._number)

    def give_up(self) -> None:
        self._end = self._windows_left = self._work_windows_left = 0
        self._window = None

    def end_step(
        self, evaluation: bool, phases: Phases = (), first_optimizer: int = 0, work: int = 0, *, compiled: bool = False
    ) -> None:
        """End the current step. The argument `work` is a hash of the step's ops and shapes."""
        is_extra = self._window is not None and self._number >= self._window.prepare
        if self._windows_left or self._work_windows_left or is_extra:
            self._note_kind((evaluation, phases, first_optimizer), work, is_usual=not (evaluation and compiled))
        counts = not self._has_trained if evaluation else not is_extra or self._count >= self._end
        if not evaluation and self._is_first_training:
            self._count = min(1, self._prepare)
        elif counts:
            self._count += 1
        self._has_trained = self._has_trained or not evaluation
        self._number += 1
        if self._prepare <= self._count < self._end:
            self._window = None

    def _note_kind(self, key: tuple[bool, Phases, int], work: int, *, is_usual: bool) -> None:
        # see Note [Windows for later kinds of steps]
        number, window, evaluation = self._number, self._window, key[0]
        kind = _KindOfStep.occurs(self._kinds, key, number)
        kind_of_work = _KindOfStep.occurs(self._kinds_of_work, (evaluation, work), number)
        action = self.profile
        if action == "record" and is_usual:
            kind.is_profiled = kind_of_work.is_profiled = True
        if window is not None:
            is_expected = window.of in (kind, kind_of_work)
            is_over = not is_expected if window.is_run else is_expected and action == "record" and is_usual
            if number >= window.last or (is_over and number >= window.prepare):
                window = self._window = None
        if window is not None:
            return
        if not kind.is_profiled and self._windows_left and self._may_open(evaluation, kind.distance):
            self._windows_left -= 1
            self._open_window(kind, action)
        elif kind.is_profiled and self._work_windows_left and self._may_follow(kind_of_work):
            self._work_windows_left -= 1
            self._open_window(kind_of_work, action)

    def _open_window(self, kind: _KindOfStep, action: str) -> None:
        number = self._number
        expected = number + (kind.distance or 1)
        is_run = expected == number + 1
        prepare = number if is_run and action else max(number + 1, expected - 1 - _EARLY)
        self._window = _ProfilerWindow(kind, prepare, prepare + self._profiled if is_run else expected + _EARLY, is_run)

    def _may_follow(self, kind_of_work: _KindOfStep) -> bool:
        return self._count >= self._end and not kind_of_work.is_profiled and kind_of_work.distance > 0

    def _may_open(self, evaluation: bool, distance: int) -> bool:
        if self._count >= self._end:
            return evaluation or distance > 0
        return self._has_trained and evaluation and distance == 1 and self._count >= self._first_clean + FEWEST_CLEAN_STEPS
