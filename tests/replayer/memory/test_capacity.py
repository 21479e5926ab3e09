"""How much memory a virtual device has: as recorded, as given, or as its chip usually has."""

from __future__ import annotations

import pytest

from replayer.memory.capacity import capacity_of
from replayer.memory.oom import DEFAULT_OOM_TEXT
from traces.machine import Machine
from traces.model import Device

GIB = 1 << 30


@pytest.mark.parametrize(
    ("device", "given_bytes", "capacity_bytes"),
    [
        (Device(0, 0, "Tesla V100-DGXS-32GB", 34_074_066_944), None, 34_074_066_944),
        (Device(0, 0, "Tesla V100-DGXS-32GB", 34_074_066_944), 8 * GIB, 8 * GIB),
        (Device(0, 0, "Tesla T4"), None, 15_843_721_216),
        (Device(0, 0, "a card nobody knows"), None, 16 * GIB),
    ],
)
def test_the_capacity(device: Device, given_bytes: int | None, capacity_bytes: int) -> None:
    assert capacity_of(Machine(), device, given_bytes) == (capacity_bytes, 0, DEFAULT_OOM_TEXT)


def test_what_is_taken_beside_pytorch() -> None:
    assert capacity_of(Machine(), Device(2, 1, "GPU", GIB, outside_bytes=500)).outside_bytes == 500
    assert capacity_of(Machine(), Device(2, 1, "GPU", GIB, outside_bytes=-5)).outside_bytes == 0


def test_the_recorded_words() -> None:
    assert capacity_of(Machine(oom_text="no room"), Device(0, 0, "GPU", GIB)).oom_text == "no room"
    assert capacity_of(Machine(), Device(0, 0, "GPU", GIB)).oom_text == DEFAULT_OOM_TEXT
