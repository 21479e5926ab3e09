"""Tests the progress messages of a long replay."""

from __future__ import annotations

import io
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.traces.handmade import training
from traces.format.growing_file import StepCount
from traces.format.trace_file import save
from traces.model.run import KINETO, Run, Script
from tui.running import replay_progress
from tui.running.replay_progress import expected_steps, progress_text, reporting_steps


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["train.py", "--steps", "500"], 500),
        (["train.py", "--max_steps=70", "--lr", "0.1"], 70),
        (["train.py", "--steps", "many"], None),
        (["train.py", "--lr", "0.1"], 3),  # the same number of steps as in the recording
        (["train.py", "--lr", "0.2"], None),
        (["other.py", "--lr", "0.1"], None),
        (["train.py", "--steps-per-epoch", "9"], None),
    ],
)
def test_the_expected_number_of_steps_comes_from_script_or_recording(words: list[str], steps: int | None) -> None:
    recorded = replace(training(steps=3), runs={0: Run(script=Script("train.py"), argv=("--lr", "0.1"))})
    assert expected_steps(words, recorded) == steps


def test_a_profile_of_a_few_steps_leaves_the_expected_number_of_steps_unknown() -> None:
    assert expected_steps(["train.py"], replace(training(steps=3), runs={0: Run(KINETO)})) is None


def test_the_progress_line_shows_steps_and_remaining_time() -> None:
    assert progress_text(40, 500, 2.1) == "step 40 of 500, 2.1 steps/s, 3 min 39 s left"
    assert progress_text(1, None, 0.25) == "1 step, 4 s per step"
    assert progress_text(501, 500, 2) == "501 steps, 2 steps/s"  # here, the option does not set the number of steps
    assert progress_text(1, 100_000, 2).endswith("13 h 53 min left")


@pytest.mark.parametrize(
    ("steps_left", "left"),
    [(59, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (3600, "1 h 0 min"), (7384, "2 h 3 min")],
)
def test_the_remaining_time_is_shown_in_seconds_or_minutes_or_hours(steps_left: int, left: str) -> None:
    assert progress_text(1, 1 + steps_left, 1.0).endswith(f", 1 steps/s, {left} left")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("watched", [True, False])
def test_progress_lines_are_printed_only_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched: bool) -> None:
    recorded = training(steps=3)
    save(recorded, tmp_path / "replay-7.msgpack")
    steps = iter([0, 1, *[3] * 9999])
    monkeypatch.setattr(StepCount, "now", lambda self: next(steps))
    monkeypatch.setattr(replay_progress, "_FIRST_STEP_S", 0.01)
    monkeypatch.setattr(replay_progress, "_LOOK_S", (0.01,))
    stream = Terminal() if watched else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with reporting_steps(tmp_path, ["train.py", "--steps", "9"], recorded) as tell:
        tell(cast(Any, SimpleNamespace(pid=7)))
        until = time.monotonic() + (5 if watched else 0.1)
        while time.monotonic() < until and "left" not in stream.getvalue():
            time.sleep(0.01)
    assert ("trace: step 3 of 9" in stream.getvalue()) == watched


def test_steps_are_counted_while_the_file_grows(tmp_path: Path) -> None:
    save(training(steps=3), tmp_path / "whole.msgpack")
    data = (tmp_path / "whole.msgpack").read_bytes()
    growing = tmp_path / "growing.msgpack"
    count = StepCount(growing)
    seen = []
    for size in (4, len(data) // 2, len(data)):
        growing.write_bytes(data[:size])
        seen.append(count.now())
    assert seen[0] == 0 and seen[-1] == 3 == count.now()
