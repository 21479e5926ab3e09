"""Memory of tensors that torch.compile keeps in the private pools of its CUDA graphs.

After such a graph has been captured, PyTorch does not count the pool's tensors as allocated. The tensors' memory is part of the
pool, which each replay of the graph uses again (torch/_inductor/cudagraph_trees.py).

pool = GraphPool()
with replaced(allocator, malloc=pool.malloc, malloc_several=pool.malloc_several):
    y = compiled(x)     # memory_allocated() stays the same
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.blocks import UsedStream
from replayer.memory.device.settings import BLOCK_BYTES

_FIRST_ADDRESS = 0x7F_0000_0000_0000


class _PooledHandle(AllocationHandle):
    """An allocation without a block of the device's allocator."""

    def __init__(self, pool: GraphPool, size_bytes: int, stream: int, address: int) -> None:
        self.allocator, self.size_bytes, self.stream, self.address = pool, size_bytes, stream, address


class GraphPool:
    """Hands out memory that no figure counts. Each such tensor gets an address that no other tensor of the process has."""

    _next: ClassVar[int] = _FIRST_ADDRESS

    def malloc(self, size_bytes: int, stream: int) -> AllocationHandle | None:
        """Return memory for a tensor, or None for 0 bytes."""
        if not size_bytes:
            return None
        address = self._next
        GraphPool._next += -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
        return _PooledHandle(self, size_bytes, stream, address)

    def malloc_several(self, sizes_bytes: Sequence[int], stream: int) -> list[AllocationHandle | None]:
        return [self.malloc(size_bytes, stream) for size_bytes in sizes_bytes]

    def free(self, handle: AllocationHandle) -> None:
        """Do nothing, because a CUDA graph keeps its memory pool."""

    def record_stream(self, handle: AllocationHandle, stream: UsedStream) -> None:
        """Do nothing, because a CUDA graph keeps its memory pool."""
