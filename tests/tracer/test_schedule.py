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
def test_the_schedule_contains_the_requested_number_of_steps_of_each_kind(
    warmup: int, clean: int, profiled: int, steps: int
) -> None:
    told = kinds(Schedule(warmup, clean, profiled), [False] * steps)
    plan = [StepKind.WARMUP] * warmup + [StepKind.STEADY] * clean + [StepKind.WARMUP] + [StepKind.PROFILED] * profiled
    assert told == (plan + [StepKind.STEADY] * steps)[:steps]


@given(st.lists(st.booleans(), max_size=40))
def test_evaluation_does_not_change_the_first_profile(evaluations: list[bool]) -> None:
    evaluations = [False, *evaluations]
    told = kinds(Schedule(2, 3, 2), evaluations)
    training = [kind for kind, evaluation in zip(told, evaluations, strict=True) if not evaluation]
    warmup, steady, profiled = StepKind.WARMUP, StepKind.STEADY, StepKind.PROFILED
    promised = [warmup, warmup, steady, steady, steady, warmup, profiled, profiled]
    assert training[:8] == promised[: len(training)]
    assert all(kind is StepKind.EVALUATION for kind, evaluation in zip(told, evaluations, strict=True) if evaluation)


def actions_of(schedule: Schedule, steps: str) -> str:
    """Return the profiler's action in each step: "." nothing, "p" prepare, "r" record. Each letter of `steps` is a kind of
    step, in lower case for evaluation."""
    actions = ""
    for letter in steps:
        actions += schedule.profile[:1] or "."
        schedule.end_step(letter.islower(), ("forward", letter))
    return actions


def test_evaluation_steps_before_the_first_profile_are_profiled_once() -> None:
    """The profiler attaches after two evaluated batches, and ends with the next training step, which does not count."""
    schedule = Schedule(warmup=0, clean=8, profiled=2)
    assert actions_of(schedule, "TTTTTvvvv") == ".......pr"
    assert schedule.kind(False) is StepKind.PROFILED
    assert actions_of(schedule, "TTvvvv") == "r....."
    assert schedule.kind(False) is StepKind.STEADY
    assert actions_of(schedule, "TTTTT") == "..prr"
    # GIVEN more evaluated batches than are to be profiled THEN the window ends before the next training step
    assert actions_of(Schedule(warmup=0, clean=20, profiled=2), "TTTTTvvvvvvT") == ".......prr.."


def test_an_evaluation_step_that_compiles_is_not_the_only_profiled_one() -> None:
    """GIVEN an evaluated batch that compiles code during the first profile THEN a window opens for a later batch. The distance
    of eight steps is known after the second batch, so the third batch is profiled."""
    schedule = Schedule(warmup=1, clean=2, profiled=3)
    assert actions_of(schedule, "TTTT") == "...p"
    schedule.end_step(True, ("forward", "v"), compiled=True)
    assert actions_of(schedule, "TTTTTTTvTTTTTTTvT") == "rrr....." + ".....prr" + "."


def test_evaluation_is_not_profiled_while_unprofiled_training_steps_are_timed() -> None:
    """Single evaluated batches are profiled in the first window. A run of evaluation steps after too few clean steps is
    profiled later."""
    assert actions_of(Schedule(warmup=0, clean=6, profiled=2), "TvTvTvTvTvTvTvTvTvTv") == "...........pprrrr..."
    assert actions_of(Schedule(warmup=0, clean=6, profiled=2), "TTTTvvvvTTTTTTvvvv") == "..........prr..prr"
    # GIVEN evaluation is expected after the eighth step WHEN the profiler attaches in this step THEN it is not a clean step
    assert actions_of(Schedule(warmup=0, clean=8, profiled=1), "TTTTTvvTvTTT") == ".......p.p.."


@pytest.mark.parametrize(
    ("steps", "actions"),
    [
        # training after a search for the learning rate
        ("LLLLLLLTTTTTTTTTT", "..prr....prr....."),
        # a gradient penalty in every sixth step, which occurs for the first time after the first window
        ("TTTTTTGTTTTTGTTTTTGTTTTTG", "..prr...........prr......"),
        # the expected step comes one step late
        ("TTTTTTGTTTTTGTTTTTTGTTTTTG", "..prr...........prrr......"),
        # the expected step does not come, so the window is repeated
        ("TTTTTTGTTTTTGTTTTTTTTGTTTTTGT", "..prr...........prrr.....prr."),
        # one evaluated batch after every sixth training step; after the first one, another batch is expected
        ("TTTTTTvTTTTTTvTTTTTTvTTTTTTv", "..prr..p..........prr......."),
        # evaluation, or the next occurrence of another kind of step, directly follows the first window
        ("TTTTTvvvvv", "..prr.prr."),
        ("GTTTTGTTTTGTTTTG", "..prr...prr....."),
        # inference of two kinds
        ("aaaaaabbbbbb", "..prr..prr.."),
        # the first batch of validation has another phase, so the profiler that is ready records the second kind
        ("TTTTTTwvvvTTT", "..prr..prr..."),
    ],
)
def test_a_new_kind_of_step_is_profiled_later(steps: str, actions: str) -> None:
    assert actions_of(Schedule(warmup=0, clean=2, profiled=2), steps) == actions


def test_steps_with_another_optimizer_are_profiled_as_another_kind_of_step() -> None:
    schedule, actions = Schedule(warmup=0, clean=2, profiled=2), ""
    for number in range(14):
        actions += schedule.profile[:1] or "."
        schedule.end_step(False, ("forward", "backward", "optimizer"), 1 if number < 7 else 2)
    assert actions == "..prr....prr.."


def test_the_number_of_profiles_is_limited() -> None:
    """GIVEN 30 kinds of steps, one after the other THEN seven of them are profiled."""
    steps = "".join(letter * 6 for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert actions_of(Schedule(warmup=0, clean=2, profiled=2), steps).count("p") == 7


@pytest.mark.parametrize(
    ("work", "actions"),
    [
        # the batches become larger, and later smaller again
        ("1111111222222221111", "..prr....prr......."),
        # a second head in every sixth step, which occurs for the first time after the first window
        ("1111112111112111112111112", "..prr...........prr......"),
        # work of the first step occurs again directly after the first window
        ("211112111121111211112111", "..prr...prr............."),
        # the first window has both kinds
        ("121212121212", "..prr......."),
        # other work in each step
        ("1234567890", "..prr....."),
        # five kinds of work after the first, of which four get a window
        ("1111111222222333333444444555555666666", "..prr....prr...prr...prr...prr......."),
    ],
)
def test_steps_with_new_work_are_profiled_too(work: str, actions: str) -> None:
    """GIVEN steps with the same phases, whose work is known by a number."""
    schedule, found = Schedule(warmup=0, clean=2, profiled=2), ""
    for number in work:
        found += schedule.profile[:1] or "."
        schedule.end_step(False, ("forward", "backward", "optimizer"), 1, int(number))
    assert found == actions


def test_many_batch_sizes_do_not_use_up_the_profiles_for_evaluation_steps() -> None:
    """GIVEN 100 batches of 50 sizes WHEN evaluation follows THEN it is profiled."""
    schedule = Schedule(warmup=0, clean=2, profiled=2)
    for number in range(100):
        schedule.end_step(False, ("forward", "backward", "optimizer"), 1, number // 2)
    assert not schedule.compares_work
    assert actions_of(schedule, "vvvvvv") == ".prr.."


def test_inference_steps_are_profiled() -> None:
    schedule = Schedule(1, 1, 2)
    actions = []
    for _ in range(6):
        actions.append(schedule.profile)
        schedule.end_step(True)
    assert actions == ["", "", "prepare", "record", "record", ""]


@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3), st.integers(1, 30))
def test_training_after_an_initial_evaluation_follows_the_schedule(
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


def test_a_recording_of_phase_times_never_starts_the_profiler() -> None:
    schedule = Schedule(1, 2, 0)
    assert kinds(schedule, [False] * 5) == [StepKind.WARMUP] + [StepKind.STEADY] * 4
    assert schedule.profile == ""


def test_steps_count_as_unprofiled_until_a_postponed_profile_begins() -> None:
    schedule = Schedule(warmup=1, clean=1, profiled=1)
    kinds = []
    for number in range(7):
        if number < 4:
            schedule.postpone()
        kinds.append(schedule.kind(False))
        schedule.end_step(False)
    steady = StepKind.STEADY
    assert kinds == [StepKind.WARMUP, steady, steady, steady, StepKind.WARMUP, StepKind.PROFILED, steady]


def test_a_lost_profile_is_recorded_later() -> None:
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


def test_no_more_steps_are_profiled_after_the_profiler_has_failed() -> None:
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
def test_a_schedule_is_settled_when_no_later_step_will_be_profiled(profiled: int, settled_after: int | None) -> None:
    """Three steps of warm-up without a profile, or with a profile that lasts until its end."""
    schedule = Schedule(warmup=3, clean=4, profiled=profiled)
    settled = []
    for _ in range(1, 6):
        schedule.end_step(False)
        settled.append(schedule.is_settled)
    assert settled == [settled_after is not None and step >= settled_after for step in range(1, 6)]
