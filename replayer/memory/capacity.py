"""How much memory a virtual device has, and how the recorded PyTorch says that there is no more.

    room = room_of(trace.machine_of(0), device)            # as recorded
    room = room_of(trace.machine_of(0), device, 8 << 30)   # `--gpu-memory 8GiB`: would it fit on a smaller card?
    room.capacity_bytes - room.outside_bytes            # what PyTorch can reserve
"""

from __future__ import annotations

from typing import NamedTuple

from replayer.cost_model.device_properties import chip_of
from replayer.memory.oom_text import TODAY
from traces.machine import Machine
from traces.model import Device


class Room(NamedTuple):
    """`outside_bytes`: what is taken beside PyTorch (CUDA context, NCCL buffers). `oom_text`: see oom_text.py."""

    capacity_bytes: int
    outside_bytes: int
    oom_text: str


def room_of(machine: Machine, device: Device, given_bytes: int | None = None) -> Room:
    """The room on a recorded device. A capacity that was not recorded is that of the usual board with its chip."""
    recorded_bytes = device.total_memory_bytes if device.total_memory_bytes > 0 else chip_of(device.name).memory_bytes
    return Room(given_bytes or recorded_bytes, max(device.outside_bytes, 0), machine.oom_text or TODAY)
