"""How much memory a virtual device has, and how the recorded PyTorch says that there is no more.

    room = room_of(trace.provenance, device)            # as recorded
    room = room_of(trace.provenance, device, 8 << 30)   # `--gpu-memory 8GiB`: would it fit on a smaller card?
    room.capacity_bytes - room.outside_bytes            # what PyTorch can reserve
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from replayer.cost_model.device_properties import chip_of
from replayer.memory.oom_text import TODAY
from traces.model import Device


class Room(NamedTuple):
    """`outside_bytes`: what is taken beside PyTorch (CUDA context, NCCL buffers). `oom_text`: see oom_text.py."""

    capacity_bytes: int
    outside_bytes: int
    oom_text: str


def room_of(provenance: Mapping[str, Any], device: Device, given_bytes: int | None = None) -> Room:
    """The room on a recorded device. A capacity that was not recorded is that of the usual board with its chip.

    A recorder notes `outside_bytes` (by the device's index) and `oom_text` in the provenance, or in its part for the rank.
    """
    facts = {**provenance, **_mapping(_mapping(provenance.get("ranks")).get(str(device.rank)))}
    outside = _mapping(facts.get("outside_bytes"))
    outside_bytes = outside.get(str(device.index), outside.get(device.index, 0))
    text = facts.get("oom_text")
    return Room(
        given_bytes or _recorded_bytes(device),
        max(outside_bytes, 0) if isinstance(outside_bytes, int) else 0,
        text if isinstance(text, str) else TODAY,
    )


def _recorded_bytes(device: Device) -> int:
    if device.total_memory_bytes > 0:
        return device.total_memory_bytes
    return int(device.properties.get("totalGlobalMem", 0)) or chip_of(device.name).memory_bytes


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}
