"""Tests which memory blocks a compiled graph gets if the recording has no memory events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from replayer.compiled.planned_memory import planned_requests
from replayer.memory.region_memory import BlockRequest

SIZE = 64 * 64 * 4


def traced(function: Callable[..., Any], inputs: int, mode: Literal["fake", "symbolic"] = "fake") -> Any:
    return make_fx(function, tracing_mode=mode)(*(torch.empty(64, 64, device="meta") for _ in range(inputs)))


def test_fused_kernels_reuse_the_memory_of_freed_tensors() -> None:
    """GIVEN a fused kernel of relu and mul between two products THEN its result reuses the block of the first product. The
    result of relu has no block. Each argument is freed after the last kernel that reads it."""
    graph = traced(lambda x, w: torch.mm(torch.relu(torch.mm(x, w)) * 2, w), 2)
    assert planned_requests(graph, ops=3) == (
        BlockRequest(SIZE, 0, False, 0),
        BlockRequest(-SIZE, None, False, 0),  # x is freed
        BlockRequest(SIZE, 1, True, 2),
        BlockRequest(-SIZE, None, False, 2),  # w is freed
        BlockRequest(-SIZE, 0, False, 2),
    )


def test_a_value_saved_for_backward_keeps_its_memory_block() -> None:
    """GIVEN a product that the graph also returns THEN the fused kernel gets another block. A view gets no block."""
    graph = traced(lambda x, w: ((y := torch.mm(x, w)).t(), torch.relu(y)), 2)
    assert planned_requests(graph, ops=2) == (
        BlockRequest(SIZE, 0, True, 0),
        BlockRequest(-SIZE, None, False, 0),
        BlockRequest(-SIZE, None, False, 0),
        BlockRequest(SIZE, 1, True, 1),
    )


def test_a_value_that_a_later_kernel_reads_has_a_memory_block() -> None:
    """In this residual connection, both the product and the kernel after it read x + 1."""
    graph = traced(lambda x, w: (y := x + 1) + torch.mm(y, w), 2)
    assert [(one.size_bytes // SIZE, one.block) for one in planned_requests(graph, ops=3) or ()] == [
        (1, 0), (-1, None), (1, 1), (-1, None), (-1, 1),
    ]  # fmt: skip


def test_compiled_code_with_symbolic_shapes_gets_no_memory_plan() -> None:
    assert planned_requests(traced(lambda x, w: torch.mm(x, w), 2, "symbolic"), ops=1) is None
