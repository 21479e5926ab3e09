"""Tests that calls with tensors or generators on wrong devices have the outcomes of PyTorch's CUDA build, which
mixed_devices.tsv lists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.zoo import mixed_devices
from tests.zoo.recording import recording_of_something_else

ROOT = Path(__file__).parents[2]


def test_the_table_contains_150_combinations_of_devices() -> None:
    table = mixed_devices.expected()
    refused = [said for said in table.values() if not said.startswith("ok")]
    assert len(table) >= 350 and len(refused) >= 280


@pytest.mark.program
@pytest.mark.parametrize("values", ["recorded", "compute"])
def test_each_call_with_mixed_devices_behaves_like_on_a_gpu(values: str, tmp_path: Path) -> None:
    options = ("--clock", "virtual", "--values", values, "--trace", recording_of_something_else(tmp_path / "a100.msgpack"))
    command = [sys.executable, "-m", "tui.cli", "replay", *options, Path(mixed_devices.__file__), tmp_path / "results.tsv"]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in (tmp_path / "results.tsv").read_text().splitlines()]
    assert {row: said for row, said in rows} == mixed_devices.expected()
