"""Estimates cuDNN's workspaces that were not recorded: those of Winograd convolutions.

    of_convolution(signature)       # ((), (47185920, -47185920)): after the op's first output; () where none is known

cuDNN computes fp32 convolutions of 3x3 with stride 1 by F(4x4, 3x3): each tile of 4x4 outputs becomes 6x6 places, of the input,
the output and the weights, and all three lie in the workspace.

Note [Which convolutions take it]
    In a V100's recording (ResNet-50, batch 32, PyTorch 1.9) the sizes are exactly 36 places x 4 bytes x (tiles x input channels
    + tiles x output channels + input channels x output channels): 45.0 MiB for 256 channels of 14x14, 54.0 for 512 of 7x7. From
    128 channels on the forward pass and both halves of the backward pass take it, with 64 only the weights' gradient. That
    other cards of their time did alike shows where they were full (benchmarks/library_memory.py). What other algorithms take is
    under 1 MiB, or known of one card only, and left out. Where a workspace does not fit, PyTorch tries cuDNN's next algorithm,
    which may need none (aten/src/ATen/native/cudnn/Conv_v7.cpp, AlgoIterator).
"""

from __future__ import annotations

from replayer.op_signature import OpSignature
from traces.model.layouts import Shape

_PLACES, _TILE, _WINDOW = 36, 4, (3, 3)
_BYTES = 4  # fp32
_WIDE, _NARROW = 128, 64  # channels; see Note [Which convolutions take it]


def of_convolution(signature: OpSignature) -> tuple[tuple[int, ...], ...]:
    """Bytes that a convolution or its backward pass allocates (positive) and frees (negative) before its first output, after
    it, after the second...; () of any other op."""
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
    """0 where the convolution is of another kind."""
    if len(image) != 4 or weight[2:] != _WINDOW or result[2:] != image[2:] or weight[1] != image[1]:
        return 0
    inputs, outputs = image[1], result[1]
    tiles = image[0] * -(-image[2] // _TILE) * -(-image[3] // _TILE)
    return _PLACES * _BYTES * (tiles * inputs + tiles * outputs + inputs * outputs)
