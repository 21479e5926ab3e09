"""Decides which training steps are warm-up steps, profiled steps, or steps without the profiler.

    schedule = Schedule(warmup=3, clean=10, profiled=5)
    schedule.kind(False)        # StepKind.WARMUP: kind of the current step
    schedule.end_step(False)    # the next step begins
    schedule.profile            # "", "prepare" (the profiler attaches; the step counts as warm-up) or "record"

The arguments `warmup`, `clean` and `profiled` are numbers of training steps. Before the first training step, evaluation steps
are counted too, because some scripts never train.
"""

from __future__ import annotations

from traces.model.trace import StepKind


class Schedule:
    def __init__(self, warmup: int, clean: int, profiled: int) -> None:
        self._first_clean = warmup
        self._prepare = warmup + clean
        self._first_profiled = self._prepare + 1
        self._end = self._first_profiled + profiled if profiled else 0
        self._count = 0
        self._has_trained = False
        self._evaluation = ""  # what the profiler does because of evaluation
        self._evaluations_left = profiled  # evaluated batches that are still to be profiled

    @property
    def profile(self) -> str:
        """Return what torch.profiler does in the current step: "record", "prepare" (while starting) or "" (while off)."""
        if self._first_profiled <= self._count < self._end or self._evaluation == "record":
            return "record"
        return "prepare" if self._end and self._count == self._prepare else self._evaluation

    @property
    def is_settled(self) -> bool:
        """Return True if torch.profiler will not run again."""
        return self._has_trained and self._count >= self._first_clean and not self._end

    def kind(self, evaluation: bool) -> StepKind:
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
        self._evaluation = ""

    def lose_window(self) -> None:
        if self._first_profiled <= self._count < self._end:
            self._end = self._first_profiled + self._end - self._count
            self._count = self._prepare
        elif self._evaluation:
            self._evaluation = "prepare"

    def give_up(self) -> None:
        self._end = self._evaluations_left = 0
        self._evaluation = ""

    def end_step(self, evaluation: bool) -> None:
        if evaluation and self._has_trained and self._evaluations_left:
            self._evaluations_left -= self.profile == "record"
            self._evaluation = "record" if self.profile else "prepare"
        if self._evaluation and (not evaluation or not self._evaluations_left):
            self._evaluation, self._evaluations_left = "", 0
        elif not evaluation and self._is_first_training:
            self._count = min(1, self._prepare)
        elif not evaluation or not self._has_trained:
            self._count += 1
        self._has_trained = self._has_trained or not evaluation
