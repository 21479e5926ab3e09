"""Tests which recorded value the script gets when it reads a tensor."""

from __future__ import annotations

from replayer.gpu.values import RecordedValues
from traces.model.trace import NONE, Steps, Trace, Values


def test_recorded_values_are_returned_in_order_and_only_for_equal_sizes() -> None:
    trace = Trace()
    trace.values = Values.of(
        rank=[0, 0, 0, 0], step=[0, 0, 0, 1], read=[0, 1, 1, 2], op=[0] * 4, dtype=[0] * 4, value=[2.5, 1.0, 0.0, 9.0]
    )
    values = RecordedValues.of(trace, 0)
    assert values.next(3, 0, 0) is None
    assert values.next(1, 0, 0) == [2.5]
    assert values.next(2, 0, 0) == [1.0, 0.0]
    assert values.next(1, 0, 0) is None
    assert values.next(1, 1, 1) == [9.0]
    assert values.next(1, 2, 1) == [9.0]  # Step 2 replays the same recorded step again.


def test_values_read_after_training_are_those_recorded_after_training() -> None:
    """Two ranks have two steps each. The first rank reads values before, during and after its steps."""
    trace = Trace(steps=Steps.of(rank=[0, 1, 0, 1, 1], start_ns=[0, 0, 10, 10, 20], duration_ns=[9] * 5, kind=[0] * 5))
    trace.values = Values.of(
        rank=[0, 0, 1, 0, 1, 0], step=[NONE, 0, 1, 2, 3, NONE], read=[0, 1, 0, 2, 1, 3], op=[0] * 6, dtype=[0] * 6,
        value=[5.0, 1.0, 7.0, 2.0, 8.0, 3.0],
    )  # fmt: skip
    first, second = RecordedValues.of(trace, 0), RecordedValues.of(trace, 1)
    assert [first.next(1, 0, row) for row in (0, 2)] == [[1.0], [2.0]]
    assert first.next(1, 1, NONE) == [5.0]
    assert [first.next(1, 2, 0), first.next(1, 2, 0), first.next(1, 3, 2)] == [[3.0], None, [2.0]]
    assert [second.next(1, step, row) for step, row in ((0, 1), (1, 3), (2, 1))] == [[7.0], [8.0], [7.0]]
