# mypy: allow-untyped-calls
"""Tests which allocations use a torch.cuda.MemPool, and when the memory of a pool returns to the device. Each test runs in a
fork of an interpreter that has imported torch (warm.py)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from replayer.errors import NotEmulated
from tests.replayer.surfaces.test_torch_cuda_graphs import start

MIB = 1 << 20
memory: Any = torch.cuda.memory


def three_mib() -> torch.Tensor:
    return torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")


def reserved_mib() -> int:
    return torch.cuda.memory_reserved() // MIB


def test_a_memory_pool_has_separate_segments_until_it_is_deleted() -> None:
    """PyTorch's allocator requests a segment of 20 MiB for a tensor of 3 MiB."""
    start()
    pool = memory.MemPool()
    assert pool.use_count() == 1
    with memory.use_mem_pool(pool):
        assert pool.use_count() == 2
        inside = three_mib()
    assert [(one["segment_pool_id"], one["total_size"]) for one in pool.snapshot()] == [(pool.id, 20 * MIB)]
    del inside
    torch.cuda.empty_cache()
    assert reserved_mib() == 20  # a pool keeps its memory until it is deleted
    outside = three_mib()
    assert reserved_mib() == 40 and len(pool.snapshot()) == 1
    with memory.use_mem_pool(pool):
        again = three_mib()
    assert reserved_mib() == 40
    del again, pool
    assert reserved_mib() == 20 and outside.numel() == 3 * MIB


def test_only_the_thread_that_uses_a_pool_allocates_from_it() -> None:
    """On a GPU, autograd's threads run the backward pass, so gradients are not allocated from the pool."""
    start()
    pool = memory.MemPool()
    weight = torch.ones(MIB, device="cuda", requires_grad=True)
    with memory.use_mem_pool(pool):
        thread = threading.Thread(target=lambda: memory.memory_snapshot() and three_mib())
        thread.start()
        thread.join()
        assert not pool.snapshot()
        (weight * 2).sum().backward()
    assert weight.grad is not None
    addresses = [range(one["address"], one["address"] + one["total_size"]) for one in pool.snapshot()]
    assert addresses and not any(weight.grad.data_ptr() in segment for segment in addresses)


def test_a_graph_keeps_the_pool_that_its_capture_used() -> None:
    start()
    graph, pool = torch.cuda.CUDAGraph(), memory.MemPool()
    with torch.cuda.graph(graph, pool=pool.id):
        three_mib().fill_(1)
    used = pool.id
    assert [one["segment_pool_id"] for one in pool.snapshot()] == [used]
    del pool
    assert len(memory.memory_snapshot(used)) == 1
    graph.reset()
    torch.cuda.empty_cache()
    assert memory.memory_snapshot(used) == []


def test_misuse_of_memory_pools_raises_the_errors_of_torch() -> None:
    start()
    pool = memory.MemPool()
    with memory.use_mem_pool(pool), pytest.raises(RuntimeError, match="already recording to mempool_id"):
        memory.use_mem_pool(pool).__enter__()
    with pytest.raises(NotEmulated, match="no_split"):
        memory.MemPool(no_split=True)
