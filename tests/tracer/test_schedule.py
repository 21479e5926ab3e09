"""Tests which steps are warm-up steps, clean steps and profiled steps."""

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
def test_evaluation_steps_do_not_change_when_the_first_profile_starts(evaluations: list[bool]) -> None:
    evaluations = [False, *evaluations]
    told = kinds(Schedule(2, 3, 2), evaluations)
    training = [kind for kind, evaluation in zip(told, evaluations, strict=True) if not evaluation]
    warmup, steady, profiled = StepKind.WARMUP, StepKind.STEADY, StepKind.PROFILED
    promised = [warmup, warmup, steady, steady, steady, warmup, profiled, profiled]
    assert training[:8] == promised[: len(training)]
    assert all(kind is StepKind.EVALUATION for kind, evaluation in zip(told, evaluations, strict=True) if evaluation)


def actions_of(schedule: Schedule, steps: str) -> str:
    """Return the action of the profiler in each step: "." for nothing, "p" for prepare, "r" for record. Each letter of `steps`
    is a kind of step, in lower case for evaluation."""
    actions = ""
    for letter in steps:
        actions += schedule.profile[:1] or "."
        schedule.end_step(letter.islower(), ("forward", letter))
    return actions


def test_evaluation_steps_before_the_first_profile_are_profiled_once() -> None:
    """The profiler attaches after two evaluated batches. The profile ends with the next training step, which is not
    profiled."""
    schedule = Schedule(warmup=0, clean=8, profiled=2)
    assert actions_of(schedule, "TTTTTvvvv") == ".......pr"
    assert schedule.kind(False) is StepKind.PROFILED
    assert actions_of(schedule, "TTvvvv") == "r....."
    assert schedule.kind(False) is StepKind.STEADY
    assert actions_of(schedule, "TTTTT") == "..prr"
    # GIVEN more evaluated batches than should be profiled THEN the profile ends before the next training step
    assert actions_of(Schedule(warmup=0, clean=20, profiled=2), "TTTTTvvvvvvT") == ".......prr.."


def test_another_evaluation_step_is_profiled_if_the_first_profiled_one_compiles() -> None:
    """GIVEN an evaluated batch that compiles code while it is profiled THEN a later batch is profiled, too. The second batch
    shows that eight steps are between two batches, so the third batch is profiled."""
    schedule = Schedule(warmup=1, clean=2, profiled=3)
    assert actions_of(schedule, "TTTT") == "...p"
    schedule.end_step(True, ("forward", "v"), compiled=True)
    assert actions_of(schedule, "TTTTTTTvTTTTTTTvT") == "rrr....." + ".....prr" + "."


def test_evaluation_is_not_profiled_while_unprofiled_training_steps_are_timed() -> None:
    """Single evaluated batches are profiled together with training steps. A run of evaluation steps is profiled later if too
    few clean steps came before."""
    assert actions_of(Schedule(warmup=0, clean=6, profiled=2), "TvTvTvTvTvTvTvTvTvTv") == "...........pprrrr..."
    assert actions_of(Schedule(warmup=0, clean=6, profiled=2), "TTTTvvvvTTTTTTvvvv") == "..........prr..prr"
    # GIVEN evaluation is expected after the eighth step WHEN the profiler attaches in the eighth step THEN this step is not
    # clean
    assert actions_of(Schedule(warmup=0, clean=8, profiled=1), "TTTTTvvTvTTT") == ".......p...."


@pytest.mark.parametrize(
    ("steps", "actions"),
    [
        # The script first searches for a learning rate, and then trains.
        ("LLLLLLLTTTTTTTTTT", "..prr....prr....."),
        # Every sixth step has a gradient penalty. It first occurs after the first profile.
        ("TTTTTTGTTTTTGTTTTTGTTTTTG", "..prr...........prr......"),
        # The expected kind of step occurs one step late.
        ("TTTTTTGTTTTTGTTTTTTGTTTTTG", "..prr...........prrr......"),
        # The expected kind of step does not occur, so the profile is repeated.
        ("TTTTTTGTTTTTGTTTTTTTTGTTTTTGT", "..prr...........prrr.....prr."),
        # One batch is evaluated after every sixth training step. After the first one, the recorder expects another batch
        # immediately.
        ("TTTTTTvTTTTTTvTTTTTTvTTTTTTv", "..prr..p..........prr......."),
        # Two batches are evaluated after every sixth training step. The first two batches end before the profiler records, and
        # the period of 8 steps is known only after the next two.
        ("TTTTTTvvTTTTTTvvTTTTTTvvTTTTTTvv", "..prr..pr...........prr........."),
        # Evaluation, or another kind of step, directly follows the first profile.
        ("TTTTTvvvvv", "..prr.prr."),
        ("GTTTTGTTTTGTTTTG", "..prr...prr....."),
        # The script runs two kinds of inference.
        ("aaaaaabbbbbb", "..prr..prr.."),
        # The first batch of validation has another phase, so the prepared profiler records the second kind of batch.
        ("TTTTTTwvvvTTT", "..prr..prr..."),
    ],
)
def test_a_new_kind_of_step_after_the_profile_is_profiled_later(steps: str, actions: str) -> None:
    assert actions_of(Schedule(warmup=0, clean=2, profiled=2), steps) == actions


def test_steps_with_a_different_optimizer_are_profiled_as_a_separate_kind() -> None:
    schedule, actions = Schedule(warmup=0, clean=2, profiled=2), ""
    for number in range(14):
        actions += schedule.profile[:1] or "."
        schedule.end_step(False, ("forward", "backward", "optimizer"), 1 if number < 7 else 2)
    assert actions == "..prr....prr.."


def test_the_number_of_profiles_is_limited() -> None:
    """GIVEN 26 kinds of steps, one after the other THEN only seven of them are profiled."""
    steps = "".join(letter * 6 for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert actions_of(Schedule(warmup=0, clean=2, profiled=2), steps).count("p") == 7


@pytest.mark.parametrize(
    ("work", "actions"),
    [
        # The batches become larger, and later smaller again.
        ("1111111222222221111", "..prr....prr......."),
        # Every sixth step uses a second head. It is first used after the first profile.
        ("1111112111112111112111112", "..prr...........prr......"),
        # The work of the first step occurs again directly after the first profile.
        ("211112111121111211112111", "..prr...prr............."),
        # The first profile contains both kinds of work.
        ("121212121212", "..prr......."),
        # Each step does different work.
        ("1234567890", "..prr....."),
        # Five more kinds of work follow the first one, and four of them are profiled.
        ("1111111222222333333444444555555666666", "..prr....prr...prr...prr...prr......."),
    ],
)
def test_steps_with_new_work_are_profiled_too(work: str, actions: str) -> None:
    """The steps have the same phases. Each digit stands for one kind of work."""
    schedule, found = Schedule(warmup=0, clean=2, profiled=2), ""
    for number in work:
        found += schedule.profile[:1] or "."
        schedule.end_step(False, ("forward", "backward", "optimizer"), 1, int(number))
    assert found == actions


def test_a_kind_of_work_is_expected_again_even_if_its_phases_differ() -> None:
    """GIVEN a smaller batch in every fifth step, and a script that prints its loss in steps 4 and 5, which adds a phase WHEN
    steps 0 and 5 had the smaller batch THEN step 10 is profiled."""
    schedule, actions = Schedule(warmup=0, clean=2, profiled=2), ""
    for number in range(15):
        actions += schedule.profile[:1] or "."
        phases = ("other",) * (number in (4, 5)) + ("forward", "backward", "optimizer")
        schedule.end_step(False, phases, 1, 4 if number % 5 == 0 else 8)
    assert actions == "..prr...prr...."


def test_two_full_batches_before_a_smaller_one_are_profiled_in_a_later_epoch() -> None:
    """GIVEN three evaluated batches after every sixth training step, of which the last is smaller WHEN the profiler records
    only the smaller batch of step 8 THEN it next records step 24, the first full batch of the third evaluation."""
    schedule, actions = Schedule(warmup=0, clean=2, profiled=2), ""
    for letter in "TTTTTTvvw" * 4:
        actions += schedule.profile[:1] or "."
        schedule.end_step(letter.islower(), ("forward",) if letter.islower() else ("forward", "backward"), 1, ord(letter))
    assert actions == "..prr..prr............prr..........."


def test_many_batch_sizes_leave_profiles_for_evaluation_steps() -> None:
    """GIVEN 100 training batches of 50 sizes THEN the evaluation steps after them are still profiled."""
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
    """The first training step counts as warm-up, because until it trains, it could be an evaluation step."""
    schedule = Schedule(warmup, clean, profiled)
    kinds(schedule, [True] * evaluations)
    told, actions = list[StepKind](), list[str]()
    for _ in range(1 + warmup + clean + 1 + profiled + 1):
        told.append(schedule.kind(False))
        schedule.end_step(False)
        actions.append(schedule.profile)  # this is the action in the next step
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


def test_profiling_is_repeated_after_a_profile_was_lost() -> None:
    """GIVEN three steps to profile WHEN the profile is lost after one of them THEN the profiler attaches again and records the
    other two."""
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
def test_a_profiling_schedule_is_finished_when_no_later_step_will_be_profiled(profiled: int, settled_after: int | None) -> None:
    """The schedule has three warm-up steps. A schedule with a profile is settled only after the profile has ended."""
    schedule = Schedule(warmup=3, clean=4, profiled=profiled)
    settled = []
    for _ in range(1, 6):
        schedule.end_step(False)
        settled.append(schedule.is_settled)
    assert settled == [settled_after is not None and step >= settled_after for step in range(1, 6)]
