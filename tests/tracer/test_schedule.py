"""Which steps are warm-up, clean and profiled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.schedule import Schedule
from traces.model.trace import StepKind


def kinds(schedule: Schedule, evaluations: list[bool]) -> list[StepKind]:
    told = []
    for evaluation in evaluations:
        told.append(schedule.kind(evaluation))
        schedule.end_step(evaluation)
    return told


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 5), st.integers(0, 30))
def test_the_schedule_has_the_requested_numbers_of_each_step_kind(warmup: int, clean: int, profiled: int, steps: int) -> None:
    told = kinds(Schedule(warmup, clean, profiled), [False] * steps)
    plan = [StepKind.WARMUP] * warmup + [StepKind.STEADY] * clean + [StepKind.WARMUP] + [StepKind.PROFILED] * profiled
    assert told == (plan + [StepKind.STEADY] * steps)[:steps]


@given(st.lists(st.booleans(), max_size=40))
def test_validation_does_not_count_as_scheduled_training_steps(evaluations: list[bool]) -> None:
    """The training step that ends the evaluation window does not count as a scheduled step."""
    evaluations = [False, *evaluations]
    told = kinds(Schedule(2, 3, 2), evaluations)
    training = [kind for kind, evaluation in zip(told, evaluations, strict=True) if not evaluation]
    promised = kinds(Schedule(2, 3, 2), [False] * len(training))
    without_one = [training[:i] + training[i + 1 :] for i in range(len(training))]
    assert training == promised or promised[:-1] in without_one
    assert all(kind is StepKind.EVALUATION for kind, evaluation in zip(told, evaluations, strict=True) if evaluation)


def test_evaluation_between_training_steps_is_profiled_once() -> None:
    """The profiler attaches after the first evaluated batch, and ends with the next training step."""
    schedule = Schedule(warmup=0, clean=20, profiled=2)
    actions, kinds_of_training = [], []
    for evaluation in [False, False, True, True, True, False, False, True, True, True]:
        actions.append(schedule.profile)
        kinds_of_training += [] if evaluation else [schedule.kind(False)]
        schedule.end_step(evaluation)
    assert actions == ["", "", "", "prepare", "record", "record", "", "", "", ""]
    assert kinds_of_training == [StepKind.STEADY, StepKind.STEADY, StepKind.PROFILED, StepKind.STEADY]
    # GIVEN more evaluated batches than are to be profiled THEN the window ends before the next training step
    schedule = Schedule(warmup=0, clean=20, profiled=2)
    actions = []
    for evaluation in [False, True, True, True, True, True, False]:
        actions.append(schedule.profile)
        schedule.end_step(evaluation)
    assert actions == ["", "", "prepare", "record", "record", "", ""]


def test_inference_steps_are_profiled() -> None:
    schedule = Schedule(1, 1, 2)
    actions = []
    for _ in range(6):
        actions.append(schedule.profile)
        schedule.end_step(True)
    assert actions == ["", "", "prepare", "record", "record", ""]


@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3), st.integers(1, 30))
def test_training_after_an_initial_evaluation_is_recorded_as_scheduled(
    warmup: int, clean: int, profiled: int, evaluations: int
) -> None:
    """The first training step is warm-up, because before it trains it could be evaluation. The other steps follow the
    schedule."""
    schedule = Schedule(warmup, clean, profiled)
    kinds(schedule, [True] * evaluations)
    told, actions = list[StepKind](), list[str]()
    for _ in range(1 + warmup + clean + 1 + profiled + 1):
        told.append(schedule.kind(False))
        schedule.end_step(False)
        actions.append(schedule.profile)  # of the step after
    assert told[0] is StepKind.WARMUP and told.count(StepKind.PROFILED) == profiled
    assert actions.count("prepare") == 1 and actions.count("record") == profiled
    assert actions.index("prepare") < actions.index("record")
    assert told.count(StepKind.STEADY) >= clean - (warmup == 0)


def test_the_phase_grain_needs_no_profiler() -> None:
    schedule = Schedule(1, 2, 0)
    assert kinds(schedule, [False] * 5) == [StepKind.WARMUP] + [StepKind.STEADY] * 4
    assert schedule.profile == ""


def test_steps_stay_clean_while_the_profiler_window_waits() -> None:
    schedule = Schedule(warmup=1, clean=1, profiled=1)
    kinds = []
    for number in range(7):
        if number < 4:
            schedule.postpone()
        kinds.append(schedule.kind(False))
        schedule.end_step(False)
    steady = StepKind.STEADY
    assert kinds == [StepKind.WARMUP, steady, steady, steady, StepKind.WARMUP, StepKind.PROFILED, steady]


def test_a_lost_window_is_recorded_later() -> None:
    """GIVEN three steps to profile WHEN the window ends after one of them THEN the profiler attaches again in the next step.
    It then records the other two."""
    schedule = Schedule(warmup=1, clean=1, profiled=3)
    actions, told = [], []
    for number in range(8):
        if number == 4:
            schedule.lose_window()
        actions.append(schedule.profile)
        told.append(schedule.kind(False))
        schedule.end_step(False)
    assert actions == ["", "", "prepare", "record", "prepare", "record", "record", ""]
    warmup, steady, profiled = StepKind.WARMUP, StepKind.STEADY, StepKind.PROFILED
    assert told == [warmup, steady, warmup, profiled, warmup, profiled, profiled, steady]


def test_all_steps_are_clean_after_the_profiler_has_failed() -> None:
    schedule = Schedule(warmup=0, clean=1, profiled=2)
    kinds(schedule, [False, False])
    assert schedule.profile == "record"
    schedule.give_up()
    assert schedule.profile == ""
    assert kinds(schedule, [False, True, False]) == [StepKind.STEADY, StepKind.EVALUATION, StepKind.STEADY]
    assert schedule.profile == ""


@pytest.mark.parametrize(
    ("profiled", "settled_after"),
    [(0, 3), (2, None)],
)
def test_a_schedule_is_settled_once_all_later_steps_are_clean(profiled: int, settled_after: int | None) -> None:
    """Three steps of warm-up without a profile, or with a profile that lasts until its end."""
    schedule = Schedule(warmup=3, clean=4, profiled=profiled)
    settled = []
    for _ in range(1, 6):
        schedule.end_step(False)
        settled.append(schedule.is_settled)
    assert settled == [settled_after is not None and step >= settled_after for step in range(1, 6)]
