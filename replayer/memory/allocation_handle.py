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
        """Queue the allocation to be freed. The method takes no lock, so finalizers may call it."""

    def record_stream(self, handle: AllocationHandle, stream: UsedStream) -> None:
        """Record that another stream uses the memory. The memory is reused only after the work now queued on the stream has
        ended."""


class AllocationHandle:
    """One allocation with its requested size and its address.

    If training steps repeat their memory requests (an allocation cycle), they reuse the handles of earlier steps. In a reused
    handle, `block` is still the block of the last request that was really executed.
    """

    __slots__ = ("address", "allocator", "block", "size_bytes", "stream")

    def __init__(self, allocator: HandleOwner, size_bytes: int, stream: int, block: Block) -> None:
        self.allocator = allocator
        self.size_bytes = size_bytes
        self.stream = stream
        self.block = block
        self.address = block.address
