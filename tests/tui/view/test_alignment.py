"""Tests how two traces are aligned with each other."""

from __future__ import annotations

import pytest

from tests.traces.handmade import MS, US, replay_of, training
from tests.tui.view.scenes import one_event, whole
from traces.comparison.counterparts import counterparts, paired_steps
from traces.model.trace import NONE, Trace
from tui.view.scene.alignment import ANCHOR_NS, Alignment, by_counterpart, by_step, by_wall, extent_ns
from tui.view.scene.axis import Axis


def test_a_replayed_step_is_aligned_with_the_recorded_step_it_replayed() -> None:
    recorded = training(steps=2)
    assert paired_steps(recorded, replay_of(recorded)) == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert paired_steps(replay_of(recorded), recorded) == [(0, 0), (1, 0), (2, 1), (3, 1)]


def test_steps_of_two_recordings_are_paired_in_order() -> None:
    assert paired_steps(training(steps=2), training(steps=3)) == [(0, 0), (1, 1), (NONE, 2)]
    assert paired_steps(training(steps=1), Trace()) == []


def test_alignment_by_step_removes_the_drift_of_earlier_steps() -> None:
    # GIVEN a replay whose steps take a fifth longer. By wall time, its third step begins later than the recorded one
    recorded, replayed = training(steps=3), training(steps=3, stretch=1.2)
    begin = [int(trace.steps.start_ns[2]) for trace in (recorded, replayed)]
    wall, step = by_wall(recorded, replayed), by_step(recorded, replayed)
    assert wall.sides[1].position(begin[1]) != wall.sides[0].position(begin[0])
    # THEN both third steps begin at the same position if the traces are aligned by step
    assert step.sides[1].position(begin[1]) == step.sides[0].position(begin[0])


def by_their_counterparts(first: Trace, second: Trace) -> Axis:
    return by_counterpart(first, second, counterparts(first, second, paired_steps(first, second)))


@pytest.mark.parametrize("by", [by_wall, by_step, by_their_counterparts])
def test_alignment_shows_every_time_between_the_first_and_last_step(by: object) -> None:
    recorded = training(steps=3)
    replayed = replay_of(recorded, stretch=1.3)
    axis = by(recorded, replayed)  # type: ignore[operator]
    for trace, side in zip((recorded, replayed), axis.sides, strict=True):
        begin, end = extent_ns(trace)
        for time_ns in (begin + (end - 1 - begin) * part // 56 for part in range(57)):
            positions = side.positions(time_ns)
            assert len(positions) and (side.times(positions) == time_ns).all()


def begins(axis: Axis, first: Trace, second: Trace, row: int) -> list[int | None]:
    """Return the position on the axis at which a row of the device table begins, for each trace."""
    return [side.position(int(trace.device.start_ns[row])) for trace, side in zip((first, second), axis.sides, strict=True)]


def test_a_late_start_is_a_single_gap_when_matching_kernels_are_aligned() -> None:
    # GIVEN a second trace in which one kernel of the first step, and everything after this kernel, starts 20 µs later
    recorded, replayed = training(steps=2), training(steps=2)
    late = replayed.device.start_ns >= recorded.device.start_ns[2]
    replayed.device.start_ns[late] += 20 * US
    for table in (replayed.steps, replayed.phases, replayed.host, replayed.memory):
        times = table.time_ns if table is replayed.memory else table.start_ns  # type: ignore[union-attr]
        times[times >= int(recorded.steps.start_ns[1])] += 20 * US
    axis = by_their_counterparts(recorded, replayed)
    # THEN each kernel is drawn above its counterpart, before and after the gap
    for row in range(len(recorded.device)):
        positions = begins(axis, recorded, replayed, row)
        assert None not in positions and abs(positions[0] - positions[1]) <= ANCHOR_NS, row  # type: ignore[operator]
    assert axis.length_ns - by_wall(recorded, recorded).length_ns <= 21 * US
    # AND if the traces are aligned by step, the late kernel is 20 µs away from its counterpart
    positions = begins(by_step(recorded, replayed), recorded, replayed, 2)
    assert positions[0] is not None and positions[1] == positions[0] + 20 * US


def test_matching_kernels_start_together_when_aligned_by_kernels() -> None:
    recorded, replayed = training(steps=2), training(steps=2, stretch=1.5)
    axis = by_their_counterparts(recorded, replayed)
    for row in range(len(recorded.device)):
        positions = begins(axis, recorded, replayed, row)
        assert None not in positions and abs(positions[0] - positions[1]) <= ANCHOR_NS, row  # type: ignore[operator]


def test_alignment_by_step_draws_the_first_steps_of_both_traces_together() -> None:
    recorded, replayed = training(steps=1), training(steps=1)
    replayed.device.start_ns[0] -= 30 * MS  # the replay begins 30 ms before its first step
    axis = by_step(recorded, replayed)
    first = [side.position(int(trace.steps.start_ns[0])) for trace, side in zip((recorded, replayed), axis.sides, strict=True)]
    assert first[0] == first[1] and first[0] is not None and first[0] >= 29 * MS


def test_traces_without_steps_are_aligned_by_wall_time() -> None:
    scene = whole(("a", one_event()), ("b", one_event(9 * US)))
    for by in Alignment:
        axis = scene.axis(by)
        assert axis.length_ns == 9 * US
        assert [side.position(MS) for side in axis.sides] == [0, 0]


def test_an_event_of_a_recorded_step_is_drawn_beside_every_replay_of_the_step() -> None:
    recorded = training(steps=2)
    axis = by_step(recorded, replay_of(recorded))
    assert len(axis.sides[0].positions(int(recorded.device.start_ns[0]))) == 2
    assert len(axis.sides[1].positions(int(replay_of(recorded).device.start_ns[0]))) == 1
