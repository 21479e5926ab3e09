"""The same fact is the same figure wherever it is told: info, diff, report, app, --json and the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import traces
from tests.traces.handmade import phase_grained, replay_of, training
from tests.tui.view.scenes import whole
from traces.comparison import compare
from traces.file import save
from traces.kineto import read_kineto
from traces.model import Trace
from traces.summary import summarize
from tui.cli import run
from tui.figures import share_text, size_text, time_text
from tui.html_report import Side, report_html
from tui.view.headline import headline


def _printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*words]) in (0, 1)
    return capsys.readouterr().out


def _real(name: str) -> Callable[[Path], Trace]:
    return lambda folder: read_kineto(folder / f"{name}.json.gz")


MADE: dict[str, Callable[[Path], Trace]] = {
    "training": lambda _: training(steps=6, jitter_us=(0, 3)),
    "phases": lambda _: phase_grained(),
    "transformer": _real("h100_transformer_toy"),
    "toy": _real("mi250_minitoy"),
}


@pytest.mark.parametrize("name", MADE)
def test_one_recording(name: str, shared_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = MADE[name](shared_traces)
    path = tmp_path / "a.msgpack"
    save(trace, path)
    summary = summarize(trace)
    told = _printed(capsys, "info", str(path))
    facts = json.loads(_printed(capsys, "info", str(path), "--json"))
    page, shown = report_html([Side("a", trace)]), " ".join(line.text for line in headline(whole(("a", trace)), 400))
    # THEN the step, how busy each GPU is, and the memory are the same text everywhere, and the same numbers in JSON and library
    if summary.step_median_ns is not None:
        assert all(time_text(summary.step_median_ns) in where for where in (told, page, shown))
        assert facts["step_median_ns"] == summary.step_median_ns == traces.summarize(traces.load(path)).step_median_ns
    for device, share in summary.busy_shares.items():
        idle = facts["analyses"]["idle"][device]
        assert share_text(idle["busy_ns"] / idle["window_ns"]) == share_text(share)
        assert all(share_text(share) in where for where in (told, page, shown))
        assert sum(idle["by_reason"].values()) + idle["busy_ns"] == idle["window_ns"]
    for peak in summary.memory.values():
        assert all(size_text(peak.peak_allocated_bytes) in where for where in (told, page, shown))
    modules = [(row.path, row.forward_ns) for row in summary.analyses.modules]
    assert modules == [(row["path"], row["forward_ns"]) for row in facts["analyses"]["modules"]]


@pytest.mark.parametrize("name", ["training", "transformer"])
def test_a_recording_and_what_replays_it(
    name: str, shared_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = MADE[name](shared_traces)
    other = replay_of(recorded) if name == "training" else MADE[name](shared_traces)
    paths = [str(tmp_path / "a.msgpack"), str(tmp_path / "b.msgpack")]
    for trace, path in zip((recorded, other), paths, strict=True):
        save(trace, path)
    comparison = compare(recorded, other)
    told = _printed(capsys, "diff", *paths, "--details")
    facts = json.loads(_printed(capsys, "diff", *paths, "--json"))
    page = report_html([Side("a", recorded), Side("b", other)])
    shown = " ".join(line.text for line in headline(whole(("a", recorded), ("b", other)), 400))
    for name_of, spread in {"steps": comparison.steps, "gpu_busy": comparison.gpu_busy}.items():
        for median_ns in (spread.recorded_median_ns, spread.replayed_median_ns):
            assert median_ns is not None and time_text(median_ns) in told and time_text(median_ns) in page
        assert facts[name_of]["recorded_median_ns"] == spread.recorded_median_ns
    assert time_text(comparison.steps.recorded_median_ns) in shown
