"""The window: after any keys, the window is on the axis, its columns are in order, and the cursor is visible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.traces.handmade import US, training
from tests.tui.view.scenes import lone_scene, one_event, pair_scene, whole
from traces.model.trace import NONE, Column, DeviceSpans, Trace
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
@example(0, [("resize", 1), ("move", 1), ("align", Alignment.STEP)])  # the other axis shows no time where the cursor stood
def test_any_sequence_of_moves_keeps_the_window_valid(number: int, moves: list[tuple[str, object]]) -> None:
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


def test_changing_the_alignment_keeps_the_time_under_the_cursor() -> None:
    window = Window(pair_scene(stretch=1.5), 100, 20)
    window.line = 1  # the replay's line
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
    # but a second trace makes another axis
    window.show(pair_scene())
    assert window.at_home


def test_a_row_of_two_traces_has_three_lines() -> None:
    window = Window(pair_scene(), 100, 20)
    parts = [line.part for line in window.rows.lines if line.row == 0]
    assert parts == [LinePart.FIRST, LinePart.SECOND, LinePart.DIFFERENCE]
    window.change_rows(lambda rows: rows.toggle("swapped"))
    assert [line.part for line in window.rows.lines if line.row == 0] == [LinePart.SECOND, LinePart.FIRST, LinePart.DIFFERENCE]
    window.change_rows(lambda rows: rows.toggle("memory"))
    assert all(window.scene.rows[line.row].kind is not TrackKind.MEMORY for line in window.rows.lines)


def test_going_to_a_hidden_row_unhides_it() -> None:
    window = Window(pair_scene(), 100, 8)
    window.change_rows(lambda rows: rows.toggle("host"))
    row = next(n for n, row in enumerate(window.scene.rows) if row.kind is TrackKind.HOST)
    window.go(100 * US, row, 0)
    assert window.rows.host and (line := window.cursor_line) is not None and line.row == row


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (500, 400)])
def test_a_window_can_have_any_size(size: tuple[int, int]) -> None:
    window = Window(pair_scene(), *size)
    assert len(window.edges_ns) == size[0] + 1


def test_the_view_of_a_single_trace_starts_at_its_first_step() -> None:
    # GIVEN a replay, whose memory and first copies come seconds before the first step
    trace = training(steps=4)
    first_ns = int(trace.steps.start_ns.min())
    early = trace.device.take(np.array([0]))
    early.start_ns[:] = first_ns - 10_000_000_000
    trace.device = DeviceSpans.concatenated([early, trace.device])
    window = Window(Scene.of(("a", trace)), 100, 30)
    assert window.at_home and window.axis.sides[0].position(first_ns) == window.start_ns == 10_000_000_000
    # WHEN all is asked for THEN that is there, too
    window.everything()
    assert window.start_ns == 0 and not window.at_home


def test_memory_allocated_before_the_recording_is_not_a_difference() -> None:
    """GIVEN two traces of one run. The totals of the second trace are 300 MiB higher throughout."""
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
