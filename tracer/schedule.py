"""Decides how each step is recorded: warm-up, clean, profiled, then clean until the end of the run.

    schedule = Schedule(warmup=3, clean=10, profiled=5)
    schedule.kind(False)        # StepKind.WARMUP: kind of the current step
    schedule.end_step(False)    # the next step begins
    schedule.profile            # "", "prepare" (the profiler attaches; the step counts as warm-up) or "record"

Only training steps are counted. Until the script trains, evaluation steps are counted, so inference is recorded too. The count
of steps restarts at the first training step, for example after an initial validation.

Evaluation steps between training steps are profiled in one separate window. In the window of evaluation steps, the profiler is
started after the first batch and begins to record with the third batch. The window of evaluated batches ends with the next
training step, because a step is known to be training only when it ends. That training step is not counted.

If the script starts its own profile, the recorder's window ends early, and the schedule plans a new window for the missing
steps. If the profiler fails, the schedule plans no further window.
"""

from __future__ import annotations

from traces.model.trace import StepKind


class Schedule:
    """Counts steps. `profiled` is 0 at phase grain, which needs no profiler."""

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
        """Returns what the profiler does during the current step."""
        if self._first_profiled <= self._count < self._end or self._evaluation == "record":
            return "record"
        return "prepare" if self._end and self._count == self._prepare else self._evaluation

    def kind(self, evaluation: bool) -> StepKind:
        """Returns the kind of the step that has just ended."""
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
        """Makes the current step a clean step, because the profiler cannot attach yet. The next step tries again."""
        if self._end and self._count == self._prepare:
            self._count -= 1
        self._evaluation = ""

    def lose_window(self) -> None:
        """Makes the current step the one in which the profiler attaches again, to record the missing steps."""
        if self._first_profiled <= self._count < self._end:
            self._end = self._first_profiled + self._end - self._count
            self._count = self._prepare
        elif self._evaluation:
            self._evaluation = "prepare"

    def give_up(self) -> None:
        """Plans no further window, because the profiler has failed."""
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
