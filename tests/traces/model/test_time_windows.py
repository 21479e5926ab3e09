"""Tests that time windows find the window that contains a time, compared with a search through all windows."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from traces.model.intervals import Intervals, TimeWindows
from traces.model.trace import NONE

lengths = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=8)  # lengths of a gap and of the next window


def laid_out(lists: dict[int, list[tuple[int, int]]]) -> list[tuple[int, int, int]]:
    """Return windows as (start, end, owner). Windows of one owner do not overlap."""
    found = []
    for owner, rows in lists.items():
        at = 0
        for gap, length in rows:
            found.append((at + gap, at + gap + length, owner))
            at += gap + length
    return found


@given(st.dictionaries(st.integers(0, 2), lengths, max_size=3), st.randoms(use_true_random=False))
def test_a_search_finds_which_time_window_of_an_owner_contains_a_time(
    lists: dict[int, list[tuple[int, int]]], random: Random
) -> None:
    # GIVEN windows of several owners in random order
    rows = laid_out(lists)
    random.shuffle(rows)
    windows = TimeWindows([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])
    asked = [(time, owner) for time in range(-1, 40) for owner in range(4)]
    # WHEN each time is looked up THEN the result equals that of a search through all windows
    expected = [
        next((i for i, (start, end, of) in enumerate(rows) if of == owner and start <= time < end), NONE)
        for time, owner in asked
    ]
    assert windows.holding([time for time, _ in asked], [owner for _, owner in asked]).tolist() == expected


def test_time_windows_that_name_no_owner_belong_to_one_default_owner() -> None:
    assert TimeWindows([10, 0], [20, 5]).holding([0, 5, 15, 20]).tolist() == [1, NONE, 0, NONE]
    assert TimeWindows([], []).holding([1]).tolist() == [NONE]


def test_intervals_contain_their_start_but_not_their_end() -> None:
    assert Intervals([0, 3, 9], [5, 6, 9]).holds([-1, 0, 5, 6, 9]).tolist() == [False, True, True, False, False]
