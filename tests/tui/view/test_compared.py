"""Tests the differences of kernels in each screen column. The expected sums were computed by hand."""

from __future__ import annotations

import numpy as np

from tui.view.scene.axis import SlotTimes
from tui.view.scene.compared import Sums
from tui.view.scene.lanes import Lane


def test_a_column_shows_the_part_of_each_event_within_its_time_range() -> None:
    """GIVEN events from 10 to 20 ns and from 30 to 50 ns THEN the column from 15 to 40 ns shows half of each event."""
    each = np.array([[5.0, 40.0], [1.0, 2.0]])
    sums = Sums(Lane([10, 30], [10, 20], [0, 0]), each)
    found = sums.columns(SlotTimes([0], [60]), np.array([0, 15, 40, 60]))
    assert found.tolist() == [[2.5, 22.5, 20.0], [0.5, 1.5, 1.0]]


def test_a_column_excludes_time_that_the_time_axis_leaves_out() -> None:
    """GIVEN a time axis without the time from 15 to 30 ns THEN no column shows the second half of the first event."""
    each = np.array([[5.0, 40.0], [1.0, 2.0]])
    side = SlotTimes([0, 30], [15, 60])
    side.at_ns = np.array([0, 15])
    found = Sums(Lane([10, 30], [10, 20], [0, 0]), each).columns(side, np.array([0, 15, 25, 45]))
    assert found.tolist() == [[2.5, 20.0, 20.0], [0.5, 1.0, 1.0]]
