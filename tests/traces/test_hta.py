"""Holistic Trace Analysis reads an export as it reads the original: the same events on the GPU, the same busy time.

It takes whatever has `stream` among its arguments for GPU work and rounds to microseconds in its own way, so both files
go through it. Originals from before 1.12 name no rank; both files are therefore handed over as rank 0.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from traces.chrome import export_chrome
from traces.kineto import read_kineto

hta = pytest.importorskip("hta.trace_analysis")
_SAME_KIND = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}  # names of before 1.12


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """It warns of pandas' plans and logs every file; neither is about the export."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def _as_read(path: Path) -> tuple[dict[str, int], dict[str, float]]:
    """Events on the GPU by category, and the breakdown of the GPU's time in microseconds."""
    analysis: Any = hta.TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=True)
    events, names = analysis.t.traces[0], analysis.t.symbol_table.sym_table
    counts = events.loc[events.stream >= 0, "cat"].map(lambda index: names[index]).value_counts().to_dict()
    times: dict[str, float] = analysis.get_temporal_breakdown(visualize=False).iloc[0].to_dict()
    return {_SAME_KIND.get(kind, kind): int(count) for kind, count in counts.items()}, times


@pytest.mark.parametrize("name", ["v100_resnet50_workers0", "a100_nccl_args_rank0of2", "mi250_minitoy"])
def test_an_export_reads_as_the_original(shared_traces: Path, tmp_path: Path, name: str) -> None:
    original = shared_traces / f"{name}.json.gz"
    (export,) = export_chrome(read_kineto(original), tmp_path / "export.json.gz")
    assert _as_read(export) == _as_read(original)


def test_the_rank_is_found_in_the_file(shared_traces: Path, tmp_path: Path) -> None:
    # GIVEN eight ranks exported into a folder WHEN it is only told of the folder
    export_chrome(read_kineto(shared_traces / "a100_megatron_tp8"), tmp_path)
    from hta.common.trace_file import get_trace_files

    # THEN it finds each rank in its own file
    found = get_trace_files(str(tmp_path))
    assert {rank: Path(file).name for rank, file in found.items()} == {n: f"rank{n}.json.gz" for n in range(8)}
