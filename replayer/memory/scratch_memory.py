"""Allocates an op's workspaces: temporary memory that the op frees before it returns.

    scratch = ScratchScope(allocator, stream, "aten::mm", ((), (8519680, -8519680)))
    scratch.after_output()      # before the first output: nothing
    scratch.after_output()      # after the first output: allocates and frees 8.125 MiB
    scratch.end()

Note [Failed convolution workspaces]
    If a convolution's workspace does not fit, PyTorch chooses another algorithm of cuDNN. PyTorch then uses this algorithm for
    all later calls with the same shapes (aten/src/ATen/native/cudnn/Conv_v7.cpp, AlgoIterator::try_all; Conv_v8.cpp,
    benchmark_cache). A replay therefore requests such a workspace only once.

Note [Winograd workspaces]
    For fp32 convolutions with a 3x3 window and stride 1, cuDNN uses the Winograd algorithm F(4x4, 3x3). In a V100's recording
    (ResNet-50, batch 32, PyTorch 1.9), a workspace has 36 places x 4 bytes x (tiles x input channels + tiles x output channels
    + input channels x output channels). With 64 channels, only the weight gradient uses this workspace. With 128 channels or
    more, the forward pass and the whole backward pass use this workspace.
"""

from __future__ import annotations

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.tensor_allocator import TensorAllocator
from replayer.op_signature import OpSignature
from traces.model.layouts import Shape
from traces.names.equivalent_ops import canonical_op

_PLACES, _TILE, _WINDOW = 36, 4, (3, 3)
_BYTES = 4  # size of an fp32 number
_WIDE, _NARROW = 128, 64  # numbers of channels; see Note [Winograd workspaces]


def winograd_workspaces(signature: OpSignature) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of a convolution's temporary allocations (positive) and frees (negative) in bytes."""
    op, shapes, outputs = signature.op, signature.shapes, signature.outputs
    if op not in ("aten::convolution", "aten::convolution_backward") or set(signature.dtypes) != {"float32"}:
        return ()
    if op == "aten::convolution":
        image, weight, result = *shapes[:2], outputs[0]
    else:
        result, image, weight = shapes[:3]
    size_bytes = _winograd_bytes(image, weight, result)
    channels = (min(image[1], result[1]), max(image[1], result[1])) if size_bytes else (0, 0)
    is_narrow = channels[0] < _NARROW
    sequence: list[tuple[int, ...]] = [()]
    for output in outputs:
        takes = not is_narrow and (channels[1] >= _WIDE or output == weight) and output in (result, image, weight)
        sequence.append((size_bytes, -size_bytes) if takes else ())
    return tuple(sequence) if any(sequence) else ()


def _winograd_bytes(image: Shape, weight: Shape, result: Shape) -> int:
    if len(image) != 4 or weight[2:] != _WINDOW or result[2:] != image[2:] or weight[1] != image[1]:
        return 0
    inputs, outputs = image[1], result[1]
    tiles = image[0] * -(-image[2] // _TILE) * -(-image[3] // _TILE)
    return _PLACES * _BYTES * (tiles * inputs + tiles * outputs + inputs * outputs)


class ScratchScope:
    __slots__ = ("_allocator", "_at", "_handles", "_op", "_sequence", "_stream")

    def __init__(self, allocator: TensorAllocator, stream: int, op: str, sequence: tuple[tuple[int, ...], ...]) -> None:
        self._allocator = allocator
        self._stream = stream
        self._op = op
        self._sequence = sequence
        self._at = 0
        self._handles: list[AllocationHandle] = []

    def after_output(self) -> None:
        """Allocate and free the op's temporary buffers up to the allocation of its next output. Raises OutOfMemory, except for
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
    """Allocate and free an op's temporary memory, which may raise the memory peak. Raises OutOfMemory, except for
    convolutions."""
    handle = _allocate(allocator, stream, op, size_bytes, 0)
    if handle is not None:
        allocator.free(handle)


def _allocate(allocator: TensorAllocator, stream: int, op: str, size_bytes: int, at: int) -> AllocationHandle | None:
    # see Note [Failed convolution workspaces]
    if canonical_op(op).startswith("convolution"):
        return allocator.try_malloc(size_bytes, stream, (op, at, size_bytes))
    return allocator.malloc(size_bytes, stream)
