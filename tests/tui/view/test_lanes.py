"""Tests the busy times and events of a lane, compared with a count of every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traces.model.trace import NONE
from tui.view.scene.lanes import Curve, Lane

END_NS = 60  # the tests count every nanosecond up to this time
TIMES = st.integers(-5, END_NS + 5)
SPANS = st.lists(st.tuples(st.integers(0, END_NS), st.integers(0, 25), st.integers(0, 3)), max_size=12)


def lane_of(spans: list[tuple[int, int, int]]) -> Lane:
    return Lane([s for s, _, _ in spans], [d for _, d, _ in spans], [c for _, _, c in spans])


def owners(spans: list[tuple[int, int, int]]) -> dict[int, int]:
    """Return, for each nanosecond inside a span, the number of its span. Spans are numbered in the order of their starts.

    If several spans contain a nanosecond, the span that begins first owns it.
    """
    ordered = sorted(spans, key=lambda span: span[0])
    owner: dict[int, int] = {}
    busy_until = -1
    for position, (start, duration, _) in enumerate(ordered):
        for ns in range(max(start, busy_until), start + duration):
            owner[ns] = position
        busy_until = max(busy_until, start + duration)
    return owner


@given(SPANS, st.lists(st.tuples(TIMES, st.integers(0, 30)), min_size=1, max_size=8))
def test_the_busy_time_of_a_lane_equals_the_number_of_busy_nanoseconds(
    spans: list[tuple[int, int, int]], windows: list[tuple[int, int]]
) -> None:
    ordered = sorted(spans, key=lambda span: span[0])
    owner = owners(spans)
    covered = lane_of(spans).covered([a for a, _ in windows], [a + b for a, b in windows])
    for number, (begin, length) in enumerate(windows):
        for kind in range(4):
            expected = sum(1 for ns in range(begin, begin + length) if ns in owner and ordered[owner[ns]][2] == kind)
            assert int(covered[kind][number] if kind in covered else 0) == expected


@given(SPANS, st.lists(TIMES, min_size=2, max_size=10))
def test_busy_times_of_adjacent_time_ranges_add_up(spans: list[tuple[int, int, int]], cuts: list[int]) -> None:
    lane, edges = lane_of(spans), sorted(cuts)
    whole = lane.covered(edges[:1], edges[-1:])
    for kind, parts in lane.covered(edges[:-1], edges[1:]).items():
        assert parts.sum() == whole[kind][0]


@given(SPANS)
def test_busy_time_of_all_categories_adds_up_to_their_union(spans: list[tuple[int, int, int]]) -> None:
    covered = lane_of(spans).covered([-5], [END_NS + 40])
    union = {ns for start, duration, _ in spans for ns in range(start, start + duration)}
    assert sum(int(ns[0]) for ns in covered.values()) == len(union)


@given(SPANS, st.lists(TIMES, min_size=1, max_size=5))
def test_a_lane_finds_the_event_at_a_time(spans: list[tuple[int, int, int]], times: list[int]) -> None:
    owner = owners(spans)
    assert lane_of(spans).rows_at(times).tolist() == [owner.get(ns, NONE) for ns in times]


@given(SPANS, st.lists(st.tuples(TIMES, st.integers(0, 30)), min_size=1, max_size=5))
def test_events_of_zero_duration_are_counted(spans: list[tuple[int, int, int]], windows: list[tuple[int, int]]) -> None:
    expected = [sum(1 for ns, duration, _ in spans if not duration and a <= ns < a + b) for a, b in windows]
    assert lane_of(spans).instants([a for a, _ in windows], [a + b for a, b in windows]).tolist() == expected


@given(SPANS, TIMES)
def test_the_search_for_the_nearest_span_returns_the_closest_one(spans: list[tuple[int, int, int]], time_ns: int) -> None:
    lane = lane_of(spans)
    position = lane.nearest(time_ns)
    if not spans:
        assert position == NONE
        return

    def distance(at: int) -> int:
        return max(int(lane.start_ns[at]) - time_ns, time_ns - int(lane.end_ns[at]), 0)

    assert distance(position) == min(map(distance, range(len(lane))))


def test_row_numbers_stay_with_their_events_after_sorting() -> None:
    # GIVEN unsorted spans, of which one is inside another one
    lane = Lane([50, 0, 5], [10, 20, 5], [1, 2, 3], row=[7, 8, 9])
    assert lane.row.tolist() == [8, 9, 7]
    assert lane.rows_at([3, 7, 19, 20, 55]).tolist() == [0, 0, 0, NONE, 2]
    assert lane.end_ns.tolist() == [20, 20, 60]
    assert [lane.position_of(row) for row in (9, 7, 4)] == [1, 2, NONE]


def test_times_since_1970_do_not_overflow() -> None:
    now_ns = 1_700_000_000 * 10**9
    lane = Lane(now_ns + np.arange(1000) * 10, np.full(1000, 7), np.zeros(1000))
    assert lane.covered([0], [2**62])[0].tolist() == [7000]


CHANGES = st.lists(st.tuples(st.integers(0, END_NS), st.integers(-9, 9)), max_size=12, unique_by=lambda change: change[0])


@given(CHANGES, st.lists(st.tuples(TIMES, st.integers(0, 30)), min_size=1, max_size=6))
def test_a_curve_finds_its_highest_value_within_a_time_range(
    changes: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    curve = Curve([t for t, _ in changes], [v for _, v in changes])
    found = curve.highest([a for a, _ in windows], [a + b for a, b in windows]).tolist()
    ordered = sorted(changes)

    def value(ns: int) -> int:
        before = [v for t, v in ordered if t <= ns]
        return before[-1] if before else ordered[0][1]

    for (begin, length), highest in zip(windows, found, strict=True):
        assert highest == (max(value(ns) for ns in range(begin, begin + max(length, 1))) if ordered else 0)


def test_the_peak_of_a_curve_is_its_highest_value_or_zero() -> None:
    assert (Curve([], []).peak, Curve([1], [-4]).peak, Curve([5, 1], [3, 9]).peak) == (0, 0, 9)


def test_a_lane_finds_the_event_nearest_to_a_time() -> None:
    """GIVEN two events that are equally far away from a time THEN the earlier event is selected."""
    lane = lane_of([(10, 10, 0), (30, 10, 0)])
    assert [lane.nearest(time_ns) for time_ns in (0, 10, 19, 24, 25, 26, 30, 39, 99)] == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert lane_of([]).nearest(5) == NONE


def test_an_event_covers_its_start_but_not_its_end() -> None:
    lane = lane_of([(10, 10, 0), (30, 10, 0)])
    assert lane.rows_at([9, 10, 19, 20, 29, 30, 39, 40]).tolist() == [NONE, 0, 0, NONE, NONE, 1, 1, NONE]


def test_adjacent_events_do_not_overlap() -> None:
    assert lane_of([(10, 10, 0), (20, 10, 0)]).nearest(20) == 1
