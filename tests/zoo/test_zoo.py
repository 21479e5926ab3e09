"""Tests each group of operations in a replay, as a user runs a script, with recorded and with computed values.

One replay runs all groups with recorded values, and another one with computed values. If a group ends the process, its start is
in the results but not its end, and the remaining groups run in a new process. `python tests/zoo/run.py` runs groups by name,
even with the torch of another interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.zoo.groups import Group, all_groups
from tests.zoo.recording import recording_of_something_else

ROOT = Path(__file__).resolve().parents[2]
GROUPS = all_groups()
_AT_MOST = 5  # after this number of processes, the remaining groups are given up


def _run(values: str, folder: Path) -> dict[str, str]:
    """Return the error of each group by name, or "" if the group passed."""
    results = folder / f"{values}.jsonl"
    options = ("--clock", "virtual", "--values", values, "--trace", recording_of_something_else(folder / "a100.msgpack"))
    command = [sys.executable, "-m", "tui.cli", "replay", *options, ROOT / "tests" / "zoo" / "run.py", results, values]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for _ in range(_AT_MOST):
        done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=280, env=environment)
        if done.returncode == 0:
            break
    assert results.exists(), done.stderr
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    return {line["group"]: line.get("wrong", f"ended the process: {done.stderr[-300:]}") for line in lines}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    folder = tmp_path_factory.mktemp("zoo")
    return {values: _run(values, folder) for values in ("recorded", "compute")}


@pytest.mark.parametrize("name", GROUPS)
def test_each_group_of_calls_gives_cpu_results_or_an_error_that_names_the_call(
    name: str, outcomes: dict[str, dict[str, str]]
) -> None:
    group: Group = GROUPS[name]
    for values in group.values:
        wrong = outcomes[values].get(name)
        if wrong is None:
            pytest.skip(f"{group.needs} is not installed")
        assert wrong == "", f"--values {values}: {wrong}"


def test_at_most_five_percent_of_the_call_groups_are_not_emulated() -> None:
    refused = [name for name, group in GROUPS.items() if group.sentence]
    assert len(GROUPS) >= 150 and len(refused) <= 0.05 * len(GROUPS)
