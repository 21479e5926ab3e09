# mypy: allow-untyped-calls
"""Tests collectives in CUDA graphs. tests/e2e/scripts/rank_programs.py checks their values."""

from __future__ import annotations

import os
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from replayer import state
from replayer.timing.clock import RecordedClock, VirtualClock
from tests.replayer.ranks import run_ranks

LATE_NS = 50_000_000


def captured(rank: int, *, count: int = 4, on_side_stream: bool = False, joined: bool = True) -> torch.cuda.CUDAGraph:
    """Return a graph that contains one all-reduce."""
    graph = torch.cuda.CUDAGraph()
    value = torch.zeros(count, device="cuda")
    dist.all_reduce(value)  # this call synchronizes the ranks
    with torch.cuda.graph(graph):
        stream: torch.cuda.Stream = torch.cuda.Stream() if on_side_stream else torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work = dist.all_reduce(value, async_op=True)
            if joined:
                work.wait()
        torch.cuda.current_stream().wait_stream(stream)
    return graph


@pytest.mark.parametrize("on_side_stream", [False, True])
def test_a_graph_replay_waits_on_the_device_for_the_slowest_rank(on_side_stream: bool) -> None:
    """GIVEN rank 1 is 50 ms late at the first of two replays THEN rank 0's stream is ready 50 ms later."""

    def body(rank: int) -> None:
        graph = captured(rank, on_side_stream=on_side_stream)
        gpu = state.gpu()
        stream = gpu.current.stream(rank)
        before_ns = gpu.streams.host_now_ns()
        if rank == 1:
            stream.push(before_ns, 0, 0, LATE_NS)
        graph.replay()
        after_ns = stream.ready_ns
        assert LATE_NS <= after_ns - before_ns < 2 * LATE_NS
        assert gpu.streams.host_now_ns() - before_ns < LATE_NS  # the host launches the graph and does not wait
        graph.replay()
        assert stream.ready_ns - after_ns < LATE_NS / 2

    first, second = run_ranks(2, body, clock=RecordedClock)
    for trace in (first, second):
        assert [trace.strings[name] for name in trace.collectives.name.tolist()] == ["all_reduce"] * 3


@pytest.mark.parametrize("advances", [True, False])
def test_a_late_graph_replay_on_one_rank_delays_the_others_without_a_timeout(advances: bool) -> None:
    """GIVEN a rank that replays its graph later than the timeout THEN the other rank waits. NCCL's watchdog ignores captured
    collectives."""

    def body(rank: int) -> None:
        graph, clock = captured(rank), state.gpu().clock
        begin_ns = clock.now_ns()
        if rank == 1:
            clock.wait_until(begin_ns + 100 * 10**9)
        graph.replay()
        torch.cuda.synchronize()
        assert clock.now_ns() - begin_ns == pytest.approx(100 * 10**9, rel=0.01)

    run_ranks(2, body, clock=VirtualClock if advances else RecordedClock, timeout_s=10.0)


def test_capturing_a_collective_sends_nothing_to_other_ranks() -> None:
    def body(rank: int) -> None:
        dist.all_reduce(torch.zeros(4, device="cuda"))
        if rank == 0:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                dist.all_reduce(torch.zeros(8, device="cuda"))
        dist.all_reduce(torch.zeros(2, device="cuda"))

    run_ranks(2, body)


def test_ranks_that_replay_different_graphs_are_named_in_the_error() -> None:
    def body(rank: int) -> None:
        graph = captured(rank, count=4)
        other = captured(rank, count=6)
        found = rf"rank {1 - rank} of the group called all_reduce of {4 if rank else 6} float32 elements \(SUM\), but"
        with pytest.raises(RuntimeError, match=found):
            (other if rank else graph).replay()

    run_ranks(2, body)


def test_a_capture_fails_if_a_collective_is_not_waited_for() -> None:
    def body(rank: int) -> None:
        with pytest.raises(RuntimeError, match="capturing stream has unjoined work"):
            captured(rank, joined=False)

    run_ranks(2, body)


def test_with_blocking_waits_only_synchronous_collectives_can_be_captured() -> None:
    """With TORCH_NCCL_BLOCKING_WAIT=1, `wait` blocks the host. PyTorch does not wait for collectives with `async_op=False`."""

    def body(rank: int) -> None:
        value = torch.zeros(4, device="cuda")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            dist.all_reduce(value)
        with pytest.raises(RuntimeError, match="captur"):
            captured(rank)

    with mock.patch.dict(os.environ, {"TORCH_NCCL_BLOCKING_WAIT": "1"}):
        run_ranks(2, body)


def test_a_barrier_on_the_host_breaks_a_graph_capture() -> None:
    def body(rank: int) -> None:
        with (
            pytest.raises(RuntimeError, match="previous error during capture"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
            pytest.raises(RuntimeError, match="not permitted when stream is capturing"),
        ):
            dist.barrier()

    run_ranks(1, body)
