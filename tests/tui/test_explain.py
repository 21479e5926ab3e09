"""Tests the output of `trace explain`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traces.handmade import training
from traces.format.trace_file import save
from traces.model.trace import Trace
from tui.commands import explain


def test_explain_reports_no_differences_for_traces_without_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(training(), tmp_path / "a")
    save(Trace(), tmp_path / "b")
    assert explain.run(str(tmp_path / "a"), str(tmp_path / "a"), json=False) == 0
    assert "nothing differs by more than 0.2 % of a step" in capsys.readouterr().out
    # Only one of the two scripts waited for the GPU after each phase.
    assert explain.run("p100-no-cudnn", str(tmp_path / "a"), json=False) == 0
    said = capsys.readouterr().out
    assert "A step of B takes" in said and "the traces do not show which part of a step differs" in said
    assert explain.run(str(tmp_path / "a"), str(tmp_path / "b"), json=False) == 0
    said = capsys.readouterr().out
    assert "has no steps" in said and "nothing differs" not in said


def test_explain_prints_kernels_and_idle_times_only_with_details(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the second trace, the loader takes 60 instead of 20 us, and each op's only kernel takes 12 instead of 10 us. The GPU
    waits for the loader, so two idle times also differ."""
    save(training(), tmp_path / "a")
    save(training(loader_us=60, kernel_us=12), tmp_path / "b")
    for details in (False, True):
        assert explain.run(str(tmp_path / "a"), str(tmp_path / "b"), json=False, details=details) == 0
        said = capsys.readouterr().out
        assert "waiting for data (loader) takes 40.0 \N{MICRO SIGN}s more" in said and said.count("  op ") == 5
        assert (said.count("    kernel "), said.count("  idle time of cuda:0")) == ((5, 2) if details else (0, 0))
        assert ("--details also prints 7 differences in idle times and kernels." in said) == (not details)
