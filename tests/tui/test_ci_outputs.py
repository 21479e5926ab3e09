"""Tests the files that `trace diff --markdown`, `trace diff --junit` and `trace gate init` write."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.traces.handmade import replay_of, training
from traces.comparison.compare import compare
from traces.comparison.gate import read_budgets
from traces.format.trace_file import save
from tui.commands import diff, gate
from tui.report.ci import comparison_markdown


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    recorded = training(steps=5)
    save(recorded, tmp_path / "recorded.msgpack")
    save(replay_of(recorded, stretch=1.5), tmp_path / "replay.msgpack")
    return str(tmp_path / "recorded.msgpack"), str(tmp_path / "replay.msgpack")


def test_markdown_contains_verdict_and_figures_and_chart_and_budgets(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budgets = tmp_path / "budgets.toml"
    budgets.write_text('[budget]\nstep_time_change = "5 %"\n', encoding="utf-8")
    assert diff.run(*files, json=False, tolerance=0.05, gate=budgets, markdown=True) == 1
    text = capsys.readouterr().out
    assert text.startswith("### ")
    assert f"| Per step | {files[0]} | {files[1]} | Change |" in text
    (step,) = [line for line in text.splitlines() if line.startswith("| step time |")]
    assert step.endswith("| +23.0 % |")
    assert "```mermaid\nxychart-beta\n" in text
    assert "| **FAILED** | step_time_change +23.0 % over +5.0 % |" in text


def test_markdown_shows_gpu_times_of_phases_if_the_gpu_limits_the_speed() -> None:
    recorded = training(steps=5, kernel_us=30)  # 150 us of GPU time in a step of 100 us on the host
    text = comparison_markdown(compare(recorded, recorded), "a", "b", None)
    assert "| GPU time of forward | 30.0 µs | 30.0 µs | 0.0 % |" in text and "phase forward" not in text
    assert 'title "GPU times of phases, ms per step' in text


def test_junit_has_one_test_for_each_budget(files: tuple[str, str], tmp_path: Path) -> None:
    budgets, junit = tmp_path / "budgets.toml", tmp_path / "junit.xml"
    budgets.write_text('[budget]\nstep_time_change = "5 %"\nsame_program = true\n', encoding="utf-8")
    diff.run(*files, json=False, tolerance=0.05, gate=budgets, junit=junit)
    suite = ElementTree.parse(junit).getroot()
    assert suite.attrib["tests"] == "2" and suite.attrib["failures"] == "1"
    failed = {case.attrib["name"]: [child.attrib["message"] for child in case] for case in suite}
    assert failed == {"step_time_change": ["step_time_change +23.0 % over +5.0 %"], "same_program": []}


def test_junit_output_without_budgets_has_the_verdict(files: tuple[str, str], tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    assert diff.run(files[0], files[0], json=False, tolerance=0.05, junit=junit) == 0
    assert diff.run(*files, json=False, tolerance=0.05, junit=tmp_path / "apart.xml") == 1
    (case,) = ElementTree.parse(junit).getroot()
    (apart,) = ElementTree.parse(tmp_path / "apart.xml").getroot()
    assert len(case) == 0 and [child.tag for child in apart] == ["failure"]


def test_a_replay_equal_to_its_recording_meets_the_initial_budgets(files: tuple[str, str], tmp_path: Path) -> None:
    budgets = tmp_path / "budgets.toml"
    assert gate.init(files[0], budgets) == 0
    read = read_budgets(budgets)
    # The handmade steps have equal lengths, so the budgets have the smallest margin.
    changes = {"step_time_change": 0.03, "memory_peak_change": 0.02}
    assert read == {**changes, "missing_ops": 0, "matched": 0.99, "same_program": 1}
    kept = tmp_path / "kept.toml"
    kept.write_text(budgets.read_text(encoding="utf-8").replace("99 %", "80 %"), encoding="utf-8")
    assert diff.run(files[1], files[1], json=False, tolerance=0.05, gate=kept) == 0
    assert diff.run(*files, json=False, tolerance=0.05, gate=budgets) == 1
