"""The report of a replay without any measured time."""

from __future__ import annotations

from tests.replayer.recordings import make_recording
from traces.comparison.compare import compare
from tui.commands.replay_library import estimated_text


def test_an_estimate_says_that_no_training_step_ended() -> None:
    replayed = make_recording([], [], steps=0)
    said = estimated_text(replayed, compare(make_recording([], [], steps=0), replayed))
    assert "Tesla P100" in said and "no training step" in said
