# mypy: allow-untyped-calls
"""Tests the values that ranks get when they exchange small tensors. The expected results were calculated by hand."""

from __future__ import annotations

import pytest
import torch

from replayer.distributed.collective_values import (
    all_to_all_values,
    assign,
    concatenated,
    is_uniform,
    of_rank,
    part_of_rank,
    values_in,
)
from replayer.distributed.group_call import RankValues
from replayer.distributed.rank_message import RankMessage


def ranks(*values: list[float] | None, sends: list[list[int]] | None = None) -> list[RankValues]:
    tensors = [None if of is None else torch.tensor(of) for of in values]
    return [RankValues(of, sends[rank] if sends else None) for rank, of in enumerate(tensors)]


def listed(values: torch.Tensor | None) -> list[float] | None:
    return None if values is None else values.tolist()


def test_values_of_all_ranks_are_concatenated_and_those_of_one_rank_are_selected() -> None:
    both, one = ranks([1.0, 2.0], [3.0, 4.0]), ranks([1.0, 2.0], None)
    assert listed(concatenated(both)) == [1, 2, 3, 4] and concatenated(one) is None
    assert listed(of_rank(1)(both)) == [3, 4] and listed(of_rank(0)(one)) == [1, 2] and of_rank(1)(one) is None
    assert listed(part_of_rank(concatenated, 1, [2, 2])(both)) == [3, 4] and part_of_rank(concatenated, 1, [2, 2])(one) is None
    assert listed(part_of_rank(concatenated, 1, [3, 1])(both)) == [4]
    assert listed(part_of_rank(concatenated, 1, [4, 0])(both)) == []


def test_all_to_all_gives_each_rank_a_part_from_every_rank() -> None:
    """Rank 0 sends 1 and 2 values, and rank 1 sends 3 and 1 values. Rank 0 gets the first parts, and rank 1 the second
    parts."""
    exchanged = ranks([1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], sends=[[1, 2], [3, 1]])
    assert listed(all_to_all_values(0)(exchanged)) == [1, 4, 5, 6]
    assert listed(all_to_all_values(1)(exchanged)) == [2, 3, 7]
    assert all_to_all_values(0)(ranks([1.0], None)) is None


@pytest.mark.parametrize(
    ("flat", "expected"), [([1.0, 2.0, 3.0], [[1], [2, 3]]), ([1.0, 2.0], [[9], [9, 9]]), (None, [[9], [9, 9]])]
)
def test_values_are_stored_in_the_outputs_only_if_the_sizes_agree(
    flat: list[float] | None, expected: list[list[float]]
) -> None:
    outputs = [torch.full((1,), 9.0), torch.full((2,), 9.0)]
    assign(outputs, lambda _ranks: None if flat is None else torch.tensor(flat), [RankMessage(0, "broadcast", 12, "float32")])
    assert [output.tolist() for output in outputs] == expected


def test_a_message_between_ranks_contains_all_values_one_value_or_none() -> None:
    payload = torch.tensor([1.5, -2.0]).view(torch.uint8).numpy().tobytes()
    assert listed(values_in(RankMessage(0, "all_gather", 8, "float32", payload=payload)).values) == [1.5, -2.0]
    assert listed(values_in(RankMessage(0, "all_gather", 12, "float32", uniform=2.0)).values) == [2, 2, 2]
    assert listed(values_in(RankMessage(0, "all_gather", 0, "float32", payload=b"")).values) == []
    assert values_in(RankMessage(0, "all_gather", 8, "float32")).values is None


def test_an_expanded_tensor_is_known_to_contain_equal_values() -> None:
    assert is_uniform(torch.ones(1).expand(3))
    assert not is_uniform(torch.ones(3)) and not is_uniform(torch.ones(1).expand(0))
