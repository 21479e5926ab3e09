"""Tests the ruler over three steps of 100 us each, on an axis of 307,001 ns. The expected columns were computed by hand."""

from __future__ import annotations

import pytest

from tests.tui.view.scenes import lone_scene, pair_scene
from traces.model.trace import NONE
from tui.view.timeline.ruler import pair_at, step_positions, steps_line, tick_text, time_words, times_line
from tui.view.timeline.window import Window

MARKS = [(0, "5", 0), (100_000, "6", 1), (200_000, "7", 2)]


def test_the_ruler_marks_where_each_step_starts() -> None:
    assert step_positions(lone_scene(), Window(lone_scene()).alignment) == MARKS


@pytest.mark.parametrize(("position_ns", "step"), [(-1, NONE), (0, 0), (99_999, 0), (100_000, 1), (250_000, 2)])
def test_a_ruler_position_belongs_to_the_last_step_that_started_before_it(position_ns: int, step: int) -> None:
    assert pair_at(MARKS, position_ns) == step


@pytest.mark.parametrize(
    ("columns", "steps", "times", "since"),
    [
        # With 3,070 ns per column, steps start in columns 0, 32.6 and 65.1. Labels need 14 columns, so there is a label every
        # 50 us.
        (
            100,
            "│step 5                         │step 6                          │step 7                            ",
            "╷0 µs           ╷50 µs          ╷0 µs           ╷50 µs           ╷0 µs           ╷50 µs             ",
            "in step",
        ),
        # With 7,310 ns per column, 42 columns are just enough for three labels of 14 columns.
        (42, "│step 5      │step 6       │step 7        ", "╷0 µs        ╷0 µs         ╷0 µs          ", "in step"),
        # With 7,488 ns per column, the times count from the first step.
        (41, "│step 5      │step 6      │step 7        ", "╷0 µs        ╷100 µs      ╷200 µs        ", "since step 5"),
        # With 25,583 ns per column, steps start in columns 0, 3.9 and 7.8, without enough space for "step 5".
        (12, "│5 │6  │7   ", "╷0 µs       ", "since step 5"),
        # With 61,400 ns per column, steps are 1.6 columns apart. A label needs three columns, so every second step has a label.
        (5, "│5   ", "╷0 ms", "since step 5"),
    ],
)
def test_the_ruler_has_as_many_labels_as_fit(columns: int, steps: str, times: str, since: str) -> None:
    window = Window(lone_scene(), columns, 5)
    window.everything()
    assert steps_line(window, MARKS) == steps
    assert times_line(window, MARKS) == times
    assert time_words(window, MARKS, 20) == since and time_words(window, MARKS, 5) == since[:5]


def test_a_ruler_for_part_of_the_axis_shows_the_labels_of_this_part() -> None:
    """GIVEN a window that begins at 180 us and has 40 columns of 1 us THEN step 7 starts in column 20. A label every 20 us
    fits."""
    window = Window(lone_scene(), 40, 5)
    window.start_ns, window.ns_per_column = 180_000, 1_000
    assert steps_line(window, MARKS) == "                    │step 7             "
    assert times_line(window, MARKS) == "╷80 µs              ╷0 µs               "
    window.start_ns = 110_000  # no step starts in this window
    assert steps_line(window, MARKS) == " " * 40
    assert times_line(window, MARKS) == "          ╷20 µs              ╷40 µs    "
    window.start_ns = 201_000  # the first label would begin one column to the left
    assert times_line(window, MARKS) == "                   ╷20 µs               "


@pytest.mark.parametrize(
    ("start_ns", "times"),
    [
        (85_000, "               ╷0 µs                    "),  # the label of 120 us would end one column after the window
        (86_000, "              ╷0 µs               ╷20 µs"),  # the label ends in the last column
    ],
)
def test_a_label_may_end_in_the_last_column(start_ns: int, times: str) -> None:
    window = Window(lone_scene(), 40, 5)
    window.start_ns, window.ns_per_column = start_ns, 1_000
    assert times_line(window, MARKS) == times


@pytest.mark.parametrize(
    ("at_ns", "every_ns", "text"),
    [
        (0, 1_000, "0 µs"), (999, 1, "999 ns"), (1_000, 1, "1.000 µs"), (1_000, 100, "1.0 µs"), (-1_000, 500, "-1.0 µs"),
        (999_999, 1, "999.999 µs"), (10**6, 10**5, "1.0 ms"), (10**9, 10**9, "1 s"), (2 * 10**9, 10**7, "2.00 s"),
    ],
)  # fmt: skip
def test_tick_labels_have_enough_decimals_to_differ_from_their_neighbours(at_ns: int, every_ns: int, text: str) -> None:
    assert tick_text(at_ns, every_ns) == text


def test_the_name_of_a_trace_is_shortened_only_if_it_does_not_fit() -> None:
    window = Window(pair_scene(), 100, 10)
    window.everything()
    marks = step_positions(window.scene, window.alignment)
    whole = time_words(window, marks, 40)
    assert whole.startswith("recorded ") and time_words(window, marks, len(whole)) == whole
    assert time_words(window, marks, len(whole) - 1) == "rec " + whole.removeprefix("recorded ")
