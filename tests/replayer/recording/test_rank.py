"""Tests which rank a process has, which recorded rank it replays, and which devices it sees."""

from __future__ import annotations

import pytest

from replayer.recording.rank import Rank
from traces.model.trace import Device, Trace


@pytest.mark.parametrize(
    ("told", "rank"),
    [
        ({}, Rank()),
        ({"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, Rank(3, 2)),
        ({"RANK": "3", "LOCAL_RANK": "1"}, Rank(3, 2)),  # Some launchers do not set LOCAL_WORLD_SIZE.
        ({"RANK": "-1", "LOCAL_RANK": "1"}, Rank()),
    ],
)
def test_the_rank_is_read_from_the_environment_variables_of_torchrun(told: dict[str, str], rank: Rank) -> None:
    assert Rank.of(told) == rank


def test_replayed_ranks_cycle_through_the_recorded_ranks_and_see_one_device_each() -> None:
    one = Trace(devices=[Device(1, 1, "V100")])  # This device was recorded by rank 1, on its second GPU.
    assert Rank().devices(one) == [Device(0, 1, "V100")]  # A script without other ranks is always rank 0.
    assert [(d.index, d.name) for d in Rank(1, 3).devices(one)] == [(0, "V100"), (1, "V100"), (2, "V100")]
    two = Trace(devices=[Device(0, 0, "A"), Device(4, 0, "B")])
    assert [Rank(number).recorded(two.ranks) for number in range(4)] == [0, 4, 0, 4]
    assert [device.name for device in Rank(1, 2).devices(two)] == ["B", "B"]
    assert Rank(1, 2).devices(Trace()) == []


def test_a_single_process_sees_every_recorded_device() -> None:
    one_each = Trace(devices=[Device(0, 1, "A"), Device(1, 3, "B")])
    for rank in (Rank(), Rank(1)):
        assert [(device.index, device.name) for device in rank.devices(one_each)] == [(0, "A"), (1, "B")]
    two_machines = Trace(devices=[Device(rank, rank % 2, f"of rank {rank}") for rank in range(4)])
    assert [device.name for device in Rank().devices(two_machines)] == ["of rank 0", "of rank 1"]
