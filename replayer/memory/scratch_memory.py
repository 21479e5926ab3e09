"""Allocates an op's workspaces during replay. A workspace is temporary memory that an op frees before it returns.

    scratch = ScratchScope(allocator, stream, "aten::mm", ((), (8519680, -8519680)))
    scratch.after_output()      # before the first output: nothing
    scratch.after_output()      # after the first output: allocates and frees 8.125 MiB
    scratch.end()

Workspaces and outputs are allocated in the recorded order, because the order determines which memory block each output gets.
The sizes come from recording/workspaces.py.

Note [A convolution that found no workspace]
    A cuDNN convolution can run without a workspace. If the allocation fails, PyTorch tries cuDNN's next algorithm. In all later
    calls with the same shapes, PyTorch uses the algorithm that worked (aten/src/ATen/native/cudnn/Conv_v7.cpp,
    AlgoIterator::try_all; Conv_v8.cpp, benchmark_cache). So if the allocation of a workspace has failed once, the workspace is
    never requested again, even if memory becomes free. Requesting the workspace again in each step would make the allocator
    return its cached memory to the device each time. The replay identifies a failed workspace by the op, the size and the
    preceding output.
"""

from __future__ import annotations

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.tensor_allocator import TensorAllocator
from traces.names.equivalent_ops import canonical_op


class ScratchScope:
    """The workspaces of one call of `op`. Call `after_output` before the first output and after each output.

    `sequence[i]` lists the sizes allocated (positive bytes) or freed (negative bytes) before output i. A negative size frees
    the latest allocation with this number of bytes.
    """

    __slots__ = ("_allocator", "_at", "_handles", "_op", "_sequence", "_stream")

    def __init__(self, allocator: TensorAllocator, stream: int, op: str, sequence: tuple[tuple[int, ...], ...]) -> None:
        self._allocator = allocator
        self._stream = stream
        self._op = op
        self._sequence = sequence
        self._at = 0
        self._handles: list[AllocationHandle] = []

    def after_output(self) -> None:
        """Allocate and free the workspaces that were recorded between this output and the next. Raises OutOfMemory, except for
        convolutions."""
        at = self._at
        if at < len(self._sequence):
            self._at = at + 1
            if sizes := self._sequence[at]:
                self._execute(sizes)

    def end(self) -> None:
        """Allocate and free the remaining workspaces. Some workspaces remain if the recorded op had more outputs than this call
        has."""
        for sizes in self._sequence[self._at :]:
            self._execute(sizes)

    def close(self) -> None:
        """Free all remaining workspaces. `close` is called even if the op has failed."""
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
    """Allocate a workspace and free it at once. Raises OutOfMemory, except for convolutions."""
    handle = _allocate(allocator, stream, op, size_bytes, 0)
    if handle is not None:
        allocator.free(handle)


def _allocate(allocator: TensorAllocator, stream: int, op: str, size_bytes: int, at: int) -> AllocationHandle | None:
    """Allocate a workspace before output `at`. Returns None if the op is a convolution and the memory does not suffice.

    For ops other than convolutions, raises OutOfMemory. See Note [A convolution that found no workspace].
    """
    if canonical_op(op).startswith("convolution"):
        return allocator.try_malloc(size_bytes, stream, (op, at, size_bytes))
    return allocator.malloc(size_bytes, stream)
