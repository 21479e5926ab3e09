"""Tests which recorded step is used for each step of a replay."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.recording.recorded_run import RecordedRun
from replayer.recording.recorded_step import RecordedStep
from tests.replayer.recordings import Op, RecordedPhases, recording_of
from traces.model.trace import StepKind, Trace

ONE: RecordedPhases = [("forward", 0, 20), ("backward", 20, 40), ("optimizer", 40, 50)]
TWO: RecordedPhases = [*ONE, ("forward", 50, 70), ("backward", 70, 90), ("optimizer", 90, 100)]


def _recorded(passes: str, kinds: str) -> Trace:
    """Return a recording with one step for each character.

    In `passes`, 1 or 2 is the number of backward passes. In `kinds`, W is a warm-up step and S is a steady step. P is a
    profiled step with a kernel, and A is a step after a profile.
    """
    kind_of = {"W": StepKind.WARMUP, "S": StepKind.STEADY, "P": StepKind.PROFILED, "A": StepKind.AFTER_PROFILE}
    steps = []
    for number, kind in zip(passes, kinds, strict=True):
        ops = [Op("aten::mm", 2, 5, (10, 5))] if kind == "P" else []
        steps.append((kind_of[kind], ONE if number == "1" else TWO, ops))
    return recording_of(steps)


def _after(name: str, until_us: int) -> RecordedPhases:
    return [(name, 0, until_us), *((own, start + until_us, end + until_us) for own, start, end in ONE)]


@pytest.mark.parametrize("kinds", ["WWSSPPPSSS", "WWPPPSSSSS", "WWSSSSPPSS", "WWSSPPPAAA"])
def test_a_step_replays_a_recorded_step_with_the_same_number_of_passes(kinds: str) -> None:
    """GIVEN alternating steps of two trainers WHEN a replay is longer than the recording THEN the steps of each trainer replay
    this trainer's recorded steps."""
    passes = "1121212121"
    recording = RecordedRun(_recorded(passes, kinds))
    drivers = [recording.choice.training(number) for number in range(40)]
    assert [len(step.segments) // 3 for step in drivers] == [1, 1, *[2, 1] * 19]
    assert all(step.has_kernels for step in drivers)
    # AND all profiled steps of a kind are used
    assert {step.row for step in drivers[2:]} == {row for row, kind in enumerate(kinds) if kind == "P"}


def test_a_step_with_consecutive_backward_passes_replays_a_profiled_step_of_its_kind() -> None:
    """GIVEN alternating steps of two trainers, one with two backward passes in a row WHEN only its profile shows a phase
    between these passes THEN each trainer's steps still replay the profiled step of this trainer."""
    row: RecordedPhases = [("forward", 0, 20), ("backward", 20, 40), ("loss", 40, 60), ("backward", 60, 90)]
    shown: RecordedPhases = [*row[:1], ("backward", 20, 25), ("other", 25, 30), ("backward", 30, 40), *row[2:]]
    mm = [Op("aten::mm", 2, 5, (10, 5))]
    steps = [(StepKind.STEADY, of, list[Op]()) for of in [row, ONE] * 2]
    steps += [(StepKind.PROFILED, shown, mm), (StepKind.PROFILED, ONE, mm)]
    recording = RecordedRun(recording_of([*steps, *steps[:2]]))
    assert [recording.choice.training(number).row for number in range(10)] == [4, 5] * 5


def test_an_unprofiled_kind_of_step_replays_a_profiled_step_of_another_kind() -> None:
    recording = RecordedRun(_recorded("111112111112", "WSSPPSSSSSSS"))
    assert {recording.choice.training(number).row for number in range(1, 30)} == {3, 4}


@given(st.lists(st.sampled_from("12"), min_size=1, max_size=12), st.integers(0, 60))
def test_every_step_number_maps_to_a_recorded_step(passes: list[str], number: int) -> None:
    recording = RecordedRun(_recorded("".join(passes), "P" * len(passes)))
    driver = recording.choice.training(number)
    assert number >= len(passes) or len(driver.segments) // 3 == int(passes[number])


@pytest.mark.parametrize("kinds", ["WSSSSPPPSS", "WSSSSPPPAA"])
def test_profiled_steps_are_replayed_in_their_recorded_order(kinds: str) -> None:
    """GIVEN batches that cycle through three lengths, and a profile of three steps THEN each replayed step has the times of its
    length."""
    recording = RecordedRun(_recorded("1" * 10, kinds))
    assert [recording.choice.training(number).row for number in range(1, 14)] == [7, 5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6, 7]


def test_a_phase_grained_recording_replays_the_steps_before_the_scripts_own_profile() -> None:
    """GIVEN steps 2 and 3, a profile by the script in step 4, and then slower steps THEN the replay repeats steps 2 and 3."""
    trace = _recorded("1" * 7, "WWSSWAA")
    trace.grain = "phase"
    recording = RecordedRun(trace)
    assert {recording.choice.training(number).row for number in range(5, 30)} == {2, 3}


def test_a_step_replays_a_recorded_step_with_similar_phases() -> None:
    """GIVEN a learning-rate search without a loader, and then training with a loader THEN steps of the search replay profiled
    steps of the search. Steps of the training replay profiled steps of the training."""
    kernel, loaded, evaluated = [Op("aten::mm", 12, 5, (20, 5))], _after("loader", 10), [("forward", 0, 30)]
    kinds, after, steady = [StepKind.PROFILED] * 2, StepKind.AFTER_PROFILE, StepKind.STEADY
    steps = [(kind, ONE, kernel if kind == StepKind.PROFILED else []) for kind in (steady, steady, *kinds, after)]
    steps += [(after, loaded, []), (StepKind.WARMUP, loaded, []), *[(kind, loaded, kernel) for kind in kinds]]
    steps.append((after, [*loaded, ("other", 60, 70)], []))
    recording = RecordedRun(recording_of(steps))
    assert [recording.choice.training(number).row for number in range(14)] == [2, 3, 2, 3, 2, 7, 8, 7, 8, 7, 8, 7, 8, 7]
    # AND the same applies to evaluation steps
    steps = [(StepKind.EVALUATION, of, kernel) for of in (evaluated, [*ONE[:1], ("other", 20, 30)]) for _ in range(2)]
    recording = RecordedRun(recording_of([*[(StepKind.PROFILED, ONE, kernel)] * 2, *steps]))
    assert [recording.choice.evaluation(number).row for number in range(4)] == [2, 3, 4, 5]


def test_a_profiled_step_with_an_unusual_long_phase_is_not_repeated() -> None:
    """GIVEN three profiled steps that begin with a phase "other" WHEN this phase is long in the second step THEN only the
    first and the third profiled step are repeated."""

    profiled = [(StepKind.PROFILED, _after("other", by_us), [Op("aten::mm", 12, 5, (20, 5))]) for by_us in (1, 40, 2)]
    recording = RecordedRun(recording_of([*[(StepKind.STEADY, ONE, [])] * 2, *profiled, *[(StepKind.STEADY, ONE, [])] * 4]))
    assert [recording.choice.training(number).row for number in range(12)] == [2, 4, 2, 3, 4, *[4, 2] * 3, 4]


def test_a_profiled_step_with_an_unusual_additional_phase_is_not_repeated() -> None:
    """GIVEN three profiled steps, of which only the second requests a batch from an exhausted loader THEN only the first and
    the third step are repeated."""
    kernel = [Op("aten::mm", 12, 5, (20, 5))]
    profiled = [(StepKind.PROFILED, phases, kernel) for phases in (ONE, _after("loader", 1), ONE)]
    recording = RecordedRun(recording_of([*[(StepKind.STEADY, ONE, [])] * 2, *profiled, *[(StepKind.STEADY, ONE, [])] * 4]))
    rows = [recording.choice.training(number).row for number in range(9)]
    assert rows[3] == 3 and {*rows[:3], *rows[4:]} == {2, 4}


def test_a_single_profiled_step_with_the_phases_of_the_other_steps_is_not_repeated_alone() -> None:
    """GIVEN three of four profiled steps have a short phase h2d that only the profiler sees THEN all four steps are repeated,
    not only the first step, which has the same phases as the steps without the profiler."""
    copied = [("forward", 0, 20), ("h2d", 20, 21), *((own, start + 1, end + 1) for own, start, end in ONE[1:])]
    profiled = [(StepKind.PROFILED, phases, [Op("aten::mm", 2, 5, (10, 5))]) for phases in (ONE, copied, copied, copied)]
    recording = RecordedRun(recording_of([*profiled, *[(StepKind.STEADY, ONE, [])] * 4]))
    assert {recording.choice.training(number).row for number in range(4, 8)} == {0, 1, 2, 3}


def test_a_step_replays_the_latest_profile() -> None:
    """GIVEN two networks that are trained one after the other, each with a profile THEN all steps of the second network take
    the times of its profile. This profile begins three steps after the second network."""
    rows = _rows_of_two_profiles("aten::bmm")
    assert rows[:6] == [2, 3, 2, 3, 2, 3] and set(rows[6:]) == {9, 10} and rows[9:11] == [9, 10]


def test_two_profiles_of_the_same_ops_provide_times_together() -> None:
    rows = _rows_of_two_profiles("aten::mm")
    assert rows[:6] == [2, 3, 2, 3, 2, 3] and set(rows[6:]) == {2, 3, 9, 10} and rows[9:11] == [9, 10]


def _rows_of_two_profiles(second: str) -> list[int]:
    """Return the rows of the recorded steps that 16 replayed steps use. The op `second` runs in steps 9 and 10."""
    kinds = {"S": StepKind.STEADY, "P": StepKind.PROFILED, "W": StepKind.WARMUP, "A": StepKind.AFTER_PROFILE}
    steps = []
    for number, kind in enumerate("SSPPAAAAWPPA"):
        ops = [Op("aten::mm" if number < 8 else second, 2, 5, (10, 5))] if kind == "P" else []
        steps.append((kinds[kind], ONE, ops))
    recording = RecordedRun(recording_of(steps))
    return [recording.choice.training(number).row for number in range(16)]


def test_replayed_steps_after_the_end_of_the_recording_repeat_recorded_steps_by_kind() -> None:
    """GIVEN eight profiled steps WHEN a replay is longer THEN the replay repeats the eight steps in order."""
    recording = RecordedRun(_recorded("12121212", "P" * 8))
    assert [recording.choice.training(number).row for number in range(40)] == [*range(8)] * 5


def test_a_repeating_sequence_of_steps_continues_where_the_recording_ended() -> None:
    """GIVEN a sequence of three steps that repeats, and eight recorded steps THEN the replay continues with the third step of
    the sequence. The last recorded step of this kind is step 5, so the replay takes the first one, step 2."""
    recording = RecordedRun(_recorded("11211211", "P" * 8))
    rows = [recording.choice.training(number).row for number in range(8, 17)]
    assert [row in (2, 5) for row in rows] == [True, False, False] * 3
    assert rows[::3] == [2, 5, 2]
    # AND steps with one pass take the recorded steps with one pass in order
    assert [row for row in rows if row not in (2, 5)] == [0, 1, 3, 4, 6, 7]


def test_an_evaluation_step_replays_recorded_evaluation_steps_with_kernels() -> None:
    kernel = [Op("aten::mm", 2, 5, (10, 5))]
    steps = [(StepKind.PROFILED, ONE, kernel), *[(StepKind.EVALUATION, ONE[:1], ops) for ops in ([], kernel, kernel)]]
    recording = RecordedRun(recording_of(steps))
    assert [recording.choice.evaluation(number).row for number in range(6)] == [3, 2, 3, 2, 3, 2]
    assert [recording.choice.of_values(number, True).row for number in range(5)] == [
        recording.choice.evaluation(number).row for number in range(5)
    ]
    without = RecordedRun(recording_of(steps[:1] * 2))
    assert [without.choice.evaluation(number).row for number in range(4)] == [0, 1, 0, 1]


def test_an_evaluation_step_that_is_similar_to_no_profiled_one_keeps_its_recorded_host_times() -> None:
    """The second evaluation step copies all batches to the GPU, and no other evaluation step does this."""
    kernel = [Op("aten::mm", 2, 5, (10, 5))]
    copies: RecordedPhases = [("h2d", 0, 300), ("forward", 300, 330)]
    evaluations = [(StepKind.EVALUATION, ONE[:1], kernel), (StepKind.EVALUATION, copies, [])]
    recording = RecordedRun(recording_of([(StepKind.PROFILED, ONE, kernel), *evaluations]))
    first, second = (recording.choice.evaluation(number) for number in range(2))
    assert first.row == 1 and [*first.segments] == [("forward", 0)]
    assert second.segments["h2d", 0].least_host_ns == 300_000
    assert second.segments["forward", 0].least_host_ns == 30_000 and second.segments["forward", 0].kernels
    with mock.patch.object(RecordedStep, "as_slow_as", side_effect=AssertionError("the step is slowed down only once")):
        assert recording.choice.evaluation(3) is second


def test_a_training_step_with_a_long_phase_that_no_profiled_step_has_keeps_its_recorded_host_times() -> None:
    """GIVEN a script that saves pictures for 300 µs in its fourth step and for 1 µs in its fifth step WHEN both steps are
    replayed THEN the fourth step lasts 350 µs. The fifth step takes the times of the profiled step."""
    clean, long, short = ((StepKind.STEADY, [*ONE, *of]) for of in ([], [("other", 50, 350)], [("other", 50, 51)]))
    profiled = (StepKind.PROFILED, ONE, [Op("aten::mm", 2, 5, (10, 5))])
    recording = RecordedRun(recording_of([(*clean, []), (*clean, []), profiled, (*long, []), (*short, [])]))
    fourth, fifth = (recording.choice.training(number) for number in (3, 4))
    assert fourth.lasts_ns == 350_000 and fourth.segments["other", 0].least_host_ns == 300_000
    assert (fourth.row, fourth.kind, fourth.has_kernels) == (2, StepKind.PROFILED, True)
    assert fifth is recording.steps[2] and recording.choice.training(3) is fourth


def test_without_training_steps_evaluation_steps_with_kernels_are_repeated() -> None:
    """GIVEN five evaluation steps, of which only the third and the fourth have kernels THEN these two steps are repeated."""
    kernel = [Op("aten::mm", 2, 5, (10, 5))]
    steps = [(StepKind.EVALUATION, ONE[:1], ops) for ops in ([], [], kernel, kernel, [])]
    recording = RecordedRun(recording_of(steps))
    assert [recording.choice.training(number).row for number in range(5)] == [2, 3, 2, 3, 2]


def test_only_steps_of_the_same_kind_are_searched_for_a_call() -> None:
    """GIVEN training steps with one pass or two passes, and an evaluation step WHEN an add of another shape is called THEN
    only recorded steps of the same kind are searched for this add."""

    def ops(size: int) -> list[Op]:
        return [Op("aten::add", 2, 5, (10, 5), shapes=((size,),))]

    kinds = [(StepKind.PROFILED, ONE, 4), (StepKind.PROFILED, ONE, 8), (StepKind.PROFILED, TWO, 8), (StepKind.PROFILED, ONE, 8)]
    kinds.append((StepKind.EVALUATION, ONE, 8))
    recording = RecordedRun(recording_of([(kind, phases, ops(size)) for kind, phases, size in kinds]))
    choice, place, exact = recording.choice, ("forward", 0), "aten::add|8|float32"
    found = {number: [step.row for step in choice.steps_with(recording.steps[number], place, exact)] for number in (0, 2, 4)}
    assert found == {0: [1, 3], 2: [2], 4: [4]}
    assert choice.steps_with(recording.steps[0], ("backward", 0), exact) == []


def test_later_warm_up_steps_are_not_replayed_as_warm_up_steps() -> None:
    """GIVEN a warm-up step after the first steady step WHEN the recording is replayed THEN no step of the replay takes this
    warm-up step."""
    recording = RecordedRun(_recorded("11111", "WSWPP"))
    assert [recording.choice.training(number).row for number in range(5)] == [0, 3, 4, 3, 4]
    # AND this also applies if only the warm-up step has a long phase "other"
    profiled = (StepKind.PROFILED, ONE, [Op("aten::mm", 2, 5, (10, 5))])
    steps = [(StepKind.STEADY, ONE, []), (StepKind.WARMUP, [*ONE, ("other", 50, 900)], []), profiled]
    recording = RecordedRun(recording_of(steps))
    assert [recording.choice.training(number).row for number in range(3)] == [2, 2, 2]
