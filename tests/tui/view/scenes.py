"""Builds scenes from handmade traces for tests of the timeline app, and opens the app with a scene."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np
from textual._context import active_app
from textual.pilot import Pilot

from tests.traces.handmade import MS, US, replay_of, training
from traces.model.trace import (
    Batches,
    BatchKind,
    Collectives,
    Device,
    DeviceKind,
    DeviceSpans,
    HostKind,
    HostSpans,
    Parts,
    Steps,
    Thread,
    Trace,
)
from tui.view.app import ViewApp
from tui.view.differences import differences
from tui.view.loading import Stage
from tui.view.scene.scene import Scene
from tui.view.timeline.drawing import Drawing, label_of
from tui.view.timeline.ruler import step_positions, steps_line, times_line
from tui.view.timeline.window import Window


def whole(*named: tuple[str, Trace]) -> Scene:
    scene = Scene.of(*named).with_host().with_figures().with_counterparts()
    return replace(scene, differences=differences(scene))


def pair_scene(stretch: float = 1.1, steps: int = 3) -> Scene:
    """Return a scene of a recording and a replay, which replays each step twice and a tenth slower."""
    recorded = training(steps=steps)
    return whole(("recorded.msgpack", recorded), ("replay.msgpack", replay_of(recorded, stretch=stretch)))


def lone_scene() -> Scene:
    return whole(("recorded.msgpack", training(steps=3)))


def one_event(duration_ns: int = 5 * US) -> Trace:
    """Return a trace that contains only one kernel."""
    trace = Trace(devices=[Device(0, 0, "Tesla T1000")])
    name = trace.strings.add("relu_kernel")
    trace.device = DeviceSpans.of(
        device=[0], stream=[7], kind=[DeviceKind.KERNEL], name=[name], start_ns=[MS], duration_ns=[duration_ns]
    )
    return trace


def crowd(devices: int = 4, streams: int = 8, kernels: int = 6) -> Trace:
    """Return a trace with kernels on every stream of every device. Each device belongs to one rank, and each step takes 10
    us."""
    trace = Trace(
        devices=[Device(rank, 0, "NVIDIA A100") for rank in range(devices)],
        threads=[Thread(rank, rank, "main", "main") for rank in range(devices)],
    )
    names = [trace.strings.add(text) for text in ("volta_sgemm_nn", "ncclAllReduceRingLLKernel", "add_kernel")]
    lanes = devices * streams
    number = np.tile(np.arange(kernels), lanes)
    trace.device = DeviceSpans.of(
        device=np.repeat(np.arange(devices), streams * kernels),
        stream=np.tile(np.repeat(np.arange(streams), kernels), devices),
        kind=np.full(lanes * kernels, DeviceKind.KERNEL),
        name=np.take(names, number % 3),
        start_ns=number * 10 * US + np.repeat(np.arange(lanes), kernels) * 100,
        duration_ns=np.full(lanes * kernels, 7 * US),
    )
    trace.steps = Steps.of(
        rank=np.repeat(np.arange(devices), kernels),
        number=np.tile(np.arange(kernels), devices),
        start_ns=np.tile(np.arange(kernels), devices) * 10 * US,
        duration_ns=np.full(devices * kernels, 10 * US),
    )
    return trace


def side_tables() -> Trace:
    """Return a trace with tables that only some recordings have: batches, collectives and stages."""
    trace = training(steps=2)
    strings, begin = trace.strings, int(trace.steps.start_ns[0])
    names = [strings.add(text) for text in ("all_reduce", "scatter", "parallel_apply", "nccl", "float32", "group 0")]
    trace.batches = Batches.of(
        rank=[0, 0], loader=[0, 0], kind=[BatchKind.WAIT, BatchKind.PIN], start_ns=[begin, begin + 2 * US],
        duration_ns=[20 * US, 9 * US], bytes=[4 << 20, 4 << 20],
    )  # fmt: skip
    trace.collectives = Collectives.of(
        rank=[0], name=names[:1], dtype=[names[4]], group=[names[5]], group_size=[2], backend=[names[3]], bytes=[1 << 20],
        start_ns=[begin + 60 * US], duration_ns=[15 * US],
    )  # fmt: skip
    trace.parts = Parts.of(
        phase=[2, 2], name=names[1:3], thread=[0, 1], start_ns=[begin + 30 * US, begin + 35 * US], duration_ns=[5 * US, 10 * US]
    )
    return trace


def stack(depth: int) -> Trace:
    """Return a trace in which calls of one thread are nested in each other, inside a profiler's mark of a step."""
    trace = Trace(threads=[Thread(0, 1, "main", "main")])
    names = [trace.strings.add(text) for text in ("ProfilerStep#3", *(f"call {level}" for level in range(depth)))]
    rows = depth + 1
    trace.host = HostSpans.of(
        thread=np.zeros(rows), kind=np.full(rows, HostKind.OP), name=names, start_ns=np.arange(rows) * US,
        duration_ns=(100 - 2 * np.arange(rows)) * US, parent=np.arange(rows) - 1,
    )  # fmt: skip
    return trace


def text_of(window: Window, label_columns: int = 20) -> str:
    """Return the picture of a window as text: ruler, labels and lanes."""
    marks = step_positions(window.scene, window.alignment)
    lines = [" " * label_columns + " " + steps_line(window, marks), " " * label_columns + " " + times_line(window, marks)]
    drawing = Drawing()
    lines += [f"{label_of(window, line, label_columns)} {cells.text()}" for line, cells in drawing.frame(window)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def app_on(scene: Scene) -> ViewApp:
    return ViewApp([Stage(scene, 1.0, "")])


async def all_handled(*_: Any) -> None:
    """Wait until every message is handled, the work of the app's threads has arrived, and the screen is drawn.

    A pilot waits 20 ms or until the process seems idle. This takes seconds per test, and on a busy machine it ends too early.
    """
    app: Any = active_app.get()
    loop: Any = asyncio.get_running_loop()
    is_drawn = False
    while not is_drawn and app._exception is None:
        await asyncio.sleep(0)
        while loop._ready:
            await asyncio.sleep(0)
        if any(not worker.is_finished for worker in app.workers):
            await asyncio.sleep(0.001)
        elif app.is_running and app.screen._update_timer._active.is_set():
            app.screen._on_timer_update()
        else:
            is_drawn = True


async def ready(app: ViewApp, pilot: Pilot[Any]) -> None:
    """Wait until everything is loaded and drawn."""
    while not app.loaded and app.failure is None:
        await asyncio.sleep(0.001)
    await pilot.pause()


@asynccontextmanager
async def driven(app: ViewApp, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Pilot[Any]]:
    """Open the app, yield its pilot, and close the app. The pilot waits until each key is handled."""
    waits = ("textual.app.wait_for_idle", "textual.pilot.wait_for_idle", "textual.pilot.Pilot._wait_for_screen")
    with patch(waits[0], all_handled), patch(waits[1], all_handled), patch(waits[2], all_handled):
        async with app.run_test(size=size) as pilot:
            await ready(app, pilot)
            yield pilot


Body = Callable[[ViewApp, Pilot[Any]], Awaitable[None]]


def piloted(make: Callable[[], Scene], size: tuple[int, int] = (130, 40)) -> Callable[[Body], Callable[[], None]]:
    """Return a decorator for tests that use the app. The app shows the scene that `make` returns."""

    def of(body: Body) -> Callable[[], None]:
        @wraps(body)
        def test() -> None:
            async def run() -> None:
                app = app_on(make())
                async with driven(app, size) as pilot:
                    await body(app, pilot)

            asyncio.run(run())

        del test.__wrapped__  # otherwise, pytest takes the arguments of `body` for fixtures
        return test

    return of


def screen_text(app: ViewApp) -> str:
    """Return what the lanes show, as text."""
    timeline = app.context.timeline
    return "\n".join(timeline.render_line(y).text.rstrip() for y in range(timeline.size.height))
