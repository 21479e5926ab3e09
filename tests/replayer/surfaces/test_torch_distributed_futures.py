"""Tests when the values of a collective's future are ready on the host and on the stream."""

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
    """Start an all-reduce of 1 and 2. The data of the second rank is ready 50 ms late."""
    dist.all_reduce(torch.empty(8, device="cuda"))  # this call synchronizes the ranks
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
        assert state.gpu().clock.now_ns() - before_ns > LATE_NS / 2  # `tolist` has waited for the transfer

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
    """GIVEN a rank whose backward pass ends 50 ms late THEN the stream of the other rank waits in every step."""

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


def test_a_script_completes_its_own_future_with_a_tensor_on_a_gpu() -> None:
    """GIVEN a future that is completed on a busy stream THEN the streams of callbacks and of `wait` wait for the busy stream.
    This also holds for callbacks that are added later."""

    def body(rank: int) -> None:
        future: Any = torch.futures.Future(devices=[torch.device("cuda", rank)])
        early = future.then(lambda done: done.value() + 1)
        gpu = state.gpu()
        side: Any = torch.cuda.Stream
        with torch.cuda.stream(side()):
            gpu.current.stream(rank).push(gpu.streams.host_now_ns(), 0, 0, LATE_NS)
            future.set_result(torch.full((4,), 2.0, device="cuda"))
        assert future.done() and ready_in_ns(rank) < LATE_NS / 2
        late = future.then(lambda done: done.value() * 5)
        assert future.wait() is not None and ready_in_ns(rank) > 0.9 * LATE_NS  # the stream waits, but the host does not
        assert future.value().tolist() == [2.0] * 4
        assert early.wait().tolist() == [3.0] * 4 and late.wait().tolist() == [10.0] * 4
        failed: Any = torch.futures.Future(devices=["cuda:0"])
        chained = failed.then(lambda done: done.value())
        failed.set_exception(ValueError("no result"))
        with pytest.raises(ValueError, match="no result"):
            chained.wait()
        on_host: Any = torch.futures.Future()
        on_host.set_result(7)
        assert on_host.wait() == 7 and on_host.then(lambda done: done.value() + 1).wait() == 8

    run_ranks(2, body, clock=RecordedClock)


def test_a_communication_hook_may_return_a_future_that_it_created() -> None:
    """GIVEN a hook that reduces the gradients and returns a completed future THEN the gradients are the mean of all ranks."""

    def hook(_state: object, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its own types
        buffer = bucket.buffer()
        own = torch.empty(buffer.numel() // 2, device=buffer.device)
        whole = torch.empty_like(buffer)
        dist.reduce_scatter_tensor(own, buffer)
        dist.all_gather_into_tensor(whole, own)
        future: Any = torch.futures.Future(devices=[buffer.device])
        future.set_result(whole / 2)
        return future

    def body(rank: int) -> None:
        torch.manual_seed(0)
        model: Any = DistributedDataParallel(nn.Linear(4, 2, bias=False).cuda(), device_ids=[rank])
        model.register_comm_hook(None, hook)
        model(torch.full((1, 4), rank + 1.0, device="cuda")).sum().backward()
        assert model.module.weight.grad.tolist() == [[1.5] * 4] * 2

    run_ranks(2, body, clock=RecordedClock)
