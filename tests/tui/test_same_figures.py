"""Tests that a fact has the same figure in every output: info, diff, report, app, JSON and the Python library."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

import traces
from tests.replayer.compiled.handmade_recording import running
from tests.traces.handmade import phase_grained, replay_of, training
from tests.tui.view.scenes import whole
from traces.comparison.compare import compare
from traces.figures.summary import summarize
from traces.format.trace_file import save
from traces.kineto import read_kineto
from traces.model.trace import Trace
from tui.cli import run
from tui.formatting import error_text, share_text, size_text, time_text
from tui.report.page import report_html
from tui.report.plots import PLOTS, NamedTrace, compared
from tui.text.diff import cause_texts, verdict_sentences
from tui.view.tables.rows import table_of
from tui.view.timeline.headline import headline


def _printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*words]) in (0, 1, 3)
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
def test_every_output_shows_the_same_figures_for_one_recording(
    name: str, shared_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = MADE[name](shared_traces)
    path = tmp_path / "a.msgpack"
    save(trace, path)
    summary = summarize(trace)
    found = _printed(capsys, "info", str(path))
    facts = json.loads(_printed(capsys, "info", str(path), "--json"))
    page, shown = report_html([NamedTrace("a", trace)]), " ".join(line.text for line in headline(whole(("a", trace)), 400))
    # THEN step time, GPU busy time and memory peak are the same in all texts, in JSON and in the Python library
    if summary.step_median_ns is not None:
        assert all(time_text(summary.step_median_ns) in where for where in (found, page, shown))
        assert facts["step_median_ns"] == summary.step_median_ns == traces.summarize(traces.load(path)).step_median_ns
    for device, share in summary.busy_shares.items():
        idle = facts["analyses"]["idle"][device]
        assert share_text(idle["busy_ns"] / idle["window_ns"]) == share_text(share)
        assert all(share_text(share) in where for where in (found, page, shown))
        assert sum(idle["by_reason"].values()) + idle["busy_ns"] == idle["window_ns"]
    for peak in summary.memory.values():
        assert all(size_text(peak.peak_allocated_bytes) in where for where in (found, page, shown))
    modules = [(row.path, row.forward_ns) for row in summary.analyses.modules]
    assert modules == [(row["path"], row["forward_ns"]) for row in facts["analyses"]["modules"]]


PAIRS: dict[str, Callable[[Path], tuple[Trace, Trace]]] = {
    "a replay": lambda folder: (MADE["training"](folder), replay_of(MADE["training"](folder), 1.2)),
    "slower steps": lambda folder: (MADE["training"](folder), training(steps=6, jitter_us=(0, 300))),
    "phases": lambda folder: (MADE["phases"](folder), MADE["training"](folder)),
    "vendors": lambda folder: (MADE["transformer"](folder), MADE["toy"](folder)),
    "batch sizes": lambda folder: (MADE["training"](folder), training(steps=6, batch=48, stretch=1.3)),
    "compiled": lambda _: (running(("mm", 900), ("add", 200)), running(("mm", 900), ("triton_poi_fused_add_0", 100))),
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_output_shows_the_same_figures_for_a_pair_of_traces(
    name: str, shared_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = PAIRS[name](shared_traces)
    paths = [str(tmp_path / "a.msgpack"), str(tmp_path / "b.msgpack")]
    for trace, path in zip((first, second), paths, strict=True):
        save(trace, path)
    comparison = compare(first, second)
    texts = [
        _printed(capsys, "diff", *paths),
        _printed(capsys, "diff", *paths, "--details"),
        _printed(capsys, "diff", *paths, "--markdown").replace("&lt;", "<"),
        unescape(re.sub("<[^>]*>", " ", report_html([NamedTrace("a", first), NamedTrace("b", second)]))),
    ]
    outputs = [re.sub(r"\s+", " ", text).replace("host- bound", "host-bound") for text in texts]
    facts = json.loads(_printed(capsys, "diff", *paths, "--json"))
    shown = " ".join(line.text for line in headline(whole(("a", first), ("b", second)), 400))
    # THEN times, differences, verdict, bottlenecks and reasons are the same in all texts and in JSON
    figures = {"steps": comparison.steps, "gpu_busy": comparison.gpu_busy}
    if comparison.waits_for_data:
        figures["compute_side"] = comparison.compute_side
    for key, of in figures.items():
        names = f"recorded_{of.average}_ns", f"replayed_{of.average}_ns", "error"
        assert [facts[key][name] for name in names] == [of.recorded_ns, of.replayed_ns, of.error]
        if of.recorded_ns is not None and of.replayed_ns is not None:
            cells = [time_text(of.recorded_ns), time_text(of.replayed_ns)]
            if key != "steps" or not (comparison.waits_for_data and "compute_side" in comparison.judged_figures):
                cells.append(error_text(of.error))  # `trace diff` shows no error of a step time that includes data loading
            assert all(cell in output for output in outputs for cell in cells)
    verdict, causes = verdict_sentences(comparison)[0][0], cause_texts(comparison)
    assert all(text in output for output in outputs for text in (verdict, *causes))
    assert facts["within_tolerance"] is comparison.within_tolerance and facts["reason"] == comparison.verdict.reason
    assert error_text(comparison.steps.error) in shown
    most, rates = comparison.largest_reason, comparison.samples_per_s
    assert facts.get("largest_reason", {}).get("what") == (most and most.what)
    assert facts.get("samples_per_s") == (rates and {"recorded": rates.recorded, "replayed": rates.replayed})
    assert (rates is not None) is (name == "batch sizes")
    assert rates is None or all(f"{rates.recorded:.1f} -> {rates.replayed:.1f} samples/s" in output for output in outputs)


@pytest.mark.parametrize("name", ["training", "transformer"])
def test_tables_and_plots_of_two_traces_agree_with_diff(name: str, shared_traces: Path) -> None:
    """The tables of the app, the charts of the report and the plots of `trace plot` have the figures of `trace diff`."""
    recorded = MADE[name](shared_traces)
    other = replay_of(recorded, 1.2)
    comparison, sides = compare(recorded, other), [NamedTrace("a", recorded), NamedTrace("b", other)]
    scene = whole(("a", recorded), ("b", other))
    # THEN each phase has the same host time in the app, the report, the plot and the comparison
    phases = {name: [of.recorded_median_ns, of.replayed_median_ns] for name, of in comparison.phases.items()}
    assert {row.name: [*row.values[1:3]] for row in table_of(scene, "phases").rows} == phases
    page, shapes = report_html(sides), _plotted("phases", sides)
    assert phases and all(f">{time_text(ns)}</text>" in page for times in phases.values() for ns in times)
    assert _texts(shapes, "label") == [*phases]
    assert _texts(shapes, "tick") == [time_text(ns) for times in phases.values() for ns in times]
    # AND each kernel has the same time per step in the app, the plot and the comparison
    shown = {row.name: [_number(ns) for ns in row.values[2:4]] for row in table_of(scene, "kernels").rows}
    shapes = _plotted("kernels", sides)
    longest = sorted(shown, key=lambda kernel: -max(shown[kernel]))[: len(_texts(shapes, "label"))]
    assert longest and _texts(shapes, "tick") == [time_text(ns) for kernel in longest for ns in shown[kernel]]
    changes = [*comparison.changes.kernels.longer, *comparison.changes.kernels.shorter]
    assert all(shown[of.name] == pytest.approx([of.recorded_ns, of.replayed_ns]) for of in changes)


def test_tables_and_plots_of_one_trace_agree_with_info(shared_traces: Path) -> None:
    trace = MADE["transformer"](shared_traces)
    summary, scene, sides = summarize(trace), whole(("a", trace)), [NamedTrace("a", trace)]
    phases = {name: of.median_ns for name, of in summary.phases.items()}
    assert {row.name: row.values[1] for row in table_of(scene, "phases").rows} == phases
    assert _texts(_plotted("phases", sides), "tick") == [time_text(ns) for ns in phases.values()]
    assert [row.values[1] for row in table_of(scene, "steps").rows] == [step.interval_ns for step in summary.steps]
    kernels = {row.name: row.values[1] for row in table_of(scene, "kernels").rows}
    assert all(kernels[row.name] == row.device_ns for row in summary.kernels)
    times = [time_text(row.device_ns) for row in summary.kernels]
    assert times and _texts(_plotted("kernels", sides), "tick")[: len(times)] == times


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _plotted(what: str, sides: list[NamedTrace]) -> list[Element]:
    chart = PLOTS[what](sides, [side.name for side in sides], compared(sides))
    return [ElementTree.fromstring(shape) for shape in chart.shapes] if chart is not None else []


def _texts(shapes: list[Element], kind: str) -> list[str]:
    return [shape.text or "" for shape in shapes if shape.attrib["class"] == kind]
