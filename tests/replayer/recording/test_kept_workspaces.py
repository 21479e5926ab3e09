"""Tests that the memory events of an imported recording show whether cuBLAS kept a workspace."""

from __future__ import annotations

from pathlib import Path

import pytest

from replayer.recording.workspaces import OPS_WITH_PRODUCTS, keeps_workspaces, ops_with_products
from tests.replayer.recordings import US, Op, make_recording
from traces.kineto import read_kineto
from traces.model.machine import Machine
from traces.model.run import KINETO, Run
from traces.model.trace import MemoryEvents, Trace

USUAL = 8_519_680


def recorded(*sizes_bytes: int, torch: str = "2.4 or newer", totals: bool = True) -> Trace:
    """Return a recording of a matrix product with memory events of these sizes within the product."""
    trace = make_recording([("forward", 0, 100)], [Op("aten::mm", 10, 20, kernel=(20, 5))])
    trace.runs = {0: Run(KINETO)}
    trace.machines[0] = Machine(torch=torch)
    n = len(sizes_bytes)
    trace.memory = MemoryEvents.of(
        thread=[0] * n,
        device=[0] * n,
        time_ns=[(10_011 + i) * US for i in range(n)],
        bytes=list(sizes_bytes),
        allocated_bytes=[1 << 30 if totals else -1] * n,
    )
    return trace


@pytest.mark.parametrize(
    ("trace", "kept"),
    [
        (recorded(4096), True),
        (recorded(4096, 1 << 20, -(1 << 20)), True),  # This workspace of 1 MiB belongs to cuBLASLt.
        (recorded(4096, USUAL), True),
        (recorded(4096, USUAL, -USUAL), False),
        (recorded(4096, totals=False), None),
        (recorded(), None),
        (recorded(4096, torch="1.8 to 1.9"), None),
    ],
)
def test_memory_after_a_matrix_product_shows_whether_its_workspace_was_kept(trace: Trace, kept: bool | None) -> None:
    assert keeps_workspaces(trace, 0, frozenset({USUAL})) is kept


@pytest.mark.parametrize("name", ["a100_particle_fwd_bs2", "h100_transformer_toy"])
def test_real_recordings_show_that_cublas_workspaces_were_kept(shared_traces: Path, name: str) -> None:
    assert keeps_workspaces(read_kineto(shared_traces / f"{name}.json.gz"), 0, frozenset({USUAL, 32 << 20}))


@pytest.mark.parametrize(("allocated_bytes", "kept"), [(USUAL - 512, False), (USUAL + 512, None)])
def test_no_workspace_was_kept_if_allocated_memory_is_smaller_than_a_workspace(allocated_bytes: int, kept: bool | None) -> None:
    """GIVEN a recording by trace, with a release that keeps workspaces WHEN less memory is allocated than a workspace needs
    THEN no workspace was kept."""
    trace = recorded(4096, torch="2.13.0+cu126")
    trace.runs = {}
    trace.memory.time_ns[:] = 10_031 * US
    trace.memory.allocated_bytes[:] = allocated_bytes
    assert keeps_workspaces(trace, 0, frozenset({USUAL})) is kept


@pytest.mark.parametrize(("after_us", "kept"), [(60, None), (35, False)])
def test_memory_freed_after_the_last_matrix_product_proves_nothing_about_workspaces(after_us: int, kept: bool | None) -> None:
    """GIVEN products that end at 30 and 50 us WHEN PyTorch Lightning frees the memory at 60 us THEN it is unknown whether a
    workspace was kept."""
    products = [Op("aten::mm", start, 20, kernel=(start + 10, 5)) for start in (10, 30)]
    trace = make_recording([("forward", 0, 100)], products)
    trace.machines[0] = Machine(torch="2.13.0+cu126")
    time_ns = [(10_000 + after_us) * US]
    trace.memory = MemoryEvents.of(thread=[0], device=[0], time_ns=time_ns, bytes=[-USUAL], allocated_bytes=[512])
    assert keeps_workspaces(trace, 0, frozenset({USUAL})) is kept


def test_ops_that_use_a_matrix_product_internally_are_found() -> None:
    """GIVEN a `cdist` that contains `mm`, and a convolution that contains a dilated convolution THEN `cdist` and the outer
    convolution also call cuBLAS."""
    product = Op("aten::mm", 30, 10, kernel=(40, 5))
    distance = Op("aten::cdist", 10, 50, children=[Op("aten::_euclidean_dist", 20, 30, children=[product])])
    product_in_cpp = Op("aten::slow_conv_dilated3d", 72, 10, kernel=(75, 5))
    convolution = Op("aten::convolution", 70, 20, children=[product_in_cpp])
    trace = make_recording([("forward", 0, 100)], [distance, convolution, Op("aten::add", 92, 5, kernel=(94, 5))])
    assert ops_with_products(trace) == OPS_WITH_PRODUCTS | {"aten::cdist", "aten::convolution"}
