"""The handle of one allocation of device memory that belongs to a tensor.

handle.address
handle.allocator.free(handle)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from replayer.memory.device.blocks import Block, UsedStream


class HandleOwner(Protocol):
    """The allocator that created a handle."""

    @property
    def free(self) -> Callable[[AllocationHandle], None]:
        """Queue the allocation to be freed. A finalizer may call this method, because the method takes no lock."""

    def record_stream(self, handle: AllocationHandle, stream: UsedStream) -> None:
        """Record that another stream uses the memory. Before the memory is reused, all queued work of this stream must end."""


class AllocationHandle:
    """Identifies one allocation, with the requested size and the address.

    In an allocation cycle, a training step reuses the handles of earlier steps. If an allocation cycle reuses a handle, `block`
    is still the block of the last executed request.
    """

    __slots__ = ("address", "allocator", "block", "size_bytes", "stream")

    def __init__(self, allocator: HandleOwner, size_bytes: int, stream: int, block: Block) -> None:
        self.allocator = allocator
        self.size_bytes = size_bytes
        self.stream = stream
        self.block = block
        self.address = block.address
