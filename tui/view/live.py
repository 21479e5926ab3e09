"""Reads the timeline of a running replay for the timeline app.

    live = Live(("v100", recorded), folder_of_timelines)
    for stage in live.stages(): ...          # one stage after each step, or after several short steps
    live.finish(0)                           # the script has ended with exit code 0; the last stage is then complete

The replay appends each step's events to a file (traces/format/growing_file.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from traces.format.growing_file import Follower, timeline_of
from traces.model.trace import Trace
from tui.view.differences import differences
from tui.view.loading import Stage
from tui.view.scene.scene import Scene

_LEAST_WAIT_S = 0.2
_WAIT_OVER_LOOK = 3.0


class Live:
    def __init__(self, recorded: tuple[str, Trace], folder: Path) -> None:
        self._recorded = recorded
        self._folder = folder
        self._awake = threading.Event()
        self._closed = False
        self.returncode: int | None = None
        self.pid = 0

    def finish(self, returncode: int) -> None:
        self.returncode = returncode
        self._awake.set()

    def close(self) -> None:
        self._closed = True
        self._awake.set()

    def stages(self) -> Iterator[Stage]:
        yield Stage(Scene.of(self._recorded).with_host().with_figures(), 0.5, "waiting for the first step")
        follower: Follower | None = None
        wait_s = _LEAST_WAIT_S
        steps = 0
        while True:
            self._awake.wait(wait_s)
            if self._closed:
                return
            ended = self.returncode is not None
            began_s = time.monotonic()
            # If only child processes of the script use the GPU, show the child process with the most events.
            if follower is None and (file := timeline_of(self._folder, self.pid)) is not None:
                follower = Follower(file)
            if follower is not None and (follower.more() or ended):
                replayed = follower.trace()
                if len(replayed.steps) > steps or (ended and len(replayed.device)):
                    steps = len(replayed.steps)
                    doing = "" if ended else f"{steps} steps replayed"
                    yield Stage(self._scene(replayed), 1.0 if ended else 0.9, doing)
            if ended:
                yield Stage(None, 1.0, "")
                return
            wait_s = max(_LEAST_WAIT_S, _WAIT_OVER_LOOK * (time.monotonic() - began_s))

    def _scene(self, replayed: Trace) -> Scene:
        scene = Scene.of(self._recorded, ("this replay", replayed)).with_host().with_figures().with_counterparts()
        return replace(scene, differences=differences(scene))
