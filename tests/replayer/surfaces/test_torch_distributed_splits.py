"""Tests groups that are split from other groups, and groups of ranks that are bound to their devices."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as symmetric_memory

from replayer.errors import NotEmulated
from tests.replayer.ranks import run_ranks


def sum_of(group: dist.ProcessGroup | None, value: float) -> float:
    tensor = torch.tensor([value], device="cuda")
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def test_ranks_of_a_split_group_can_exchange_values() -> None:
    def body(rank: int) -> None:
        dist.group.WORLD.bound_device_id = torch.device("cuda", rank)  # type: ignore[union-attr]
        pair = dist.split_group(split_ranks=[[0, 2], [1]])
        assert sum_of(pair, rank + 1.0) == (2.0 if rank == 1 else 4.0)
        assert dist.get_process_group_ranks(pair) == ([1] if rank == 1 else [0, 2])
        assert dist.split_group(split_ranks=[[0, 1]]) is not None or rank == 2

    run_ranks(3, body)


def test_a_rank_bound_to_a_device_can_create_new_groups() -> None:
    def body(rank: int) -> None:
        dist.group.WORLD.bound_device_id = torch.device("cuda", rank)  # type: ignore[union-attr]
        assert sum_of(dist.new_group([0, 1]), rank + 1.0) == 3.0
        assert dist.new_group([1]) is dist.GroupMember.NON_GROUP_MEMBER or rank == 1

    run_ranks(2, body)


def test_nccl_options_can_be_read_back_and_the_nccl_allocator_raises_not_emulated() -> None:
    def body(rank: int) -> None:
        options = dist.ProcessGroupNCCL.Options()
        options.config.max_ctas = 4
        group = dist.new_group(pg_options=options)
        assert sum_of(group, 2.0) == 4.0
        with pytest.raises(NotEmulated, match=r"ProcessGroupNCCL\.mem_allocator"):
            _ = group.mem_allocator

    run_ranks(2, body)


def test_using_symmetric_memory_raises_an_error_that_names_it() -> None:
    def body(rank: int) -> None:
        with pytest.raises(NotEmulated, match=r"torch\.distributed\._symmetric_memory \(\w+\)"):
            symmetric_memory.empty(8, device=torch.device("cuda", rank))
        assert dist.group.WORLD is not None
        with pytest.raises(NotEmulated, match=r"torch\.distributed\._symmetric_memory \(rendezvous\)"):
            symmetric_memory.rendezvous(torch.ones(8, device=f"cuda:{rank}"), dist.group.WORLD.group_name)

    run_ranks(2, body)
