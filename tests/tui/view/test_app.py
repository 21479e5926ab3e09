"""The app driven by keys and mouse, without a terminal. Every key of `keys.KEYS` is pressed in some test, and the last one
says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, OptionList, Static, TabbedContent

from tests.traces.handmade import US, replay_of, training
from tests.tui.view.scenes import app_on, lone_scene, pair_scene, piloted, ready, screen_text, whole
from traces.file import load
from traces.model import Trace, TraceFormatError
from tui.view.alignment import Alignment
from tui.view.app import ViewApp
from tui.view.keys import KEYS
from tui.view.live import Live
from tui.view.loading import Stage
from tui.view.screens import PromptScreen, SearchScreen, TextScreen
from tui.view.tables import Tables
from tui.view.window import Part, Window

T = TypeVar("T", bound=Callable[..., Any])
PRESSED: set[str] = set()


def presses(*keys: str) -> Callable[[T], T]:
    """Marks a test as the one of these keys."""

    def of(test: T) -> T:
        PRESSED.update(keys)
        return test

    return of


def window_of(app: ViewApp) -> Window:
    assert app.window is not None
    return app.window


def said(app: ViewApp) -> str:
    return str(app.screen_stack[0].query_one("#status", Static).render())


# --- moving ---


@presses("w", "s", "a", "d", "f", "left", "right", "home", "end")
@piloted(pair_scene)
async def test_zoom_and_pan(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    home = window.start_ns, window.ns_per_column
    await pilot.press("right", "right", "right", "right")
    assert window.cursor_column == 4
    at_ns, column = window.cursor_ns, window.cursor_column
    # zooming keeps the cursor in its column
    await pilot.press("w", "w")
    assert window.ns_per_column == pytest.approx(home[1] / 4)
    assert (window.cursor_ns, abs(window.cursor_column - column) <= 1) == (at_ns, True)
    await pilot.press("s")
    assert window.ns_per_column == pytest.approx(home[1] / 2)
    # panning moves the cursor with the window
    before = window.start_ns
    await pilot.press("d")
    assert window.start_ns > before and window.cursor_ns > at_ns
    await pilot.press("a")
    assert window.start_ns == pytest.approx(before, abs=2)
    await pilot.press("left")
    assert window.cursor_column == column - 1
    # all steps, then everything, whatever was looked at
    await pilot.press("f")
    assert (window.start_ns, window.ns_per_column) == home
    await pilot.press("w", "end")
    assert window.cursor_ns == app.timeline.marks[-1][0]
    await pilot.press("home")
    assert window.cursor_ns == app.timeline.marks[0][0]


@presses("up", "down", "pageup", "pagedown")
@piloted(pair_scene, size=(80, 24))
async def test_lines(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    await pilot.press("down")
    line = window.cursor_line
    assert line is not None and (line.row, line.part) == (0, Part.SECOND)
    await pilot.press("up")
    assert window.line == 0
    await pilot.press("pagedown", "pagedown", "pagedown")
    assert window.line == len(window.lines) - 1 and window.top == len(window.lines) - window.height
    await pilot.press("pageup", "pageup", "pageup")
    assert (window.line, window.top) == (0, 0)


# --- events ---


@presses("comma", "full_stop", "enter")
@piloted(pair_scene)
async def test_events_of_a_row_and_their_details(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    await pilot.press(*["down"] * 3)  # the stream, as recorded
    assert (row := window.cursor_row) is not None and row.label.startswith("cuda:0 stream")
    names = []
    for _ in range(3):
        await pilot.press("full_stop")
        assert app.selected is not None
        names.append(window.scene.traces[0].strings[int(window.scene.traces[0].device.name[app.selected.number])])
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
    # the last event has no next one
    await pilot.press("end", *["full_stop"] * 12)
    assert "no event that way" in said(app)


@piloted(pair_scene)
async def test_fitting_a_selection(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    await pilot.press("down", "down", "down", "full_stop", "f")
    lane = window.scene.rows[1].lane(0)
    assert lane is not None
    assert window.columns * window.ns_per_column == pytest.approx(1.1 * int(lane.end_ns[0] - lane.start_ns[0]))
    await pilot.press("f")
    assert window.at_home


# --- differences, steps, search ---


@presses("n", "N")
@piloted(lambda: pair_scene(stretch=1.3))
async def test_places_that_differ(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    await pilot.press("n")
    first = window.cursor_ns
    assert said(app).startswith("difference ") and "differ within" in said(app)
    await pilot.press("n")
    second = window.cursor_ns
    assert second > first
    await pilot.press("N")
    assert window.cursor_ns == first


@piloted(lambda: whole(("t", training(steps=3)), ("t", training(steps=3))))
async def test_two_that_are_the_same_have_no_such_place(app: ViewApp, pilot: Pilot[Any]) -> None:
    await pilot.press("n")
    assert said(app) == "no differences worth going to"


@presses("g")
@piloted(pair_scene)
async def test_going_to_a_step(app: ViewApp, pilot: Pilot[Any]) -> None:
    await pilot.press("g")
    assert isinstance(app.screen, PromptScreen)
    await pilot.press(*"6/8", "enter")
    assert window_of(app).cursor_ns == app.timeline.marks[3][0]
    await pilot.press("g", *"77", "enter")
    assert said(app) == "no step 77"
    await pilot.press("g", "escape")
    assert len(app.screen_stack) == 1


@presses("slash", "greater_than_sign", "less_than_sign")
@piloted(pair_scene)
async def test_searching(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    await pilot.press("greater_than_sign")
    assert "nothing searched for yet" in said(app)
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
    assert app.selected is not None and "volta_sgemm_nn" in said(app)
    await pilot.press("greater_than_sign")
    second = window.cursor_ns
    assert second > first
    await pilot.press("less_than_sign")
    assert window.cursor_ns == first
    # the list is walked with the arrows; steps are found too
    await pilot.press("slash", *["backspace"] * 5, *"step 6", "down", "down", "enter")
    assert len(app.screen_stack) == 1 and window.cursor_ns == app.timeline.marks[3][0]
    await pilot.press("slash", *["backspace"] * 6, *"nosuchthing", "enter")
    assert len(app.screen_stack) == 1
    # what was typed is there the next time
    await pilot.press("slash")
    assert app.screen.query_one(Input).value == "nosuchthing"


# --- how it looks ---


@presses("c", "x", "i", "m", "h")
@piloted(pair_scene)
async def test_alignment_sides_and_rows(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    for by in (Alignment.WALL, Alignment.OP, Alignment.STEP):
        await pilot.press("c")
        assert window.alignment is by and f"by {by.value}" in screen_text(app).splitlines()[1]
    await pilot.press("x")
    assert [line.part for line in window.lines[:2]] == [Part.SECOND, Part.FIRST]
    assert screen_text(app).splitlines()[3].startswith("recorded")
    await pilot.press("x")
    before = screen_text(app)
    await pilot.press("i")
    assert window.mirrored and screen_text(app) != before
    await pilot.press("i", "m")
    assert "memory" in before and "memory" not in screen_text(app)
    await pilot.press("m", "h")
    assert "main thread" in before and "main thread" not in screen_text(app)
    await pilot.press("h")
    assert screen_text(app) == before


@presses("question_mark")
@piloted(pair_scene, size=(80, 24))
async def test_help_tells_every_key(app: ViewApp, pilot: Pilot[Any]) -> None:
    await pilot.press("question_mark")
    text = str(app.screen.query_one(Static).render())
    for key in KEYS:
        assert f"{key.shown:>6}  {key.help}" in text
    await pilot.press("question_mark")
    assert len(app.screen_stack) == 1


@presses("t")
@piloted(lambda: pair_scene(stretch=1.3))
async def test_tables_jump_to_places(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    await pilot.press("t")
    tables = app.query_one(Tables)
    await pilot.pause()
    kernels = tables.query_one("#table-kernels", DataTable)
    assert kernels.row_count == 5 and str(kernels.get_cell_at((0, 0))) == "+"  # type: ignore[arg-type]
    await pilot.press("enter")
    assert app.selected is not None and app.selected.table == "device"
    for tab, table in (("ops", "host"), ("phases", "phases")):
        tables.query_one(TabbedContent).active = tab
        await pilot.pause()
        tables.focus_table()
        await pilot.press("enter")
        assert app.selected is not None and app.selected.table == table
    tables.query_one(TabbedContent).active = "steps"
    await pilot.pause()
    tables.focus_table()
    await pilot.press("down", "down", "enter")
    assert window.cursor_ns == app.timeline.marks[2][0]
    await pilot.press("t")
    assert not tables.has_class("open") and app.timeline.has_focus


@piloted(lone_scene, size=(80, 24))
async def test_one_trace_in_a_narrow_terminal(app: ViewApp, pilot: Pilot[Any]) -> None:
    # keys that need two traces do nothing
    before = screen_text(app)
    await pilot.press("n", "N", "c", "x", "i", "l", "o")
    assert screen_text(app) == before
    # the tables stand below
    await pilot.press("t")
    await pilot.pause()
    tables = app.query_one(Tables)
    assert tables.region.y > app.timeline.region.y
    assert tables.query_one("#table-kernels", DataTable).row_count == 5
    await pilot.press("enter")
    assert app.selected is not None


# --- export, quitting ---


@presses("e")
def test_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @piloted(pair_scene)
    async def body(app: ViewApp, pilot: Pilot[Any]) -> None:
        await pilot.press("e", *"a.svg", "enter")
        assert said(app) == "wrote a.svg" and "forward" in Path("a.svg").read_text()
        window_of(app).fit(app.timeline.marks[1][0], app.timeline.marks[2][0] - 30 * US)
        await pilot.press("e", *"r.json", "enter")
        assert said(app) == "wrote r_recorded.json, r_replayed.json"
        await pilot.press("e", *"a.png", "enter")
        assert "give it the ending" in said(app)
        await pilot.press("e", *"no/a.svg", "enter")
        assert "No such file" in said(app)
        await pilot.press("e", "escape")
        assert len(app.screen_stack) == 1

    body()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "r_recorded.json", "r_replayed.json"]
    events = json.loads(Path("r_recorded.json").read_text())["traceEvents"]
    kernels = [event["name"] for event in events if event.get("cat") == "kernel"]
    assert kernels.count("volta_sgemm_nn") == 1


@presses("q")
def test_quitting() -> None:
    async def run() -> None:
        app = app_on(lone_scene())
        async with app.run_test() as pilot:
            await ready(app, pilot)
            await pilot.press("q")
            await pilot.pause()
        assert app.failure is None and not app.is_running

    asyncio.run(run())


# --- mouse and size ---


@piloted(pair_scene)
async def test_mouse(app: ViewApp, pilot: Pilot[Any]) -> None:
    window, timeline = window_of(app), app.timeline
    label = timeline.label_width + 1
    # a click selects what is there
    await pilot.click(timeline, offset=(label + 2, 2))
    assert app.selected is not None and app.selected.table == "phases" and "loader" in said(app)
    # the wheel zooms around the pointer
    under = window.edges_ns[50]
    span = window.ns_per_column
    await pilot._post_mouse_events([_scroll("up")], timeline, offset=(label + 50, 5))
    assert window.ns_per_column == pytest.approx(span * 0.8)
    assert abs(int(window.edges_ns[50]) - int(under)) <= 2 * window.ns_per_column
    await pilot._post_mouse_events([_scroll("down")], timeline, offset=(label + 50, 5))
    assert window.ns_per_column == pytest.approx(span)
    # dragging pans, and selects nothing
    await pilot.press("w")
    start, selected = window.start_ns, app.selected
    await pilot.mouse_down(timeline, offset=(label + 60, 4))
    await pilot.hover(timeline, offset=(label + 40, 4))
    assert window.start_ns == pytest.approx(start + 20 * window.ns_per_column, abs=2)
    await pilot.mouse_up(timeline, offset=(label + 40, 4))
    assert app.selected == selected


def _scroll(way: str) -> Any:
    from textual.events import MouseScrollDown, MouseScrollUp

    return MouseScrollUp if way == "up" else MouseScrollDown


@piloted(pair_scene)
async def test_resizing_keeps_the_stretch_of_time(app: ViewApp, pilot: Pilot[Any]) -> None:
    window = window_of(app)
    await pilot.press("w")
    span = window.columns * window.ns_per_column
    for size in ((80, 24), (40, 12), (200, 60)):
        await pilot.resize_terminal(*size)
        await pilot.pause()
        assert window.columns * window.ns_per_column == pytest.approx(span)
        assert window.columns == app.timeline.size.width - app.timeline.label_width - 1 > 0
        assert all(app.timeline.render_line(y).cell_length == size[0] for y in range(app.timeline.size.height))


# --- hard cases ---


@pytest.mark.parametrize("named", [[Trace()], [Trace(), Trace()], [training(), Trace()], [Trace(), training()]])
def test_traces_with_nothing_in_them(named: list[Trace]) -> None:
    @piloted(lambda: whole(*((str(number), trace) for number, trace in enumerate(named))))
    async def body(app: ViewApp, pilot: Pilot[Any]) -> None:
        for key in KEYS:
            if key.action not in ("quit", "help", "search", "goto", "export", "details"):
                await pilot.press(key.keys)
        await pilot.press("enter", "escape", "g", "7", "enter", "slash", "x", "enter")
        assert app.failure is None

    body()


def test_a_trace_that_cannot_be_read_ends_the_app() -> None:
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


def test_keys_before_anything_is_loaded_do_nothing() -> None:
    async def run() -> None:
        app = ViewApp([])
        async with app.run_test() as pilot:
            await pilot.press(*(key.keys for key in KEYS if key.action not in ("quit", "help")))
            assert app.window is None and len(app.screen_stack) == 1

    asyncio.run(run())


# --- live ---


@presses("l", "o")
def test_following_a_replay(tmp_path: Path) -> None:
    recorded = training(steps=4)
    live = Live(("recorded.msgpack", recorded), tmp_path)
    replayed = replay_of(recorded)

    class Printed:
        """What the script has printed."""

        written_bytes = 5

        def tail(self, count: int) -> list[str]:
            return ["step 1 loss 0.5"][-count:]

    async def run() -> None:
        app = ViewApp([], live=live, output=Printed())  # type: ignore[arg-type]
        async with app.run_test(size=(130, 40)) as pilot:
            recording = ("recorded.msgpack", recorded)
            app._arrived(Stage(whole(recording), 0.5, "waiting for the first step"))
            app._arrived(Stage(whole(recording, ("this replay", replayed)), 0.9, "8 steps replayed"))
            window, marks = window_of(app), app.timeline.marks
            # the last steps are in sight, the cursor at the last one
            assert window.start_ns <= marks[-4][0] < window.end_ns and window.start_ns > marks[-5][0]
            assert window.cursor_ns == marks[-1][0]
            # who looks around is left alone
            await pilot.press("home", "l")
            assert app.following and window.cursor_ns == marks[-1][0]
            await pilot.press("a")
            assert not app.following
            place = window.start_ns
            app._arrived(Stage(whole(recording, ("this replay", replayed)), 0.9, "8 steps replayed"))
            assert window.start_ns == place
            await pilot.press("o")
            pane = app.query_one("#output", Static)
            assert pane.has_class("open") and "step 1 loss 0.5" in str(pane.render())
            # a script that fails shows what it printed
            await pilot.press("o")
            live.finish(3)
            app._arrived(Stage(None, 1.0, ""))
            assert said(app) == "the replay has ended with exit code 3; q closes the view" and pane.has_class("open")

    asyncio.run(run())


# --- all of them ---


def test_every_key_is_pressed_in_some_test() -> None:
    assert {key.keys for key in KEYS} == PRESSED
