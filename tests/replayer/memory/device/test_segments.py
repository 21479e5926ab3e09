"""Tests that segments have the addresses that CUDA gives them. An allocation history of an H200 shows the order of sizes and
places."""

from __future__ import annotations

from replayer.memory.device.blocks import Ages, TieRule
from replayer.memory.device.segments import DriverAddresses, Segments
from replayer.memory.device.settings import MIB

GIB = 1 << 30

TOP = 0x7F80_0000_0000


def below_top(addresses: DriverAddresses, *sizes_mib: int) -> list[int]:
    """Take segments, and return how many MiB below the top of the address space each segment begins."""
    return [(TOP - addresses.allocate(size * MIB)) // MIB for size in sizes_mib]


def test_a_new_address_range_lies_below_all_other_ranges() -> None:
    assert below_top(DriverAddresses(0), 98, 100, 50, 31, 516) == [128, 256, 320, 352, 352 + 544]


def test_a_segment_gets_the_lowest_address_of_the_newest_range_with_room() -> None:
    addresses = DriverAddresses(0)
    # Two ranges of 128 MiB have 30 MiB left each, and one range of 64 MiB has 14 MiB left.
    assert below_top(addresses, 98, 98, 50) == [128, 256, 320]
    assert below_top(addresses, 26, 26) == [256 - 98, 128 - 98]
    assert below_top(addresses, 2, 12, 2) == [320 - 50, 320 - 52, 256 - 124]


def test_free_addresses_in_a_range_are_reused_and_empty_ranges_are_returned() -> None:
    addresses = DriverAddresses(0)
    first, second = addresses.allocate(20 * MIB), addresses.allocate(10 * MIB)
    addresses.give_back(first, 20 * MIB)
    assert addresses.allocate(4 * MIB) == first and addresses.allocate(18 * MIB) == TOP - 64 * MIB
    addresses.give_back(first, 4 * MIB)
    addresses.give_back(second, 10 * MIB)  # The upper range is empty now, so its 12 free MiB are not used.
    assert addresses.allocate(16 * MIB) == TOP - 96 * MIB


def test_an_address_gap_is_used_if_it_is_32_mib_larger_than_needed() -> None:
    addresses = DriverAddresses(0)
    taken = [addresses.allocate(32 * MIB) for _ in range(5)]
    addresses.give_back(taken[1], 32 * MIB)  # Now a gap has 32 MiB.
    assert addresses.allocate(32 * MIB) == TOP - 6 * 32 * MIB
    addresses.give_back(taken[2], 32 * MIB)  # Now the gap has 64 MiB.
    assert addresses.allocate(32 * MIB) == taken[1]


def test_addresses_of_the_second_device_start_1_tib_below_the_first() -> None:
    assert DriverAddresses(1).allocate(MIB) == TOP - (1 << 40) - 32 * MIB


def test_each_device_has_its_own_addresses() -> None:
    """The addresses of two devices are 1 TiB apart. The addresses of their expandable segments are 5 TiB apart."""
    assert [TOP - DriverAddresses(device).allocate(32 * MIB) for device in (0, 1, 3)] == [
        (device << 40) + 32 * MIB for device in (0, 1, 3)
    ]
    for device in (0, 1, 3):
        segments = Segments(device, 16 * GIB, GIB, Ages(TieRule.ADDRESS))
        assert segments._reserved_addresses.allocate(2 * MIB) == 0x1000_0000_0000 + device * (5 << 40)
