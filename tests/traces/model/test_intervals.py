"""Tests that operations on intervals agree with a model that marks each nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traces.model.intervals import Intervals, containing, union_by_group
from traces.model.trace import NONE

TIMES = st.integers(0, 30)
SPANS = st.lists(st.tuples(TIMES, TIMES).map(sorted), max_size=8)


@given(SPANS, st.lists(TIMES, min_size=1, max_size=5))
def test_covered_time_is_the_number_of_covered_nanoseconds(spans: list[list[int]], times: list[int]) -> None:
    marked = {at for start, end in spans for at in range(start, end)}
    covered = Intervals([start for start, _ in spans], [end for _, end in spans])
    assert covered.total_ns == len(marked)
    assert covered.before(times).tolist() == [sum(at < time for at in marked) for time in times]
    for start in times:
        ends = [time for time in times if time >= start]
        within = covered.within([start] * len(ends), ends).tolist()
        assert within == [sum(start <= at < end for at in marked) for end in ends]


@given(SPANS)
def test_adjacent_intervals_are_joined_and_stay_in_order(spans: list[list[int]]) -> None:
    covered = Intervals([start for start, _ in spans], [end for _, end in spans])
    starts, ends = covered.start_ns.tolist(), covered.end_ns.tolist()
    assert all(end < start for end, start in zip(ends, starts[1:], strict=False))
    joined = zip(starts, ends, strict=True)
    assert {at for span in joined for at in range(*span)} == {at for span in spans for at in range(*span)}


GROUPED_SPANS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 20)), max_size=30)


@given(GROUPED_SPANS)
def test_union_by_group_equals_the_separately_computed_union_of_each_group(spans: list[tuple[int, int, int]]) -> None:
    group, start, length = (np.array([span[place] for span in spans], np.int64) for place in range(3))
    expected = [Intervals(start[group == one], (start + length)[group == one]).total_ns for one in range(4)]
    assert union_by_group(group, start, start + length, 4).tolist() == expected


@given(st.lists(st.integers(0, 3), max_size=8), st.integers(0, 4), st.lists(st.integers(-2, 30), max_size=6))
def test_an_interval_contains_its_start_but_not_its_end(
    lengths: list[int], first: int, times: list[int]
) -> None:
    """Intervals and the gaps between them alternate. An interval or a gap may be empty."""
    edges = np.cumsum([first, *lengths, 0][: len(lengths) // 2 * 2 + 2])
    start, end = edges[:-1:2], edges[1::2]
    found = [[number for number in range(len(start)) if start[number] <= time < end[number]] for time in times]
    assert containing(start, end, times).tolist() == [numbers[0] if numbers else NONE for numbers in found]
    assert Intervals(start, end).holds(times).tolist() == [bool(numbers) for numbers in found]
