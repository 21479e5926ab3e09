"""Allocates an op's workspaces: temporary memory that the op frees before it returns.

    scratch = ScratchScope(allocator, stream, "aten::mm", ((), (8519680, -8519680)))
    scratch.after_output()      # before the first output: nothing
    scratch.after_output()      # after the first output: allocates and frees 8.125 MiB
    scratch.end()

Note [Failed convolution workspaces]
    If the allocation of a convolution's workspace fails, PyTorch tries cuDNN's next algorithm, which may need no workspace. All
    later calls with the same shapes use the algorithm that worked (aten/src/ATen/native/cudnn/Conv_v7.cpp,
    AlgoIterator::try_all; Conv_v8.cpp, benchmark_cache). A replay therefore requests a workspace that did not fit only once.
"""

from __future__ import annotations

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.tensor_allocator import TensorAllocator
from traces.names.equivalent_ops import canonical_op


class ScratchScope:
    """Allocates the workspaces of one call of an op. For each output of the op, `sequence` has the sizes in bytes of the
    workspaces that the op allocates before the output. A negative size frees a workspace."""

    __slots__ = ("_allocator", "_at", "_handles", "_op", "_sequence", "_stream")

    def __init__(self, allocator: TensorAllocator, stream: int, op: str, sequence: tuple[tuple[int, ...], ...]) -> None:
        self._allocator = allocator
        self._stream = stream
        self._op = op
        self._sequence = sequence
        self._at = 0
        self._handles: list[AllocationHandle] = []

    def after_output(self) -> None:
        """Allocate and free the workspaces that the op needs before its next output. Raises OutOfMemory, except for
        convolutions."""
        at = self._at
        if at < len(self._sequence):
            self._at = at + 1
            if sizes := self._sequence[at]:
                self._execute(sizes)

    def end(self) -> None:
        for sizes in self._sequence[self._at :]:
            self._execute(sizes)

    def close(self) -> None:
        """Free all remaining workspaces, even after the op has failed."""
        while self._handles:
            self._allocator.free(self._handles.pop())

    def _execute(self, sizes: tuple[int, ...]) -> None:
        for size_bytes in sizes:
            if size_bytes > 0:
                handle = _allocate(self._allocator, self._stream, self._op, size_bytes, self._at)
                if handle is not None:
                    self._handles.append(handle)
                continue
            for i in range(len(self._handles) - 1, -1, -1):
                if self._handles[i].size_bytes == -size_bytes:
                    self._allocator.free(self._handles.pop(i))
                    break


def use_scratch(allocator: TensorAllocator, stream: int, op: str, size_bytes: int) -> None:
    """Allocate and free an op's temporary memory, to include this memory in the peak. Raises OutOfMemory, except for
    convolutions."""
    handle = _allocate(allocator, stream, op, size_bytes, 0)
    if handle is not None:
        allocator.free(handle)


def _allocate(allocator: TensorAllocator, stream: int, op: str, size_bytes: int, at: int) -> AllocationHandle | None:
    # see Note [Failed convolution workspaces]
    if canonical_op(op).startswith("convolution"):
        return allocator.try_malloc(size_bytes, stream, (op, at, size_bytes))
    return allocator.malloc(size_bytes, stream)
