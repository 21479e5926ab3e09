"""What ranks must agree on, and what the error says if they do not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from replayer.distributed.rank_message import RankMessage, conflict_of
from tests.replayer.ranks import run_ranks


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


@pytest.mark.parametrize(
    ("call", "first", "second"),
    [
        ("with_other_counts", r"all_reduce of 3 float32 elements \(SUM\)", r"all_reduce of 4 float32 elements \(SUM\)"),
        ("with_other_dtypes", r"all_reduce of 3 float32 elements \(SUM\)", r"all_reduce of 3 float16 elements \(SUM\)"),
        ("with_other_reductions", r"all_reduce of 3 float32 elements \(SUM\)", r"all_reduce of 3 float32 elements \(MAX\)"),
        ("with_other_sources", r"broadcast of 3 .* \(from rank 0\)", r"broadcast of 3 float32 elements \(from rank 1\)"),
        ("in_another_order", r"broadcast of 3 float32 elements \(from rank 0\)", r"all_reduce of 3 float32 elements \(SUM\)"),
        ("with_other_splits", "all_to_all_single of 5 float32 elements", "all_to_all_single of 4 float32 elements"),
        ("with_a_short_receiver", "send of 3 float32 elements", "recv of 2 float32 elements"),
    ],
)  # fmt: skip
def test_both_sides_are_named_before_the_timeout(call: str, first: str, second: str) -> None:
    """GIVEN a timeout of 20 s WHEN two ranks disagree THEN each rank's error names the ranks and both calls."""

    def body(rank: int) -> None:
        theirs, mine = (first, second) if rank else (second, first)
        told = rf"rank {1 - rank} of the group called {theirs} where rank {rank} called {mine}: "
        with pytest.raises(RuntimeError, match=told):
            globals()[call](rank)

    run_ranks(2, body)


def test_elements_of_the_wrong_length_are_named() -> None:
    """GIVEN rank 0 sends 1 and 3 elements and rank 1 expects 2 from each THEN rank 1 is told what rank 0 has for it."""
    first = RankMessage(0, "all_to_all_single", 16, "float32", sends=[1, 3], wants=[1, 2])
    second = RankMessage(0, "all_to_all_single", 16, "float32", sends=[2, 2], wants=[2, 2])
    assert conflict_of([first, second], 1, 0) == "the sender has 3 elements for the receiver, which expects 2"
    assert conflict_of([first, RankMessage(0, "all_to_all_single", 16, "float32", sends=[2, 2], wants=[3, 2])], 1, 0) == ""


def test_reductions_are_those_of_nccl() -> None:
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
        with pytest.raises(ValueError, match="output tensor size must be equal to world_size times input tensor size"):
            dist.all_gather_into_tensor(zeros(3), zeros(1))
        with pytest.raises(TypeError, match="output tensor must have the same type as input tensor"):
            dist.all_gather_into_tensor(zeros(2, torch.int64), zeros(1))

    run_ranks(2, body)
