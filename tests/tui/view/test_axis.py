"""Tests which trace time each position of the time axis shows, compared with a list of all nanoseconds of the axis."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tui.view.scene.axis import Axis, SlotTimes
from tui.view.scene.lanes import Lane

# A slot has a start and a length for each of the two traces. Starts may repeat, because one recorded step can be shown beside
# several replayed steps.
SLOTS = st.lists(st.tuples(*(st.tuples(st.integers(0, 40), st.integers(0, 9)) for _ in range(2))), min_size=1, max_size=6)
Slots = list[tuple[tuple[int, int], tuple[int, int]]]


def axis_of(slots: Slots, flush_right: int = 0) -> Axis:
    sides = [SlotTimes([s[n][0] for s in slots], [s[n][0] + s[n][1] for s in slots]) for n in range(2)]
    return Axis.of(sides, flush_right=flush_right)


def written_out(slots: Slots, number: int) -> list[int | None]:
    """Return the trace time at each nanosecond of the axis, or None in gaps."""
    shown: list[int | None] = []
    for slot in slots:
        width = max(slot[0][1], slot[1][1])
        start, length = slot[number]
        shown += [start + ns if ns < length else None for ns in range(width)]
    return shown


@given(SLOTS, st.lists(st.integers(0, 60), min_size=2, max_size=9, unique=True))
def test_the_pieces_of_the_time_axis_have_no_gaps_or_overlaps(slots: Slots, cuts: list[int]) -> None:
    axis, edges = axis_of(slots), sorted(cuts)
    for number, side in enumerate(axis.sides):
        shown = written_out(slots, number)
        found: list[list[int]] = [[] for _ in edges[1:]]
        for column, begin, end in zip(*(part.tolist() for part in side.pieces(edges)), strict=True):
            found[column] += range(begin, end)
        expected = [[t for t in shown[a:b] if t is not None] for a, b in pairwise(edges)]
        assert found == expected


@given(SLOTS, st.integers(0, 60))
def test_the_compact_time_axis_gives_the_same_times_as_a_full_list(slots: Slots, at_ns: int) -> None:
    axis = axis_of(slots)
    for number, side in enumerate(axis.sides):
        shown = written_out(slots, number)
        time_ns = shown[at_ns] if at_ns < len(shown) else None
        assert bool(side.shown([at_ns])[0]) == (time_ns is not None)
        if time_ns is not None:
            assert side.times([at_ns])[0] == time_ns
            assert at_ns in side.positions(time_ns)


@given(SLOTS, st.integers(0, 50))
def test_the_time_axis_finds_every_position_that_shows_a_given_time(slots: Slots, time_ns: int) -> None:
    axis = axis_of(slots)
    for number, side in enumerate(axis.sides):
        expected = [at for at, time in enumerate(written_out(slots, number)) if time == time_ns]
        positions = side.positions(time_ns).tolist()
        # If no nanosecond of the axis shows this time, the positions are the ends of slots that end at this time.
        ends = [slot for slot in slots if slot[number][0] + slot[number][1] == time_ns]
        assert positions == expected if expected else len(positions) == len(ends)


@given(SLOTS, st.lists(st.integers(0, 50), max_size=6))
def test_an_axis_finds_all_positions_of_several_times(slots: Slots, times: list[int]) -> None:
    axis = axis_of(slots)
    for number, side in enumerate(axis.sides):
        shown = written_out(slots, number)
        expected = sorted((at, which) for at, time in enumerate(shown) for which, wanted in enumerate(times) if time == wanted)
        positions, which = side.every_position(times)
        assert sorted(zip(positions.tolist(), which.tolist(), strict=True)) == expected


@given(SLOTS, st.integers(1, 7))
def test_the_busy_times_of_all_columns_add_up_to_the_total(slots: Slots, width: int) -> None:
    """The busy time of all columns together equals that of the whole axis. Gaps do not count, and repeated times count
    again."""
    axis = axis_of(slots)
    lane = Lane([0, 11, 30], [8, 9, 30], [0, 1, 0])
    edges = np.arange(0, axis.length_ns + 2 * width, width)
    for side in axis.sides:
        parts, whole = side.pieces(edges), side.pieces([edges[0], edges[-1]])
        for kind, covered in lane.covered(parts.from_ns, parts.to_ns).items():
            assert covered.sum() == lane.covered(whole.from_ns, whole.to_ns)[kind].sum()


def test_times_before_the_first_matching_event_are_aligned_at_their_end() -> None:
    # GIVEN a replay with 30 ns before its first matching event, and a recording with 10 ns
    axis = axis_of([((90, 10), (470, 30)), ((100, 50), (500, 40))], flush_right=1)
    recorded, replayed = axis.sides
    assert axis.slots_ns.tolist() == [0, 30] and axis.length_ns == 80
    assert recorded.times([0, 20, 29, 30, 79]).tolist() == [90, 90, 99, 100, 149]
    assert replayed.times([0, 20, 29, 30, 79]).tolist() == [470, 490, 499, 500, 540]
    assert recorded.shown([19, 20]).tolist() == [False, True]
    assert recorded.position(100) == 30


def test_of_several_positions_with_the_same_time_the_closest_one_is_chosen() -> None:
    axis = axis_of([((0, 10), (0, 10)), ((0, 10), (10, 10))])
    assert [axis.sides[0].position(3, near_ns=near) for near in (0, 12)] == [3, 13]
    assert axis.sides[0].position(77) is None
    assert axis.slots_ns.tolist() == [0, 10]


def test_a_column_is_drawn_as_a_gap_if_its_centre_shows_no_time() -> None:
    """GIVEN a trace that fills 4 of 10 ns of the time axis WHEN columns are 2 ns wide THEN the last three columns are gaps."""
    side = axis_of([((100, 10), (200, 4))]).sides[1]
    assert side.columns(np.arange(0, 11, 2)).gaps[0].tolist() == [2, 3, 4]
