"""A replay that is watched has each step in its file soon after the step's end; one that is not gathers many."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from replayer.timeline import Timeline
from tests.traces.handmade import training
from traces.file import TraceStream
from traces.follow import Follower
from traces.model import Trace


@pytest.mark.parametrize("live", [True, False])
def test_steps_in_the_file(tmp_path: Path, live: bool) -> None:
    path = tmp_path / "replay.msgpack"
    timeline = Timeline(TraceStream(path), training(steps=1), live=live)
    follower = Follower(path)
    seen = 0
    for number in range(3):
        timeline.phase("forward", 100 * number, 100 * number + 60, 100 * number, 100 * number + 70, 0)
        timeline.step(number, 100 * number, 100 * number + 100, 0, 0)
        deadline = time.monotonic() + 20
        while live and seen <= number and time.monotonic() < deadline:  # a thread of its own writes
            follower.more()
            seen = len(follower.trace().steps)
        assert seen == (number + 1 if live else 0)
    timeline.close(Trace(devices=training(steps=1).devices))
    follower.more()
    whole = follower.trace()
    assert follower.ended and (len(whole.steps), len(whole.phases)) == (3, 3)
