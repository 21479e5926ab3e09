"""Tests that Holistic Trace Analysis (HTA) computes the same figures from an export as from the original recording.

HTA counts every event with an argument `stream` as GPU work, and rounds times to microseconds. Files from PyTorch before 1.12
do not contain the rank, so each file is passed to HTA as rank 0.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import SHARED_TRACES
from traces.analyses.communication import communication
from traces.analyses.idle import gaps
from traces.analyses.launches import launch_delay_ns, launched_rows, queue_length
from traces.analyses.transfers import transfers
from traces.chrome.export import export_chrome
from traces.kineto import read_kineto
from traces.model.trace import NONE, DeviceKind, Trace

hta = pytest.importorskip("hta.trace_analysis")
_SAME_KIND = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}  # names in PyTorch before 1.12
LARGE = pytest.param("v100_resnet50_workers0", marks=pytest.mark.program)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hide warnings of pandas and log messages of HTA, which do not concern the export."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def _as_read(path: Path) -> tuple[dict[str, int], dict[str, float]]:
    """Return the number of GPU events of each category, and HTA's breakdown of the GPU time in microseconds."""
    analysis: Any = hta.TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=True)
    events, names = analysis.t.traces[0], analysis.t.symbol_table.sym_table
    counts = events.loc[events.stream >= 0, "cat"].map(lambda index: names[index]).value_counts().to_dict()
    times: dict[str, float] = analysis.get_temporal_breakdown(visualize=False).iloc[0].to_dict()
    return {_SAME_KIND.get(kind, kind): int(count) for kind, count in counts.items()}, times


@pytest.mark.parametrize("name", [LARGE, "a100_nccl_args_rank0of2", "mi250_minitoy"])
def test_hta_computes_the_same_results_from_an_export_and_the_original(
    shared_traces: Path, tmp_path: Path, name: str
) -> None:
    original = shared_traces / f"{name}.json.gz"
    (export,) = export_chrome(read_kineto(original), tmp_path / "export.json.gz")
    assert _as_read(export) == _as_read(original)


def test_hta_finds_the_rank_in_the_exported_file(shared_traces: Path, tmp_path: Path) -> None:
    # GIVEN eight ranks that were exported to a folder WHEN HTA reads the folder
    export_chrome(read_kineto(shared_traces / "a100_megatron_tp8"), tmp_path)
    from hta.common.trace_file import get_trace_files

    # THEN HTA finds the file of each rank
    found = get_trace_files(str(tmp_path))
    assert {rank: Path(file).name for rank, file in found.items()} == {n: f"rank{n}.json.gz" for n in range(8)}


# --- figures that both HTA and this tool compute ---

_ALIKE = [LARGE, "a100_nccl_args_rank0of2"]  # times in microseconds, and in nanoseconds


@pytest.fixture(scope="module", params=_ALIKE)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Any]:
    """Return a recording, and HTA's analysis of the exported recording."""
    folder = SHARED_TRACES
    if not (folder / "INDEX.md").exists():
        pytest.skip("the real recordings are not beside this checkout")
    trace = read_kineto(folder / f"{request.param}.json.gz")
    (export,) = export_chrome(trace, tmp_path_factory.mktemp("hta") / "export.json.gz")
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        analysis = hta.TraceAnalysis(trace_files={0: str(export)}, include_last_profiler_step=True)
    logging.disable(logging.NOTSET)
    return trace, analysis


def test_idle_time_per_stream_agrees_with_hta(both: tuple[Trace, Any]) -> None:
    """In HTA, a gap counts as "host_wait" if the next kernel was launched after the start of the gap. This tool splits such a
    gap at the launch."""
    trace, analysis = both
    theirs = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)[0]
    for of in gaps(trace, by_stream=True):
        if not len(of.start_ns):
            continue
        rows = theirs[theirs.stream == of.stream].set_index("idle_category").idle_time
        called_ns = np.append(trace.host.start_ns, NONE)[trace.device.launch[of.ended_by]]
        late = called_ns > of.start_ns
        lasted_us = (of.end_ns - of.start_ns) / 1000
        assert float(rows.get("host_wait", 0)) == pytest.approx(lasted_us[late].sum(), abs=len(late))
        assert float(rows.sum()) == pytest.approx(lasted_us.sum(), abs=2 * len(late))  # HTA rounds to microseconds


def test_launch_delays_agree_with_hta(both: tuple[Trace, Any]) -> None:
    trace, analysis = both
    theirs = analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]
    rows = launched_rows(trace)
    calls = [trace.strings[name] for name in trace.host.name[trace.device.launch[rows]].tolist()]
    rows = rows[["Launch" in call or call in ("cudaMemcpyAsync", "cudaMemsetAsync") for call in calls]]
    ours = launch_delay_ns(trace, rows) / 1000
    assert len(ours) == len(theirs)
    assert float(theirs.launch_delay.median()) == pytest.approx(float(np.median(ours)), abs=2)
    assert float(theirs.launch_delay.quantile(0.95)) == pytest.approx(float(np.percentile(ours, 95)), rel=0.01)


def test_queue_lengths_agree_with_hta(both: tuple[Trace, Any]) -> None:
    trace, analysis = both
    series = analysis.get_queue_length_time_series(ranks=[0])[0]
    for stream in np.unique(trace.device.stream[launched_rows(trace)]).tolist():
        theirs = series[series.stream == stream]
        assert int(theirs.queue_length.max()) == pytest.approx(int(queue_length(trace, 0, stream).length.max()), abs=1)


def test_the_overlap_of_communication_and_computation_agrees_with_hta(both: tuple[Trace, Any]) -> None:
    """HTA counts only kernels as computation. In this tool, copies and memsets also hide communication."""
    trace, analysis = both
    if not len(trace.collectives):
        return
    theirs = float(analysis.get_comm_comp_overlap(visualize=False).comp_comm_overlap_pctg.iloc[0])
    copies_left_out = replace(trace, device=trace.device.take(trace.device.kind == DeviceKind.KERNEL))
    kernels, all_work = communication(copies_left_out), communication(trace)
    share = kernels.hidden_ns / (kernels.hidden_ns + kernels.exposed_ns)
    assert 100 * share == pytest.approx(theirs, abs=0.5)  # HTA rounds times
    assert all_work.hidden_ns >= kernels.hidden_ns


def test_the_bandwidth_of_copies_agrees_with_hta(both: tuple[Trace, Any]) -> None:
    """HTA computes a rate for each copy. This tool divides the bytes of all copies by the time of all copies."""
    trace, analysis = both
    theirs = analysis.get_memory_bw_summary(ranks=[0]).droplevel(0).memory_bw_gbps
    for name, kind in (("Memset", "Memset (Device)"), ("Memcpy HtoD", "Memcpy HtoD (Pageable -> Device)")):
        ours = [row for row in transfers(trace) if row.kind == kind]
        if name in theirs.index and ours:
            assert 0 < (ours[0].gbps or 0) <= theirs.loc[name]["max"] * 1.01
            assert ours[0].count == pytest.approx(theirs.loc[name]["count"], abs=1)
