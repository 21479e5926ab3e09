"""Tests how budgets are read, how a comparison is checked against them, and what `trace gate` prints for a build."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.traces.handmade import phase_grained, replay_of, training
from traces.comparison.compare import compare
from traces.comparison.comparison_figures import MemoryComparison
from traces.comparison.gate import KEYS, GateError, check, read_budgets, starting_budgets
from traces.figures.summary import summarize
from traces.format.trace_file import save
from traces.model.trace import StepKind
from tui.cli import run
from tui.text.gate import gate_line


def written(folder: Path, *lines: str) -> Path:
    path = folder / "budgets.toml"
    path.write_text("\n".join(["[budget]", *lines]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "passed"),
    [
        ('step_time = "1 ms"', True),
        ('step_time = "80 us"', False),
        ('step_time_change = "5%"', True),  # whole steps became shorter, because the replay loads no data
        ('compute_time_change = "5 %"', False),
        ('compute_time_change = "12 %"', True),
        ('gpu_busy = "56 us"', True),
        ('memory_peak = "3 MiB"', True),
        ('memory_peak = "1 KiB"', False),
        ('memory_peak_change = "0 %"', True),
        ("missing_ops = 0", False),
        ("missing_ops = 1", True),
        ('matched = "80 %"', True),
        ('matched = "81 %"', False),
        ("same_program = true", True),
    ],
)
def test_a_replay_passes_or_fails_a_single_budget(tmp_path: Path, line: str, passed: bool) -> None:
    recorded = training()
    replay = replay_of(recorded, 1.1, missing=[{"op": "aten::foo", "shapes": "2,2", "count": 3}])
    result = check(read_budgets(written(tmp_path, line)), compare(recorded, replay))
    assert result.passed is passed and gate_line(result).startswith("gate passed: " if passed else "gate FAILED: ")


def test_an_op_that_a_replay_calls_only_in_evaluation_is_not_missing(tmp_path: Path) -> None:
    """GIVEN an op that was not recorded, because no evaluation step ran under the profiler WHEN the replay calls the op only in
    an evaluation step THEN the budget is met. WHEN the replay also calls the op in two training steps THEN the budget is
    exceeded."""
    recorded = training()
    replay = replay_of(recorded, missing=[{"op": "aten::save", "shapes": "2,2", "count": 1}])
    replay.steps.kind[-1] = StepKind.EVALUATION
    name, shapes = replay.strings.add("aten::save"), replay.strings.add("2,2")
    for steps, passed in (((-1,), True), ((2, 4), False)):
        ops = [np.flatnonzero(replay.host.start_ns > replay.steps.start_ns[step])[0] for step in steps]
        replay.host.name[ops], replay.host.shapes[ops] = name, shapes
        assert check(read_budgets(written(tmp_path, "missing_ops = 0")), compare(recorded, replay)).passed is passed


@pytest.mark.parametrize(
    ("line", "passed"),
    [("graph_breaks = 2", False), ("graph_breaks = 3", True), ("recompiles = 0", False), ("recompiles = 1", True)],
)
def test_budgets_of_compiled_code_are_checked(tmp_path: Path, line: str, passed: bool) -> None:
    """GIVEN a replay with two graph breaks, one function that ran eagerly, and one recompilation THEN the function counts as a
    third graph break."""
    eager = [{"region": "0/0 forward", "reason": "graph break in loop"}]
    replay = replay_of(training(), compiled={"regions": 3, "graph_breaks": 2, "recompiles": 1, "eager": eager})
    assert check(read_budgets(written(tmp_path, line)), compare(training(), replay)).passed is passed


def test_a_script_that_compiles_nothing_has_no_graph_breaks(tmp_path: Path) -> None:
    budgets = read_budgets(written(tmp_path, "graph_breaks = 0", "recompiles = 0"))
    assert check(budgets, compare(training(), replay_of(training()))).passed


def test_the_memory_budget_compares_the_rise_per_step_if_totals_are_not_comparable(tmp_path: Path) -> None:
    """GIVEN a recording with a summed peak of 2 MiB and a replay with a recorded peak of 3 MiB WHEN a step adds 1 MiB in both
    traces THEN the memory peak has changed by 0 %."""
    memory = MemoryComparison(2 << 20, 3 << 20, "summed", "recorded", 1 << 20, 1 << 20, 3 << 20)
    compared = replace(compare(training(), replay_of(training())), memory={"cuda:0": memory})
    budgets = read_budgets(written(tmp_path, 'memory_peak = "2.9 MiB"', 'memory_peak_change = "0 %"'))
    peak, change = check(budgets, compared).checks
    assert (peak.value, peak.passed) == (3 << 20, False)
    assert (change.value, change.passed) == (0.0, True)


def test_a_budget_fails_if_its_figure_is_unknown(tmp_path: Path) -> None:
    budgets = read_budgets(written(tmp_path, 'memory_peak = "1 GiB"', 'matched = "90 %"', "same_program = true"))
    result = check(budgets, compare(phase_grained(), phase_grained()))
    assert gate_line(result) == "gate FAILED: memory_peak is unknown, matched is unknown; passed: same_program yes"


def test_step_times_are_unknown_if_the_second_trace_lacks_kernels(tmp_path: Path) -> None:
    budgets = read_budgets(written(tmp_path, 'step_time = "1 s"', 'compute_time_change = "5 %"'))
    whole, lacking = training(), training()
    lacking.problems["lost-kernel"] = 1
    assert check(budgets, compare(lacking, whole)).passed
    result = check(budgets, compare(whole, lacking))
    assert gate_line(result) == "gate FAILED: step_time is unknown, compute_time_change is unknown"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[budget", "not TOML"),
        ("", "must contain one table"),
        ("[budget]\nstep_tme = '1 ms'", "did you mean step_time?"),
        ("[budget]\nstep_time = 180", 'write step_time = "180 ms"'),
        ("[budget]\nmemory_peak = '14'", 'write memory_peak = "14 GiB"'),
        ("[budget]\nstep_time_change = '0.05'", 'write step_time_change = "5 %"'),
        ("[budget]\nmissing_ops = -1", "write missing_ops = a whole number"),
        ("[budget]\nsame_program = 'yes'", "write same_program = true"),
    ],
)
def test_an_unknown_budget_is_named_in_the_error(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "b.toml").write_text(text)
    with pytest.raises(GateError, match=re.escape(said)):
        read_budgets(tmp_path / "b.toml")


def test_the_gate_command_prints_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = training()
    save(recorded, "a.msgpack")
    save(replay_of(recorded, 1.5), "b.msgpack")
    written(tmp_path, 'compute_time_change = "5 %"', 'gpu_busy = "1 ms"')
    assert run("diff -q a.msgpack b.msgpack --gate budgets.toml".split()) == 1
    said = "gate FAILED: compute_time_change +50.0 % over +5.0 %; passed: gpu_busy 75.0 µs of 1.0 ms\n"
    assert capfd.readouterr().out == said
    written(tmp_path, 'compute_time_change = "60 %"')
    assert run("diff a.msgpack b.msgpack --json --gate budgets.toml".split()) == 0
    assert json.loads(capfd.readouterr().out)["gate"]["passed"] is True
    assert run("diff a.msgpack b.msgpack --gate none.toml".split()) == 2


def test_the_budgets_in_the_documentation_are_valid(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "ci.md").read_text(encoding="utf-8")
    block = text.partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "b.toml").write_text(block, encoding="utf-8")
    assert read_budgets(tmp_path / "b.toml").keys() == tomllib.loads(block)["budget"].keys() < set(KEYS)


def test_suggested_budgets_allow_twice_the_noise_of_the_steps() -> None:
    """GIVEN steps of 100 and 110 us THEN the noise is 4.8 %, and the suggested budget allows a change of 10 %. The noise is
    half of the range between the quartiles, 5 us, divided by the median, 105 us."""
    steady = starting_budgets(summarize(training(8)))
    assert (steady["step_time_change"], steady["matched"], steady["missing_ops"]) == ('"3 %"', '"99 %"', "0")
    assert starting_budgets(summarize(training(8, jitter_us=(0, 10))))["step_time_change"] == '"10 %"'
    of_phases = starting_budgets(summarize(phase_grained()))
    assert "missing_ops" not in of_phases and "memory_peak_change" not in of_phases


@pytest.mark.parametrize(("share", "passed"), [(75, True), (76, False)])
def test_equivalent_ops_are_matched(tmp_path: Path, share: int, passed: bool) -> None:
    """GIVEN a replay in which half of the ops match exactly and a quarter match equivalent ops THEN 75 % of the ops are
    matched."""
    recorded = training()
    comparison = compare(recorded, replay_of(recorded, 1.0))
    assert comparison.coverage is not None
    coverage = dict.fromkeys(comparison.coverage, 0.0) | {"exact": 0.5, "equivalent": 0.25}
    budgets = read_budgets(written(tmp_path, f'matched = "{share} %"'))
    assert check(budgets, replace(comparison, coverage=coverage)).passed is passed
