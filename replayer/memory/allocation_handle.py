"""Defines objects that refer to the GPU memory of a tensor.

    handle.address
    handle.allocator.free(handle)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from replayer.memory.device.blocks import Block, UsedStream


class HandleOwner(Protocol):
    @property
    def free(self) -> Callable[[AllocationHandle], None]:
        """Free the memory later. Finalizers may call this function."""

    def record_stream(self, handle: AllocationHandle, stream: UsedStream) -> None:
        """Keep the allocation's memory reserved until `stream` has finished its current work."""


class AllocationHandle:
    __slots__ = ("address", "allocator", "block", "size_bytes", "stream")

    def __init__(self, allocator: HandleOwner, size_bytes: int, stream: int, block: Block) -> None:
        self.allocator = allocator
        self.size_bytes = size_bytes
        self.stream = stream
        self.block = block
        self.address = block.address
