"""Tests which calls and arguments must be equal on all ranks, and the error if they differ."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from replayer.distributed import store_exchange
from replayer.distributed.rank_message import RankMessage, require_match
from replayer.timing.clock import Clock, RecordedClock, VirtualClock
from tests.replayer.ranks import run_ranks

CLOCKS: tuple[type[Clock], ...] = VirtualClock, RecordedClock


def zeros(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(count, dtype=dtype, device="cuda")


def with_other_counts(rank: int) -> None:
    dist.all_reduce(zeros(3 + rank))


def with_other_dtypes(rank: int) -> None:
    dist.all_reduce(zeros(3, torch.float16 if rank else torch.float32))


def with_other_reductions(rank: int) -> None:
    dist.all_reduce(zeros(3), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)


def with_other_sources(rank: int) -> None:
    dist.broadcast(zeros(3), src=rank)


def in_another_order(rank: int) -> None:
    dist.all_reduce(zeros(3)) if rank else dist.broadcast(zeros(3), src=0)


def with_other_splits(rank: int) -> None:
    dist.all_to_all_single(zeros(4), zeros(4 if rank else 5), [2, 2], [2, 2] if rank else [2, 3])


def with_a_short_receiver(rank: int) -> None:
    dist.recv(zeros(2), 0) if rank else dist.send(zeros(3), 1)


def with_other_roots(rank: int) -> None:
    dist.reduce(zeros(3), dst=rank)


def with_other_parts(rank: int) -> None:
    dist.reduce_scatter_tensor(zeros(2 + rank), zeros(4 + 2 * rank))


def with_another_type_received(rank: int) -> None:
    dist.recv(zeros(3, torch.int32), 0) if rank else dist.send(zeros(3), 1)


def with_a_barrier(rank: int) -> None:
    dist.barrier() if rank else dist.all_reduce(zeros(1))


def with_other_object_operations(rank: int) -> None:
    dist.all_gather_object([None, None], rank) if rank else dist.broadcast_object_list([1], 0)


def after_a_missing_call(rank: int) -> None:
    if rank == 0:
        dist.all_reduce(zeros(3))
    dist.all_gather_into_tensor(zeros(4), zeros(2))


@pytest.mark.parametrize(
    ("call", "first", "second"),
    [
        ("with_other_counts", r"all_reduce of 3 float32 elements \(SUM\)", r"all_reduce of 4 float32 elements \(SUM\)"),
        ("with_other_dtypes", r"all_reduce of 3 float32 elements \(SUM\)", r"all_reduce of 3 float16 elements \(SUM\)"),
        ("with_other_reductions", r"all_reduce of 3 float32 elements \(SUM\)", r"all_reduce of 3 float32 elements \(MAX\)"),
        ("with_other_sources", r"broadcast of 3 .* \(from rank 0\)", r"broadcast of 3 float32 elements \(from rank 1\)"),
        ("in_another_order", r"broadcast of 3 float32 elements \(from rank 0\)", r"all_reduce of 3 float32 elements \(SUM\)"),
        ("with_other_splits", "all_to_all_single of 5 float32 elements", "all_to_all_single of 4 float32 elements"),
        ("with_other_roots", r"reduce of 3 .* \(SUM to rank 0\)", r"reduce of 3 .* \(SUM to rank 1\)"),
        ("with_other_parts", "reduce_scatter_tensor of 4 float32 elements", "reduce_scatter_tensor of 6 float32 elements"),
        ("with_another_type_received", "send of 3 float32 elements", "recv of 3 int32 elements"),
        ("with_a_barrier", "all_reduce of 1 float32 elements", "barrier"),
        ("with_other_object_operations", "broadcast of 1 int64 elements", "all_gather(_into_tensor)? of 1 int64 elements"),
        ("after_a_missing_call", "all_reduce of 3 float32 elements", "all_gather_into_tensor of 2 float32 elements"),
        ("with_a_short_receiver", "send of 3 float32 elements", "recv of 2 float32 elements"),
    ],
)  # fmt: skip
def test_mismatched_calls_of_two_ranks_are_reported_before_the_timeout(call: str, first: str, second: str) -> None:
    """GIVEN two ranks whose calls differ THEN the error of each rank names the ranks and both calls."""

    def body(rank: int) -> None:
        theirs, mine = (first, second) if rank else (second, first)
        found = rf"rank {1 - rank} of the group called {theirs}.*, but rank {rank} called {mine}.*: "
        with pytest.raises(RuntimeError, match=found):
            globals()[call](rank)

    run_ranks(2, body)


def test_two_ranks_on_the_same_gpu_are_rejected() -> None:
    """GIVEN both ranks on GPU 1 THEN the first operation with a tensor raises NCCL's error. An earlier barrier raises no
    error."""

    def body(rank: int) -> None:
        torch.cuda.set_device(1)
        dist.barrier()
        with pytest.raises(RuntimeError, match="Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1"):
            dist.all_reduce(zeros(3))

    run_ranks(2, body)


def groups_in_another_order(rank: int) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    dist.all_reduce(zeros(3), group=groups[rank])


def both_receive(rank: int) -> None:
    dist.recv(zeros(3), 1 - rank)


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        ("groups_in_another_order", [r"all_reduce of 3 float32 elements \(SUM\) of group \S+ \(ranks 0, 1\)"] * 2),
        ("both_receive", ["recv of 3 float32 elements(?! of)"] * 2),
    ],
)  # fmt: skip
def test_a_deadlock_of_two_ranks_is_reported_before_the_timeout(call: str, waits: list[str]) -> None:
    """GIVEN a deadlock THEN the error of the first rank that detects it describes both waits. The other rank then ends, too."""
    first, second = waits

    def body(rank: int) -> None:
        circle = f"rank 0 waits in {first}.*rank 1 waits in {second}|rank 1 waits in {second}.*rank 0 waits in {first}"
        with pytest.raises(RuntimeError, match=rf"wait for each other: ({circle})|rank {1 - rank} of the group ended"):
            globals()[call](rank)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store_exchange, "_CIRCLE_LASTS_S", 0.5)
        run_ranks(2, body)


def test_mismatched_split_sizes_of_two_ranks_are_reported() -> None:
    """GIVEN rank 0 sends 3 elements to rank 1, which expects 2 THEN the error on rank 1 contains the number 3."""
    first = RankMessage(0, "all_to_all_single", 16, "float32", sends=[1, 3], wants=[1, 2])
    second = RankMessage(0, "all_to_all_single", 16, "float32", sends=[2, 2], wants=[2, 2])
    with pytest.raises(RuntimeError, match=r"rank 0 sends 3 elements to rank 1, which expects 2; NCCL would hang"):
        require_match([first, second], 1, 0, "rank {}".format, "NCCL")
    second.wants = [3, 2]
    require_match([first, second], 1, 0, "rank {}".format, "NCCL")


def test_reductions_support_the_operations_of_nccl() -> None:
    def body(rank: int) -> None:
        for name in ("BAND", "BOR", "BXOR"):
            with pytest.raises(ValueError, match=rf"Cannot use ReduceOp\.{name} with NCCL"):
                dist.all_reduce(zeros(1, torch.int64), getattr(dist.ReduceOp, name))
        with pytest.raises(TypeError, match=r"Cannot use ReduceOp\.AVG with boolean inputs"):
            dist.all_reduce(zeros(1, torch.bool), dist.ReduceOp.AVG)
        value = torch.tensor([rank + 2.0], device="cuda")
        dist.all_reduce(value, torch._C._distributed_c10d._make_nccl_premul_sum(0.5 + rank))
        assert value.item() == 2 * 0.5 + 3 * 1.5
        whole = torch.tensor([7 * rank], device="cuda")
        dist.all_reduce(whole, dist.ReduceOp.AVG)
        assert whole.item() == 3
        with pytest.raises(TypeError, match="PreMulSum Data type must be half, float, bfloat16 or double"):
            dist.all_reduce(whole, torch._C._distributed_c10d._make_nccl_premul_sum(0.5))
        with pytest.raises(TypeError, match="data type is not supported for NCCL process group: Short"):
            dist.broadcast(zeros(2, torch.int16), 0)
        with pytest.raises(ValueError, match="Tensors must be contiguous"):
            dist.all_reduce(torch.zeros(3, 4, device="cuda").t())
        with pytest.raises(ValueError, match="Tensors must be CUDA and dense"):
            dist.broadcast(torch.eye(2, device="cuda").to_sparse(), 0)
        with pytest.raises(RuntimeError, match="FP8 reduction support begins with sm90 capable devices"):
            dist.all_reduce(zeros(2, torch.float8_e4m3fn))
        with pytest.raises(RuntimeError, match="Unsupported Float8 type for NCCL reduction"):
            dist.all_reduce(zeros(2, torch.float8_e5m2fnuz))
        dist.broadcast(zeros(2, torch.float8_e4m3fn), 0)
        with pytest.raises(ValueError, match="output tensor size must be equal to world_size times input tensor size"):
            dist.all_gather_into_tensor(zeros(3), zeros(1))
        with pytest.raises(TypeError, match="output tensor must have the same type as input tensor"):
            dist.all_gather_into_tensor(zeros(2, torch.int64), zeros(1))

    run_ranks(2, body)


def test_splits_that_do_not_fit_the_group_are_rejected_before_the_call() -> None:
    def body(rank: int) -> None:
        with pytest.raises(RuntimeError, match="Split sizes doesn't match total dim 0 size"):
            dist.all_to_all_single(zeros(4), zeros(4), [1, 1], [2, 2])
        with pytest.raises(RuntimeError, match="Number of tensor splits not equal to group size"):
            dist.all_to_all_single(zeros(4), zeros(4), [2, 2], [4])
        with pytest.raises(RuntimeError, match="Tensor's dim 0 does not divide equally across group size"):
            dist.all_to_all_single(zeros(3), zeros(4))
        with pytest.raises(ValueError, match=r"Incorrect output list size 1\. Output list size should be 2"):
            dist.all_gather([zeros(2)], zeros(2))
        with pytest.raises(ValueError, match=r"Incorrect input list size 3\. Input list size should be 2"):
            dist.reduce_scatter(zeros(2), [zeros(2)] * 3)
        if rank == 0:
            with pytest.raises(ValueError, match=r"Incorrect input list size 1\. Input list size should be 2"):
                dist.scatter(zeros(2), [zeros(2)], src=0)
            with pytest.raises(ValueError, match=r"Incorrect output list size 1\. Output list size should be 2"):
                dist.gather(zeros(2), [zeros(2)], dst=0)
        invalid_root = r"(Broadcast|Reduce|Send|Recv) : invalid root 2 \(root should be in the 0\.\.2 range\)"
        for call in (dist.broadcast, dist.reduce, dist.send, dist.recv):
            with pytest.raises(dist.DistBackendError, match=invalid_root):
                call(zeros(2), 2)
        dist.barrier()  # the rejected calls have sent no message to the other rank

    run_ranks(2, body)


def test_a_gather_of_a_gigabyte_takes_the_same_time_on_every_clock() -> None:
    def body(rank: int) -> None:
        part, whole = torch.empty(1 << 27, device="cuda"), torch.empty(1 << 28, device="cuda")
        dist.all_gather_into_tensor(whole, part)
        torch.cuda.synchronize()

    # The rank that arrives last does not wait for the other rank.
    played = [run_ranks(2, body, clock=clock) for clock in CLOCKS]
    virtual_ns, recorded_ns = (min(int(trace.collectives.duration_ns.max()) for trace in ranks) for ranks in played)
    assert 10**6 < virtual_ns < 10**9 and abs(virtual_ns - recorded_ns) < 1_000
