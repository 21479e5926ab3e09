"""Futures of collectives: when their values are ready on the host and on the stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from replayer import state
from replayer.timing.clock import RecordedClock
from tests.replayer.ranks import run_ranks

LATE_NS = 50_000_000


def begun(rank: int) -> Any:
    """An all-reduce of 1 and 2 for which the second rank's data is ready 50 ms late."""
    dist.all_reduce(torch.empty(8, device="cuda"))  # both are here: times count from here
    gpu = state.gpu()
    if rank == 1:
        gpu.current.stream(rank).push(gpu.streams.host_now_ns(), 0, 0, LATE_NS)
    return dist.all_reduce(torch.full((4,), rank + 1.0, device="cuda"), async_op=True)


def ready_in_ns(rank: int) -> int:
    return state.gpu().current.stream(rank).ready_ns - state.gpu().clock.now_ns()


def test_waiting_for_the_future_of_a_collective_delays_the_stream_but_not_the_host() -> None:
    def body(rank: int) -> None:
        future = begun(rank).get_future()
        assert future.done()
        if rank == 0:
            assert ready_in_ns(rank) < LATE_NS / 2
        before_ns = state.gpu().clock.now_ns()
        assert future.wait()[0].tolist() == [3.0] * 4
        assert state.gpu().clock.now_ns() - before_ns > LATE_NS / 2  # `tolist` waits for the transfer

    run_ranks(2, body, clock=RecordedClock)


def test_future_callbacks_run_after_the_transfer_on_separate_streams() -> None:
    def body(rank: int) -> None:
        own = torch.cuda.current_stream()
        streams = []

        def double(done: Any) -> torch.Tensor:
            streams.append(torch.cuda.current_stream())
            assert rank == 1 or ready_in_ns(rank) > 0.9 * LATE_NS
            return done.value()[0] * 2  # type: ignore[no-any-return]

        chained = begun(rank).get_future().then(double).then(lambda done: done.value() + 1)
        assert streams[0] != own and torch.cuda.current_stream() == own
        if rank == 0:
            assert ready_in_ns(rank) < LATE_NS / 2  # the current stream does not wait yet
        value = chained.wait()
        assert rank == 1 or ready_in_ns(rank) > 0.9 * LATE_NS
        assert value.tolist() == [7.0] * 4

    run_ranks(2, body, clock=RecordedClock)


def test_the_error_of_a_future_callback_is_raised_when_the_future_is_waited_for() -> None:
    def body(rank: int) -> None:
        failed = begun(rank).get_future().then(lambda done: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            failed.wait()

    run_ranks(2, body, clock=RecordedClock)


def test_wait_all_of_several_futures_delays_the_stream() -> None:
    def body(rank: int) -> None:
        torch.futures.wait_all([begun(rank).get_future()])
        assert rank == 1 or ready_in_ns(rank) > 0.9 * LATE_NS

    run_ranks(2, body, clock=RecordedClock)


@pytest.mark.parametrize("static_graph", [False, True])
@pytest.mark.parametrize("hook", ["", "fp16_compress_hook"])
def test_the_optimizer_waits_for_the_gradients_with_every_communication_hook(static_graph: bool, hook: str) -> None:
    """GIVEN a rank whose backward pass ends 50 ms late THEN the other rank's stream waits, in the first step and later."""

    def body(rank: int) -> None:
        model = DistributedDataParallel(nn.Linear(8, 8).cuda(rank), device_ids=[rank], static_graph=static_graph)
        if hook:
            model.register_comm_hook(None, getattr(default_hooks, hook))
        gpu = state.gpu()
        for _ in range(2):
            dist.all_reduce(torch.empty(8, device="cuda"))
            torch.cuda.synchronize()
            loss = model(torch.ones(2, 8, device="cuda")).sum()
            if rank == 1:
                gpu.current.stream(rank).push(gpu.streams.host_now_ns(), 0, 0, LATE_NS)
            loss.backward()
            assert ready_in_ns(rank) > 0.8 * LATE_NS

    run_ranks(2, body, clock=RecordedClock)
