"""Allocates an op's workspaces in a replay: memory that the op frees before it returns (recording/workspaces.py).

    scratch = ScratchScope(allocator, stream, "aten::mm", ((), (8519680, -8519680)))
    scratch.after_output()      # before the first output: nothing
    scratch.after_output()      # after it: 8.125 MiB, and back
    scratch.end()

Sizes are allocated and freed in the recorded order between the op's outputs, so that outputs get the recorded blocks.

Note [A convolution that found no workspace]
    cuDNN's convolutions can run without a workspace. PyTorch catches the failure, tries cuDNN's next algorithm, and keeps the
    one that ran for all later calls with the same shapes (aten/src/ATen/native/cudnn/Conv_v7.cpp, AlgoIterator::try_all;
    Conv_v8.cpp, benchmark_cache). So a workspace that once found no memory is not requested again, even if there is room later.
    This also avoids returning cached memory to the device in each step, which every failed request does. Such a workspace is
    identified by its op, its size and the output before it.
"""

from __future__ import annotations

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.tensor_allocator import TensorAllocator
from traces.names.equivalent_ops import canonical_op


class ScratchScope:
    """The workspaces of one call of `op`. `after_output` is called before the first output and after each.

    `sequence[i]` are the sizes in bytes to allocate (positive) and to free (negative, the latest of that size) before the
    output i.
    """

    __slots__ = ("_allocator", "_at", "_handles", "_op", "_sequence", "_stream")

    def __init__(self, allocator: TensorAllocator, stream: int, op: str, sequence: tuple[tuple[int, ...], ...]) -> None:
        self._allocator = allocator
        self._stream = stream
        self._op = op
        self._sequence = sequence
        self._at = 0
        self._handles: list[AllocationHandle] = []  # allocated and not freed yet

    def after_output(self) -> None:
        """Allocate and free the workspaces between this output and the next. Raises OutOfMemory, but not for a convolution."""
        at = self._at
        if at < len(self._sequence):
            self._at = at + 1
            if sizes := self._sequence[at]:
                self._execute(sizes)

    def end(self) -> None:
        """Execute the rest: the recorded op has more outputs than this one."""
        for sizes in self._sequence[self._at :]:
            self._execute(sizes)

    def close(self) -> None:
        """Free what is still allocated, also if the call failed."""
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
    """Allocate a workspace and free it at once. Raises OutOfMemory, but not for a convolution."""
    handle = _allocate(allocator, stream, op, size_bytes, 0)
    if handle is not None:
        allocator.free(handle)


def _allocate(allocator: TensorAllocator, stream: int, op: str, size_bytes: int, at: int) -> AllocationHandle | None:
    """A workspace of `op`, before its output `at`; None for a convolution's that finds no memory.

    Raises OutOfMemory for other ops. See Note [A convolution that found no workspace].
    """
    if canonical_op(op).startswith("convolution"):
        return allocator.try_malloc(size_bytes, stream, (op, at, size_bytes))
    return allocator.malloc(size_bytes, stream)
