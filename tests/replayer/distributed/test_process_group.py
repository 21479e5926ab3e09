# mypy: allow-untyped-calls
"""Tests that collectives between ranks have the right values, times and bytes, also under DistributedDataParallel."""

from __future__ import annotations

import copy
import os
import threading
import time
import warnings
import weakref
from collections import Counter
from datetime import timedelta
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from replayer import state
from replayer.cost_model.collective_costs import gloo_ns
from replayer.distributed.process_group import VirtualNccl
from replayer.surfaces import torch_distributed_gloo
from replayer.surfaces.time import PatchedTime
from replayer.tensor.allocation import Doubt
from replayer.tensor.values.known_values import doubt_of
from replayer.timing.clock import RecordedClock, VirtualClock
from replayer.torch_types import TorchAny
from tests.replayer.ranks import run_ranks, small_recording
from traces.analyses.communication import communication
from traces.combining.merge import merge_ranks
from traces.model.trace import Collectives, DeviceKind, DeviceSpans, Origin, Trace

pytestmark = pytest.mark.warm

# Without blocking waits, the watchdog would abort the process of pytest.
BLOCKING_WAIT = mock.patch.dict(os.environ, {"TORCH_NCCL_BLOCKING_WAIT": "1"})


_premultiplied_sum: TorchAny = vars(dist)["_make_nccl_premul_sum"]


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="cuda")


def test_every_operation_sends_the_values_of_small_tensors() -> None:
    def body(rank: int) -> None:
        own = ints(rank + 1)
        dist.all_reduce(own)
        assert own.item() == 6
        for op, result in ((dist.ReduceOp.MAX, 2.0), (dist.ReduceOp.AVG, 1.0), (dist.ReduceOp.PRODUCT, 0.0)):
            value = torch.tensor([float(rank)], device="cuda")
            dist.all_reduce(value, op=op)
            assert value.item() == result
        found = ints(10 * rank + 3)
        dist.broadcast(found, src=1)
        assert found.item() == 13
        onto = ints(rank)
        dist.reduce(onto, dst=2)
        assert rank != 2 or onto.item() == 3
        each = [ints(0) for _ in range(3)]
        dist.all_gather(each, ints(rank))
        assert [int(one) for one in each] == [0, 1, 2]
        joined = torch.empty(3, dtype=torch.int64, device="cuda")
        dist.all_gather_into_tensor(joined, ints(rank + 5))
        assert joined.tolist() == [5, 6, 7]
        dist.all_gather(list(joined.chunk(3)), ints(rank + 8))  # the outputs are parts of one tensor
        assert joined.tolist() == [8, 9, 10]
        part = ints(0)
        dist.reduce_scatter_tensor(part, ints(1, 2, 3))
        assert part.item() == 3 * (rank + 1)
        dist.reduce_scatter(part, [ints(rank), ints(rank + 1), ints(rank + 2)])
        assert part.item() == 3 * rank + 3
        swapped = torch.empty(3, dtype=torch.int64, device="cuda")
        dist.all_to_all_single(swapped, ints(*(10 * rank + i for i in range(3))))
        assert swapped.tolist() == [rank, 10 + rank, 20 + rank]
        uneven = torch.empty(rank * 3, dtype=torch.int64, device="cuda")
        dist.all_to_all_single(uneven, ints(0, 1, 1), [rank] * 3, [0, 1, 2])
        assert uneven.tolist() == [[], [0] * 3, [1] * 6][rank]
        rows = torch.empty(rank * 3, 2, dtype=torch.int64, device="cuda")
        dist.all_to_all_single(rows, torch.tensor([[0, 9], [1, 9], [1, 9]], device="cuda"), [rank] * 3, [0, 1, 2])
        assert rows.tolist() == [[], [[0, 9]] * 3, [[1, 9]] * 6][rank]
        lists = [ints(0) for _ in range(3)]
        dist.all_to_all(lists, [ints(10 * rank + i) for i in range(3)])
        assert [int(one) for one in lists] == [rank, 10 + rank, 20 + rank]
        given = ints(0)
        dist.scatter(given, [ints(i * 7) for i in range(3)] if rank == 0 else None, src=0)
        assert given.item() == 7 * rank
        after, before = (rank + 1) % 3, (rank - 1) % 3
        came = ints(0)
        sends = [dist.P2POp(dist.isend, ints(rank), after), dist.P2POp(dist.irecv, came, before)]
        for work in dist.batch_isend_irecv(sends):
            work.wait()
        assert came.item() == before
        if rank == 0:
            dist.send(ints(42), dst=2)
        if rank == 2:
            dist.recv(came, src=0)
            assert came.item() == 42

    run_ranks(3, body)


def test_a_rank_can_send_tensors_to_itself_in_a_batch() -> None:
    """GIVEN one batch in which a rank sends two tensors to itself THEN the tensors are received in order. If the matching
    receive is missing or too small, PyTorch's error is raised, even after a batch with a wrong argument."""

    def body(rank: int) -> None:
        first, second = ints(0), ints(0)
        receives = [dist.P2POp(dist.irecv, came, rank) for came in (first, second)]
        sends = [dist.P2POp(dist.isend, ints(value), rank) for value in (7, 8)]
        (work,) = dist.batch_isend_irecv([receives[0], *sends, receives[1]])
        work.wait()
        assert (first.item(), second.item()) == (7, 8)
        with pytest.raises(ValueError, match="P2POp"):
            dist.batch_isend_irecv([*receives, None])  # type: ignore[list-item]
        for call, missing in ((dist.isend, "recv"), (dist.irecv, "send")):
            text = f"Trying to {call.__name__[1:]} to self without a matching {missing}"
            with pytest.raises(dist.DistBackendError, match=text):
                call(first, rank)
            with pytest.raises(dist.DistBackendError, match=text):
                dist.batch_isend_irecv([dist.P2POp(call, first, rank)])
        with pytest.raises(RuntimeError, match="send of 2 int64 elements, but rank 0 called recv of 1 int64 elements"):
            dist.batch_isend_irecv([dist.P2POp(dist.isend, ints(1, 2), rank), receives[0]])

    run_ranks(1, body)


def test_a_split_group_has_the_given_name_and_ranks_and_timeout() -> None:
    """The first group has three ranks with NCCL and gloo. If ranks 2 and 0 form a new group, rank 2 is the first rank of this
    group."""

    def body(rank: int) -> None:
        world: TorchAny = dist.group.WORLD
        nccl = world if isinstance(world, VirtualNccl) else world._get_backend(torch.device("cuda"))
        named = nccl.split_group([2, 0], timedelta(seconds=7), None, "pair", "two ranks")
        unnamed: TorchAny = nccl.split_group([0, 1, 2], device_types=["cuda"])
        assert (named is None, nccl.comm_split_count()) == (rank == 1, 2)
        assert (unnamed.rank(), unnamed.on_cpu, unnamed.group_desc) == (rank, None, "")
        assert unnamed.getGroupName() == f"{nccl.getGroupName()}:split:2"
        assert unnamed.options._timeout == timedelta(minutes=10)
        if named is not None:
            assert (named.rank(), named.size(), named.getGroupName()) == ((rank + 2) % 4 // 2, 2, "pair")
            assert (named.group_desc, named.options._timeout) == ("two ranks", timedelta(seconds=7))
            assert named.options.global_ranks_in_group == [2, 0]
            assert [device.type for device in named._device_types] == ["cuda", "cpu"]
            inner = named.split_group([1], opts=copy.deepcopy(named.options))
            assert (inner is None) == (rank == 2) and (inner is None or inner.options.global_ranks_in_group == [0])
        gathered = [ints(0, 0) for _ in range(3)] if rank == 1 else None
        dist.gather(ints(rank, 5), gathered, dst=1)
        assert gathered is None or [one.tolist() for one in gathered] == [[0, 5], [1, 5], [2, 5]]
        single, options = ints(*[0] * 6 if rank == 1 else []), dist.GatherOptions()  # dist.gather_single since PyTorch 2.14
        options.rootRank = 1
        nccl.gather_single(single, ints(rank, 5), options).wait()
        assert single.tolist() == ([0, 5, 1, 5, 2, 5] if rank == 1 else [])
        if rank == 1:
            with pytest.raises(ValueError, match="must be equal to world_size times input tensor size"):
                nccl.gather_single(ints(0), ints(rank, 5), options)
            with pytest.raises(ValueError, match="Incorrect output list size 2"):
                dist.gather(ints(1), [ints(0), ints(0)], dst=1)

    run_ranks(3, body, backend="cpu:gloo,cuda:nccl")


def test_subgroups_and_barriers_and_objects_of_any_size_work() -> None:
    def body(rank: int) -> None:
        found: list[object] = [None] * 3
        dist.all_gather_object(found, {"rank": rank, "text": "x" * 10_000 * rank})
        assert [len(one["text"]) for one in found if isinstance(one, dict)] == [0, 10_000, 20_000]
        words = [f"from {rank}", None] if rank == 1 else [None, None]
        dist.broadcast_object_list(words, src=1)
        assert words == ["from 1", None]
        pair = dist.new_group([0, 2])
        one = torch.ones(1, device="cuda")
        if rank != 1:
            dist.all_reduce(one, group=pair)
        assert one.item() == (1 if rank == 1 else 2)
        dist.barrier(device_ids=[rank])

    run_ranks(3, body)


def test_a_single_call_aborts_all_process_groups() -> None:
    def body(rank: int) -> None:
        dist.all_reduce(torch.ones(1, device="cuda"), async_op=True)
        dist.distributed_c10d._abort_process_group()
        assert not dist.is_initialized()

    run_ranks(2, body)


def test_a_destroyed_group_cannot_communicate() -> None:
    def body(rank: int) -> None:
        group = dist.new_group([0, 1])
        dist.all_reduce(ints(1), group=group)
        dist.destroy_process_group(group)
        refused = rf"aborted on rank {rank}\. The script called all_reduce after it destroyed the group\.$"
        with pytest.raises(dist.DistBackendError, match=refused):
            group.allreduce([ints(1)])
        dist.all_reduce(ints(1))

    run_ranks(2, body)


def test_an_all_reduce_keeps_uniform_values_known_and_unknown_values_unknown() -> None:
    def body(rank: int) -> None:
        large = torch.full((1_000_000,), float(rank + 1), device="cuda")
        dist.all_reduce(large)
        assert large[17].item() == 3.0
        noise = torch.randn(5, device="cuda")
        dist.all_reduce(noise)
        assert noise.allocation.known is None  # type: ignore[attr-defined]

    run_ranks(2, body)


def test_a_group_with_only_nccl_rejects_cpu_tensors() -> None:
    def body(rank: int) -> None:
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_reduce(torch.ones(1))

    run_ranks(2, body)


def test_a_recorded_value_takes_precedence_over_an_all_reduced_assumption() -> None:
    """GIVEN a recorded value of 7 WHEN the script reads an all-reduced number of correct predictions, which is assumed, THEN it
    is 7. An all-reduced number that the script copied to the GPU is exact."""

    def body(rank: int) -> None:
        count, exact = (torch.rand(3, 7, device="cuda").argmax(1) == ints(3, 6, 0)).sum(), ints(1)
        with mock.patch.object(state.gpu().values, "read", return_value=[7.0]):
            assert count.item() == 7
            dist.all_reduce(count)
            dist.all_reduce(exact)
            assert (count.item(), exact.item()) == (7, 2)

    run_ranks(2, body)


def test_a_collective_is_as_doubtful_as_the_values_that_it_reads() -> None:
    """GIVEN a recorded value of 7 THEN a broadcast of rank 0's exact value is exact, although rank 1 assumed the value that it
    overwrites. A sum of exact values that are multiplied by an assumed factor is assumed."""

    def body(rank: int) -> None:
        guess = (torch.rand(3, 7, device="cuda").argmax(1) == ints(3, 6, 0)).sum()
        found = torch.tensor(5, device="cuda") if rank == 0 else guess.clone()
        product = torch.ones(1, device="cuda")
        with mock.patch.object(state.gpu().values, "read", return_value=[7.0]):
            dist.broadcast(found, src=0)
            dist.all_reduce(product, _premultiplied_sum(guess.float()))
            assert (found.item(), product.item()) == (5, 7)
        assert doubt_of(product) is Doubt.GUESSED

    run_ranks(2, body)


def test_a_group_of_gloo_and_nccl_accepts_cpu_and_gpu_tensors() -> None:
    def body(rank: int) -> None:
        host, device = torch.ones(2) * rank, ints(rank)
        dist.all_reduce(host)
        dist.all_reduce(device)
        assert host.tolist() == [1.0, 1.0] and device.item() == 1

    run_ranks(2, body, backend="cpu:gloo,cuda:nccl")


def test_gloo_copies_gpu_tensors_through_host_memory() -> None:
    def body(rank: int) -> None:
        value = torch.tensor([rank + 1.0], device="cuda")
        dist.all_reduce(value)
        assert value.item() == 3.0
        net = DistributedDataParallel(nn.Linear(4, 4).cuda(rank), device_ids=[rank])
        net(torch.randn(2, 4).cuda(rank)).sum().backward()

    traces = run_ranks(2, body, backend="gloo")
    names = Counter(traces[0].strings[name] for name in traces[0].device.name.tolist())
    assert sum(count for name, count in names.items() if "DtoH" in name) >= 2
    assert not any("nccl" in name for name in names)


def test_ranks_with_a_cpu_model_under_ddp_wait_for_each_other() -> None:
    """PyTorch's Reducer calls gloo from C++.

    GIVEN rank 1 arrives 20 ms late THEN rank 0's backward pass also ends 20 ms later.
    If rank 1 then calls a barrier instead of the backward pass, the error describes both calls.
    """

    def body(rank: int) -> None:
        net, clock = DistributedDataParallel(nn.Linear(4, 4)), state.gpu().clock
        begin_ns = clock.now_ns()
        loss = net(torch.full((2, 4), rank + 1.0)).sum()
        if rank == 1:
            clock.wait_until(begin_ns + 20_000_000)
        loss.backward()
        assert clock.now_ns() - begin_ns >= 20_000_000
        assert torch.equal(net.module.bias.grad, torch.full((4,), 2.0)) and net.module.weight.grad.unique().tolist() == [3.0]
        broadcast = r"called broadcast of 3 int32 elements \(from rank 0\)"  # DDP broadcasts the sizes of its buckets
        with pytest.raises(RuntimeError, match=f"called barrier, but .* {broadcast}|{broadcast}, but .* called barrier"):
            dist.barrier() if rank else net(torch.ones(2, 4)).sum().backward()

    run_ranks(2, body, backend="gloo", clock=RecordedClock)


def test_a_gloo_group_stays_alive_after_it_is_destroyed() -> None:
    """Deleting the group would wait for its threads. These threads may wait for the interpreter lock, which the deleting thread
    holds."""

    def body(rank: int) -> None:
        dist.all_reduce(torch.ones(1, device="cuda"))
        world = weakref.ref(dist.group.WORLD)
        dist.destroy_process_group()
        assert world() is not None

    run_ranks(2, body, backend="gloo")


def test_on_the_recorded_clock_a_gloo_transfer_starts_when_the_last_rank_arrives() -> None:
    """GIVEN a rank that calls an all-reduce 20 ms late THEN the transfer of 10 ms starts after these 20 ms on both ranks."""

    def body(rank: int) -> None:
        value = torch.ones(3_750_000, device="cuda")
        dist.all_reduce(torch.ones(1, device="cuda"))
        clock = state.gpu().clock
        begin_ns = clock.now_ns()
        if rank == 1:
            clock.wait_until(begin_ns + 20_000_000)
        dist.all_reduce(value)
        assert 30_000_000 <= clock.now_ns() - begin_ns < 60_000_000

    run_ranks(2, body, backend="gloo", clock=RecordedClock)


def test_the_time_of_a_gloo_operation_depends_on_the_bytes_that_a_rank_sends() -> None:
    def body(rank: int) -> None:
        part, whole = torch.ones(6, device="cuda"), torch.ones(12, device="cuda")
        with mock.patch.object(torch_distributed_gloo, "gloo_ns", wraps=gloo_ns) as estimated:
            dist.all_gather(list(whole.chunk(2)), part)
            dist.all_gather_into_tensor(whole, part)
            dist.all_reduce(part)
        names = ("all_gather", "all_gather_into_tensor", "all_reduce")
        assert [called.args for called in estimated.call_args_list] == [(name, 24, 2) for name in names]

    run_ranks(2, body, backend="gloo", clock=RecordedClock)


def with_collectives(durations_ns: list[int], size_bytes: int) -> Trace:
    """Return a small recording of a rank in a group of two ranks, with one all-reduce of `size_bytes` for each duration."""
    trace = small_recording()
    kernel, name, backend = map(trace.strings.add, ("ncclKernel_AllReduce", "all_reduce", "nccl"))
    count = len(durations_ns)
    starts = trace.device.start_ns.max() + np.arange(count) * 10_000_000
    trace.collectives = Collectives.of(
        rank=[0] * count, name=[name] * count, group_size=[2] * count, backend=[backend] * count, bytes=[size_bytes] * count,
        start_ns=starts - 1_000, duration_ns=durations_ns,
    )  # fmt: skip
    columns = {column: values.tolist() for column, values in trace.device.columns().items()}
    more = {"device": 0, "stream": 20, "kind": DeviceKind.KERNEL, "name": kernel, "launch": -1, "bytes": -1, "origin": 0}
    for column, values in columns.items():
        values += {"start_ns": starts.tolist(), "duration_ns": durations_ns}.get(column, [more.get(column, -1)] * count)
    trace.device = DeviceSpans.of(**columns)
    return trace


def nccl_rows(trace: Trace) -> list[int]:
    return [row for row, name in enumerate(trace.device.name.tolist()) if "nccl" in trace.strings[name]]


def test_recorded_collectives_take_recorded_times_and_others_take_scaled_times() -> None:
    def body(rank: int) -> None:
        for _ in range(3):
            dist.all_reduce(torch.empty(1_000_000, device="cuda"))
        dist.all_reduce(torch.empty(2_000_000, device="cuda"))

    traces = run_ranks(2, body, trace=with_collectives([4_000_000, 5_000_000], 4_000_000))
    for trace in traces:
        rows = nccl_rows(trace)
        origins = trace.device.origin[rows].tolist()
        assert origins == [Origin.EXACT] * 3 + [Origin.SCALED]
        assert {trace.strings[int(trace.device.name[row])] for row in rows} == {"ncclKernel_AllReduce"}
    ends = [trace.device.end_ns[nccl_rows(trace)] for trace in traces]
    starts = [trace.device.start_ns[nccl_rows(trace)] for trace in traces]
    latest = np.maximum(*starts)  # the operation begins when the later rank arrives
    assert (ends[0] - latest)[:3].tolist() == pytest.approx([4_000_000, 5_000_000, 4_000_000], abs=100_000)
    assert 8_000_000 < (ends[0] - latest)[3] < 10_000_000


def test_a_synchronous_collective_runs_on_the_current_stream_after_the_previous_collective() -> None:
    """GIVEN an asynchronous all-reduce of 5 ms, and collectives with `async_op=False` on the default stream and on two side
    streams WHEN the script does not wait for the first all-reduce THEN the first all-reduce runs on a fourth stream, and the
    other collectives run on their current streams, one after another. A send runs on a fifth stream."""
    current: list[int] = []

    def body(rank: int) -> None:
        part, whole = torch.empty(1_000_000, device="cuda"), torch.empty(2_000_000, device="cuda")
        work = dist.all_reduce(part, async_op=True)
        streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        calls = [lambda: dist.all_gather_into_tensor(whole, part), lambda: dist.reduce(part, 0), dist.barrier]
        for stream, call in zip(streams, calls, strict=True):
            with torch.cuda.stream(stream):
                call()
                current.append(state.gpu().current.stream(rank).number)  # only rank 0 runs in the process of pytest
        dist.send(part, 1) if rank == 0 else dist.recv(part, 0)
        assert work is not None
        work.wait()

    for trace in run_ranks(2, body, trace=with_collectives([5_000_000], 4_000_000), clock=RecordedClock):
        rows = sorted(nccl_rows(trace), key=trace.device.start_ns.__getitem__)
        streams = trace.device.stream[rows].tolist()
        assert streams[1:4] == current and len(set(streams)) == 5
        starts, ends = trace.device.start_ns[rows], trace.device.end_ns[rows]
        assert (starts[1:4] >= ends[:3]).all()


def test_a_batch_of_sends_and_receives_is_one_kernel_on_the_stream_of_the_group() -> None:
    """GIVEN an asynchronous all-reduce of 5 ms, and then a batch in which each rank sends 4 MB to the rank after it and 2 MB to
    the rank before it THEN the batch is one kernel on the stream of the all-reduce and starts after the all-reduce. The
    recorder counts the tensors of a batch: 4 MB and 2 MB sent, and the same received."""
    large, small = 1_000_000, 500_000  # elements

    def body(rank: int) -> None:
        sent = [torch.empty(count, device="cuda") for count in (large, small)]
        received = [torch.empty(count, device="cuda") for count in (small, large)]
        dist.all_reduce(torch.empty(large, device="cuda"), async_op=True)
        peers = [(rank + 1) % 3, (rank - 1) % 3]
        calls = [dist.P2POp(dist.isend, tensor, peer) for tensor, peer in zip(sent, peers, strict=True)]
        calls += [dist.P2POp(dist.irecv, tensor, peer) for tensor, peer in zip(received, peers, strict=True)]
        (work,) = dist.batch_isend_irecv(calls[::-1] if rank == 1 else calls)
        work.wait()

    recording = with_collectives([5_000_000], 4_000_000)
    recording.collectives.group_size[:] = 3
    for trace in run_ranks(3, body, trace=recording, clock=RecordedClock):
        reduced, batch = sorted(nccl_rows(trace), key=trace.device.start_ns.__getitem__)
        device = trace.device
        assert trace.strings[int(device.name[batch])] == "ncclDevKernel_SendRecv"
        assert device.stream[batch] == device.stream[reduced] and device.start_ns[batch] >= device.end_ns[reduced]
        called = trace.collectives
        assert [trace.strings[name] for name in called.name.tolist()] == ["all_reduce", "batch_isend_irecv"]
        assert called.bytes.tolist() == [4_000_000, 12_000_000]


@pytest.mark.parametrize("eager", [False, True])
def test_sends_in_both_directions_share_a_stream(eager: bool) -> None:
    """GIVEN a send and a receive without a batch THEN NCCL runs both on one stream, one after another. If the script gave
    `device_id` to init_process_group, this is the stream of the group's collectives."""

    def body(rank: int) -> None:
        if eager:
            dist.group.WORLD.eager_connect_single_device(torch.device("cuda", rank))  # type: ignore[union-attr]
        sent, received = torch.empty(1_000_000, device="cuda"), torch.empty(1_000_000, device="cuda")
        works = [dist.all_reduce(sent, async_op=True), dist.isend(sent, 1 - rank), dist.irecv(received, 1 - rank)]
        for work in works:
            assert work is not None
            work.wait()

    for trace in run_ranks(2, body, clock=RecordedClock):
        rows = sorted(nccl_rows(trace), key=trace.device.start_ns.__getitem__)
        streams, starts, ends = trace.device.stream[rows], trace.device.start_ns[rows], trace.device.end_ns[rows]
        assert len(rows) == 3 and streams[1] == streams[2] and starts[2] >= ends[1]
        assert bool(streams[0] == streams[1]) is eager


def test_a_send_of_a_batch_does_not_match_a_receive_outside_of_a_batch() -> None:
    """NCCL uses two communicators and would hang. THEN the error names the batch."""

    def body(rank: int) -> None:
        value = torch.ones(2, device="cuda")
        text = r"rank 0 waits in send of 2 float32 elements \(batch_isend_irecv\)|rank 0 .* ended without"
        with pytest.raises(RuntimeError, match=text):
            if rank == 0:
                dist.batch_isend_irecv([dist.P2POp(dist.isend, value, 1)])[0].wait()
            else:
                dist.recv(value, 0)

    run_ranks(2, body)


def test_coalesced_collectives_are_one_kernel() -> None:
    """GIVEN a recorded all-reduce of 4 MB WHEN the script reduces 3 MB and 1 MB in one call THEN one kernel of the recorded
    duration reduces both tensors."""

    def body(rank: int) -> None:
        tensors = [torch.ones(count, device="cuda") for count in (750_000, 250_000)]
        with dist.distributed_c10d._coalescing_manager(device=torch.device("cuda", rank)):
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert [tensor[0].item() for tensor in tensors] == [2, 2]

    for trace in run_ranks(2, body, trace=with_collectives([5_000_000], 4_000_000)):
        (row,) = nccl_rows(trace)
        assert trace.device.origin[row] == Origin.EXACT and trace.collectives.bytes.tolist() == [4_000_000]


def test_a_rank_that_arrives_early_waits_on_its_gpu_and_not_on_its_host() -> None:
    """GIVEN a rank whose data is ready 0.4 s late THEN the all-reduce kernel of the other rank lasts until the data is
    ready."""
    late_ns = 400_000_000

    def body(rank: int) -> None:
        gpu = state.gpu()
        dist.all_reduce(torch.empty(8, device="cuda"))  # this call synchronizes the ranks
        if rank == 1:
            stream = gpu.current.stream(rank)
            stream.push(gpu.streams.host_now_ns(), 0, 0, late_ns)
        work = dist.all_reduce(torch.empty(1_000, device="cuda"), async_op=True)
        before_ns = gpu.current.stream(rank).ready_ns
        assert work is not None
        work.wait()
        assert gpu.current.stream(rank).ready_ns > before_ns
        assert gpu.streams.query(gpu.current.stream(rank)) is False

    early, late = run_ranks(2, body, clock=RecordedClock)  # times on this clock do not depend on the load of this machine
    waited, came = early.device.duration_ns[nccl_rows(early)[1]], late.device.duration_ns[nccl_rows(late)[1]]
    assert waited > 0.9 * late_ns - came and came < 0.1 * late_ns
    assert communication(merge_ranks([early, late], [0, 1])).exposed_ns > 0.9 * late_ns - came


def test_the_memory_of_inputs_stays_allocated_until_the_script_waits_for_the_collective() -> None:
    """GIVEN an input of 1 MiB that the script does not keep THEN its memory is freed when the script waits for the all-gather.
    With `async_op=False`, the memory is free as soon as the call returns."""
    mib = 1 << 20

    def body(rank: int) -> None:
        whole = torch.empty(2 * mib, dtype=torch.uint8, device="cuda")
        before = torch.cuda.memory_allocated()
        work = dist.all_gather_into_tensor(whole, torch.empty(mib, dtype=torch.uint8, device="cuda"), async_op=True)
        assert torch.cuda.memory_allocated() == before + mib and work is not None
        work.wait()
        assert torch.cuda.memory_allocated() == before
        dist.all_gather_into_tensor(whole, torch.empty(mib, dtype=torch.uint8, device="cuda"))
        assert torch.cuda.memory_allocated() == before

    run_ranks(2, body)


def test_an_error_names_both_operations_if_two_ranks_call_different_ones() -> None:
    def body(rank: int) -> None:
        found = r"rank \d of the group called (broadcast|all_reduce) of .*, but rank \d called"
        with pytest.raises(RuntimeError, match=found):
            dist.all_reduce(ints(1)) if rank else dist.broadcast(ints(1), src=0)

    run_ranks(2, body)


def test_the_error_names_a_rank_that_ended_or_never_arrived() -> None:
    def ended(rank: int) -> None:
        dist.all_reduce(ints(1))
        if rank == 1:
            dist.destroy_process_group()
            return
        with pytest.raises(RuntimeError, match="rank 1 of the group ended without calling all_reduce"):
            dist.all_reduce(ints(1))

    def hangs(rank: int) -> None:
        dist.all_reduce(ints(1))
        if rank == 1:
            os._exit(1)  # the rank ends without a message to the other rank
        with pytest.raises(RuntimeError, match=r"rank 1 of the group did not call all_reduce within 1.2 s"):
            dist.all_reduce(ints(1))

    def in_another_group(rank: int) -> None:
        group = dist.new_group([0, 1] if rank == 0 else [1])
        if rank == 0:
            with pytest.raises(RuntimeError, match="rank 1 of the group ended without calling all_reduce"):
                dist.all_reduce(ints(1), group=group)

    run_ranks(2, ended)
    run_ranks(2, in_another_group)
    with BLOCKING_WAIT:
        run_ranks(2, hangs, timeout_s=1.2, fails=lambda rank: rank == 1)


def test_both_ranks_raise_an_error_if_one_misses_the_virtual_timeout() -> None:
    """GIVEN a timeout of 100 s WHEN a rank arrives 10 000 virtual seconds late THEN both ranks raise an error. The other rank
    waits for 100 s. The virtual clock also counts the real time that a busy machine takes. With blocking waits, a collective
    with `async_op=False` has no timeout and does not block the host."""

    def body(rank: int) -> None:
        dist.all_reduce(ints(1))
        clock = state.gpu().clock
        busy_ns = 0 if isinstance(clock, RecordedClock) else 1_000 * 10**9
        if rank == 1:
            clock.wait_until(clock.now_ns() + 10_000 * 10**9)
        begin_ns = clock.now_ns()
        dist.all_reduce(ints(1))
        assert clock.now_ns() - begin_ns <= 10**9 + busy_ns
        torch.cuda.synchronize()
        if rank == 1:
            clock.wait_until(clock.now_ns() + 10_000 * 10**9)
        begin_ns = clock.now_ns()
        when = "before rank 1" if rank else "after rank 0"
        work: TorchAny = dist.all_reduce(ints(1), async_op=True)
        with pytest.raises(dist.DistBackendError, match=rf"OpType=ALLREDUCE, .*ran for 100000 milliseconds.* s {when}"):
            work.wait()
        waited_ns = clock.now_ns() - begin_ns
        assert 100 * 10**9 <= waited_ns <= 101 * 10**9 + busy_ns

    with BLOCKING_WAIT:
        for clock in (VirtualClock, RecordedClock):
            run_ranks(2, body, timeout_s=100.0, clock=clock)


def test_loops_that_poll_a_collective_or_a_store_end_on_every_clock() -> None:
    """GIVEN a late rank WHEN the other rank polls every 10 ms THEN it needs at most a few thousand polls."""

    def body(rank: int) -> None:
        clock = state.gpu().clock
        assert isinstance(clock, VirtualClock)
        PatchedTime(clock).install()
        store = dist.distributed_c10d._get_default_store()
        value = ints(rank + 1)
        if rank == 1:
            threading.Event().wait(0.3)  # this wait takes real time
            store.set("ready", "yes")
        polls = 0
        while not store.check(["ready"]):
            time.sleep(0.01)
            polls += 1
        work: TorchAny = dist.all_reduce(value, async_op=True)
        while not work.is_completed():
            time.sleep(0.01)
            polls += 1
        work.wait()
        assert value.tolist() == [3] and polls < 5_000

    for clock in (VirtualClock, RecordedClock):
        run_ranks(2, body, clock=clock)


def test_a_monitored_barrier_names_ranks_that_arrive_too_late_on_a_virtual_clock() -> None:
    """GIVEN a timeout of 30 s THEN a rank that is 20 virtual seconds late passes the barrier. If the rank is 40 s late, both
    ranks raise an error."""

    def body(rank: int) -> None:
        group, clock = dist.new_group(backend="gloo"), state.gpu().clock
        late = "rank 0 logs" if rank else "Rank 1 failed to pass monitoredBarrier in 30000 ms"
        for late_s, error in ((20, None), (40, late)):
            dist.monitored_barrier(group)  # after this barrier, the clocks of the ranks agree
            begin_ns = clock.now_ns()
            if rank == 1:
                clock.wait_until(begin_ns + late_s * 10**9)
            if error is None:
                dist.monitored_barrier(group, timedelta(seconds=30))
                assert clock.now_ns() - begin_ns == pytest.approx(20 * 10**9, rel=0.1)
                continue
            with pytest.raises(RuntimeError, match=error):
                dist.monitored_barrier(group, timedelta(seconds=30))
            assert clock.now_ns() - begin_ns == pytest.approx((40 if rank else 30) * 10**9, rel=0.1)

    for clock in (VirtualClock, RecordedClock):
        run_ranks(2, body, clock=clock)


class Branches(nn.Module):
    """A model of two layers. It runs the second layer only if `both` is true."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.seldom = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        y: torch.Tensor = self.always(x)
        return self.seldom(y) if both else y


def test_ddp_ignores_parameters_that_no_rank_used() -> None:
    def body(rank: int) -> None:
        x = torch.randn(4, 8).cuda(rank)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DDP warns that some step had no unused parameters
            net = DistributedDataParallel(Branches().cuda(rank), device_ids=[rank], find_unused_parameters=True)
            net(x, False).sum().backward()
            assert net.module.always.weight.grad is not None and net.module.seldom.weight.grad is None
            net(x, rank == 0).sum().backward()  # only rank 0 uses the second layer, but all ranks get its gradient
            assert net.module.seldom.weight.grad is not None

    run_ranks(2, body)


def test_communication_overlaps_backward_and_the_optimizer_waits_for_it() -> None:
    def body(rank: int) -> None:
        # The kernels of these layers take longer than their launches.
        net = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(6)]).cuda(rank)
        model = DistributedDataParallel(net, device_ids=[rank], bucket_cap_mb=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = model(torch.randn(4096, 2048, device="cuda")).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    for trace in run_ranks(2, body):
        names = [trace.strings[name] for name in trace.device.name.tolist()]
        reduced = [row for row, name in enumerate(names) if name == "ncclDevKernel_AllReduce"]
        stepped = [row for row, name in enumerate(names) if name == "aten::_foreach_add_"]
        assert len(reduced) >= 3 * 4 and len(stepped) == 3
        for update_ns in trace.device.start_ns[stepped].tolist():
            before = [row for row in reduced if trace.device.start_ns[row] < update_ns]
            assert before and max(trace.device.end_ns[before].tolist()) <= update_ns
        assert communication(trace).hidden_ns > 0


def test_under_no_sync_ddp_starts_no_all_reduce_and_gradients_share_bucket_memory() -> None:
    def body(rank: int) -> None:
        net = DistributedDataParallel(nn.Linear(16, 4).cuda(rank), device_ids=[rank], gradient_as_bucket_view=True)
        x = torch.randn(2, 16).cuda(rank)
        with net.no_sync():
            net(x).sum().backward()
        net(x).sum().backward()
        weight, bias = net.module.weight.grad, net.module.bias.grad
        assert weight is not None and bias is not None
        assert weight.untyped_storage() == bias.untyped_storage()  # both gradients are views of one bucket

    for trace in run_ranks(2, body):
        sizes = [
            int(size)
            for name, size in zip(trace.collectives.name.tolist(), trace.collectives.bytes.tolist(), strict=True)
            if trace.strings[name] == "all_reduce"
        ]
        assert sizes == [4 * (16 * 4 + 4)]


def test_ddp_detects_different_parameters_on_another_rank() -> None:
    def body(rank: int) -> None:
        found = "appears not to match sizes of the same param in process 0" if rank else "rank 1 of the group ended"
        with pytest.raises(RuntimeError, match=found):
            DistributedDataParallel(nn.Linear(4 + rank, 4).cuda(rank), device_ids=[rank])
            torch.cuda.synchronize()

    run_ranks(2, body)


def test_fsdp_gathers_and_scatters_the_shards_of_a_transformer() -> None:
    def body(rank: int) -> None:
        layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0) for _ in range(2)]
        net = nn.Sequential(*layers).cuda(rank)
        held = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
        for layer in layers:
            fully_shard(layer)
        fully_shard(net)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        for _ in range(2):
            loss = net(torch.randn(2, 4, 16, device="cuda")).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        local = [sum(parameter.to_local().numel() for parameter in layer.parameters()) for layer in layers]  # type: ignore[attr-defined]
        assert [2 * numel for numel in local] == held

    for trace in run_ranks(2, body):
        calls = Counter(trace.strings[name] for name in trace.collectives.name.tolist())
        assert calls["all_gather_into_tensor"] >= 6 and calls["reduce_scatter_tensor"] == 4  # there are 2 layers and 2 steps


class MnistNet(nn.Module):
    """A network with 5 322 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5), nn.Linear(20, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(torch.max_pool2d(self.first(x), 2))
        x = torch.relu(self.second(x)).amax((2, 3))
        return self.last(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("batch", "gradients", "losses"),
    [
        pytest.param(64, 19_968_144, 3_752, marks=pytest.mark.program),
        pytest.param(128, 9_984_072, 1_876, marks=pytest.mark.program),
        # Each of the eight steps sends 4 bytes for each of 5 322 parameters, and 4 bytes for the loss.
        (8_000, 8 * 21_288, 8 * 4),
    ],
)
def test_an_mnist_epoch_transfers_the_published_number_of_bytes(batch: int, gradients: int, losses: int) -> None:
    """GIVEN one epoch with 60 000 images of 28 x 28 floats THEN the replay counts exactly the bytes that the study
    published."""
    images, parameters = 60_000, 5_322

    def body(rank: int) -> None:
        net = MnistNet().cuda()
        assert sum(parameter.numel() for parameter in net.parameters()) == parameters
        model = DistributedDataParallel(net, device_ids=[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        labels = torch.zeros(batch, dtype=torch.int64, device="cuda")
        host = torch.zeros(batch, 1, 28, 28)
        for first in range(0, images, batch):
            count = min(batch, images - first)
            output = model(host[:count].to("cuda"))
            loss = nn.functional.cross_entropy(output, labels[:count])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            dist.all_reduce(loss.detach())

    (trace,) = run_ranks(1, body)
    sizes = Counter(
        int(size)
        for name, size in zip(trace.collectives.name.tolist(), trace.collectives.bytes.tolist(), strict=True)
        if trace.strings[name] == "all_reduce"
    )
    steps = -(-images // batch)
    assert sizes == {4 * parameters: steps, 4: steps}
    assert (4 * parameters * sizes[4 * parameters], 4 * sizes[4]) == (gradients, losses)
    found = {row.phase: row.bytes or 0 for row in communication(trace).operations if row.name == "all_reduce"}
    assert found["backward"] == gradients and sum(found.values()) == gradients + losses
    copied = [
        int(size)
        for name, size in zip(trace.device.name.tolist(), trace.device.bytes.tolist(), strict=True)
        if "HtoD" in trace.strings[name] and size % (28 * 28 * 4) == 0  # the sizes of images, and not of the parameters
    ]
    assert (len(copied), sum(copied)) == (steps, 188_160_000)


def test_sync_batch_norm_trains_and_gathers_the_statistics_of_all_ranks() -> None:
    def body(rank: int) -> None:
        net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
        ddp = DistributedDataParallel(net.cuda(), device_ids=[rank])
        for dtype in (torch.float32, torch.float16):
            with torch.autocast("cuda", dtype=dtype, enabled=dtype is torch.float16):
                out = ddp(torch.ones(2, 3, 8, 8, device="cuda"))
            assert out.dtype is dtype and out.shape == (2, 4, 6, 6)
            out.sum().backward()
        ddp.eval()(torch.ones(2, 3, 8, 8, device="cuda"))

    for trace in run_ranks(2, body):
        names = Counter(trace.strings[name] for name in trace.collectives.name.tolist())
        assert names["all_gather_into_tensor"] == 2 and names["all_reduce"] >= 4, names


def test_tensors_of_any_number_of_bytes_can_be_sent() -> None:
    """The test broadcasts the objects that accelerate and ZeRO send: the state of a generator, and pickles."""

    def body(rank: int) -> None:
        state_ = torch.Generator().manual_seed(7 + rank).get_state().to("cuda")
        dist.broadcast(state_, 1)
        expected = torch.rand(3, generator=torch.Generator().manual_seed(8))
        generator = torch.Generator()
        generator.set_state(state_.cpu())
        assert torch.rand(3, generator=generator).tolist() == expected.tolist()
        sent = torch.arange(1 << 18).to(torch.uint8)
        got = sent.cuda() if rank == 0 else torch.zeros(1 << 18, dtype=torch.uint8, device="cuda")
        dist.broadcast(got, 0)
        assert torch.equal(got.cpu(), sent)

    run_ranks(2, body)
