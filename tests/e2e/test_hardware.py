"""Tests replays of our recordings of a real GPU (benchmarks/recordings)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hardware import RECORDINGS, row_of, summary
from traces.figures.problems import serious_problems
from traces.format.trace_file import load
from traces.model.trace import StepKind


@pytest.mark.program
@pytest.mark.parametrize(
    "name",
    [
        "h200/accumulation_kernel",
        "h200/compiled_cnn_kernel",
        "h200/gan_kernel",
        "h100/data_parallel_kernel",
        "h100/inference",
    ],
)
def test_a_replay_of_a_recording_of_a_real_gpu_is_the_same_program(name: str, tmp_path: Path) -> None:
    row = row_of(RECORDINGS / f"{name}.msgpack", tmp_path)
    assert row.gpu.startswith(f"NVIDIA {name[:4].upper()}") and row.same_program
    assert row.gpu_time is not None and abs(row.gpu_time) < 0.001
    assert row.matched is not None and row.matched > 0.99
    # The step times within each of these recordings vary by at least 2.4 %.
    assert row.error is not None and abs(row.error) < 0.03
    assert f"{100 * abs(row.error):.1f} %" in summary([row])


@pytest.mark.parametrize("file", sorted(RECORDINGS.rglob("*.msgpack")), ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_recording_of_a_real_gpu_has_clean_steps_and_no_serious_problem(file: Path) -> None:
    trace = load(file)
    kind = StepKind.EVALUATION if file.stem == "inference" else StepKind.STEADY
    assert trace.steps.kind.tolist().count(kind) >= 5
    assert not serious_problems(trace)
