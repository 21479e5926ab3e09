"""Tests sessions of the timeline app: which keys are pressed, and what each key changes on the screen.

The sessions are golden files in tests/tui/golden/. After each key, a file contains the changed lines: lanes with their line
number, the status line, details and table rows. Colours are not included.
"""

from __future__ import annotations

import asyncio

import numpy as np
from textual.widgets import Static

from tests.traces.handmade import data_parallel, phase_grained, replay_of
from tests.tui.goldens import assert_golden
from tests.tui.view.scenes import app_on, crowd, driven, screen_text, side_tables, stack, whole
from traces.model.trace import Trace
from tui.view.app import ViewApp
from tui.view.scene.scene import Scene
from tui.view.screens import TextScreen
from tui.view.tables.panel import TablePanel
from tui.view.tables.parts import csv_text


def seen(app: ViewApp) -> list[tuple[str, str]]:
    """Return what the app shows, as pairs of a line's name and its text."""
    base = app.screen_stack[0]
    lines = [(f"{number:2}", line) for number, line in enumerate(screen_text(app).splitlines())]
    lines += [("headline", line) for line in str(base.query_one("#headline", Static).render()).splitlines()]
    legend = base.query_one("#legend", Static)
    if legend.has_class("open"):
        lines += [("legend", line.rstrip()) for line in str(legend.render()).splitlines()]
    tables = app.query_one(TablePanel) if len(app.screen_stack) == 1 else None
    if tables is not None and tables.is_open:
        table = tables.table()
        lines += [("table", line) for line in csv_text(table).splitlines()]
        lines += [("note", table.note)] if table.note else []
        lines.append(("row", str(tables.query_one("#name", Static).render())))
    if isinstance(app.screen, TextScreen):
        lines += [("details", line) for line in str(app.screen.query_one(Static).render()).splitlines()]
    lines.append(("status", str(base.query_one("#status", Static).render())))
    return lines


def session(scene: Scene, keys: list[str], size: tuple[int, int] = (110, 34)) -> str:
    """Return all lines of the opened app, and after each key the lines that changed."""
    said: list[str] = []

    async def run() -> None:
        app = app_on(scene)
        async with driven(app, size) as pilot:
            before: list[tuple[str, str]] = []
            for words in ("", *keys):
                await pilot.press(*words.split())
                now = seen(app)
                said.append(f"--- {words or 'opened'}")
                said.extend(f"{name} | {text}".rstrip() for name, text in now if (name, text) not in before)
                before = now

    asyncio.run(run())
    return "\n".join(said) + "\n"


def numbered(trace: Trace) -> Trace:
    """Return the trace with sequence numbers that link each convolution to its backward op, as autograd records them."""
    host, names = trace.host, trace.strings
    forward = np.flatnonzero(np.isin(host.name, [names.find("aten::conv2d"), names.find("aten::convolution")]))
    backward = np.flatnonzero(host.name == names.find("ConvolutionBackward0"))
    host.sequence[forward], host.sequence[backward] = np.arange(len(forward)), np.arange(len(backward))
    host.forward_thread[backward] = 1
    return trace


def rich_pair() -> Scene:
    """Return a scene of a recording with batches, collectives, stages and memory, and of a slower replay that lacks some of
    them."""
    recorded = side_tables()
    return whole(("recorded.msgpack", numbered(recorded)), ("replay.msgpack", numbered(replay_of(recorded, stretch=1.3))))


def test_the_app_reacts_to_keys_on_two_traces() -> None:
    moving = ["right right right", "w", "w w", "s", "d", "a", "end", "home", "down", "down", "up", "pagedown", "pageup", "f"]
    events = ["down down down full_stop", "full_stop", "enter", "escape", "k", "enter", "escape", "k", "u", "u", "j", "b", "b"]
    events += ["right_square_bracket", "left_square_bracket", "comma", "f", "f"]
    differing = ["n", "n", "N", "W", "n", "W", "f"]
    layout = ["c", "c", "c", "x", "x", "i", "i", "m", "m", "h", "h", "p", "p", "z", "z", "escape"]
    ranges = ["home", "v", "right right right right right", "v", "escape", "escape"]
    searching = ["g 6 / 2 enter", "slash s g e m m enter", "greater_than_sign", "less_than_sign", "escape"]
    tables = ["t", "right", "right", "right", "right", "1", "1", "2", "slash f enter", "escape", "enter", "t"]
    keys = [*moving, *events, *differing, *layout, *ranges, *searching, *tables]
    assert_golden("session_two_traces", session(rich_pair(), keys))


def test_the_app_reacts_to_keys_on_one_trace_in_a_small_terminal() -> None:
    keys = ["right", "w", "down", "down full_stop", "full_stop", "enter", "escape", "u", "u", "z", "z", "j"]
    keys += ["f", "f", "v", "d", "right", "v", "f", "escape escape", "t", "right", "right", "right"]
    keys += ["2", "t", "pagedown", "m", "h"]
    assert_golden("session_one_trace", session(whole(("a.msgpack", numbered(side_tables()))), keys, size=(78, 20)))


def test_the_app_reacts_to_keys_on_traces_with_many_gpus() -> None:
    keys = ["down", "z", "down", "full_stop", "k", "z", "Z", "Z", "pagedown", "p", "left_curly_bracket", "right_curly_bracket"]
    keys += ["ampersand G P U enter", "escape", "n", "t", "enter", "t", "end", "full_stop", "enter", "escape"]
    scene = whole(("A", crowd(devices=3, streams=5)), ("B", crowd(devices=3, streams=5, kernels=5)))
    assert_golden("session_ranks", session(scene, keys))


def test_the_app_reacts_to_keys_on_traces_with_phases_and_stages() -> None:
    keys = ["down full_stop", "full_stop", "enter", "escape", "k", "n", "n", "v", "right right right", "v", "escape escape"]
    keys += ["c", "c", "down", "full_stop", "enter", "escape", "down down", "full_stop", "enter", "escape", "t", "right", "t"]
    scene = whole(("A", data_parallel()), ("B", phase_grained(steps=4)))
    assert_golden("session_phases", session(scene, keys))


def test_the_app_reacts_to_keys_on_nested_calls() -> None:
    keys = ["z", "down", "full_stop", "full_stop", "u", "enter", "escape", "f", "f", "v", "right right", "v", "t", "t", "z"]
    assert_golden("session_nested", session(whole(("t", stack(6))), keys, size=(90, 16)))
