"""Tests which memory blocks a compiled graph gets if the recording has no memory events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from replayer.compiled.planned_memory import planned_requests
from replayer.memory.region_memory import BlockRequest

SIZE = 64 * 64 * 4


def traced(function: Callable[..., Any], inputs: int, mode: Literal["fake", "symbolic"] = "fake", *first: int) -> Any:
    return make_fx(function, tracing_mode=mode)(*first, *(torch.empty(64, 64, device="meta") for _ in range(inputs)))


def test_fused_kernels_reuse_the_memory_of_freed_tensors() -> None:
    """GIVEN a fused kernel of relu and mul between two products THEN its result reuses the block of the first product. The
    result of relu has no block. Each argument is freed after the last kernel that reads it."""
    graph = traced(lambda x, w: torch.mm(torch.relu(torch.mm(x, w)) * 2, w), 2)
    assert planned_requests(graph, ops=3, sizes=()) == (
        BlockRequest(SIZE, 0, False, 0),
        BlockRequest(-SIZE, None, False, 0),  # x is freed
        BlockRequest(SIZE, 1, True, 2),
        BlockRequest(-SIZE, None, False, 2),  # w is freed
        BlockRequest(-SIZE, 0, False, 2),
    )


def test_a_value_saved_for_backward_keeps_its_memory_block() -> None:
    """GIVEN a product that the graph also returns THEN the fused kernel gets another block. A view gets no block."""
    graph = traced(lambda x, w: ((y := torch.mm(x, w)).t(), torch.relu(y)), 2)
    assert planned_requests(graph, ops=2, sizes=()) == (
        BlockRequest(SIZE, 0, True, 0),
        BlockRequest(-SIZE, None, False, 0),
        BlockRequest(-SIZE, None, False, 0),
        BlockRequest(SIZE, 1, True, 1),
    )


def test_a_value_that_a_later_kernel_reads_has_a_memory_block() -> None:
    """In this residual connection, both the product and the kernel after it read x + 1."""
    graph = traced(lambda x, w: (y := x + 1) + torch.mm(y, w), 2)
    assert [(one.size_bytes // SIZE, one.block) for one in planned_requests(graph, ops=3, sizes=()) or ()] == [
        (1, 0), (-1, None), (1, 1), (-1, None), (-1, 1),
    ]  # fmt: skip


def test_a_graph_with_symbolic_sizes_gets_the_memory_blocks_of_each_call() -> None:
    """GIVEN a graph that takes its sizes as arguments and was traced with 48 rows WHEN a call has 32 or 16 rows THEN the memory
    block of the result has 32 or 16 rows."""
    graph = traced(lambda rows, _width, x, w: torch.mm(x[:rows], w), 2, "symbolic", 48, 64)
    for sizes, rows in (((32, 64), 32), ((16, 64), 16), ((), 48)):
        made = planned_requests(graph, ops=1, sizes=sizes) or ()
        assert [one.size_bytes for one in made if one.size_bytes > 0] == [rows * 64 * 4]


def test_a_graph_with_sizes_that_depend_on_values_gets_no_memory_plan() -> None:
    graph = traced(lambda x, w: torch.mm(x[torch.nonzero(w[0])[:, 0]], w), 2, "symbolic")
    assert planned_requests(graph, ops=1, sizes=()) is None
