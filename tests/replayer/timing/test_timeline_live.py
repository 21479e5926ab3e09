"""Tests that a watched replay writes each step to its file soon after the step's end.

A replay that nobody watches writes the steps of a second together.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import replayer.timing.timeline.timeline_writer
from replayer.timing.timeline.timeline_writer import TimelineWriter
from tests.traces.handmade import training
from traces.format.growing_file import Follower
from traces.format.trace_file import TraceStream
from traces.model.trace import Trace


class Watched:
    """Reads the file of a timeline while the file is written. The steps end at `now_ns`."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *, live: bool) -> None:
        self.now_ns = 0
        monkeypatch.setattr(replayer.timing.timeline.timeline_writer, "perf_counter_ns", lambda: self.now_ns)
        self._timeline = TimelineWriter(TraceStream(path), training(steps=1), live=live)
        self._follower = Follower(path)
        self._steps = 0

    def step(self) -> None:
        begin_ns, number = 100 * self._steps, self._steps
        self._timeline.phase("forward", begin_ns, begin_ns + 60, begin_ns, begin_ns + 70, 0)
        self._timeline.step(number, begin_ns, begin_ns + 100, 0, 0)
        self._steps += 1

    def seen(self, steps: int) -> int:
        """Wait until the writing thread has written `steps` steps to the file, and return the number of steps in the file."""
        deadline = time.monotonic() + 20
        while True:
            self._follower.more()
            found = len(self._follower.trace().steps)
            if found >= steps or time.monotonic() > deadline:
                return found

    def close(self) -> Trace:
        self._timeline.close(Trace(devices=training(steps=1).devices))
        self._follower.more()
        assert self._follower.ended
        return self._follower.trace()


@pytest.mark.parametrize("live", [True, False])
def test_the_timeline_file_contains_the_steps_that_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    watched = Watched(tmp_path / "replay.msgpack", monkeypatch, live=live)
    for number in range(3):
        watched.step()
        expected = number + 1 if live else 0
        assert watched.seen(expected) == expected
    whole = watched.close()
    assert (len(whole.steps), len(whole.phases)) == (3, 3)


def test_a_killed_replay_loses_only_its_last_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path / "replay.msgpack", monkeypatch, live=False)
    for ended_ns in (200_000_000, 900_000_000, 1_100_000_000, 1_200_000_000, 1_900_000_000):
        watched.now_ns = ended_ns
        watched.step()
    # THEN the file has the three steps that were written after one second, and no later step
    assert watched.seen(3) == 3
    watched.now_ns = 2_200_000_000
    watched.step()
    assert watched.seen(6) == 6
    assert len(watched.close().steps) == 6
