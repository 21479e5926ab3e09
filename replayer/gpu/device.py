"""Represents a virtual CUDA device with its properties, its memory and its default stream."""

from __future__ import annotations

from dataclasses import dataclass

from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.tensor_allocator import TensorAllocator
from replayer.timing.stream import VirtualStream
from traces.model.machine import DeviceProperties


@dataclass(slots=True, eq=False)
class VirtualDevice:
    index: int
    name: str
    properties: DeviceProperties  # recorded properties, with missing properties from the data sheet
    allocator: TensorAllocator
    default_stream: VirtualStream

    @property
    def memory(self) -> DeviceMemory:
        return self.allocator.flush()
