"""Estimates the cuDNN workspaces of Winograd convolutions that were not recorded.

    of_convolution(signature)       # ((), (47185920, -47185920)): allocated and freed after the op's first output

Note [Winograd workspaces]
    For fp32 convolutions with a 3x3 window and stride 1, cuDNN uses the Winograd algorithm F(4x4, 3x3). In a V100's recording
    (ResNet-50, batch 32, PyTorch 1.9), a workspace has 36 places x 4 bytes x (tiles x input channels + tiles x output channels
    + input channels x output channels). With 128 channels or more, the forward pass and the backward pass use this workspace.
    With 64 channels, only the computation of the weight gradient uses this workspace.
"""

from __future__ import annotations

from replayer.op_signature import OpSignature
from traces.model.layouts import Shape

_PLACES, _TILE, _WINDOW = 36, 4, (3, 3)
_BYTES = 4  # fp32
_WIDE, _NARROW = 128, 64  # channels; see Note [Winograd workspaces]


def of_convolution(signature: OpSignature) -> tuple[tuple[int, ...], ...]:
    """Return the bytes of each workspace that a convolution allocates (positive) or frees (negative). The first tuple is for
    workspaces before the op's first output, and the second tuple for workspaces after the first output."""
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
