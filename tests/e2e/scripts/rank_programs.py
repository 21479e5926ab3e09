"""Programs for several ranks. They run natively (gloo, CPU) and on virtual GPUs, and their results must be equal.

    python rank_programs.py gloo 4 results/native [NAME...]    # forks four ranks; one file of results per rank
    trace replay --nproc 4 --values compute ... rank_programs.py nccl 4 results/virtual

A program is a function of a `Place` and returns tensors and objects. Inputs are a function of the rank (`numbers`), so an
operation that gloo does not have is worked out by hand from the inputs of all ranks.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook, quantization_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

# torch has no types for these.
funcol: Any = _functional_collectives
c10d: Any = dist.distributed_c10d
post_local: Any = post_localSGD_hook
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
    """Return small whole numbers, whose sums are exact in any order."""
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
    """Several operations in flight, waited for out of order, with work between them."""
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
    told = [{"from": at.rank}, None]
    dist.broadcast_object_list(told, src=1)
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
    return gathered, told, onto, part, sent


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
    scattered = funcol.reduce_scatter_tensor(own, "sum", 0, group) + 0
    return [*results, scattered]


@program
def functional_with_gradient(at: Place) -> Any:
    own = at.own(at.size, 2).requires_grad_()
    gathered = funcol.all_gather_tensor_autograd(own, 0, dist.group.WORLD)
    weights = numbers(0, at.size * at.size, 2, seed=9).to(at.device)
    (gathered * weights).sum().backward()
    return gathered.detach() + 0, own.grad


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
    model = small(at)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Join([model]):
        for step in range(3 + at.rank):
            optimizer.zero_grad()
            model(batch(at, step)).square().mean().backward()
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


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
    """Half precision is summed in another order, so only the first gradients are compared, to half precision."""
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
    """One bucket: gloo runs callbacks of several buckets in different orders on different ranks, and they would deadlock."""
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5, random_seed=1
    )
    return with_hook(at, state, powerSGD_hook.powerSGD_hook, 5, bucket_cap_mb=25)


@program
def local_sgd_hook(at: Place) -> Any:
    state = post_local.PostLocalSGDState(None, None, start_localSGD_iter=2, post_local_gradient_allreduce=False)
    return with_hook(at, state, post_localSGD_hook.post_localSGD_hook, 4)


def quantized_by_hand(state, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its own types
    """What quantization_pertensor_hook computes. That hook needs the layout of the values of NCCL's futures."""
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
    """Two operations in a chain: the mean, then the mean of its negation. One bucket, as for PowerSGD."""

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its own types
        buffer = bucket.buffer().div_(at.size)

        def again(done: Any) -> Any:
            negative = done.value()[0].neg()
            dist.all_reduce(negative.div_(at.size), async_op=True).wait()
            bucket.buffer().copy_(negative)
            return bucket.buffer()

        return dist.all_reduce(buffer, async_op=True).get_future().then(again)

    return with_hook(at, None, hook, bucket_cap_mb=25)


@program
def fsdp(at: Place) -> Any:
    torch.manual_seed(5)
    net: Any = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(3)]).to(at.device)
    mesh = init_device_mesh(at.device.type, (at.size,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
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
def pipelines(at: Place) -> Any:
    results = []
    schedules: list[Any] = [ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B]
    for schedule in schedules:
        per_rank = 2 if schedule is ScheduleInterleaved1F1B else 1
        count = at.size * per_rank
        torch.manual_seed(5)
        layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(count)]
        numbers_of_stages = [at.rank + at.size * turn for turn in range(per_rank)]
        stages = [PipelineStage(layers[i].to(at.device), i, count, at.device) for i in numbers_of_stages]
        target = torch.ones(8, 6, device=at.device)
        run = schedule(stages if per_rank > 1 else stages[0], n_microbatches=4, loss_fn=nn.functional.mse_loss)
        whole = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)).to(at.device)
        losses: list[torch.Tensor] = []
        inputs = (whole,) if at.rank == 0 else ()
        output = run.step(*inputs, target=target, losses=losses) if at.rank == at.size - 1 else run.step(*inputs)
        results.append([output, [loss.detach() for loss in losses], *[gradients(layers[i]) for i in numbers_of_stages]])
    return results


# -- running -----------------------------------------------------------------------------------------------------------


@dataclass
class Loose:
    """A result with the precision of half floats."""

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
    """Callbacks may wait for other operations. With gloo's two threads, PowerSGD's callbacks would block each other."""

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
