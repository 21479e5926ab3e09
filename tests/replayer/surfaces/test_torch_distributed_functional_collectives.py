# mypy: allow-untyped-calls
"""Tests functional collectives, DTensor and tensor parallelism."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from replayer.state import gpu
from tests.replayer.ranks import run_ranks
from traces.model.trace import Trace

OPS = torch.ops._c10d_functional
LATE_NS = 60_000_000_000


def numbers(rank: int) -> torch.Tensor:
    # The values of small integer tensors are sent to other ranks.
    return torch.tensor([10 * rank + i for i in range(4)], device="cuda")


def calls(trace: Trace) -> Counter[str]:
    return Counter(trace.strings[name] for name in trace.collectives.name.tolist())


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_each_functional_collective_returns_the_values_of_all_ranks(backend: str) -> None:
    def body(rank: int) -> None:
        world: Any = dist.group.WORLD
        own = numbers(rank)
        assert funcol.all_reduce(own, "sum", world).tolist() == [10, 12, 14, 16]
        assert own.tolist() == numbers(rank).tolist()  # the input has not changed
        assert funcol.all_reduce(own, "max", world).tolist() == [10, 11, 12, 13]
        assert funcol.all_gather_tensor(own, 0, world).tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
        assert funcol.reduce_scatter_tensor(own, "sum", 0, world).tolist() == [[10, 12], [14, 16]][rank]
        assert funcol.broadcast(own, 1, world).tolist() == [10, 11, 12, 13]
        assert funcol.all_to_all_single(own, None, None, world).tolist() == [[0, 1, 10, 11], [2, 3, 12, 13]][rank]
        uneven = funcol.all_to_all_single(own, [[3, 3], [1, 1]][rank], [3, 1], world)
        assert uneven.tolist() == [[0, 1, 2, 10, 11, 12], [3, 13]][rank]
        several = funcol.all_reduce_coalesced([numbers(rank), numbers(1)], "sum", world)
        assert [one.tolist() for one in several] == [[10, 12, 14, 16], [20, 22, 24, 26]]
        several = funcol.all_gather_into_tensor_coalesced([numbers(rank), numbers(2)], world)
        assert several[1].tolist() == [20, 21, 22, 23] * 2
        parts = funcol.reduce_scatter_tensor_coalesced([numbers(rank), numbers(1)], "sum", [0, 0], world)
        assert parts[1].tolist() == [[20, 22], [24, 26]][rank]

    traces = run_ranks(2, body, backend=backend)
    # THEN NCCL runs each of the coalesced calls in one kernel
    assert backend == "gloo" or calls(traces[0]) == {
        "all_reduce": 3, "all_gather_into_tensor": 2, "reduce_scatter_tensor": 2, "broadcast": 1, "all_to_all_single": 2
    }  # fmt: skip


def test_a_functional_collective_overlaps_with_compute_until_it_is_waited_for() -> None:
    def body(rank: int) -> None:
        name = dist.group.WORLD.group_name  # type: ignore[union-attr]
        large, a = torch.empty(1_000_000, device="cuda"), torch.empty(64, 64, device="cuda")
        for _ in range(2):  # only in the first iteration does the host infer the results
            begun = OPS.all_reduce(large, "sum", name)
            for _ in range(3):
                a = a @ a
            assert OPS.wait_tensor(begun) is begun
            begun.add_(1)
            torch.cuda.synchronize()

    for trace in run_ranks(2, body):
        names = [trace.strings[name] for name in trace.device.name.tolist()]
        reduced, added = (max(i for i, name in enumerate(names) if kind in name) for kind in ("AllReduce", "add_"))
        products = [i for i, name in enumerate(names) if "mm" in name][3:]
        assert len(products) == 3
        assert trace.device.start_ns[products].min() < trace.device.end_ns[reduced] <= trace.device.start_ns[added]
        assert trace.device.stream[reduced] not in trace.device.stream[[*products, added]]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


def test_tensor_parallel_layers_keep_shards_and_all_reduce_their_outputs() -> None:
    """The two layers are split by columns and by rows. The forward pass all-reduces the output, and the backward pass the
    gradient of the input."""

    def body(rank: int) -> None:
        mesh = init_device_mesh("cuda", (2,))
        net: Any = parallelize_module(Mlp().cuda(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        assert isinstance(net.up.weight, DTensor)
        assert [net.up.weight.to_local().shape, net.down.weight.to_local().shape] == [(8, 8), (8, 8)]
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        x = torch.randn(3, 8, device="cuda", requires_grad=True)
        for _ in range(2):
            loss = net(x).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        gradient: Any = net.up.weight.grad
        assert gradient.shape == (16, 8) and gradient.to_local().shape == (8, 8)

    for trace in run_ranks(2, body):
        sizes = [
            int(size)
            for name, size in zip(trace.collectives.name.tolist(), trace.collectives.bytes.tolist(), strict=True)
            if trace.strings[name] == "all_reduce"
        ]
        assert sizes.count(4 * 3 * 8) == 4  # each of two steps reduces the output and the gradient of the input


def test_dtensors_can_be_sharded_and_replicated_again() -> None:
    def body(rank: int) -> None:
        mesh = init_device_mesh("cuda", (2,))
        sharded = distribute_tensor(torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda"), mesh, [Shard(0)])
        assert sharded.to_local().tolist() == [[[1.0, 2.0]], [[3.0, 4.0]]][rank]
        assert sharded.full_tensor().tolist() == [[1.0, 2.0], [3.0, 4.0]]
        whole = sharded.redistribute(placements=[Replicate()])
        assert whole.to_local().tolist() == [[1.0, 2.0], [3.0, 4.0]]

    assert calls(run_ranks(2, body)[1])["all_gather_into_tensor"] == 2


def test_a_functional_send_reaches_the_matching_receive() -> None:
    if not hasattr(OPS, "isend"):
        pytest.skip("before torch 2.13 there was none")

    def body(rank: int) -> None:
        group = dist.group.WORLD.group_name  # type: ignore[union-attr]
        value = torch.tensor([rank + 5.0], device="cuda")
        moved = OPS.isend(value, 1, 0, group) if rank == 0 else OPS.irecv(value, 0, 0, group)
        OPS.wait_tensor(moved)
        assert moved.tolist() == [5.0]

    run_ranks(2, body)


def test_a_dtensor_can_be_resharded_along_a_different_dimension() -> None:
    """GIVEN a 2 x 2 matrix with one row per rank WHEN it is sharded by columns THEN each rank has one column."""

    def body(rank: int) -> None:
        mesh = init_device_mesh("cuda", (2,))
        rows = distribute_tensor(torch.tensor([[0.0, 1.0], [2.0, 3.0]], device="cuda"), mesh, [Shard(0)])
        assert rows.redistribute(placements=[Shard(1)]).to_local().tolist() == [[[0.0], [2.0]], [[1.0], [3.0]]][rank]

    run_ranks(2, body)


def test_functional_collectives_of_cpu_tensors_wait_for_all_ranks_and_give_their_values() -> None:
    def body(rank: int) -> None:
        world: Any = dist.group.WORLD
        own = torch.arange(4.0) + 10 * rank
        began_ns = gpu().streams.host_now_ns()
        if rank:
            gpu().simulator.scheduler.block(gpu().current.thread(), began_ns + LATE_NS)
        total = funcol.all_reduce(own, "sum", world)
        assert rank or gpu().streams.host_now_ns() - began_ns < LATE_NS // 2
        assert total.tolist() == [10, 12, 14, 16]  # the first use of the result waits for it
        assert gpu().streams.host_now_ns() - began_ns > LATE_NS // 2
        assert OPS.wait_tensor(OPS.all_reduce(own, "max", world.group_name)[1:]).tolist() == [11, 12, 13]
        with pytest.raises(RuntimeError, match=r"called all_reduce of 4 float32 elements \((MAX|SUM)\): all ranks must pass"):
            funcol.all_reduce(own, "max" if rank else "sum", world).tolist()

    run_ranks(2, body, backend="gloo")
