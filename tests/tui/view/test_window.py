"""Tests that the window stays on the time axis and shows the cursor after any sequence of keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.traces.handmade import US, training
from tests.tui.view.scenes import lone_scene, one_event, pair_scene, whole
from traces.model.trace import NONE, Column, DeviceSpans, StepKind, Trace
from tui.view.actions import saving
from tui.view.scene.alignment import Alignment
from tui.view.scene.scene import Scene
from tui.view.scene.tracks import TrackKind
from tui.view.timeline.drawing import Drawing
from tui.view.timeline.shown_rows import LinePart, ShownRows
from tui.view.timeline.window import MARGIN, Window, fold, move_row, pin

SCENES = [pair_scene(), lone_scene(), whole(("t", one_event(0))), whole(("t", Trace()))]
ROW_COMMANDS: dict[str, Callable[..., object]] = {"fold": fold, "pin": pin, "move_row": move_row}
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("zoom"), st.sampled_from([0.01, 0.5, 2.0, 100.0])),
        st.tuples(st.just("pan"), st.integers(-500, 500)),
        st.tuples(st.just("move"), st.integers(-60, 60)),
        st.tuples(st.just("move_line"), st.integers(-40, 40)),
        st.tuples(st.just("resize"), st.integers(1, 300)),
        st.tuples(st.just("go"), st.integers(-100, 10**6)),
        st.tuples(st.just("align"), st.sampled_from(Alignment)),
        st.tuples(st.just("toggle"), st.sampled_from(["memory", "host", "mirrored", "swapped"])),
        st.tuples(st.just("filter"), st.sampled_from(["", "GPU", "no such row"])),
        st.tuples(st.just("fold"), st.sampled_from([("thread", "device"), ("rank", "ranks")])),
        st.tuples(st.just("pin"), st.none()),
        st.tuples(st.just("move_row"), st.sampled_from([-1, 1])),
        st.tuples(st.just("home"), st.none()),
        st.tuples(st.just("everything"), st.none()),
    ),
    max_size=15,
)


def _call(name: str, argument: object, rows: ShownRows) -> None:
    getattr(rows, name)(argument)


@given(st.sampled_from(range(len(SCENES))), MOVES)
@example(0, [("resize", 1), ("move", 1), ("align", Alignment.STEP)])  # the new axis shows no time at the cursor
def test_the_window_stays_valid_after_any_sequence_of_moves(number: int, moves: list[tuple[str, object]]) -> None:
    scene = SCENES[number]
    window = Window(scene, 80, 20)
    for name, argument in moves:
        if name == "align" and len(scene.traces) < 2:
            continue
        if name == "resize":
            window.resize(int(str(argument)), 17)
        elif name in ("toggle", "filter"):
            window.change_rows(partial(_call, name, argument))
        elif name in ROW_COMMANDS:
            ROW_COMMANDS[name](window, *([] if argument is None else [argument]))
        elif argument is None:
            getattr(window, name)()
        else:
            getattr(window, name)(argument)
        edges, length = window.edges_ns, window.axis.length_ns
        assert len(edges) == window.columns + 1 and (np.diff(edges) >= 1).all()
        span = window.columns * window.ns_per_column
        assert span <= max(length, window.columns, 20) * (1 + 2 * MARGIN) + 1
        assert -span - 1 <= window.start_ns <= max(length, 1)
        assert 0 <= window.cursor_ns <= max(length - 1, 0)
        assert not window.rows.lines or 0 <= window.line < len(window.rows.lines)
        assert 0 <= window.top <= max(len(window.rows.lines) - 1, 0)
        if window.rows.lines:
            assert window.top <= window.line < window.top + window.rows.height


def test_zooming_keeps_the_time_under_the_cursor() -> None:
    window = Window(pair_scene(), 100, 20)
    window.go(150 * US)
    column = window.cursor_column
    for factor in (0.5, 0.5, 0.5, 2.0):
        window.zoom(factor)
        assert abs(window.cursor_column - column) <= 1 and window.cursor_ns == 150 * US


@pytest.fixture
def window() -> Window:
    """Return a window of 100 columns and 4 lines on an axis of 307,001 ns. The window shows 46 to 134 us, so a column is 880 ns
    wide."""
    window = Window(lone_scene(), 100, 4)
    assert window.axis.length_ns == 307_001 and [line.level for line in window.rows.lines] == [0, 0, 0, 0, 1, 0, 0]
    window.fit(50_000, 130_000)  # a twentieth of 80 us is added on both sides
    assert (window.start_ns, window.ns_per_column, window.end_ns) == (46_000, 880, 134_000)
    return window


def test_zooming_keeps_a_chosen_position_in_the_same_column(window: Window) -> None:
    window.zoom(0.5, 46_000 + 25 * 880)  # a position at a quarter of the window
    assert (window.start_ns, window.ns_per_column) == (57_000, 440)
    window.zoom(2.0, 57_000 + 44_000)  # a position at the right edge
    assert (window.start_ns, window.ns_per_column) == (13_000, 880)
    window.cursor_ns = 13_000  # the cursor is at the left edge
    window.zoom(0.25)
    assert (window.start_ns, window.ns_per_column) == (13_000, 220)


@pytest.mark.parametrize("outside_ns", [45_999, 134_001])
def test_zooming_around_a_position_outside_the_window_keeps_the_middle_of_the_window(window: Window, outside_ns: int) -> None:
    window.zoom(0.5, outside_ns)
    assert (window.start_ns, window.end_ns) == (68_000, 112_000)


def test_the_window_cannot_be_zoomed_beyond_its_limits(window: Window) -> None:
    window.zoom(0.0001)  # a column is at least a nanosecond wide
    assert window.ns_per_column == 1
    window.resize(10, 4)
    window.zoom(0.0001)  # a window is at least 20 ns wide
    assert window.ns_per_column == 2
    window.zoom(1_000_000)  # the axis is shown with a twentieth on both sides at most
    assert window.ns_per_column * 10 == pytest.approx(1.1 * 307_001)
    window.fit(5, 5)
    assert (window.start_ns, window.end_ns) == (5, 25)


def test_panning_moves_the_cursor_with_the_window(window: Window) -> None:
    window.cursor_ns = 60_000
    window.pan(10)
    assert (window.start_ns, window.cursor_ns) == (54_800, 68_800)
    window.pan(-1000)  # a twentieth of the window of 88 us stays free before and after the axis
    assert (window.start_ns, window.cursor_ns) == (-4_400, 9_600)
    window.pan(1000)
    assert (window.start_ns, window.end_ns) == (307_001 + 4_400 - 88_000, 307_001 + 4_400)


def test_a_saved_range_contains_the_whole_window(window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a window from 46 to 134 us WHEN the range is saved THEN the nanosecond at 134 us is the last one in the file."""
    saved: list[tuple[int, int]] = []

    def excerpt(trace: Trace, begin_ns: int, end_ns: int) -> Trace:
        saved.append((begin_ns - int(trace.steps.start_ns[0]), end_ns - int(trace.steps.start_ns[0])))
        return trace

    monkeypatch.setattr(saving, "excerpt_between", excerpt)
    assert saving.write_range(window, tmp_path / "part.json") == [tmp_path / "part.json"]
    assert saved == [(46_000, 134_001)]


def test_the_cursor_moves_to_the_middle_of_a_column(window: Window) -> None:
    window.cursor_ns = 46_000
    window.move(3)
    assert window.cursor_ns == 46_000 + 3_080 and window.cursor_column == 3
    window.cursor_ns = 300_000  # the cursor is right of the window, so it moves from the last column
    window.move(-1)
    assert window.cursor_ns == 46_000 + round(98.5 * 880)
    window.cursor_ns = 0  # the cursor is left of the window, so it moves from the first column
    window.move(1)
    assert window.cursor_ns == 46_000 + 1_320
    window.move(-2)  # the window scrolls until the cursor is in the middle of its first column
    assert (window.cursor_ns, window.start_ns) == (46_000 - 440, 46_000 - 880)
    window.move(100)  # the cursor is in the middle of the last column
    assert (window.cursor_ns, window.start_ns) == (45_120 + 88_440, 45_120 + 1_320)


def test_moving_the_cursor_outside_the_window_centres_the_window_on_it(window: Window) -> None:
    window.go(133_999)
    assert window.start_ns == 46_000
    window.go(134_000)
    assert (window.start_ns, window.cursor_ns) == (90_000, 134_000)
    window.go(999_999)
    assert window.cursor_ns == 307_000
    window.go(-1)
    assert (window.cursor_ns, window.start_ns) == (0, -4_400)


def test_the_window_scrolls_by_whole_rows(window: Window) -> None:
    """GIVEN six rows, of which the fourth has two lines, and a window of four lines THEN both lines of the selected row are
    visible."""
    window.move_line(3)
    assert (window.line, window.top) == (3, 1)  # both lines of the fourth row are visible
    window.move_line(1)
    assert (window.line, window.top) == (5, 2)
    window.move_line(-1)
    assert (window.line, window.top) == (3, 2)
    window.move_line(99)
    assert (window.line, window.top, list(window.visible)) == (6, 3, [3, 4, 5, 6])
    window.move_line(-99)
    assert (window.line, window.top, list(window.visible)) == (0, 0, [0, 1, 2, 3])


def test_a_mouse_click_moves_the_cursor_to_a_column_and_a_row(window: Window) -> None:
    window.point(3, 2)
    assert (window.line, window.cursor_ns) == (2, 46_000 + 3_080)
    window.top = 3
    window.point(0, 1)
    assert (window.line, window.cursor_ns) == (3, 46_440)
    window.point(0, 3)
    assert window.line == 6
    window.point(0, 4)  # a click below the last visible line
    assert window.line == 6


def test_changing_the_alignment_keeps_the_time_under_the_cursor() -> None:
    window = Window(pair_scene(stretch=1.5), 100, 20)
    window.line = 1  # the line of the replay
    window.go(220 * US)
    time_ns = window.axis.sides[1].times([window.cursor_ns])[0]
    for by in Alignment:
        window.align(by)
        assert window.axis.sides[1].times([window.cursor_ns])[0] == time_ns
        assert 0 <= window.cursor_column < window.columns


def test_the_view_position_is_kept_when_more_of_the_trace_is_loaded() -> None:
    window = Window(Scene.of(("a", training())), 100, 20)
    window.zoom(0.2)
    before = window.start_ns, window.ns_per_column
    window.show(whole(("a", training())))
    assert (window.start_ns, window.ns_per_column) == before
    # With a second trace, the window is reset, because the time axis is a different one.
    window.show(pair_scene())
    assert window.at_home


def test_a_row_for_two_traces_shows_both_traces_and_their_difference() -> None:
    window = Window(pair_scene(), 100, 20)
    parts = [line.part for line in window.rows.lines if line.row == 0]
    assert parts == [LinePart.FIRST, LinePart.SECOND, LinePart.DIFFERENCE]
    window.change_rows(lambda rows: rows.toggle("swapped"))
    assert [line.part for line in window.rows.lines if line.row == 0] == [LinePart.SECOND, LinePart.FIRST, LinePart.DIFFERENCE]
    window.change_rows(lambda rows: rows.toggle("memory"))
    assert all(window.scene.rows[line.row].kind is not TrackKind.MEMORY for line in window.rows.lines)


def test_going_to_an_event_in_a_hidden_row_shows_the_row() -> None:
    window = Window(pair_scene(), 100, 8)
    window.change_rows(lambda rows: rows.toggle("host"))
    row = next(n for n, row in enumerate(window.scene.rows) if row.kind is TrackKind.HOST)
    window.go(100 * US, row, 0)
    assert window.rows.host and (line := window.cursor_line) is not None and line.row == row


@pytest.mark.parametrize(("size", "shown"), [((0, 0), (1, 1)), ((1, 1), (1, 1)), ((70, 30), (70, 30))])
def test_a_resized_window_has_at_least_one_column_and_one_line(size: tuple[int, int], shown: tuple[int, int]) -> None:
    window = Window(pair_scene(), 100, 5)
    window.move_line(2)
    window.resize(*size)
    assert (window.columns, window.rows.height, window.line) == (*shown, 2)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (500, 400)])
def test_a_window_can_have_any_size(size: tuple[int, int]) -> None:
    window = Window(pair_scene(), *size)
    assert len(window.edges_ns) == size[0] + 1


@pytest.mark.parametrize("warmup", [0, 2, 4])
def test_the_app_opens_a_single_trace_at_its_first_step_after_warm_up(warmup: int) -> None:
    # GIVEN a replay whose memory and first copies come seconds before its first step
    trace = training(steps=4)
    trace.steps.kind[:] = [StepKind.WARMUP] * warmup + [StepKind.STEADY] * (4 - warmup)
    first_ns = int(trace.steps.start_ns.min())
    early = trace.device.take(np.array([0]))
    early.start_ns[:] = first_ns - 10_000_000_000
    trace.device = DeviceSpans.concatenated([early, trace.device])
    window = Window(Scene.of(("a", trace)), 100, 30)
    assert window.axis.sides[0].position(first_ns) == 10_000_000_000
    assert window.at_home and window.axis.sides[0].position(int(trace.steps.start_ns[warmup % 4])) == window.start_ns
    # WHEN the whole axis is shown THEN the time before the first step is visible
    window.everything()
    assert window.start_ns == 0 and not window.at_home


def test_memory_allocated_before_the_recording_is_not_shown_as_a_difference() -> None:
    """GIVEN two traces of the same run WHEN the memory totals of B are higher THEN this is a difference only if A also recorded
    totals."""
    trace, held_bytes = training(steps=3), 300 << 20
    total_bytes = np.cumsum(trace.memory.bytes)
    second = replace(trace, memory=replace(trace.memory, allocated_bytes=total_bytes + held_bytes))

    def signs(allocated_bytes: Column) -> str:
        first = replace(trace, memory=replace(trace.memory, allocated_bytes=allocated_bytes))
        window = Window(whole(("a.msgpack", first), ("b.msgpack", second)), 100, 60)
        row = next(n for n, row in enumerate(window.scene.rows) if row.kind is TrackKind.MEMORY)
        line = next(line for line in window.rows.lines if line.row == row and line.part is LinePart.DIFFERENCE)
        return Drawing().line(window, line).text()

    assert set(signs(total_bytes)) == {"+"}
    assert set(signs(np.full(len(total_bytes), NONE))) == {"="}
