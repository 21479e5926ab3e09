"""How much memory a virtual device has, and the recorded PyTorch's message when it is full.

capacity = capacity_of(trace.machine_of(0), device)            # as recorded
capacity = capacity_of(trace.machine_of(0), device, 8 << 30)   # `--gpu-memory 8GiB`: would it fit on a smaller card?
capacity.capacity_bytes - capacity.outside_bytes               # what PyTorch can reserve
"""

from __future__ import annotations

from typing import NamedTuple

from replayer.memory.oom import DEFAULT_OOM_TEXT
from traces.cards import card_of
from traces.machine import Machine
from traces.model import Device


class Capacity(NamedTuple):
    """`outside_bytes`: used outside of PyTorch's allocator (CUDA context, NCCL buffers). `oom_text`: see oom.py."""

    capacity_bytes: int
    outside_bytes: int
    oom_text: str


def capacity_of(machine: Machine, device: Device, given_bytes: int | None = None) -> Capacity:
    """The capacity of a recorded device; if it was not recorded, that of the usual board with its chip."""
    recorded_bytes = device.total_memory_bytes if device.total_memory_bytes > 0 else card_of(device.name).memory_bytes
    return Capacity(given_bytes or recorded_bytes, max(device.outside_bytes, 0), machine.oom_text or DEFAULT_OOM_TEXT)
