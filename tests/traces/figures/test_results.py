"""Compares all figures of a few recordings with readable golden files. The analyses have separate golden files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.goldens import assert_golden, in_short
from tests.traces.crowded import crowded, without
from tests.traces.handmade import data_parallel, phase_grained, replay_of, training
from traces.combining.merge import merge_ranks
from traces.figures.measure import launch_phase_names, launch_time_ns, phase_busy_ns, phase_times
from traces.figures.pace import device_series, host_series, pace_intervals, step_times
from traces.figures.step_memory import step_rises
from traces.figures.summary import summarize
from traces.kineto import read_kineto
from traces.model.json_facts import as_json
from traces.model.trace import StepKind, Trace

GOLDEN = Path(__file__).with_name("golden")
REAL = "a100_switch_transformer v100_ddp_memory_rank1of2 a100_megatron_tp8 v100_resnet50_workers4 a100_particle_fwd_bs32"


def figures(trace: Trace) -> str:
    rows, times = np.arange(len(trace.steps)), step_times(trace)
    summary = {name: of for name, of in as_json(summarize(trace)).items() if name != "analyses"}
    found: dict[str, Any] = {"summary": summary, "times": asdict(times), "intervals": pace_intervals(trace)}
    series = {"host": host_series(times, rows), "device": device_series(times, rows)}
    found |= {name: None if of is None else asdict(of) for name, of in series.items()}
    found["phases"] = {name: asdict(of) for name, of in phase_times(trace).items()}
    found |= {"phase busy": phase_busy_ns(trace), "launches": launch_time_ns(trace), "launch phases": launch_phase_names(trace)}
    found["rises"] = step_rises(trace)
    return in_short(found)


def mixed() -> Trace:
    """Return a trace with steps of five kinds, at the pace of profiled and of clean steps. Some steps wait for data."""
    trace = training(steps=10, jitter_us=(0, 4, 1), loader_us=45)
    kinds = {StepKind.WARMUP: 1, StepKind.STEADY: 5, StepKind.PROFILED: 2, StepKind.EVALUATION: 1, StepKind.INCOMPLETE: 1}
    trace.steps.kind[:] = [kind for kind, count in kinds.items() for _ in range(count)]
    trace.device = trace.device.take(trace.device.start_ns > trace.steps.start_ns[6])
    return trace


@pytest.mark.parametrize("name", REAL.split())
def test_figures_of_real_recordings_equal_the_golden_files(name: str, shared_traces: Path) -> None:
    found = next(shared_traces.glob(f"{name}*"))
    assert_golden(GOLDEN / f"{name}.txt", figures(read_kineto(found)))


@pytest.mark.parametrize("name", ["training", "data_parallel", "replay", "phases", "mixed", "crowded", "crowded_ranks"])
def test_figures_of_handmade_recordings_equal_the_golden_files(name: str) -> None:
    made = {"training": training(jitter_us=(0, 3)), "data_parallel": data_parallel(), "replay": replay_of(training(), 1.2)}
    made |= {"phases": phase_grained(), "mixed": mixed(), "crowded": crowded(seed=1)}
    made |= {"crowded_ranks": merge_ranks([crowded(seed=1), crowded(seed=2)])}
    assert_golden(GOLDEN / f"{name}.txt", figures(made[name]))


@pytest.mark.parametrize("table", ["steps", "phases", "host", "device"])
def test_figures_of_a_recording_without_a_table_equal_the_golden_files(table: str) -> None:
    assert_golden(GOLDEN / f"crowded_without_{table}.txt", figures(without(crowded(seed=1), table)))
