"""The memory size of a virtual device, and the text of PyTorch's out-of-memory message.

    capacity = capacity_of(trace.machine_of(0), device, "2.13.0")            # as recorded
    capacity = capacity_of(trace.machine_of(0), device, "2.13.0", 8 << 30)   # as with `--gpu-memory 8GiB`
    capacity.capacity_bytes - capacity.outside_bytes               # the memory that PyTorch can reserve
"""

from __future__ import annotations

from typing import NamedTuple

from replayer.memory.device.oom import oom_text_of
from traces.model.machine import Machine
from traces.model.trace import Device
from traces.names.cards import card_of


class Capacity(NamedTuple):
    """The memory of a device.

    `outside_bytes` is the memory that is used outside of PyTorch's allocator (CUDA context, NCCL buffers). `oom_text` is the
    out-of-memory message (device/oom.py).
    """

    capacity_bytes: int
    outside_bytes: int
    oom_text: str


def capacity_of(machine: Machine, device: Device, torch_version: str, given_bytes: int | None = None) -> Capacity:
    """Return the capacity of a recorded device. If the recording lacks the capacity, the capacity of the usual board with this
    chip is assumed.

    `torch_version` is the version of PyTorch that runs the replay. A recorded error message is used only if the recording is
    from the same PyTorch release.
    """
    recorded_bytes = device.total_memory_bytes if device.total_memory_bytes > 0 else card_of(device.name).memory_bytes
    is_same = machine.release in (None, Machine(torch=torch_version).release)
    oom_text = machine.oom_text if machine.oom_text and is_same else oom_text_of(torch_version)
    return Capacity(given_bytes or recorded_bytes, max(device.outside_bytes, 0), oom_text)
