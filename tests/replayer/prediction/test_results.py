"""Tests that predictions and predicted traces equal readable golden files."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from replayer.prediction.conditions import Conditions
from replayer.prediction.layers import layers_of
from replayer.prediction.optimizer_states import states_of
from replayer.prediction.predict import predict
from replayer.prediction.scaling import calls_of, parameter_bytes, recorded_batch
from tests.goldens import assert_golden, in_short, tables_in_short
from tests.traces.handmade import phase_grained, training
from traces.kineto import read_kineto
from traces.model.trace import Trace, TraceError

GOLDEN = Path(__file__).with_name("golden")
CONDITIONS = {
    "gpu": Conditions(gpu="T4"),
    "faster": Conditions(gpu="H100", host_speed=2.0),
    "batch": Conditions(batch=48, recorded_batch=32),
    "gpus": Conditions(gpus=3),
    "ranks": Conditions(nproc=4, link_gbps=10.0),
    "sharded": Conditions(nproc=4, parallel="fsdp"),
    "split": Conditions(nproc=2, parallel="tp"),
}


def predicted(trace: Trace, conditions: Conditions) -> str:
    try:
        found = predict(trace, conditions)
    except TraceError as error:
        return f"refused: {error}\n"
    figures = {field.name: getattr(found, field.name) for field in fields(found) if field.name != "trace"}
    return in_short(figures) + tables_in_short(found.trace)


@pytest.mark.parametrize("name", CONDITIONS)
def test_predictions_from_a_handmade_recording_equal_the_golden_files(name: str) -> None:
    assert_golden(GOLDEN / f"handmade_{name}.txt", predicted(training(jitter_us=(0, 3)), CONDITIONS[name]))


@pytest.mark.parametrize("name", ["gpu", "batch", "ranks", "sharded", "split"])
@pytest.mark.parametrize("recording", ["a100_switch_transformer", "a100_particle_fwd_bs32"])
def test_predictions_from_a_real_recording_equal_the_golden_files(recording: str, name: str, shared_traces: Path) -> None:
    trace = read_kineto(next(shared_traces.glob(f"{recording}*")))
    assert_golden(GOLDEN / f"{recording}_{name}.txt", predicted(trace, CONDITIONS[name]))


@pytest.mark.parametrize("recording", ["a100_switch_transformer", "a100_particle_fwd_bs32", "v100_resnet50_workers0.json"])
def test_layers_and_calls_and_parameters_of_a_real_recording_equal_the_golden_files(
    recording: str, shared_traces: Path
) -> None:
    trace = read_kineto(next(shared_traces.glob(f"{recording}*")))
    calls = calls_of(trace)
    found: dict[str, Any] = {"layers": layers_of(trace), "calls": calls}
    found |= {"parameter bytes": parameter_bytes(trace), "states": states_of(trace)}
    if recording.startswith("v100"):
        found["batch"] = recorded_batch(trace, calls)
    assert_golden(GOLDEN / f"{recording.partition('.')[0]}_read.txt", in_short(found))


def test_predictions_from_published_phase_times_equal_the_golden_files() -> None:
    assert_golden(GOLDEN / "published.txt", predicted(phase_grained(), Conditions(host_speed=2.0)))
