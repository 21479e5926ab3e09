"""Draws the timeline app as an SVG picture, for `trace view --screenshot` and the README. No terminal is needed.

    picture(["v100.msgpack", "replay.msgpack"], 130, 40)                    # SVG text
    picture(["v100.msgpack", "replay.msgpack"], 130, 40, press=["n", "t"])  # after these keys
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from traces.garbage_collection import without_garbage_collection
from traces.model.trace import TraceError
from tui.view.loading import stages

if TYPE_CHECKING:
    from textual.pilot import Pilot


def picture(names: Sequence[str], columns: int, lines: int, press: Sequence[str] = ()) -> str:
    with without_garbage_collection():
        return _picture(names, columns, lines, press)


def _picture(names: Sequence[str], columns: int, lines: int, press: Sequence[str]) -> str:
    reading = stages(names, is_lazy=True)
    from tui.view.app import ViewApp  # imported while another thread reads the traces

    *_, last = reading  # the earlier stages are not drawn
    app = ViewApp(iter([last]))
    pictures: list[str] = []

    async def take(pilot: Pilot[object]) -> None:
        while not app.loaded and app.failure is None and app.return_code is None:
            await asyncio.sleep(0.01)
        if app.return_code is not None:
            return
        await pilot.pause()
        for key in press:
            await pilot.press(key)
            await pilot.pause()
        pictures.append(app.export_screenshot(title="trace view " + " ".join(names)))
        app.exit(0)

    app.run(headless=True, size=(columns, lines), auto_pilot=take)
    if app.failure is not None:
        raise app.failure
    if not pictures:
        raise TraceError("the app failed while it drew the traces; the error is printed above")
    return pictures[0]
