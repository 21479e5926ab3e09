"""Which recorded step is used for each step of a replay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.recording.recorded_run import RecordedRun
from tests.replayer.recordings import Op, RecordedPhases, recording_of
from traces.model.trace import StepKind, Trace

ONE: RecordedPhases = [("forward", 0, 20), ("backward", 20, 40), ("optimizer", 40, 50)]
TWO: RecordedPhases = [*ONE, ("forward", 50, 70), ("backward", 70, 90), ("optimizer", 90, 100)]


def _recorded(passes: str, kinds: str) -> Trace:
    """One letter per step: passes 1 or 2, kinds Warm-up, Steady, Profiled (with a kernel) or After a profile."""
    kind_of = {"W": StepKind.WARMUP, "S": StepKind.STEADY, "P": StepKind.PROFILED, "A": StepKind.AFTER_PROFILE}
    steps = []
    for number, kind in zip(passes, kinds, strict=True):
        ops = [Op("aten::mm", 2, 5, (10, 5))] if kind == "P" else []
        steps.append((kind_of[kind], ONE if number == "1" else TWO, ops))
    return recording_of(steps)


@pytest.mark.parametrize("kinds", ["WWSSPPPSSS", "WWPPPSSSSS", "WWSSSSPPSS", "WWSSPPPAAA"])
def test_a_step_replays_a_recorded_step_with_the_same_number_of_passes(kinds: str) -> None:
    """GIVEN alternating steps of two trainers WHEN a replay is longer than the recording THEN each kind replays its
    own steps."""
    passes = "1121212121"
    recording = RecordedRun.of(_recorded(passes, kinds))
    drivers = [recording.step(number) for number in range(40)]
    assert [len(step.segments) // 3 for step in drivers] == [1, 1, *[2, 1] * 19]
    assert all(step.has_kernels for step in drivers)
    # AND all profiled steps of a kind are used
    assert {step.row for step in drivers[2:]} == {row for row, kind in enumerate(kinds) if kind == "P"}


def test_a_kind_of_step_without_profile_replays_another_kind() -> None:
    recording = RecordedRun.of(_recorded("111112111112", "WSSPPSSSSSSS"))
    assert {recording.step(number).row for number in range(1, 30)} == {3, 4}


@given(st.lists(st.sampled_from("12"), min_size=1, max_size=12), st.integers(0, 60))
def test_every_step_number_maps_to_a_recorded_step(passes: list[str], number: int) -> None:
    recording = RecordedRun.of(_recorded("".join(passes), "P" * len(passes)))
    driver = recording.step(number)
    assert number >= len(passes) or len(driver.segments) // 3 == int(passes[number])


@pytest.mark.parametrize("kinds", ["WSSSSPPPSS", "WSSSSPPPAA"])
def test_profiled_steps_are_replayed_in_their_recorded_order(kinds: str) -> None:
    """GIVEN batches of three alternating lengths, and the profiled steps 5, 6 and 7 THEN each step has the times of
    its length."""
    recording = RecordedRun.of(_recorded("1" * 10, kinds))
    assert [recording.step(number).row for number in range(1, 14)] == [7, 5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6, 7]


def test_a_recording_of_phases_replays_the_steps_before_the_scripts_profile() -> None:
    """GIVEN steps 2 and 3 before a profile that the script made in step 4, and slower steps 5 and 6 after it."""
    trace = _recorded("1" * 7, "WWSSWAA")
    trace.grain = "phase"
    recording = RecordedRun.of(trace)
    assert {recording.step(number).row for number in range(5, 30)} == {2, 3}
