"""Heights of bars and signs of differences at their limits."""

from __future__ import annotations

import numpy as np
import pytest

from tui.view.scene.categories import Category
from tui.view.scene.character_rows import Busy, change_characters, dominant, eighths


@pytest.mark.parametrize(
    ("busy_ns", "lines", "expected"),
    [
        (0, 1, 0), (1, 1, 1), (150, 1, 1), (187, 1, 1), (188, 1, 2), (500, 1, 4), (937, 1, 7), (938, 1, 8), (1000, 1, 8),
        (2000, 1, 8), (500, 3, 12), (1000, 3, 24), (2000, 3, 24),
    ],
)  # fmt: skip
def test_bars_are_drawn_in_eighths_of_a_line(busy_ns: int, lines: int, expected: int) -> None:
    """Of a column of 1000 ns. Any work is at least one eighth, and a half is rounded up."""
    assert eighths(np.array([busy_ns]), np.array([1000]), lines).tolist() == [expected]


def test_changes_up_to_the_tolerance_have_no_sign() -> None:
    """A longer or shorter time is shown even where the work differs."""
    change = np.array([0.5, 0.25, 0.0, -0.25, -0.5, 0.5, 0.0, 0.0])
    is_other = np.array([False] * 5 + [True, True, True])
    shown = np.array([True] * 7 + [False])
    row = change_characters(change, 0.25, is_other, shown)
    assert "".join(map(str, row.glyphs.tolist())) == "+===-+~ "


def test_a_column_has_the_colour_of_the_category_that_is_busy_longest() -> None:
    matrix, other = np.array([3, 1, 0]), np.array([1, 2, 0])
    nothing = np.zeros(3, dtype=np.int64)
    both = Busy({Category.MATRIX: matrix, Category.REDUCTION: other}, matrix + other, nothing)
    assert dominant(both).tolist() == [Category.MATRIX, Category.REDUCTION, Category.MATRIX]  # the first one, if none is busy
    assert dominant(Busy({Category.REDUCTION: other}, other, nothing)).tolist() == [Category.REDUCTION] * 3
    assert dominant(Busy({}, nothing, nothing)).tolist() == [0] * 3
