"""Which steps of a run are recorded how: warm-up, clean, profiled, and clean again for as long as the run lasts.

    schedule = Schedule(warmup=3, clean=10, profiled=5)
    schedule.kind(False)        # StepKind.WARMUP: the step under way
    schedule.end_step(False)    # it has ended; the next one begins
    schedule.profile            # "", "prepare" (the profiler attaches itself: that step is warm-up again), "record"

Training steps count. Of a script that has not trained yet, evaluation steps do, so that inference is recorded too; when it
begins to train (after a first validation, or an episode of reinforcement learning), the counts begin anew.
"""

from __future__ import annotations

from traces.model.trace import StepKind


class Schedule:
    """Counts steps; `profiled` = 0 stands for the phase grain, which needs no profiler."""

    def __init__(self, warmup: int, clean: int, profiled: int) -> None:
        self._first_clean = warmup
        self._prepare = warmup + clean
        self._first_profiled = self._prepare + 1
        self._end = self._first_profiled + profiled if profiled else 0
        self._count = 0
        self._has_trained = False

    @property
    def profile(self) -> str:
        """What the profiler does during the step under way."""
        if self._first_profiled <= self._count < self._end:
            return "record"
        return "prepare" if self._end and self._count == self._prepare else ""

    def kind(self, evaluation: bool) -> StepKind:
        """What the step under way is, now that it is known whether it trained."""
        if evaluation:
            return StepKind.EVALUATION
        if self._is_first_training or self._count < self._first_clean or self.profile == "prepare":
            return StepKind.WARMUP
        return StepKind.PROFILED if self.profile else StepKind.STEADY

    @property
    def _is_first_training(self) -> bool:
        """Of a step that trains: whether it is the first, after evaluation. Its profiler, if any, is the evaluation's."""
        return not self._has_trained and self._count > 0

    def postpone(self) -> None:
        """The profiler cannot attach itself yet: the step under way is a clean one, and the next may be the one for that."""
        if self.profile == "prepare":
            self._count -= 1

    def end_step(self, evaluation: bool) -> None:
        if not evaluation and self._is_first_training:
            self._count = min(1, self._prepare)
        elif not evaluation or not self._has_trained:
            self._count += 1
        self._has_trained = self._has_trained or not evaluation
