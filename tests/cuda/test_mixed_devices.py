"""Tests that calls in the table of mixed devices have the outcomes of PyTorch's CUDA build on the simulated device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.zoo import mixed_devices

pytestmark = pytest.mark.cuda


@pytest.mark.skipif(not torch.__version__.startswith("2.14"), reason="the table quotes PyTorch 2.14")
def test_pytorch_accepts_and_rejects_combinations_of_devices_as_listed(device: Path, tmp_path: Path) -> None:
    command = [device, sys.executable, mixed_devices.__file__, tmp_path / "results.tsv"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in (tmp_path / "results.tsv").read_text().splitlines()]
    assert {row: said for row, said in rows} == mixed_devices.expected()
