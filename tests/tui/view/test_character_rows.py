"""Tests the heights of bars and the signs of differences at their limits."""

from __future__ import annotations

import numpy as np
import pytest

from tui.view.scene.categories import Category
from tui.view.scene.character_rows import (
    Busy,
    change_characters,
    curve_difference,
    difference_characters,
    dominant,
    eighths,
    has_events,
    one_column_each,
)


@pytest.mark.parametrize(
    ("busy_ns", "lines", "expected"),
    [
        (0, 1, 0), (1, 1, 1), (150, 1, 1), (187, 1, 1), (188, 1, 2), (500, 1, 4), (937, 1, 7), (938, 1, 8), (1000, 1, 8),
        (2000, 1, 8), (500, 3, 12), (1000, 3, 24), (2000, 3, 24),
    ],
)  # fmt: skip
def test_the_height_of_a_bar_is_rounded_to_eighths_of_a_line(busy_ns: int, lines: int, expected: int) -> None:
    """A column is 1000 ns wide. Any work gets at least one eighth of a line, and half an eighth is rounded up."""
    assert eighths(np.array([busy_ns]), np.array([1000]), lines).tolist() == [expected]


def test_changes_within_the_tolerance_are_drawn_without_a_sign() -> None:
    """If both the time and the kind of work differ, the sign shows the difference in time."""
    change = np.array([0.5, 0.25, 0.0, -0.25, -0.5, 0.5, 0.0, 0.0])
    is_other = np.array([False] * 5 + [True, True, True])
    shown = np.array([True] * 7 + [False])
    row = change_characters(change, 0.25, is_other, shown)
    assert "".join(map(str, row.glyphs.tolist())) == "+===-+~ "


def test_a_column_has_the_colour_of_the_category_that_is_busy_longest() -> None:
    matrix, other = np.array([3, 1, 0]), np.array([1, 2, 0])
    nothing = np.zeros(3, dtype=np.int64)
    both = Busy({Category.MATRIX: matrix, Category.REDUCTION: other}, matrix + other, nothing)
    # If no category is busy, the first category is used.
    assert dominant(both).tolist() == [Category.MATRIX, Category.REDUCTION, Category.MATRIX]
    assert dominant(Busy({Category.REDUCTION: other}, other, nothing)).tolist() == [Category.REDUCTION] * 3
    assert dominant(Busy({}, nothing, nothing)).tolist() == [0] * 3


def busy_of(matrix: list[int], other: list[int], instants: list[int] | None = None) -> Busy:
    return Busy(
        {Category.MATRIX: np.array(matrix), Category.REDUCTION: np.array(other)},
        np.array(matrix) + np.array(other),
        np.array(instants or [0] * len(matrix)),
    )


def test_columns_with_equal_busy_time_but_different_kinds_of_work_are_marked() -> None:
    """GIVEN columns of 1000 ns WHEN up to 50 ns (5 %) of the work are of another kind THEN the columns count as equal."""
    first = busy_of([100, 100, 100, 0], [0, 0, 0, 0])
    second = busy_of([60, 50, 49, 0], [40, 50, 51, 0])
    row = difference_characters(first, second, np.array([0, 1000, 2000, 3000, 4000]))
    assert "".join(map(str, row.glyphs.tolist())) == "==~ "


def test_a_column_has_events_if_either_trace_has_any_event_there() -> None:
    first, second = busy_of([5, 0, 0, 0, 0], [0] * 5, [0, 0, 1, 0, 0]), busy_of([0, 5, 0, 0, 0], [0] * 5, [0, 0, 0, 1, 0])
    assert has_events(first, second).tolist() == [True, True, True, True, False]
    both = busy_of([5], [0], [0])
    assert has_events(both, busy_of([0], [0], [5])).tolist() == has_events(both, both).tolist() == [True]


def test_memory_curves_differ_if_they_deviate_from_a_constant_offset() -> None:
    """GIVEN 100 bytes that the first trace did not record THEN this constant offset is no difference. Deviations of up to 5 %
    of the chart (50 bytes) are no difference either."""
    first, second = np.array([200, 200, 200, 200, 0, 0]), np.array([300, 350, 351, 249, 0, 100])
    row = curve_difference(first, second, 1000, offset=100)
    assert "".join(map(str, row.glyphs.tolist())) == "==+- ="


@pytest.mark.parametrize(
    ("text", "shown"), [("gemm", "gemm"), ("a\tb", "a·b"), ("µs", "µs"), ("漢字", "··"), ("e\u0301", "e·")]
)
def test_characters_that_do_not_fit_one_column_are_replaced_in_names(text: str, shown: str) -> None:
    assert one_column_each(text) == shown
