"""Finds the memory size of a virtual GPU.

    capacity = capacity_of(trace.machine_of(0), device, "2.13.0")            # as recorded
    capacity = capacity_of(trace.machine_of(0), device, "2.13.0", 8 << 30)   # as with `--gpu-memory 8GiB`
    capacity.capacity_bytes - capacity.outside_bytes               # the memory that PyTorch can reserve
"""

from __future__ import annotations

from typing import NamedTuple

from replayer.memory.device.blocks import TieRule, tie_rule_of
from replayer.memory.device.oom import oom_text_of
from traces.model.machine import Machine
from traces.model.trace import Device
from traces.names.cards import UNKNOWN_CARD, card_of


class Capacity(NamedTuple):
    capacity_bytes: int
    outside_bytes: int  # bytes that the CUDA context, loaded kernels and NCCL use
    oom_text: str  # the text of PyTorch's out-of-memory error
    tie_rule: TieRule = TieRule.SEGMENT_AGE


def capacity_of(machine: Machine, device: Device, torch_version: str, given_bytes: int | None = None) -> Capacity:
    """Return the recorded memory size of a GPU, or the size on its data sheet. `given_bytes` replaces this size.

    If the recording was made with the running release of PyTorch, out-of-memory errors have the recorded text. Otherwise, they
    have the text of the running release.
    """
    card = card_of(device.name)
    recorded_bytes = device.total_memory_bytes if device.total_memory_bytes > 0 else card.memory_bytes
    outside_bytes = max(device.outside_bytes, 0) or (0 if card is UNKNOWN_CARD else card.context_bytes)
    running = Machine(torch=torch_version)
    is_same = machine.release in (None, running.release)
    oom_text = machine.oom_text if machine.oom_text and is_same else oom_text_of(torch_version)
    tie_rule = tie_rule_of(machine if machine.torch else running)
    return Capacity(given_bytes or recorded_bytes, outside_bytes, oom_text, tie_rule)
