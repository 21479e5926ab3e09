"""Tests the app with keys and mouse, without a terminal. The last test checks that the tests press every key of `keys.KEYS`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static
from textual.widgets._footer import FooterKey

from tests.traces.handmade import US, phase_grained, replay_of, training
from tests.tui.view.scenes import app_on, crowd, lone_scene, pair_scene, piloted, ready, screen_text, whole
from traces.format.trace_file import load
from traces.model.trace import Trace, TraceFormatError
from tui.view.app import ViewApp
from tui.view.keys import KEYS
from tui.view.live import Live
from tui.view.loading import Stage
from tui.view.scene.alignment import Alignment
from tui.view.screens import PromptScreen, SearchScreen, TextScreen, help_pages
from tui.view.tables.panel import TablePanel
from tui.view.timeline.palette import palette_of
from tui.view.timeline.shown_rows import LinePart
from tui.view.timeline.spans import name_of
from tui.view.timeline.window import Window

T = TypeVar("T", bound=Callable[..., Any])
PRESSED: set[str] = set()


def presses(*keys: str) -> Callable[[T], T]:
    """Return a decorator for the test that presses these keys."""

    def of(test: T) -> T:
        PRESSED.update(keys)
        return test

    return of


def window_of(app: ViewApp) -> Window:
    assert app.window is not None
    return app.window


def said(app: ViewApp) -> str:
    return str(app.screen_stack[0].query_one("#status", Static).render())


# --- moving the window and the cursor ---


@presses("w", "s", "a", "d", "f", "left", "right", "home", "end")
@piloted(pair_scene)
async def test_keys_zoom_and_pan_the_timeline(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    home = window.start_ns, window.ns_per_column
    await pilot.press("right", "right", "right", "right")
    assert window.cursor_column == 4
    at_ns, column = window.cursor_ns, window.cursor_column
    # Zooming keeps the cursor in its column.
    await pilot.press("w", "w")
    assert window.ns_per_column == pytest.approx(home[1] / 4)
    assert (window.cursor_ns, abs(window.cursor_column - column) <= 1) == (at_ns, True)
    await pilot.press("s")
    assert window.ns_per_column == pytest.approx(home[1] / 2)
    # Panning moves the cursor with the window.
    before = window.start_ns
    await pilot.press("d")
    assert window.start_ns > before and window.cursor_ns > at_ns
    await pilot.press("a")
    assert window.start_ns == pytest.approx(before, abs=2)
    await pilot.press("left")
    assert window.cursor_column == column - 1
    # The key f shows all steps again.
    await pilot.press("f")
    assert (window.start_ns, window.ns_per_column) == home
    await pilot.press("w", "end")
    assert window.cursor_ns == app.context.timeline.marks[-1][0]
    await pilot.press("home")
    assert window.cursor_ns == app.context.timeline.marks[0][0]


@presses("up", "down", "pageup", "pagedown")
@piloted(pair_scene, size=(80, 24))
async def test_keys_move_between_lines(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    await pilot.press("down")
    line = window.cursor_line
    assert line is not None and (line.row, line.part) == (0, LinePart.SECOND)
    await pilot.press("up")
    assert window.line == 0
    await pilot.press("pagedown", "pagedown", "pagedown")
    assert window.line == len(window.rows.lines) - 1 and window.top == len(window.rows.lines) - window.rows.height
    await pilot.press("pageup", "pageup", "pageup")
    assert (window.line, window.top) == (0, 0)


# --- events ---


@presses("comma", "full_stop", "enter")
@piloted(pair_scene)
async def test_keys_step_through_the_events_of_a_row_with_details(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    await pilot.press(*["down"] * 3)  # the row of the stream, in the recorded trace
    assert (row := window.cursor_row) is not None and row.label.startswith("cuda:0 stream")
    names = []
    for _ in range(3):
        await pilot.press("full_stop")
        assert app.selection.span is not None
        names.append(window.scene.traces[0].strings[int(window.scene.traces[0].device.name[app.selection.span.number])])
    assert names == ["Memcpy HtoD (Pageable -> Device)", "volta_sgemm_nn", "softmax"]
    await pilot.press("comma")
    assert "volta_sgemm_nn 10.0 µs" in said(app)
    await pilot.press("enter")
    assert isinstance(app.screen, TextScreen)
    text = str(app.screen.query_one(Static).render())
    for line in (
        "volta_sgemm_nn",
        "kernel on cuda:0 stream 7",
        "launched by aten::cudnn_convolution, 5.0 µs before",
        "shapes      32x3x8x8 4x3x3x3",
        "origin      measured",
        "Counterpart, replayed:",
        "change      +1.0 µs (+10.0 %)",
    ):
        assert line in text
    await pilot.press("escape")
    # After the last event, a message says that there are no more events.
    await pilot.press("end", *["full_stop"] * 12)
    assert "no more events on this row" in said(app)


@piloted(pair_scene)
async def test_the_f_key_fits_the_window_to_the_selection(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    await pilot.press("down", "down", "down", "full_stop", "f")
    lane = window.scene.rows[1].lane(0)
    assert lane is not None
    assert window.columns * window.ns_per_column == pytest.approx(1.1 * int(lane.end_ns[0] - lane.start_ns[0]))
    await pilot.press("f")
    assert window.at_home


# --- differences, steps, search ---


@presses("n", "N", "W")
@piloted(lambda: pair_scene(stretch=1.3))
async def test_keys_step_through_differences_from_the_largest(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    found = app.scene.differences if app.scene is not None else ()
    span = window.columns * window.ns_per_column
    await pilot.press("n")
    assert said(app) == f"1 of {len(found)}: {found[0].sentence}"
    # The event is visible and selected, and its counterpart is highlighted.
    assert app.selection.span is not None and app.selection.span.number == found[0].rows[app.selection.span.side]
    assert window.columns * window.ns_per_column < span and {side for _, side, _, _ in window.lit} == {0, 1}
    await pilot.press("n")
    assert said(app).startswith(f"2 of {len(found)}: ")
    await pilot.press("N", "N")
    assert said(app).startswith(f"{len(found)} of {len(found)}: ")
    # With W, the list also contains waits for data.
    await pilot.press("W")
    assert app.walk.everything and "with waits for data" in said(app)
    await pilot.press("W")
    assert not app.walk.everything


@piloted(lambda: pair_scene(stretch=4))
async def test_jumping_to_a_different_phase_zooms_the_window_to_this_phase(app: ViewApp, pilot: Pilot[Any]) -> None:
    window, found = window_of(app), app.scene.differences if app.scene is not None else ()
    position = next(position for position, one in enumerate(found) if one.table == "phases")
    await pilot.press(*["n"] * (position + 1))
    assert app.selection.span is not None and app.selection.span.table == "phases"
    duration_ns = max(found[position].times_ns)
    assert duration_ns <= window.columns * window.ns_per_column < 2.5 * duration_ns


@presses("k", "u", "j", "b", "left_square_bracket", "right_square_bracket")
@piloted(pair_scene)
async def test_keys_jump_to_the_next_and_previous_event(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    scene, trace = window.scene, window.scene.traces[0]

    def name() -> str:
        assert app.selection.span is not None
        return name_of(scene, app.selection.span)

    await pilot.press("k")
    assert "no event here" in said(app) or app.selection.span is not None
    line = next(n for n, line in enumerate(window.rows.lines) if scene.rows[line.row].label.startswith("cuda:0 stream"))
    window.line = line
    await pilot.press("home", "full_stop", "full_stop")
    assert name() == "volta_sgemm_nn" and (first := app.selection.span) is not None
    # The key k goes to the counterpart and back.
    await pilot.press("k")
    assert app.selection.span is not None and app.selection.span.side == 1 and name() == "volta_sgemm_nn"
    await pilot.press("k")
    assert app.selection.span == first
    # The key u goes up to the launching op and its outer ops, and j goes down to the first kernel.
    await pilot.press("u")
    assert name() == "aten::cudnn_convolution"
    await pilot.press("u")
    assert name() == "aten::conv2d" and len(window.lit) > 2
    await pilot.press("u")
    assert "no enclosing op" in said(app)
    await pilot.press("j")
    assert app.selection.span == first
    # The key b goes to the backward pass of the op, which autograd's sequence numbers link.
    trace.host.sequence[trace.host.name == trace.strings.find("aten::conv2d")] = 7
    rows = trace.host.name == trace.strings.find("ConvolutionBackward0")
    trace.host.sequence[rows], trace.host.forward_thread[rows] = 7, 1
    await pilot.press("b")
    assert name() == "volta_sgemm_tn"
    await pilot.press("b")
    assert app.selection.span == first
    # The keys [ and ] go to the same kernel in other steps.
    await pilot.press("right_square_bracket")
    assert "2 of 6" in said(app) and name() == "volta_sgemm_nn"
    await pilot.press("left_square_bracket")
    assert "1 of 6" in said(app)
    # A phase has no kernels and no backward pass.
    window.line = 0
    app.selection.span = None
    await pilot.press("j")
    assert "launched no GPU work" in said(app)
    await pilot.press("b")
    assert "no matching forward or backward op" in said(app)


@presses("v", "escape")
@piloted(pair_scene)
async def test_marking_a_time_range_shows_the_sums_of_its_events(app: ViewApp, pilot: Pilot[Any]) -> None:
    window, tables = window_of(app), app.query_one(TablePanel)
    await pilot.press("v", *["right"] * 10)
    assert window.range_ns is not None and window.range_ns[1] - window.range_ns[0] > 9 * window.ns_per_column
    await pilot.press("v")
    await pilot.pause()
    assert tables.is_open and tables.tab == "range" and said(app).startswith("range: recorded ")
    assert [str(tables.rows.get_cell_at((row, 1))) for row in (0, 1)] == ["GPU busy", "GPU idle"]  # type: ignore[arg-type]
    # A row with a sum has no position. Escape first removes the range, then closes the tables, and never quits the app.
    await pilot.press("enter")
    assert "a sum of several events" in said(app)
    stretch = window.range_ns
    await pilot.press("f")
    assert stretch is not None and window.start_ns <= stretch[0] and stretch[1] <= window.end_ns
    await pilot.press("escape")
    assert window.range_ns is None and tables.is_open
    await pilot.press("escape")
    assert not tables.is_open and app.context.timeline.has_focus
    await pilot.press("escape", "escape")
    assert app.is_running


@piloted(lambda: whole(("t", training(steps=3)), ("t", training(steps=3))))
async def test_keys_find_no_difference_in_equal_traces(app: ViewApp, pilot: Pilot[Any]) -> None:
    await pilot.press("n")
    assert said(app) == "no differences to go to"


@presses("g")
@piloted(pair_scene)
async def test_the_key_g_goes_to_a_step_number(app: ViewApp, pilot: Pilot[Any]) -> None:
    await pilot.press("g")
    assert isinstance(app.screen, PromptScreen)
    await pilot.press(*"6/8", "enter")
    assert window_of(app).cursor_ns == app.context.timeline.marks[3][0]
    await pilot.press("g", *"77", "enter")
    assert said(app) == "no step 77"
    await pilot.press("g", "escape")
    assert len(app.screen_stack) == 1


@presses("slash", "greater_than_sign", "less_than_sign")
@piloted(pair_scene)
async def test_a_search_goes_to_matching_events(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    await pilot.press("greater_than_sign")
    assert "no search yet" in said(app)
    await pilot.press("slash", *"sgemm")
    assert isinstance(app.screen, SearchScreen)
    options = app.screen.query_one(OptionList)
    lines = [str(options.get_option_at_index(number).prompt) for number in range(options.option_count)]
    assert [line.split() for line in lines] == [
        ["kernel", "recorded", "3", "x", "volta_sgemm_nn"],
        ["kernel", "recorded", "3", "x", "volta_sgemm_tn"],
        ["kernel", "replayed", "6", "x", "volta_sgemm_nn"],
        ["kernel", "replayed", "6", "x", "volta_sgemm_tn"],
    ]
    await pilot.press("enter")
    first = window.cursor_ns
    assert app.selection.span is not None and "volta_sgemm_nn" in said(app)
    await pilot.press("greater_than_sign")
    second = window.cursor_ns
    assert second > first
    await pilot.press("less_than_sign")
    assert window.cursor_ns == first
    # The arrow keys select a search result. Steps are also found.
    await pilot.press("slash", *["backspace"] * 5, *"step 6", "down", "down", "enter")
    assert len(app.screen_stack) == 1 and window.cursor_ns == app.context.timeline.marks[3][0]
    await pilot.press("slash", *["backspace"] * 6, *"nosuchthing", "enter")
    assert len(app.screen_stack) == 1
    # The next search begins with the last text.
    await pilot.press("slash")
    assert app.screen.query_one(Input).value == "nosuchthing"


# --- appearance ---


@presses("c", "x", "i", "m", "h")
@piloted(pair_scene)
async def test_keys_change_the_alignment_and_the_rows(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    for by in (Alignment.STEP, Alignment.WALL, Alignment.COUNTERPART):
        await pilot.press("c")
        assert window.alignment is by and screen_text(app).startswith(f"by {by.value}")
    await pilot.press("x")
    assert [line.part for line in window.rows.lines if not line.level][:2] == [LinePart.SECOND, LinePart.FIRST]
    assert [line.split()[0] for line in screen_text(app).splitlines()[2:] if line[:1].strip()][1] == "recorded"
    await pilot.press("x")
    before = screen_text(app)
    await pilot.press("i")
    assert window.rows.mirrored and screen_text(app) != before
    await pilot.press("i", "m")
    assert "memory" in before and "memory" not in screen_text(app)
    await pilot.press("m", "h")
    assert "main thread" in before and "main thread" not in screen_text(app)
    await pilot.press("h")
    assert screen_text(app) == before


@presses("z", "Z", "p", "ampersand", "left_curly_bracket", "right_curly_bracket")
@piloted(lambda: whole(("A", crowd()), ("B", crowd())))
async def test_rows_can_be_folded_and_pinned_and_filtered_and_moved(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)

    def labels() -> list[str]:
        return [window.scene.rows[row].label for row in window.rows.shown]

    # Of four ranks, the first one is unfolded. The eight streams of its device are one row.
    assert labels() == ["rank 0 cuda:0 all", "rank 0 collectives", "rank 1 GPU", "rank 2 GPU", "rank 3 GPU"]
    await pilot.press("z")
    assert labels()[:3] == ["rank 0 cuda:0 stream 0", "rank 0 cuda:0 stream 1", "rank 0 cuda:0 stream 2"]
    await pilot.press("z", "Z")
    assert labels() == ["rank 0 GPU", "rank 1 GPU", "rank 2 GPU", "rank 3 GPU"]
    await pilot.press("Z")
    assert labels()[0] == "rank 0 cuda:0 all"
    # The key p moves the last row to the top and back. The keys { and } move the row by one place.
    await pilot.press("pagedown", "p")
    assert labels()[0] == "rank 3 GPU" and "is pinned" in said(app)
    await pilot.press("p")
    assert labels()[-1] == "rank 3 GPU"
    await pilot.press("left_curly_bracket")
    assert labels()[-2:] == ["rank 3 GPU", "rank 2 GPU"]
    await pilot.press("right_curly_bracket")
    assert labels()[-2:] == ["rank 2 GPU", "rank 3 GPU"]
    # A filter shows only rows whose names contain a text.
    await pilot.press("ampersand", *"GPU", "enter")
    assert labels() == ["rank 1 GPU", "rank 2 GPU", "rank 3 GPU"] and "3 rows with GPU" in said(app)
    window.line = next(n for n, line in enumerate(window.rows.lines) if window.scene.rows[line.row].label == "rank 2 GPU")
    await pilot.press("ampersand", *["backspace"] * 3, *"rank 3", "enter")
    assert labels() == ["rank 3 GPU"] and window.rows.lines[window.line].head  # the cursor is on another row
    await pilot.press("escape")
    assert len(labels()) == 5
    # If a filter hides all rows, the first Esc shows them, although an event is selected.
    await pilot.press("full_stop", "ampersand", *"xyz", "enter", "s")
    assert labels() == [] and app.selection.span is not None and said(app) == "no row has xyz in its name; Esc shows all"
    await pilot.press("escape")
    assert len(labels()) == 5 and app.selection.span is not None
    # Going to a hidden row shows the row.
    row = next(n for n, row in enumerate(window.scene.rows) if row.label == "rank 2 cuda:0 stream 3")
    window.go(0, row, 0)
    assert "rank 2 cuda:0 stream 3" in labels()


@presses("L", "D")
@piloted(pair_scene)
async def test_keys_switch_the_legend_and_the_theme(app: ViewApp, pilot: Pilot[Any]) -> None:
    words = app.query_one("#legend", Static)
    assert "backward" in str(words.render()) and "waits longer" in str(words.render())
    await pilot.press("L")
    assert not words.has_class("open")
    await pilot.press("L", "D")
    assert words.has_class("open") and not app.current_theme.dark
    styles = [segment.style for segment in app.context.timeline.render_line(4)]
    assert palette_of(False).background in {style.bgcolor.name for style in styles if style and style.bgcolor}
    await pilot.press("D")
    assert app.current_theme.dark


@piloted(pair_scene, size=(80, 24))
async def test_help_and_quit_keys_are_visible_in_the_narrowest_terminal(app: ViewApp, pilot: Pilot[Any]) -> None:
    for pressed in ((), ("t",)):  # once without tables, and once with tables, which have their own keys
        await pilot.press(*pressed)
        await pilot.pause()
        keys = app.query(FooterKey)
        seen = [key.action for key in keys if key.region.right <= app.size.width]
        assert seen[:2] == ["press('question_mark')", "press('q')"] and len(seen) < len(keys)


@piloted(lone_scene)
async def test_a_key_that_does_nothing_says_why(app: ViewApp, pilot: Pilot[Any]) -> None:
    for key in ("n", "N", "W", "k", "c", "x", "i"):
        await pilot.press(key)
        assert said(app).startswith(f"{key} (") and said(app).endswith("is for two traces: trace view A B")
    await pilot.press("l")
    assert "trace replay --view" in said(app)


@piloted(lone_scene)
async def test_for_one_trace_the_app_opens_a_table_that_has_rows(app: ViewApp, pilot: Pilot[Any]) -> None:
    tables = app.query_one(TablePanel)
    await pilot.press("t")
    await pilot.pause()
    assert tables.tab == "kernels" and tables.rows.row_count
    await pilot.press("right", "t", "t")
    await pilot.pause()
    assert tables.tab == "ops"


@piloted(lambda: whole(("phases", phase_grained())))
async def test_a_selected_range_sums_phases_if_only_phase_times_were_recorded(app: ViewApp, pilot: Pilot[Any]) -> None:
    await pilot.press("v", *["right"] * 10, "v")
    await pilot.pause()
    rows = [row.values[:2] for row in app.query_one(TablePanel).table().rows]
    assert rows and {what for what, _ in rows} == {"phase"}
    assert "loader" in said(app) and "GPU busy" not in said(app)


@presses("question_mark")
@pytest.mark.parametrize("size", [(80, 24), (130, 40), (200, 60)])
def test_the_help_lists_every_key_and_fits_the_screen(size: tuple[int, int]) -> None:
    @piloted(pair_scene, size=size)
    async def body(app: ViewApp, pilot: Pilot[Any]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        text = "".join(str(page) for _, page in help_pages(app.context.timeline.palette))
        for key in KEYS:
            assert f"{key.shown:>6}  {key.help}\n" in text
        for _ in range(5):  # on every page, all text is inside the screen
            box = app.screen.children[0]
            assert box.region.height <= size[1] and box.virtual_size.height <= box.size.height
            for page in app.screen.query(Static):
                assert not page.is_on_screen or page.region.bottom <= box.region.bottom
            await pilot.press("right")
        await pilot.press("question_mark")
        assert len(app.screen_stack) == 1

    body()


@piloted(pair_scene)
async def test_the_command_palette_of_the_app_contains_every_key(app: ViewApp, pilot: Pilot[Any]) -> None:
    titles = {command.title for command in app.get_system_commands(app.screen)}
    assert {"collapse or expand the stack or device", "next largest difference"} <= titles
    assert "live: follow or stay" not in titles


@presses("t")
@piloted(lambda: pair_scene(stretch=1.3))
async def test_a_selected_table_row_moves_the_timeline_to_its_span(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    await pilot.press("t")
    tables = app.query_one(TablePanel)
    await pilot.pause()
    assert tables.tab == "differences" and tables.rows.row_count == len(window.scene.differences)
    await pilot.press("down", "enter")
    assert said(app).startswith("2 of ") and tables.rows.has_focus
    for tab, table in (("kernels", "device"), ("ops", "host"), ("phases", "phases")):
        await pilot.press("right")
        await pilot.pause()
        assert tables.tab == tab
        await pilot.press("enter")
        assert app.selection.span is not None and app.selection.span.table == table and " of " in said(app)
    await pilot.press("right")
    await pilot.pause()
    await pilot.press("down", "down", "enter")
    assert window.cursor_ns == app.context.timeline.marks[2][0]
    # The table keeps the keyboard focus, also after Shift-Tab and Tab.
    line = window.line
    await pilot.press("shift+tab")
    assert app.context.timeline.has_focus
    await pilot.press("tab", "left", "down", "enter")
    assert window.line == line or app.selection.span is not None
    assert len(app.screen_stack) == 1
    await pilot.press("t")
    assert not tables.is_open and app.context.timeline.has_focus


@piloted(lambda: pair_scene(stretch=1.3))
async def test_tables_are_sorted_filtered_and_copied(app: ViewApp, pilot: Pilot[Any]) -> None:
    tables = app.query_one(TablePanel)
    await pilot.press("t", "right")
    await pilot.pause()
    rows = tables.rows

    def column(number: int) -> list[str]:
        return [str(rows.get_cell_at((row, number))) for row in range(rows.row_count)]  # type: ignore[arg-type]

    # The rows are sorted by name, then in reverse order, then by the second column.
    await pilot.press("1")
    assert column(0) == sorted(column(0), key=str.casefold)
    await pilot.press("1")
    assert column(0) == sorted(column(0), key=str.casefold, reverse=True)
    await pilot.press("2")
    changes = [row.values[1] for row in tables.table().rows]
    assert changes == sorted(changes, reverse=True)  # type: ignore[type-var]
    assert [str(head.label) for head in rows.ordered_columns][1] == "change ▼"
    # The rows are filtered by a part of a name. The full name of the selected row is shown below.
    await pilot.press("slash", *"sgemm", "enter")
    assert rows.has_focus and {"volta_sgemm_nn", "volta_sgemm_tn"} == set(column(0))
    assert str(tables.query_one("#name", Static).render()) == column(0)[0]
    await pilot.press("y")
    assert app.clipboard.splitlines()[0].startswith("kernel,change (ns)") and len(app.clipboard.splitlines()) == 3
    await pilot.press("escape")
    assert rows.row_count == 5 and tables.is_open
    # If no row matches, a message says so.
    await pilot.press("slash", *"nosuch", "enter")
    assert rows.row_count == 0 and "no row matches" in str(tables.query_one("#name", Static).render())


@piloted(lone_scene, size=(80, 24))
async def test_tables_are_below_the_timeline_in_a_narrow_terminal(app: ViewApp, pilot: Pilot[Any]) -> None:
    # Keys for two traces do nothing.
    before = screen_text(app)
    await pilot.press("n", "N", "c", "x", "i", "l", "o")
    assert screen_text(app) == before
    # In a narrow terminal, the tables are below the timeline.
    await pilot.press("t")
    await pilot.pause()
    tables = app.query_one(TablePanel)
    assert tables.region.y > app.context.timeline.region.y
    await pilot.press("right")
    await pilot.pause()
    assert tables.rows.row_count == 5
    await pilot.press("enter")
    assert app.selection.span is not None


# --- export and quitting ---


@presses("e")
def test_the_key_e_saves_a_picture_or_a_trace_or_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @piloted(pair_scene)
    async def body(app: ViewApp, pilot: Pilot[Any]) -> None:
        async def save(*keys: str) -> str:
            await pilot.press(*keys)
            await app.workers.wait_for_complete()
            await pilot.pause()
            return said(app)

        assert await save("e", *"a.svg", "enter") == "wrote a.svg" and "forward" in Path("a.svg").read_text()
        window_of(app).fit(app.context.timeline.marks[1][0], app.context.timeline.marks[2][0] - 30 * US)
        assert await save("e", *"r.json", "enter") == "wrote r_recorded.json, r_replayed.json"
        assert "the file name must end in" in await save("e", *"a.png", "enter")
        assert await save("e", *"no/a.svg", "enter") == "no/a.svg: No such file or directory"
        await pilot.press("e", "escape")
        assert len(app.screen_stack) == 1
        # An existing file is overwritten only after a question.
        Path("a.svg").write_text("mine")
        await save("e", *"a.svg", "enter", "escape")
        assert Path("a.svg").read_text() == "mine"
        assert await save("e", *"a.svg", "enter", "enter") == "wrote a.svg" and Path("a.svg").read_text() != "mine"
        # If a table is open, the key e saves its rows.
        await pilot.press("t", "right")
        await pilot.pause()
        assert await save("e", "enter") == "wrote kernels.csv"

    body()
    names = ["a.svg", "kernels.csv", "r_recorded.json", "r_replayed.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    events = json.loads(Path("r_recorded.json").read_text())["traceEvents"]
    kernels = [event["name"] for event in events if event.get("cat") == "kernel"]
    assert kernels.count("volta_sgemm_nn") == 1
    assert len(Path("kernels.csv").read_text().splitlines()) == 6


@presses("q")
@pytest.mark.parametrize("keys", [("q",), ("ctrl+c",), ("t", "ctrl+c"), ("slash", "a", "ctrl+c")])
def test_the_keys_q_and_ctrl_c_end_the_app(keys: tuple[str, ...]) -> None:
    async def run() -> None:
        app = app_on(lone_scene())
        async with app.run_test() as pilot:
            await ready(app, pilot)
            await pilot.press(*keys)
            await pilot.pause()
        assert app.failure is None and not app.is_running

    asyncio.run(run())


# --- mouse and window size ---


@piloted(pair_scene)
async def test_clicks_and_drags_select_events_and_times(app: ViewApp, pilot: Pilot[Any]) -> None:
    window, timeline = window_of(app), app.context.timeline
    label = timeline.label_width + 1
    # A click selects the event at this position.
    await pilot.click(timeline, offset=(label + 2, 2))
    assert app.selection.span is not None and app.selection.span.table == "phases" and "loader" in said(app)
    assert window.cursor_column == 2 and window.line == window.visible[0]
    # A click on a label moves the cursor to the first column. A click on the ruler moves the cursor to the first row.
    await pilot.click(timeline, offset=(label - 3, 4))
    assert window.cursor_column == 0 and window.line > window.visible[0]
    await pilot.click(timeline, offset=(label + 2, 0))
    assert window.cursor_column == 2 and window.line == window.visible[0]
    # The mouse wheel zooms around the pointer.
    under = window.edges_ns[50]
    span = window.ns_per_column
    await pilot._post_mouse_events([_scroll("up")], timeline, offset=(label + 50, 5))
    assert window.ns_per_column == pytest.approx(span * 0.8)
    assert abs(int(window.edges_ns[50]) - int(under)) <= 2 * window.ns_per_column
    await pilot._post_mouse_events([_scroll("down")], timeline, offset=(label + 50, 5))
    assert window.ns_per_column == pytest.approx(span)
    # Dragging pans the timeline and selects nothing.
    await pilot.press("w")
    start, selected = window.start_ns, app.selection.span
    await pilot.mouse_down(timeline, offset=(label + 60, 4))
    await pilot.hover(timeline, offset=(label + 40, 4))
    assert window.start_ns == pytest.approx(start + 20 * window.ns_per_column, abs=2)
    await pilot.mouse_up(timeline, offset=(label + 40, 4))
    assert app.selection.span == selected
    # Dragging with Shift selects a time range.
    await pilot.mouse_down(timeline, offset=(label + 40, 4), shift=True)
    await pilot.hover(timeline, offset=(label + 60, 4))
    await pilot.mouse_up(timeline, offset=(label + 60, 4))
    assert window.range_ns is not None
    at_ns = [window.start_ns + column * window.ns_per_column for column in (40, 60)]
    assert window.range_ns == pytest.approx(at_ns, abs=2)
    assert said(app).startswith("range: recorded")


def _scroll(way: str) -> Any:
    from textual.events import MouseScrollDown, MouseScrollUp

    return MouseScrollUp if way == "up" else MouseScrollDown


@piloted(pair_scene)
async def test_resizing_keeps_the_visible_time_range(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    await pilot.press("w")
    span = window.columns * window.ns_per_column
    for size in ((80, 24), (40, 12), (200, 60)):
        await pilot.resize_terminal(*size)
        while app.context.timeline.size.width != size[0]:  # textual handles the new size later
            await asyncio.sleep(0.001)
        await pilot.pause()
        assert window.columns * window.ns_per_column == pytest.approx(span)
        assert window.columns == app.context.timeline.size.width - app.context.timeline.label_width - 1 > 0
        assert all(app.context.timeline.render_line(y).cell_length == size[0] for y in range(app.context.timeline.size.height))


# --- unusual traces and errors ---


ALSO_EMPTY = [pytest.param(named, marks=pytest.mark.program) for named in ([Trace()], [Trace(), training()])]


@pytest.mark.parametrize("named", [[Trace(), Trace()], [training(), Trace()], *ALSO_EMPTY])
def test_every_key_works_on_empty_traces(named: list[Trace]) -> None:
    @piloted(lambda: whole(*((str(number), trace) for number, trace in enumerate(named))))
    async def body(app: ViewApp, pilot: Pilot[Any]) -> None:
        for key in KEYS:
            if key.action.partition(".")[2] not in ("exit", "help", "search", "goto", "export", "details", "filter"):
                await pilot.press(key.keys)
        await pilot.press("enter", "escape", "g", "7", "enter", "slash", "x", "enter")
        assert app.failure is None

    body()


def test_an_unreadable_trace_ends_the_app() -> None:
    def stages() -> Any:
        yield Stage(None, 0.0, "reading")
        load("nope.msgpack")

    async def run() -> ViewApp:
        app = ViewApp(stages())
        async with app.run_test() as pilot:
            while app.failure is None:
                await asyncio.sleep(0.001)
            await pilot.pause()
        return app

    assert isinstance(asyncio.run(run()).failure, TraceFormatError)


def test_the_table_of_keys_names_existing_methods() -> None:
    targets = ViewApp([]).targets
    named = [key.action.split(".") for key in KEYS]
    assert [key for key in named if not callable(getattr(targets.get(key[0]), key[1], None))] == []


def test_keys_do_nothing_before_a_trace_is_loaded() -> None:
    async def run() -> None:
        app = ViewApp([])
        async with app.run_test() as pilot:
            others = ("ViewApp.exit", "Panels.help", "ViewApp.turn_dark")
            await pilot.press(*(key.keys for key in KEYS if key.action not in others))
            assert app.window is None and len(app.screen_stack) == 1

    asyncio.run(run())


# --- live view ---


@presses("l", "o")
def test_the_view_follows_a_replay_until_the_user_moves_the_window(tmp_path: Path) -> None:
    recorded = training(steps=4)
    live = Live(("recorded.msgpack", recorded), tmp_path)
    replayed = replay_of(recorded)

    class Printed:
        """Fakes the output of the script."""

        written_bytes = 5

        def tail(self, count: int) -> list[str]:
            return ["step 1 loss 0.5"][-count:]

    async def run() -> None:
        app = ViewApp([], live=live, output=Printed())  # type: ignore[arg-type]
        async with app.run_test(size=(130, 40)) as pilot:
            recording = ("recorded.msgpack", recorded)
            app._arrived(Stage(whole(recording), 0.5, "waiting for the first step"))
            app._arrived(Stage(whole(recording, ("this replay", replayed)), 0.9, "8 steps replayed"))
            window, marks = window_of(app), app.context.timeline.marks
            # The last four steps are visible, and the cursor is at the last step.
            assert window.start_ns <= marks[-4][0] < window.end_ns and window.start_ns > marks[-5][0]
            assert window.cursor_ns == marks[-1][0]
            # If the user moves the view, new steps do not move the view.
            await pilot.press("home", "l")
            assert app.context.following and window.cursor_ns == marks[-1][0]
            await pilot.press("a")
            assert not app.context.following
            position = window.start_ns
            app._arrived(Stage(whole(recording, ("this replay", replayed)), 0.9, "8 steps replayed"))
            assert window.start_ns == position
            await pilot.press("o")
            pane = app.query_one("#output", Static)
            assert pane.has_class("open") and "step 1 loss 0.5" in str(pane.render())
            # If the script fails, its output is shown.
            await pilot.press("o")
            live.finish(3)
            app._arrived(Stage(None, 1.0, ""))
            assert said(app) == "the replay has ended with exit code 3; q closes the view" and pane.has_class("open")

    asyncio.run(run())


# --- all keys ---


def test_every_key_is_pressed_in_some_test() -> None:
    assert {key.keys for key in KEYS} == PRESSED
