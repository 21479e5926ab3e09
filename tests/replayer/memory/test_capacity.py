"""Tests that the memory of a virtual device has the given size, the recorded size, or the usual size of its GPU model."""

from __future__ import annotations

import pytest

from replayer.memory.capacity import capacity_of
from replayer.memory.device.blocks import TieRule
from replayer.memory.device.oom import oom_text_of
from traces.model.machine import Machine
from traces.model.trace import Device

GIB = 1 << 30


@pytest.mark.parametrize(
    ("device", "given_bytes", "capacity_bytes", "context_mib"),
    [
        # 80 multiprocessors with 2048 threads x 2 KiB are 320 MiB.
        (Device(0, 0, "Tesla V100-DGXS-32GB", 34_074_066_944), None, 34_074_066_944, 320),
        (Device(0, 0, "Tesla V100-DGXS-32GB", 34_074_066_944), 8 * GIB, 8 * GIB, 320),
        (Device(0, 0, "Tesla T4"), None, 15_843_721_216, 80),  # 40 multiprocessors with 1024 threads x 2 KiB are 80 MiB.
        (Device(0, 0, "a card nobody knows"), None, 16 * GIB, 0),
    ],
)
def test_the_memory_size_comes_from_the_option_the_recording_or_a_default(
    device: Device, given_bytes: int | None, capacity_bytes: int, context_mib: int
) -> None:
    expected = capacity_bytes, context_mib << 20, oom_text_of("2.13.0")
    assert capacity_of(Machine(), device, "2.13.0", given_bytes)[:3] == expected


@pytest.mark.parametrize(
    ("recorded", "running", "tie_rule"),
    [
        ("2.11.0+cu130", "2.14.1", TieRule.ADDRESS),
        ("2.12.1+cu130", "2.13.0", TieRule.BLOCK_AGE),
        ("2.13.0+cu130", "2.11.0", TieRule.SEGMENT_AGE),
        ("1.8 to 1.9", "2.13.0", TieRule.ADDRESS),
        (None, "2.10.0", TieRule.ADDRESS),
        (None, "2.14.1", TieRule.SEGMENT_AGE),
    ],
)
def test_free_blocks_of_equal_size_are_chosen_as_in_the_recorded_release(
    recorded: str | None, running: str, tie_rule: TieRule
) -> None:
    assert capacity_of(Machine(torch=recorded), Device(0, 0, "Tesla T4"), running).tie_rule is tie_rule


def test_memory_used_outside_of_pytorch_is_never_negative() -> None:
    assert capacity_of(Machine(), Device(2, 1, "GPU", GIB, outside_bytes=500), "2.13.0").outside_bytes == 500
    assert capacity_of(Machine(), Device(2, 1, "GPU", GIB, outside_bytes=-5), "2.13.0").outside_bytes == 0


@pytest.mark.parametrize(
    ("machine", "version", "oom_text"),
    [
        (Machine(oom_text="no room"), "2.13.0", "no room"),
        (Machine(torch="2.14.0+cu130", oom_text="no room"), "2.14.1", "no room"),
        (Machine(torch="2.11.0+cu130", oom_text="no room"), "2.13.0", oom_text_of("2.13.0")),
        (Machine(), "2.13.0+cpu", oom_text_of("2.13.0")),
    ],
)
def test_the_out_of_memory_message_is_that_of_the_installed_torch(machine: Machine, version: str, oom_text: str) -> None:
    assert capacity_of(machine, Device(0, 0, "GPU", GIB), version).oom_text == oom_text


def test_the_out_of_memory_message_has_the_text_of_torch_2_14() -> None:
    text = capacity_of(Machine(), Device(0, 0, "GPU", GIB), "2.14.1+cu130").oom_text
    assert "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See" in text
    assert text.endswith("notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)")
