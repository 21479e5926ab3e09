"""Compares the tables that are imported from a few profiles with readable golden files, which contain rows and sums of
columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.goldens import assert_golden, in_short, tables_in_short
from traces.kineto import read_kineto
from traces.model.trace import Trace

GOLDEN = Path(__file__).with_name("golden")
REAL = """
a100_switch_transformer v100_resnet50_workers0.json a100_megatron_tp8 gpu_graph_vllm_decode mi300x_torch_compile_triton
a100_event_sync_multi_stream h100_transformer_toy mi250_minitoy gp100_gpu_user_annotation kineto_gpu_metrics
a100_benchmark_memcpy a100_particle_fwd_bs32 cpu_only h100_qwen05b mi300x_resnet18_no_pool a100_nccl_args
"""


def facts(trace: Trace) -> str:
    found = {"lacks": trace.lacks, "problems": dict(trace.problems), "devices": trace.devices, "threads": trace.threads}
    found |= {"runs": trace.runs, "machines": trace.machines}
    return in_short(found)


@pytest.mark.parametrize("name", REAL.split())
def test_imports_of_real_recordings_equal_the_golden_files(name: str, shared_traces: Path) -> None:
    trace = read_kineto(next(shared_traces.glob(f"{name}*")))
    assert_golden(GOLDEN / f"{name.removesuffix('.json')}.txt", tables_in_short(trace) + facts(trace))
