"""Compares all figures of the analyses of a few recordings with readable golden files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.goldens import assert_golden, in_short
from tests.traces.crowded import crowded, without
from tests.traces.handmade import data_parallel, replay_of, training
from traces.analyses.analyse import analyse
from traces.analyses.communication import communication
from traces.analyses.launches import queue_length
from traces.analyses.peak_memory import held_at_peak
from traces.analyses.python_functions import function_times
from traces.analyses.transfers import transfers
from traces.combining.merge import merge_ranks
from traces.kineto import read_kineto
from traces.model.trace import Trace

GOLDEN = Path(__file__).with_name("golden")
REAL = "a100_switch_transformer a100_event_sync_multi_stream a100_megatron_tp8 h100_transformer_toy a100_particle_fwd_bs32"


def figures(trace: Trace) -> str:
    streams = sorted(set(zip(trace.device.device.tolist(), trace.device.stream.tolist(), strict=True)))
    found: dict[str, Any] = {"analyses": analyse(trace), "communication": communication(trace)}
    found["queues"] = {str(stream): queue_length(trace, *stream).length for stream in streams}
    found |= {"functions": function_times(trace), "transfers": transfers(trace)}
    found["held"] = {str(row): held_at_peak(trace, row) for row in range(len(trace.devices))}
    return in_short(found)


@pytest.mark.parametrize("name", REAL.split())
def test_analyses_of_real_recordings_equal_the_golden_files(name: str, shared_traces: Path) -> None:
    found = next(shared_traces.glob(f"{name}*"))
    assert_golden(GOLDEN / f"{name}.txt", figures(read_kineto(found)))


@pytest.mark.parametrize("name", ["training", "data_parallel", "replay", "crowded", "crowded_ranks"])
def test_analyses_of_handmade_recordings_equal_the_golden_files(name: str) -> None:
    made = {"training": training(jitter_us=(0, 3)), "data_parallel": data_parallel(), "replay": replay_of(training(), 1.2)}
    made |= {"crowded": crowded(seed=1), "crowded_ranks": merge_ranks([crowded(seed=1), crowded(seed=2)])}
    assert_golden(GOLDEN / f"{name}.txt", figures(made[name]))


@pytest.mark.parametrize("table", ["steps", "phases", "collectives", "batches"])
def test_analyses_of_a_recording_without_a_table_equal_the_golden_files(table: str) -> None:
    assert_golden(GOLDEN / f"crowded_without_{table}.txt", figures(without(crowded(seed=1), table)))
