"""Tests the report of a replay that has only estimated times."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.replayer.recordings import make_recording
from tests.traces.handmade import replay_of, training
from traces.comparison.compare import compare
from tui.commands.replay import _estimate_sentence
from tui.commands.replay_library import estimated_text, source_of
from tui.text import predict


def test_the_report_of_an_estimate_says_that_no_step_ended() -> None:
    replayed = make_recording([], [], steps=0)
    said = estimated_text(replayed, compare(make_recording([], [], steps=0), replayed))
    assert "Tesla P100" in said and "completed no step" in said


def test_a_single_step_is_not_called_a_median() -> None:
    """GIVEN an estimated replay of one step or of several steps THEN the text says "a single step" or "median"."""
    for steps, average in ((1, "a single step, including warm-up"), (4, "median")):
        recorded = training(steps=steps)
        said = estimated_text(recorded, compare(recorded, recorded))
        assert f"({average}, excluding data loading, including host time of this machine)" in said


def test_an_estimate_separates_gpu_time_from_the_host_time_of_this_machine() -> None:
    recorded = training()
    comparison = compare(recorded, recorded)
    assert "The GPU is busy for 50.0 µs of a training step." in estimated_text(recorded, comparison)
    assert "The GPU is busy" not in estimated_text(recorded, replace(comparison, clock="recorded"))


def test_an_estimate_for_a_gpu_of_the_library_also_reports_gpu_time_and_assumed_values() -> None:
    """GIVEN a replay with `--gpu v100 --estimate` of a model that is not in the library THEN the report contains GPU time and
    assumed values."""
    replayed = replay_of(training(), sizes_assumed=3, reads_unrecorded=2)
    source = source_of("", "v100", estimate=True).compared_with(replayed)
    said = estimated_text(replayed, compare(source.recorded, replayed))
    assert source.is_estimate and "The GPU is busy for 50.0 µs of a training step." in said
    assert "3 data-dependent sizes were not recorded" in said and "The script read 2 values" in said


@pytest.mark.parametrize(
    ("gpu", "host_speed", "begin"),
    [
        ("", 1, "ESTIMATE, not recorded: "),
        ("", 1.5, "ESTIMATE with a host 1.5 times as fast, not recorded: "),
        ("v100", 1, "ESTIMATE on V100, not recorded: "),
    ],
)
def test_an_estimate_names_the_conditions_that_differ_from_the_recording(
    gpu: str, host_speed: float, begin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "error_words", lambda of: "the error is unknown")
    conditions = SimpleNamespace(gpu=gpu, host_speed=host_speed)
    of: Any = SimpleNamespace(origins={"recorded": 0.75, "scaled": 0.25}, conditions=conditions, device="Tesla V100")
    said = _estimate_sentence(of)
    assert said == f"{begin}the error is unknown; GPU time from recorded 75.0 %, scaled 25.0 %"
