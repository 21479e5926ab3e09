"""Tests PyTorch's OpInfo and ModuleInfo databases. The virtual GPU with computed values gives the CPU's results or a GPU's
errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.recording import recording_of_something_else

pytestmark = pytest.mark.program
ROOT = Path(__file__).parents[2]
SLICES = 4
_NOT_INITIALIZED = "the result is not initialized"
# The results of these ops differ from those of the CPU, each for the given reason.
EXCEPTIONS = {
    "empty": _NOT_INITIALIZED,
    "empty_like": _NOT_INITIALIZED,
    "empty_permuted": _NOT_INITIALIZED,
    "new_empty": _NOT_INITIALIZED,
    "new_empty_strided": _NOT_INITIALIZED,
    "empty_strided": _NOT_INITIALIZED,
    "histc": "CUDA rejects float16",
    "histogram": "PyTorch has no CUDA kernel",
    "histogramdd": "PyTorch has no CUDA kernel",
    "sparse.mm.reduce": "PyTorch has no CUDA kernel",
    "tensor_split": "a GPU refuses a tensor of indices on the GPU",
    "nn.functional.multi_head_attention_forward": "dropout draws other numbers",
    "nn.functional.fractional_max_pool3d": "the pooling regions are random",
    "nn.functional.fractional_max_pool2d": "the pooling regions are random",
    "sparse.sampled_addmm": "a gradient of a sparse CSR tensor is not emulated",
}


# The results of these modules differ from those of the CPU, each for the given reason.
MODULE_EXCEPTIONS: dict[str, str] = {}


def _outcomes(database: str, at: int, folder: Path) -> list[dict[str, Any]]:
    results = folder / "results.jsonl"
    options = ("--clock", "virtual", "--values", "compute", "--trace", recording_of_something_else(folder / "a100.msgpack"))
    script = ROOT / "tests" / "zoo" / f"{database}.py"
    command = [sys.executable, "-m", "tui.cli", "replay", "-q", *options, script, results, at, SLICES]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=280, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in results.read_text().splitlines()]


@pytest.mark.parametrize("at", range(SLICES))
def test_ops_agree_with_the_cpu_and_errors_have_no_internal_names(at: int, tmp_path: Path) -> None:
    outcomes = _outcomes("opinfo", at, tmp_path)
    compared = [each for each in outcomes if each["dtype"] != "errors"]
    initialized = [each for each in compared if EXCEPTIONS.get(each["op"]) != _NOT_INITIALIZED]
    differing = [each for each in initialized if each["wrong"]]
    assert len(initialized) > 350 and len(differing) <= 0.02 * len(initialized)
    assert [each for each in differing if each["op"] not in EXCEPTIONS] == []
    assert {each["op"] for each in outcomes if each["dtype"] == "errors" and each["wrong"]} <= {"gradient"}


@pytest.mark.parametrize("at", range(SLICES))
def test_modules_agree_with_the_cpu_and_raise_the_expected_errors(at: int, tmp_path: Path) -> None:
    lines = _outcomes("moduleinfo", at, tmp_path)
    outcomes = [(line["module"], line["kind"], wrong) for line in lines for wrong in line["wrong"]]
    differing = [each for each in outcomes if each[2]]
    assert len(outcomes) > 500 and len(differing) <= 0.01 * len(outcomes)
    assert [each for each in differing if each[0] not in MODULE_EXCEPTIONS] == []
