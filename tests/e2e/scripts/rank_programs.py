"""Contains programs for several ranks. They run natively (gloo, CPU) and on virtual GPUs, and their results must be equal.

    python rank_programs.py gloo 4 results/native [NAME...]    # forks four ranks, and writes one file of results per rank
    trace replay --nproc 4 --values compute ... rank_programs.py nccl 4 results/virtual

A program is a function of a `Place` and returns tensors and objects. Inputs are a function of the rank (`numbers`), so an
operation that gloo does not have is calculated from the inputs of all ranks.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives, checkpoint, optim
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook, quantization_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

# torch declares no types for these modules.
funcol: Any = _functional_collectives
c10d: Any = dist.distributed_c10d
post_local: Any = post_localSGD_hook
dcp: Any = checkpoint
distributed_optim: Any = optim
quantization: Any = quantization_hooks


@dataclass(frozen=True)
class Place:
    rank: int
    size: int
    device: torch.device
    native: bool

    @property
    def right(self) -> int:
        return (self.rank + 1) % self.size

    @property
    def left(self) -> int:
        return (self.rank - 1) % self.size

    def on(self, *tensors: torch.Tensor) -> Any:
        moved = [tensor.to(self.device) for tensor in tensors]
        return moved if len(moved) > 1 else moved[0]

    def own(self, *shape: int, seed: int = 0) -> torch.Tensor:
        return numbers(self.rank, *shape, seed=seed).to(self.device)

    def zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=self.device)

    def all_ranks(self, *shape: int, seed: int = 0) -> list[Any]:
        return [numbers(rank, *shape, seed=seed) for rank in range(self.size)]


Program = Callable[[Place], Any]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def numbers(rank: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Return small whole numbers. Their sums are exact in any order."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randint(-8, 9, shape, generator=generator).float()


# -- collectives -------------------------------------------------------------------------------------------------------


@program
def all_reduce(at: Place) -> Any:
    results = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8):
            value = (at.own(3, 5).abs() % 4).to(dtype)
            dist.all_reduce(value, op)
            results.append(value)
    return results


@program
def average(at: Place) -> Any:
    if at.native:
        return sum(at.all_ranks(7)) / at.size
    value = at.own(7)
    dist.all_reduce(value, dist.ReduceOp.AVG)
    return value


@program
def premultiplied_sum(at: Place) -> Any:
    if at.native:
        return sum(at.all_ranks(7)) * 0.5, sum(at.all_ranks(2 * at.size))[2 * at.rank : 2 * at.rank + 2] * 0.25
    value, part = at.own(7), at.zeros(2)
    dist.all_reduce(value, torch._C._distributed_c10d._make_nccl_premul_sum(0.5))
    factor = torch._C._distributed_c10d._make_nccl_premul_sum(0.25)
    dist.reduce_scatter_tensor(part, at.own(2 * at.size), factor)
    return value, part


@program
def complex_numbers(at: Place) -> Any:
    value = torch.complex(at.own(4), at.own(4, seed=1))
    dist.all_reduce(value)
    return torch.view_as_real(value)


@program
def all_reduce_of_bools(at: Place) -> Any:
    if at.native:
        return torch.stack(at.all_ranks(9)).gt(2).any(0)
    value = at.own(9) > 2
    dist.all_reduce(value)
    return value


@program
def broadcast(at: Place) -> Any:
    results = []
    for source in range(at.size):
        value = at.own(2, 3)
        dist.broadcast(value, source)
        results.append(value)
    return results


@program
def reduce(at: Place) -> Any:
    value = at.own(4)
    dist.reduce(value, dst=1)
    return value if at.rank == 1 else None


@program
def gathers(at: Place) -> Any:
    parts = [at.zeros(3) for _ in range(at.size)]
    dist.all_gather(parts, at.own(3))
    whole = at.zeros(at.size * 3)
    dist.all_gather_into_tensor(whole, at.own(3))
    stacked = torch.stack(parts)
    if not at.native:
        dist.all_gather_into_tensor(stacked.zero_(), at.own(3))
    onto = [at.zeros(3) for _ in range(at.size)] if at.rank == 0 else None
    dist.gather(at.own(3), onto, dst=0)
    return parts, whole, stacked, onto


@program
def uneven_all_gather(at: Place) -> Any:
    if at.native:
        return [numbers(rank, rank + 1) for rank in range(at.size)]
    parts = [at.zeros(rank + 1) for rank in range(at.size)]
    dist.all_gather(parts, at.own(at.rank + 1))
    return parts


@program
def scatters(at: Place) -> Any:
    part = at.zeros(2)
    given = [numbers(rank, 2, seed=3).to(at.device) for rank in range(at.size)] if at.rank == 1 else None
    dist.scatter(part, given, src=1)
    return part


@program
def reduce_scatters(at: Place) -> Any:
    total = sum(at.all_ranks(2 * at.size))
    if at.native:
        own = total[2 * at.rank : 2 * at.rank + 2]
        return own, own, own / at.size
    listed, single, mean = at.zeros(2), at.zeros(2), at.zeros(2)
    dist.reduce_scatter(listed, list(at.own(2 * at.size).chunk(at.size)))
    dist.reduce_scatter_tensor(single, at.own(2 * at.size))
    dist.reduce_scatter_tensor(mean, at.own(2 * at.size), dist.ReduceOp.AVG)
    return listed, single, mean


@program
def uneven_reduce_scatter(at: Place) -> Any:
    """NCCL accepts parts of different sizes, and gloo does not."""
    sizes = list(range(at.size))
    if at.native:
        return torch.split(torch.stack(at.all_ranks(sum(sizes))).sum(0), sizes)[at.rank]
    part = at.zeros(at.rank)
    dist.reduce_scatter(part, list(torch.split(at.own(sum(sizes)), sizes)))
    return part


@program
def all_to_alls(at: Place) -> Any:
    swapped = at.zeros(at.size, 2)
    dist.all_to_all_single(swapped, at.own(at.size, 2))
    sent = [(at.rank + other) % 3 for other in range(at.size)]
    received = [(other + at.rank) % 3 for other in range(at.size)]
    uneven = at.zeros(sum(received), 2)
    dist.all_to_all_single(uneven, at.own(sum(sent), 2, seed=1), received, sent)
    if at.native:
        listed = [rows[at.rank] for rows in at.all_ranks(at.size, 2, seed=2)]
    else:
        listed = [at.zeros(2) for _ in range(at.size)]
        dist.all_to_all(listed, list(at.own(at.size, 2, seed=2)))
    return swapped, uneven, listed


@program
def point_to_point(at: Place) -> Any:
    came, back = at.zeros(3), at.zeros(3)
    if at.rank == 0:
        dist.send(at.own(3), 1)
        dist.recv(back, 1)
    elif at.rank == 1:
        dist.recv(came, 0)
        dist.send(came * 2, 0)
    around = at.zeros(3)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, at.own(3), at.right), dist.P2POp(dist.irecv, around, at.left)])
    for work in works:
        work.wait()
    sent, first, second = at.own(2, seed=4), at.zeros(2), at.zeros(2)
    if at.rank == 0:
        for sending in [dist.isend(sent, 1), dist.isend(sent + 1, 1)]:
            sending.wait()  # type: ignore[union-attr]
    elif at.rank == 1:
        for receiving in [dist.irecv(first, 0), dist.irecv(second, 0)]:
            receiving.wait()  # type: ignore[union-attr]
    return came, back, around, first, second


@program
def asynchronous(at: Place) -> Any:
    """Start several collectives, do other work, and wait for the collectives in another order."""
    a, b, c = at.own(4), at.own(4, seed=1), at.zeros(4 * at.size)
    works = [dist.all_reduce(a, async_op=True), dist.broadcast(b, 1, async_op=True)]
    works.append(dist.all_gather_into_tensor(c, at.own(4, seed=2), async_op=True))
    between = at.own(4, seed=3) * 3
    for work in reversed(works):
        work.wait()
    kept = dist.all_reduce(between, async_op=True)
    kept.wait()
    return a + 1, b, c, between, kept.is_completed() or not at.native


@program
def started_before_the_previous_one_has_ended(at: Place) -> Any:
    """On a GPU, the collectives of a group run one after the other, even if the script does not wait for the first one. Gloo
    does not order them, so the results expected from gloo are calculated from the inputs of all ranks."""
    first, every = at.own(4), at.all_ranks(4)
    flat, gathered = at.own(4 * at.size, seed=1), [at.zeros(4) for _ in every]
    if at.native:
        summed = torch.stack(at.all_ranks(4 * at.size, seed=1)).sum(0).chunk(at.size)
        return torch.stack(every).sum(0) * at.size, torch.cat(summed), every[0] * 2
    dist.all_reduce(first, async_op=True)
    dist.all_reduce(first, async_op=True).wait()
    own = flat.chunk(at.size)[at.rank]
    dist.reduce_scatter_tensor(own, flat, async_op=True)
    dist.all_gather_into_tensor(flat, own, async_op=True).wait()
    root = at.own(4)
    dist.broadcast(root, 0, async_op=True)
    dist.all_gather(gathered, root, async_op=True).wait()
    return first, flat, gathered[-1] * 2


@program
def read_without_waiting(at: Place) -> Any:
    """Read results a long time after the collective, without `wait`."""
    summed, received, parts = at.own(4), at.own(4, seed=1), at.zeros(3, 2)
    dist.all_reduce(summed, async_op=True)
    dist.broadcast(received, 1, async_op=True)
    dist.all_reduce(parts[2], async_op=True)
    parts[0] += at.rank
    time.sleep(0.3)
    parts[2] += at.own(2)
    summed += 1
    return summed, received.tolist(), parts


@program
def polled(at: Place) -> Any:
    value = at.own(4)
    work: Any = dist.all_reduce(value, async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    work.wait()
    return value


@program
def futures(at: Place) -> Any:
    a, b = at.own(4), at.own(4, seed=1)
    first = dist.all_reduce(a, async_op=True).get_future()
    chained = first.then(lambda done: done.value()[0] * 2).then(lambda done: done.value() + 1)
    second = dist.all_reduce(b, async_op=True).get_future()
    together = torch.futures.wait_all([second])[0][0]
    collected = torch.futures.collect_all([chained]).wait()[0].value()
    nested = second.then(lambda done: dist.all_reduce(done.value()[0] * 3, async_op=True) and done.value()[0] - 1)
    failed = first.then(lambda done: 1 // 0)
    try:
        failed.wait()
        error = None
    except Exception as caught:
        error = "division" in str(caught)
    return first.wait()[0], chained.wait(), together, collected, nested.wait(), error


@program
def coalesced(at: Place) -> Any:
    a: Any
    a, b = at.own(3), at.own(2, 2, seed=1)
    if at.native:
        a, b = sum(at.all_ranks(3)), sum(at.all_ranks(2, 2, seed=1))
    else:
        with c10d._coalescing_manager(device=at.device):
            dist.all_reduce(a)
            dist.all_reduce(b)
    c, d = at.own(3, seed=2), at.own(5, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_reduce_coalesced([c, d])
    if at.native:
        gathered = [torch.cat(at.all_ranks(2, seed=4)), torch.cat(at.all_ranks(3, seed=5))]
    else:
        gathered = [at.zeros(2 * at.size), at.zeros(3 * at.size)]
        with c10d._coalescing_manager(device=at.device, async_ops=True) as manager:
            dist.all_gather_into_tensor(gathered[0], at.own(2, seed=4))
            dist.all_gather_into_tensor(gathered[1], at.own(3, seed=5))
        manager.wait()
    return a, b, c, d, gathered


@program
def objects(at: Place) -> Any:
    gathered: list[Any] = [None] * at.size
    dist.all_gather_object(gathered, {"rank": at.rank, "text": "x" * at.rank})
    found = [{"from": at.rank}, None]
    dist.broadcast_object_list(found, src=1)
    onto: list[Any] | None = [None] * at.size if at.rank == 0 else None
    dist.gather_object((at.rank, "é"), onto, dst=0)
    part: list[Any] = [None]
    dist.scatter_object_list(part, [[rank] * rank for rank in range(at.size)] if at.rank == 0 else None, src=0)
    sent: list[Any] = [None]
    if at.rank == 0:
        dist.send_object_list(["to", 1], 1)
    elif at.rank == 1:
        sent = [None, None]
        dist.recv_object_list(sent, 0)
    return gathered, found, onto, part, sent


@program
def nested_groups(at: Place) -> Any:
    results: list[Any] = []
    halves = [list(range(at.size // 2)), list(range(at.size // 2, at.size))]
    groups = [dist.new_group(half) for half in halves]
    mine = groups[at.rank >= at.size // 2]
    value = at.own(3)
    dist.all_reduce(value, group=mine)
    results.append(value.clone())
    dist.all_reduce(value)
    results.append(value.clone())
    dist.broadcast(value, group=mine, group_src=0)
    alone = dist.new_group([at.rank], use_local_synchronization=True)
    dist.all_reduce(value, group=alone)
    results += [value, dist.get_world_size(mine), dist.get_group_rank(mine, at.rank), dist.get_process_group_ranks(mine)]
    dist.destroy_process_group(alone)
    return results


@program
def barriers(at: Place) -> Any:
    dist.barrier()
    group = dist.new_group(backend="gloo")
    dist.monitored_barrier(group, timeout=timedelta(seconds=30))
    late = dist.barrier(async_op=True)
    late.wait()
    return True


@program
def asynchronous_in_every_combination(at: Place) -> Any:
    """Start each pair of collectives at the same time, and wait for them in both orders, by the work object and by its
    future."""

    def begin(kind: str, seed: int) -> tuple[Any, Any]:
        if kind == "all_reduce":
            value = at.own(3, seed=seed)
            return value, dist.all_reduce(value, async_op=True)
        if kind == "broadcast":
            value = at.own(3, seed=seed)
            return value, dist.broadcast(value, at.size - 1, async_op=True)
        if kind == "all_gather":
            value = at.zeros(3 * at.size)
            return value, dist.all_gather_into_tensor(value, at.own(3, seed=seed), async_op=True)
        if kind == "all_to_all":
            value = at.zeros(at.size)
            return value, dist.all_to_all_single(value, at.own(at.size, seed=seed), async_op=True)
        value = at.own(3, seed=seed)
        return value, dist.reduce(value, 0, async_op=True)

    kinds = ["all_reduce", "broadcast", "all_gather", "all_to_all", "reduce"]
    results = {}
    for number, (first, second) in enumerate((one, other) for one in kinds for other in kinds):
        a, work = begin(first, 2 * number)
        b, later = begin(second, 2 * number + 1)
        waits = [work.wait, later.get_future().wait] if number % 2 else [later.wait, work.get_future().wait]
        for wait in waits:
            wait()
        kept = {first: a, second: b} if first != second else {first: [a, b]}
        results[f"{first} and {second}"] = {kind: value for kind, value in kept.items() if kind != "reduce" or at.rank == 0}
    return results


@program
def two_groups_at_once(at: Place) -> Any:
    """Run collectives of two groups with the same ranks at the same time. All ranks start the collectives in the same order."""
    other = dist.new_group(list(range(at.size)))
    a, b, c = at.own(5), at.own(5, seed=1), at.own(5, seed=2)
    works = [dist.all_reduce(a, async_op=True), dist.all_reduce(b, group=other, async_op=True)]
    works.append(dist.broadcast(c, 0, group=other, async_op=True))
    for work in works:
        work.wait()
    return a + b, c


@program
def ring_of_sends(at: Place) -> Any:
    """Each rank passes its part around the ring. The ranks send tensors of several dtypes, sizes and tags at the same time."""
    results, part = [], at.own(4)
    for _ in range(at.size - 1):
        came = torch.empty_like(part)
        operations = [dist.P2POp(dist.isend, part, at.right), dist.P2POp(dist.irecv, came, at.left)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        results.append(came.clone())
        part = came + 1
    for dtype in (torch.float64, torch.int64, torch.uint8, torch.bool, torch.float16, torch.bfloat16):
        sent, came = at.own(6, seed=5).abs().to(dtype), torch.empty(6, dtype=dtype, device=at.device)
        operations = [dist.P2POp(dist.irecv, came, at.left), dist.P2POp(dist.isend, sent, at.right)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        results.append(came)
    return results


@program
def sent_to_every_rank(at: Place) -> Any:
    """Each rank exchanges tensors with all ranks in one batch, also with itself, which gloo cannot do."""
    sent = [at.own(3 + at.rank + 2 * to, seed=to) for to in range(at.size)]
    came = [at.zeros(3 + source + 2 * at.rank) for source in range(at.size)]
    if at.native:
        came[at.rank].copy_(sent[at.rank])
    others = [rank for rank in range(at.size) if rank != at.rank or not at.native]
    operations = [dist.P2POp(dist.irecv, came[rank], rank) for rank in others]
    operations += [dist.P2POp(dist.isend, sent[rank], rank) for rank in reversed(others)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return came


@program
def strided_tensors(at: Place) -> Any:
    """NCCL transfers the elements of a tensor in their order in memory. The expected result is computed here, because gloo
    rejects tensors that are not contiguous."""
    if at.native:
        return torch.arange(6.0).view(3, 2), torch.cat([torch.tensor([0.0, 2, 1, 3]) + 10 * rank for rank in range(at.size)])
    columns = at.on(torch.arange(6.0).view(2, 3)).t()
    received, gathered = at.zeros(3, 2), at.zeros(4 * at.size)
    calls = [dist.P2POp(dist.isend, columns, at.right), dist.P2POp(dist.irecv, received, at.left)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    image = torch.arange(4.0).view(1, 2, 1, 2) + 10 * at.rank
    dist.all_gather_into_tensor(gathered, at.on(image.contiguous(memory_format=torch.channels_last)))
    return received, gathered


@program
def received_from_any_place_of_a_group(at: Place) -> Any:
    """In a group of the odd ranks, ranks address each other by their rank in the group."""
    odd = dist.new_group(list(range(1, at.size, 2)))
    if at.rank % 2 == 0 or at.size < 4:
        return None
    came = at.zeros(2)
    place, count = dist.get_rank(odd), dist.get_world_size(odd)
    operations: list[Any] = [
        dist.P2POp(dist.isend, at.own(2), group=odd, group_peer=(place + 1) % count),
        dist.P2POp(dist.irecv, came, group=odd, group_peer=(place - 1) % count),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return came


@program
def empty_and_single_elements(at: Place) -> Any:
    empty, scalar = at.zeros(0), at.own(1)[0].clone()
    dist.all_reduce(empty)
    dist.all_reduce(scalar)
    parts = [at.zeros(0) for _ in range(at.size)]
    dist.all_gather(parts, at.zeros(0))
    return empty, scalar, parts


@program
def low_precision(at: Place) -> Any:
    results = []
    for dtype in (torch.float16, torch.bfloat16):
        value = at.own(9).to(dtype)
        dist.all_reduce(value)
        gathered = torch.empty(9 * at.size, dtype=dtype, device=at.device)
        dist.all_gather_into_tensor(gathered, at.own(9, seed=1).to(dtype))
        results += [value, gathered]
    return results


@program
def coalesced_reduce_scatter(at: Place) -> Any:
    if at.native:
        totals = [sum(at.all_ranks(2 * at.size)), sum(at.all_ranks(3 * at.size, seed=1))]
        return [total.chunk(at.size)[at.rank] for total in totals]
    parts = [at.zeros(2), at.zeros(3)]
    with c10d._coalescing_manager(device=at.device):
        dist.reduce_scatter_tensor(parts[0], at.own(2 * at.size))
        dist.reduce_scatter_tensor(parts[1], at.own(3 * at.size, seed=1))
    return parts


@program
def split_groups(at: Place) -> Any:
    """Gloo cannot split a group, so the native run makes new groups of the same ranks."""
    halves = [list(range(at.size // 2)), list(range(at.size // 2, at.size))]
    if at.native:
        group = [dist.new_group(half) for half in halves][at.rank >= at.size // 2]
    else:
        c10d._get_default_group().bound_device_id = at.device
        group = dist.split_group(split_ranks=halves)
        c10d._get_default_group().bound_device_id = None
    value = at.own(3)
    dist.all_reduce(value, group=group)
    return value, dist.get_group_rank(group, at.rank), dist.get_process_group_ranks(group)


@program
def captured_graphs(at: Place) -> Any:
    """Replays a CUDA graph with operations on two streams, with three different inputs."""

    def computed(x: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        dist.all_gather_into_tensor(gathered, y + at.rank)
        return y - 1

    inputs = [at.own(3, seed=seed) for seed in range(3)]
    x, gathered = at.zeros(3), at.zeros(3 * at.size)
    if at.native:
        return [[computed(value, gathered), gathered.clone()] for value in inputs]
    cuda: Any = torch.cuda
    graph, side = cuda.CUDAGraph(), cuda.Stream()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = computed(x, gathered)
        torch.cuda.current_stream().wait_stream(side)
    results = []
    for value in inputs:
        x.copy_(value)
        graph.replay()
        results.append([y.clone(), gathered.clone()])
    return results


# -- functional collectives and DTensor --------------------------------------------------------------------------------


@program
def functional(at: Place) -> Any:
    group: Any = dist.group.WORLD
    own = at.own(at.size, 2)
    results = [
        funcol.all_reduce(own, "sum", group) + 0,
        funcol.all_gather_tensor(own, 0, group) + 0,
        funcol.all_gather_tensor(own, 1, group) + 0,
        funcol.broadcast(own, 1, group) + 0,
        funcol.all_to_all_single(own, None, None, group) + 0,
    ]
    results += [one + 0 for one in funcol.all_reduce_coalesced([own, own * 2], "max", group)]
    results += [one + 0 for one in funcol.all_gather_into_tensor_coalesced([own, own * 2], group)]
    results += [
        funcol.reduce_scatter_tensor(own, "sum", 0, group) + 0,
        funcol.reduce_scatter_tensor(at.own(2, at.size), "sum", 1, group) + 0,
        funcol.permute_tensor(at.own(4), [(rank + 1) % at.size for rank in range(at.size)], group) + 0,
        +0,
    ]
    results += [one + 0 for one in funcol.reduce_scatter_tensor_coalesced([own, own * 2], "sum", [0, 0], group)]
    return results


@program
def functional_with_gradient(at: Place) -> Any:
    own = at.own(at.size, 2).requires_grad_()
    gathered = funcol.all_gather_tensor_autograd(own, 0, dist.group.WORLD)
    weights = numbers(0, at.size * at.size, 2, seed=9).to(at.device)
    (gathered * weights).sum().backward()
    first: Any = own.grad
    own.grad = None
    scattered = funcol.reduce_scatter_tensor_autograd(own, "sum", 0, dist.group.WORLD)
    exchanged = funcol.all_to_all_single_autograd(own, None, None, dist.group.WORLD)
    ((scattered + 0) * weights[:1]).sum().backward()
    ((exchanged + 0) * weights[: at.size]).sum().backward()
    return gathered.detach() + 0, first, own.grad, scattered.detach() + 0, exchanged.detach() + 0


@program
def dtensor_placements(at: Place) -> Any:
    mesh = init_device_mesh(at.device.type, (at.size,))
    whole = numbers(0, 2 * at.size + 1, 3 * at.size).to(at.device)
    placements: list[Placement] = [Replicate(), Shard(0), Shard(1)]
    results = {}
    for source in [*placements, Partial()]:
        if isinstance(source, Partial):
            start = DTensor.from_local(whole * (at.rank + 1), mesh, [Partial()])
        else:
            start = distribute_tensor(whole, mesh, [source])
        for target in placements:
            moved = start.redistribute(mesh, [target])
            results[f"{source} to {target}"] = [moved.to_local(), moved.full_tensor()]
    return results


@program
def dtensor_gradients_of_placements(at: Place) -> Any:
    mesh = init_device_mesh(at.device.type, (at.size,))
    weights = numbers(3, 2 * at.size + 1, 3).to(at.device)
    results = {}
    for source in (Replicate(), Shard(0), Shard(1)):
        for target in (Replicate(), Shard(0), Shard(1)):
            start: Any = distribute_tensor(numbers(0, 2 * at.size + 1, 3).to(at.device), mesh, [source]).requires_grad_()
            scale = distribute_tensor(weights, mesh, [target])
            (start.redistribute(mesh, [target]) * scale).sum().backward()
            results[f"{source} to {target}"] = start.grad.full_tensor()
    return results


@program
def dtensor_on_two_dimensions(at: Place) -> Any:
    if at.size < 4:
        return None
    mesh = init_device_mesh(at.device.type, (at.size // 2, 2), mesh_dim_names=("dp", "tp"))
    whole = numbers(0, 8, 12).to(at.device)
    kinds: list[Placement] = [Replicate(), Shard(0), Shard(1)]
    pairs = [(first, second) for first in kinds for second in kinds]
    results = {}
    for source in pairs:
        start = distribute_tensor(whole, mesh, list(source))
        for target in pairs:
            moved = start.redistribute(mesh, list(target))
            results[f"{source} to {target}"] = [moved.to_local(), moved.full_tensor()]
    total = distribute_tensor(whole, mesh, [Shard(0), Shard(1)]).sum(0)
    return results, whole_of(total)


@program
def dtensor_partial_placements(at: Place) -> Any:
    """Gloo has no average, so the native run divides the sum."""
    mesh = init_device_mesh(at.device.type, (at.size,))
    results = {}
    for op in ("sum", "avg", "max", "min", "product"):
        for target in (Replicate(), Shard(0), Shard(1)):
            divides = at.native and op == "avg"
            start = DTensor.from_local(at.own(2 * at.size + 1, 3 * at.size), mesh, [Partial("sum" if divides else op)])
            moved = start.redistribute(mesh, [target]).to_local()
            results[f"{op} to {target}"] = moved / at.size if divides else moved
    return results


@program
def dtensor_operations(at: Place) -> Any:
    mesh = init_device_mesh(at.device.type, (at.size,))
    a: Any = distribute_tensor(numbers(0, 4 * at.size, 6).to(at.device), mesh, [Shard(0)]).requires_grad_()
    b: Any = distribute_tensor(numbers(1, 6, 4).to(at.device), mesh, [Replicate()]).requires_grad_()
    product: Any = a @ b
    product.relu().sum().backward()
    return whole_of(product), a.grad.full_tensor(), b.grad.full_tensor(), whole_of(product.max())


def whole_of(tensor: Any) -> Any:
    return tensor.full_tensor()


# -- training ----------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        self.seldom = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, also: bool = False) -> torch.Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        y = y + self.seldom(y) if also else y
        return self.last(y)  # type: ignore[no-any-return]


def small(at: Place, bucket_cap_mb: float = 0.002, **options: Any) -> DistributedDataParallel:
    torch.manual_seed(5)
    net = Net().to(at.device)
    for parameter in net.seldom.parameters():
        parameter.requires_grad_(options.get("find_unused_parameters", False))
    devices = None if at.native else [at.device.index]
    return DistributedDataParallel(net, device_ids=devices, bucket_cap_mb=bucket_cap_mb, **options)


def batch(at: Place, step: int = 0, rows: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1_000 * step + at.rank)
    return torch.randn(rows, 6, generator=generator).to(at.device)


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in found.items()}


def trained(at: Place, model: nn.Module, steps: int = 3) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    grads = []
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(at, step)).square().mean().backward()
        grads.append({name: grad.clone() for name, grad in gradients(model).items()})
        optimizer.step()
    return grads


@program
def ddp(at: Place) -> Any:
    return trained(at, small(at))


@program
def ddp_with_bucket_views(at: Place) -> Any:
    return trained(at, small(at, gradient_as_bucket_view=True))


@program
def ddp_with_static_graph(at: Place) -> Any:
    return trained(at, small(at, static_graph=True)), trained(at, small(at, static_graph=True, gradient_as_bucket_view=True))


@program
def ddp_with_optimizer_in_backward(at: Place) -> Any:
    """With this option, DDP calls the Reducer's own all-reduce in a hook. The hook then divides the gradients and steps the
    optimizer."""
    if at.native:  # torch would create a stream, and the CPU has no streams
        model: nn.Module = small(at)
        trained(at, model)
    else:
        model = small(at)
        used = [parameter for parameter in model.parameters() if parameter.requires_grad]
        distributed_optim._apply_optimizer_in_backward(torch.optim.SGD, used, {"lr": 0.05})
        for step in range(3):
            model(batch(at, step)).square().mean().backward()
    return [parameter.detach() for parameter in model.parameters()]


@program
def ddp_with_unused_parameters(at: Place) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = small(at, find_unused_parameters=True)
        results = []
        for step in range(3):
            model.zero_grad()
            model(batch(at, step), also=step > 0 and at.rank == 0).square().mean().backward()
            results.append({name: grad.clone() for name, grad in gradients(model).items()})
    return results


@program
def ddp_without_sync(at: Place) -> Any:
    model = small(at)
    with model.no_sync():
        model(batch(at, 0)).square().mean().backward()
        local = {name: grad.clone() for name, grad in gradients(model).items()}
    model(batch(at, 1)).square().mean().backward()
    return local, gradients(model)


@program
def ddp_with_uneven_inputs(at: Place) -> Any:
    """Gradients are divided by the number of ranks, or by the number of ranks that still have inputs."""
    results = []
    for divide_by_initial_world_size in (True, False):
        model = small(at)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with Join([model], divide_by_initial_world_size=divide_by_initial_world_size):
            for step in range(3 + at.rank):
                optimizer.zero_grad()
                model(batch(at, step)).square().mean().backward()
                optimizer.step()
        results.append([parameter.detach() for parameter in model.parameters()])
    return results


@program
def ddp_with_buffers(at: Place) -> Any:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(at.device)
    model = DistributedDataParallel(net, device_ids=None if at.native else [at.device.index])
    return trained(at, model), {name: buffer for name, buffer in model.named_buffers() if "num" not in name}


@program
def composable_ddp(at: Place) -> Any:
    torch.manual_seed(5)
    return trained(at, replicate(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(at.device)))


def with_hook(at: Place, state: object, hook: Any, steps: int = 3, **options: Any) -> Any:
    model = small(at, **options)
    model.register_comm_hook(state, hook)
    return trained(at, model, steps)


@program
def fp16_hook(at: Place) -> Any:
    """Gloo and NCCL add half-precision numbers in different orders, so only the first gradients are compared, with half
    precision."""
    return Loose(with_hook(at, None, default_hooks.fp16_compress_hook, 1))


@program
def fp16_hook_with_static_graph(at: Place) -> Any:
    return Loose(with_hook(at, None, default_hooks.fp16_compress_hook, 1, static_graph=True))


@program
def builtin_fp16_hook(at: Place) -> Any:
    model: Any = small(at)
    model._register_builtin_comm_hook(torch._C._distributed_c10d.BuiltinCommHookType.FP16_COMPRESS)
    return Loose(trained(at, model, 1))


@program
def builtin_all_reduce_hook(at: Place) -> Any:
    model: Any = small(at)
    model._register_builtin_comm_hook(torch._C._distributed_c10d.BuiltinCommHookType.ALLREDUCE)
    return trained(at, model)


@program
def all_reduce_hook(at: Place) -> Any:
    return with_hook(at, None, default_hooks.allreduce_hook), with_hook(
        at, None, default_hooks.allreduce_hook, static_graph=True
    )


@program
def power_sgd_hook(at: Place) -> Any:
    """Only one bucket is used. With several buckets, gloo would run their callbacks in different orders on different ranks, and
    deadlock."""
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5, random_seed=1
    )
    return with_hook(at, state, powerSGD_hook.powerSGD_hook, 5, bucket_cap_mb=25)


@program
def local_sgd_hook(at: Place) -> Any:
    state = post_local.PostLocalSGDState(None, None, start_localSGD_iter=2, post_local_gradient_allreduce=False)
    return with_hook(at, state, post_localSGD_hook.post_localSGD_hook, 4)


def quantized_by_hand(state, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its own types
    """Computes what quantization_pertensor_hook computes. That hook itself expects futures with the values that NCCL's futures
    have."""
    parts = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, bucket.buffer())
    total = torch.zeros_like(parts[0])
    for part in parts:
        observer = torch.ao.quantization.MinMaxObserver()
        observer(part)
        scale, zero = torch.FloatTensor(observer.calculate_qparams())
        quantized = quantization._quantize_per_tensor_backend(part, scale, zero)
        total += quantization._dequantize_per_tensor_backend(quantized, scale, zero)
    done: Any = torch.futures.Future()
    done.set_result(total / len(parts))
    return done


@program
def quantization_hook(at: Place) -> Any:
    hook = quantized_by_hand if at.native else quantization_hooks.quantization_pertensor_hook
    return with_hook(at, dist.group.WORLD, hook)


@program
def hook_of_a_script(at: Place) -> Any:
    """Chains two collectives: the mean of a tensor, and then the mean of the negated result. There is only one bucket, as for
    PowerSGD."""

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its own types
        buffer = bucket.buffer().div_(at.size)

        def again(done: Any) -> Any:
            negative = done.value()[0].neg()
            dist.all_reduce(negative.div_(at.size), async_op=True).wait()
            bucket.buffer().copy_(negative)
            return bucket.buffer()

        return dist.all_reduce(buffer, async_op=True).get_future().then(again)

    return with_hook(at, None, hook, bucket_cap_mb=25)


def sharded_layers(at: Place) -> Any:
    torch.manual_seed(5)
    net: Any = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(3)]).to(at.device)
    mesh = init_device_mesh(at.device.type, (at.size,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


@program
def fsdp(at: Place) -> Any:
    net = sharded_layers(at)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    grads: list[Any] = []
    norms: list[Any] = []
    for step in range(3):
        for part in range(2):
            net.set_requires_gradient_sync(part == 1)
            net(batch(at, 2 * step + part)).square().mean().backward()
        norm: Any = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        norms.append(norm.full_tensor())
        grads.append(gradients(net))
        optimizer.step()
        optimizer.zero_grad()
    return grads, norms, [parameter.full_tensor().detach() for parameter in net.parameters()]


@program
def fsdp_in_a_captured_graph(at: Place) -> Any:
    """One CUDA graph contains the forward pass, the backward pass and the work of FSDP on its own streams."""
    net = sharded_layers(at)
    x = batch(at)

    def run() -> Any:
        loss = net(x).square().mean()
        loss.backward()
        return loss

    for _ in range(2):  # in these iterations, FSDP allocates its state
        run()
    losses, grads = [], []
    graph: Any = None if at.native else cast(Any, torch.cuda).CUDAGraph()
    if graph is not None:
        net.zero_grad(set_to_none=False)
        with torch.cuda.graph(graph):
            captured = run()
    for step in range(2):
        net.zero_grad(set_to_none=False)
        x.copy_(batch(at, step))
        if graph is None:
            captured = run()
        else:
            graph.replay()
        losses.append(captured.detach().clone())
        grads.append({name: grad.clone() for name, grad in gradients(net).items()})
    return losses, grads


@program
def fsdp_with_mixed_precision_and_offload(at: Place) -> Any:
    torch.manual_seed(5)
    results = []
    options: list[dict[str, Any]] = [
        {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)},
        {"reshard_after_forward": False},
        {"reshard_after_forward": 2} if at.size > 2 else {},
    ]
    for option in options:
        net: Any = nn.Sequential(*[nn.Linear(6, 6) for _ in range(3)]).to(at.device)
        for layer in net:
            fully_shard(layer, mesh=init_device_mesh(at.device.type, (at.size,)), **option)
        net(batch(at, 0)).square().mean().backward()
        results.append(gradients(net))
    return Loose(results)


@program
def hybrid_sharded(at: Place) -> Any:
    """Shards parameters over the inner dimension of a mesh, and replicates them over the outer dimension."""
    mesh = init_device_mesh(at.device.type, (at.size // 2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(5)
    net: Any = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)).to(at.device)
    fully_shard(net, mesh=mesh)
    return trained(at, net)


@program
def fully_sharded_data_parallel(at: Place) -> Any:
    """Train with FSDP version 1, with one wrapper for each layer."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)).to(at.device)
    model = FullyShardedDataParallel(net, device_id=at.device, use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(2):
        optimizer.zero_grad()
        model(batch(at, step)).square().mean().backward()
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        return [parameter.detach().clone() for parameter in model.parameters()]


@program
def fully_sharded_with_offloaded_parameters(at: Place) -> Any:
    """FSDP (version 1) keeps parameters and gradients on the CPU between steps. The parameters equal those of DDP."""
    results = []
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        torch.manual_seed(5)
        net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
        options: Any = {"sharding_strategy": strategy, "cpu_offload": CPUOffload(offload_params=True)}
        wrapped: Any = DistributedDataParallel if at.native else FullyShardedDataParallel
        model: Any = wrapped(net) if at.native else wrapped(net, device_id=at.device, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(3):
            optimizer.zero_grad()
            model(batch(at, step)).square().mean().backward()
            optimizer.step()
        with nullcontext() if at.native else FullyShardedDataParallel.summon_full_params(model):
            results.append(torch.cat([parameter.detach().reshape(-1).clone() for parameter in model.parameters()]))
    return results


@program
def tensor_parallel(at: Place) -> Any:
    mesh = init_device_mesh(at.device.type, (at.size,))
    torch.manual_seed(5)
    net: Any = nn.Sequential(nn.Linear(6, 4 * at.size), nn.ReLU(), nn.Linear(4 * at.size, 3)).to(at.device)
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    whole = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).to(at.device)
    output = net(whole)
    output.square().mean().backward()
    return output, gradients(net)


@program
def tensor_parallel_and_fsdp(at: Place) -> Any:
    """The parameters of the first layer are sharded twice on the same dimension (_StridedShard)."""
    if at.size < 4:
        return None
    mesh = init_device_mesh(at.device.type, (at.size // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(3)
    net: Any = nn.Sequential(nn.Linear(6, 4 * at.size), nn.ReLU(), nn.Linear(4 * at.size, 6)).to(at.device)
    parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    same_input = Place(at.rank // 2, at.size, at.device, at.native)
    return trained(same_input, net), [parameter.full_tensor().detach() for parameter in net.parameters()]


@program
def context_parallel_attention(at: Place) -> Any:
    """In the native run, one process computes the attention over the whole sequence."""
    shape = 1, 2, 64 * at.size, 8
    whole = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(at.device) for seed in range(3)]
    mesh = None if at.native else init_device_mesh("cuda", (at.size,))
    with nullcontext() if mesh is None else context_parallel(mesh, buffers=whole, buffer_seq_dims=[2] * 3):
        q, k, v = (tensor.detach().clone().requires_grad_() for tensor in whole)
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        found = [out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v))]
        return found if mesh is None else context_parallel_unshard(mesh, found, [2] * 4)


@program
def zero_redundancy_optimizer(at: Place) -> Any:
    model = small(at)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(at, step)).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@program
def synchronized_batch_norm(at: Place) -> Any:
    """SyncBatchNorm needs a GPU, so the native run normalizes the joined batch of all ranks."""
    weights = numbers(7, 6).to(at.device)
    if at.native:
        everyone = torch.cat([batch(Place(rank, at.size, at.device, True)) for rank in range(at.size)]).requires_grad_()
        norm = nn.BatchNorm1d(6)
        output = norm(everyone)
        (output**3 * weights).sum().backward()
        own = slice(4 * at.rank, 4 * at.rank + 4)
        return output[own].detach(), everyone.grad[own], norm.running_mean, norm.running_var  # type: ignore[index]
    synchronized = nn.SyncBatchNorm(6).to(at.device)
    mine = batch(at).requires_grad_()
    output = synchronized(mine)
    (output**3 * weights).sum().backward()
    return output.detach(), mine.grad, synchronized.running_mean, synchronized.running_var


@program
def checkpoints(at: Place) -> Any:
    """Save a checkpoint synchronously and in the background, and load it with another sharding."""
    mesh = init_device_mesh(at.device.type, (at.size,))
    gloo = dist.new_group(backend="gloo")
    folder = [tempfile.mkdtemp() if at.rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    whole = numbers(0, 2 * at.size, 3 * at.size).to(at.device)
    state = {"shards": distribute_tensor(whole, mesh, [Shard(0)]), "step": 7}
    results = []
    for name, save in (("now", dcp.save), ("later", dcp.async_save)):
        saved: Any = save(state, checkpoint_id=f"{folder[0]}/{name}", process_group=gloo)
        if name == "later":
            whole.mul_(0)
            saved.result()
        loaded: dict[str, Any] = {"shards": distribute_tensor(torch.zeros_like(whole), mesh, [Shard(1)]), "step": 0}
        dcp.load(loaded, checkpoint_id=f"{folder[0]}/{name}", process_group=gloo)
        results.append([loaded["shards"].full_tensor(), loaded["step"]])
    return results


@program
def pipelines(at: Place) -> Any:
    results = []
    schedules: list[Any] = [
        ScheduleGPipe,
        Schedule1F1B,
        ScheduleInterleaved1F1B,
        ScheduleLoopedBFS,
        ScheduleInterleavedZeroBubble,
        ScheduleZBVZeroBubble,
    ]
    for schedule in schedules:
        per_rank = 1 if schedule in (ScheduleGPipe, Schedule1F1B) else 2
        count = at.size * per_rank
        torch.manual_seed(5)
        layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(count)]
        has_v_shape = schedule is ScheduleZBVZeroBubble  # The first rank has the first and the last stage.
        last = count - 1 - at.rank if has_v_shape else at.rank + at.size
        numbers_of_stages = [at.rank, last][:per_rank]
        stages = [PipelineStage(layers[i].to(at.device), i, count, at.device) for i in numbers_of_stages]
        target = torch.ones(8, 6, device=at.device)
        run = schedule(stages if per_rank > 1 else stages[0], n_microbatches=max(4, at.size), loss_fn=nn.functional.mse_loss)
        whole = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)).to(at.device)
        losses: list[torch.Tensor] = []
        inputs = (whole,) if at.rank == 0 else ()
        has_loss = count - 1 in numbers_of_stages
        output = run.step(*inputs, target=target, losses=losses) if has_loss else run.step(*inputs)
        results.append([output, [loss.detach() for loss in losses], *[gradients(layers[i]) for i in numbers_of_stages]])
    return results


# -- running -----------------------------------------------------------------------------------------------------------


@dataclass
class Loose:
    """Marks a result that is compared with half precision."""

    value: Any


def on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: on_host(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [on_host(item) for item in value]
    if isinstance(value, Loose):
        return {"precision": "half", "value": on_host(value.value)}
    return value


GLOO: Any = dist.ProcessGroupGloo


class GlooWithThreads(GLOO):  # type: ignore[misc]
    """A gloo group with 16 threads. With gloo's default of two threads, PowerSGD's callbacks, which wait for other operations,
    would block each other."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        options = GLOO._Options()
        options._threads, options._timeout = 16, timeout
        options._devices = [GLOO.create_default_device()]
        super().__init__(store, rank, size, options)


def run(rank: int, size: int, backend: str, folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    native = backend == "gloo"
    if native:
        c10d.ProcessGroupGloo = GlooWithThreads
    else:
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, timeout=timedelta(seconds=60), rank=rank, world_size=size)
    device = torch.device("cpu") if native else torch.device("cuda", rank)
    results: dict[str, Any] = {}
    for name in names or PROGRAMS:
        try:
            results[name] = on_host(PROGRAMS[name](Place(rank, size, device, native)))
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


def main() -> None:
    backend, size, folder, *names = sys.argv[1:]
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    if backend == "gloo":
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", "29533")}
        ranks = []
        for rank in range(int(size)):
            child = os.fork()
            if not child:
                run(rank, int(size), backend, place, names)
                sys.stdout.flush()
                os._exit(0)
            ranks.append(child)
        sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks))
    run(int(os.environ["RANK"]), int(size), backend, place, names)


if __name__ == "__main__":
    main()
