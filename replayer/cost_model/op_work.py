"""Lists the computations of an op, such as matrix products, with their sizes.

    op_work("addmm", ((1000,), (32, 2048), (2048, 1000)))      # [OpWork("matmul", (1, 32, 1000, 2048), ...)]

    matmul          batch, rows, columns, depth
    conv            a convolution as a matrix product, as cuDNN computes it: groups, output channels, batch x output
                    places, input channels x window
    conv_weight     a convolution's weight gradient: groups, output channels, input channels x window, batch x output
                    places
    conv3           a convolution with a square window of 3 or more, one group and stride 1: images, input channels,
                    output channels, output places
    depthwise, depthwise_backward
                    a convolution with one group per channel: images, channels, output places, window
    elementwise, elementwise1, softmax, layer_norm
                    rows and columns; `elementwise1` reads one tensor, `elementwise` several
    batch_norm, bias, memory
                    rows and columns of the largest tensor; all three are memory-bound; `bias` is a convolution's bias
                    kernel, and `memory` is any other op

Note [Strides from shapes]
    A recording has the shapes of an op's inputs, but no strides and no output shapes. A convolution's output has the shape of
    the gradient in the convolution's backward pass (`ConvolutionOutputs`). If this shape is unknown, the output has the size of
    the input image.

Note [Batch normalization]
    In training, cuDNN's kernels for contiguous images have one block of threads per channel. An image with few channels
    therefore does not use all multiprocessors. On an H100 with 132 multiprocessors, 64 channels take 56 us, and 256 channels
    with four times as many elements take 124 us. The kernels for channels_last images have many blocks. In evaluation, batch
    normalization reads and writes each element once, and has many blocks.

Note [Softmax]
    PyTorch's kernels for a softmax over the last dimension have many blocks of threads. In a softmax over another dimension,
    each thread adds up one column. The 1024 threads of a block share the columns only if the dimension is long and has at most
    64 columns side by side. On an H100, the scores of an LSTM (32 batches x 10000 words x 64 time steps) have 32 blocks of
    threads, and take 970 us. At memory bandwidth, they would take 50 us.

Note [Recurrent layers]
    One matrix product multiplies the inputs of all time steps. The product with the hidden state needs the result of the
    previous time step. Each time step therefore has a separate matrix product and a separate elementwise kernel. On an H100,
    cuDNN ran an LSTM with 2 layers and 64 time steps with 128 matrix products and 128 elementwise kernels. In the backward
    pass, one matrix product computes the gradient of the recurrent weight. The hidden state is the first input with three
    dimensions after the data: layers times directions, batch, units. cuDNN uses one block of threads per tile of the recurrent
    product's result, even if only 16 of 132 multiprocessors get a tile. The speed of each block is limited by the speed at
    which its multiprocessor reads from the L2 cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from replayer.cost_model.constants import (
    BLOCK_BYTES_PER_CLOCK,
    ELEMENTWISE_COLUMNS,
    MOST_THREADS,
    PASSES,
    PICTURE_CHANNELS,
    RECURRENT_TILE,
    SHARED_SUMS,
)
from traces.model.layouts import CHANNELS_LAST, Shape
from traces.model.machine import DEFAULT_SETTINGS, TorchSettings
from traces.rates.op_cost import MATMULS, RNN_PASSES, compute_unit, itemsize, rnn_weights

Shapes = tuple[Shape, ...]

_ONE_INPUT = frozenset(
    "relu gelu tanh sigmoid silu pow exp log sqrt rsqrt neg abs clamp dropout hardtanh hardswish leaky_relu copy clone"
    " contiguous erf sin cos square reciprocal".split()
)
_MANY_INPUTS = frozenset(
    "add sub mul div addcmul addcdiv where masked_fill relu_backward gelu_backward threshold_backward tanh_backward"
    " sigmoid_backward silu_backward dropout_backward hardtanh_backward hardswish_backward maximum minimum rsub lerp".split()
)
_SOFTMAX = frozenset({"softmax", "log_softmax", "softmax_backward", "log_softmax_backward"})
_LAYER_NORM = frozenset("layer_norm group_norm rms_norm _fused_rms_norm layer_norm_backward group_norm_backward".split())
_ON_TENSOR_CORES = ("conv", "conv3", "conv_weight")
_FUSED_ATTENTION = ("fp16", "bf16")


class OpWork(NamedTuple):
    kind: str
    sizes: tuple[int, ...]
    flops: int
    size_bytes: int
    unit: str = "fp32"
    item_bytes: int = 4
    calls: int = 1  # number of times that the op does this work
    block_clocks: float = 0.0  # clock cycles per block of threads, if there may be fewer blocks than multiprocessors


def op_work(
    op: str,
    shapes: Shapes,
    dtype: str = "float32",
    outputs: Shapes = (),
    settings: TorchSettings = DEFAULT_SETTINGS,
    layout: str = CHANNELS_LAST,
    option: int | None = None,
) -> list[OpWork]:
    """Return the computations of an op, such as matrix products, each with its FLOPs and bytes. For a softmax, `option` is the
    dimension. For batch normalization, `option` is 0 in evaluation and 1 in training."""
    item = itemsize(dtype)
    unit = compute_unit(op, dtype, settings)
    wide = [shape for shape in shapes if len(shape) > 1]
    if op in MATMULS and len(wide) >= 2:
        return [_matmul(op, wide[-2], wide[-1], unit, item)]
    if op == "convolution" and len(wide) >= 2:
        image, weight = wide[0], wide[1]
        output = next((shape for shape in outputs if len(shape) == len(image)), (image[0], weight[0], *image[2:]))
        works = [_convolution(image, weight, output, unit, item)]
        works += _transposes(works, layout, image, weight, output)
        if any(len(shape) == 1 for shape in shapes):
            works.append(OpWork("bias", _flat(prod(output)), 0, 2 * prod(output) * item, item_bytes=item))
        return works
    if op == "convolution_backward" and len(wide) >= 3:
        works = _convolution_backward(wide, unit, item)
        gradient, image, weight = gradient_image_weight(wide)
        return works + _transposes(works, layout, image, weight, gradient)
    if op in RNN_PASSES and (weights := tuple(shape for shape in rnn_weights(shapes) if len(shape) == 2)):
        return _recurrent(op, shapes, weights, unit, item)
    if op.startswith("attention") and len(wide) >= 3 and len(wide[0]) == 4:
        return _attention(op, wide[0], wide[1], unit, item)
    work = _memory_bound_work(op, shapes, item)
    largest = max(shapes, key=prod, default=())
    if op == "batch_norm" and option == 0:  # see Note [Batch normalization]
        return [work._replace(size_bytes=2 * prod(largest) * item)]
    blocks = 0.0
    if work.kind == "batch_norm" and layout != CHANNELS_LAST:
        blocks = prod(largest[1:2])
    elif work.kind == "softmax" and option is not None and largest:
        blocks = _softmax_blocks(largest, option % len(largest))
    return [work._replace(block_clocks=work.size_bytes / blocks / BLOCK_BYTES_PER_CLOCK[op]) if blocks else work]


def _matmul(op: str, left: Shape, right: Shape, unit: str, item: int) -> OpWork:
    columns = right[0] if op == "linear" else right[-1]
    depth = left[-1]
    if len(right) > 2:
        return _product(prod(left[:-2]), left[-2], columns, depth, unit, item)
    return _product(1, prod(left[:-1]), columns, depth, unit, item)


def _product(batch: int, rows: int, columns: int, depth: int, unit: str, item: int) -> OpWork:
    moved = batch * (rows * depth + depth * columns + rows * columns)
    sizes = max(batch, 1), max(rows, 1), max(columns, 1), max(depth, 1)
    return OpWork("matmul", sizes, 2 * batch * rows * columns * depth, moved * item, unit, item)


def _convolution(image: Shape, weight: Shape, output: Shape, unit: str, item: int) -> OpWork:
    if output[1] != weight[0]:  # the op is a transposed convolution
        image, output = output, image
    places = prod(output[2:])
    channels = image[1] if len(image) > 1 else 1
    groups = max(channels // max(weight[1], 1), 1)
    window = prod(weight[2:])
    images, outputs = image[0], weight[0]
    moved = (prod(image) + prod(weight) + images * outputs * places) * item
    work = 2 * images * places * prod(weight)
    if groups == channels and groups > 1:
        return OpWork("depthwise", (images, channels, places, window), work, moved, unit, item)
    side = weight[-1]
    if groups == 1 and side >= 3 and side * side == window and places >= prod(image[2:]) * 0.6:
        sizes = images, max(channels * window // 9, 1), outputs, max(places, 1)
        return OpWork("conv3", sizes, work, moved, unit, item)
    sizes = groups, max(outputs // groups, 1), max(images * places, 1), max(weight[1] * window, 1)
    return OpWork("conv", sizes, work, moved, unit, item)


def _convolution_backward(wide: list[Shape], unit: str, item: int) -> list[OpWork]:
    gradient, image, weight = gradient_image_weight(wide)
    forward = _convolution(image, weight, gradient, unit, item)
    of_image = of_weight = forward
    if forward.kind == "depthwise":
        of_image = of_weight = forward._replace(kind="depthwise_backward")
    elif forward.kind == "conv":
        groups, outputs, places, depth = forward.sizes
        of_image = forward._replace(sizes=(groups, depth, places, outputs))
        of_weight = forward._replace(kind="conv_weight", sizes=(groups, outputs, depth, places))
    return [of_weight] if image[1] <= PICTURE_CHANNELS else [of_image, of_weight]


def _transposes(works: list[OpWork], layout: str, image: Shape, weight: Shape, output: Shape) -> list[OpWork]:
    if layout == CHANNELS_LAST or (prod(weight[2:]) == 1 and image[2:] == output[2:]):
        return []
    convolutions = [work for work in works if work.kind in _ON_TENSOR_CORES]
    return [
        OpWork("transpose", (1,), 0, 2 * prod(shape) * work.item_bytes, work.unit)
        for work in convolutions
        for shape in (image, weight, output)
    ]


def is_part(op: str, shapes: Shapes) -> bool:
    return op == "convolution_backward" and sum(len(shape) > 2 for shape in shapes) < 3


def gradient_image_weight(wide: list[Shape]) -> tuple[Shape, Shape, Shape]:
    """Return three input shapes of a convolution's backward op: output gradient, image and weight."""
    first, second, weight = wide[0], wide[1], wide[-1]
    outputs = weight[0]
    if first[1] == second[1]:
        swapped = prod(first) > prod(second)
    else:
        swapped = first[1] != outputs and second[1] == outputs
    return (second, first, weight) if swapped else (first, second, weight)


def _attention(op: str, query: Shape, key: Shape, unit: str, item: int) -> list[OpWork]:
    batch, heads, rows, depth = query
    columns = key[2]
    product = _product(batch * heads, rows, columns, depth, unit, item)
    moved = (2 * prod(query) + 2 * prod(key)) * item // 2
    kind = "attention" if unit in _FUSED_ATTENTION else product.kind
    return [product._replace(kind=kind, size_bytes=moved)] * (2 if op == "attention" else 5)


def _recurrent(op: str, shapes: Shapes, weights: Shapes, unit: str, item: int) -> list[OpWork]:
    # see Note [Recurrent layers]
    rows = prod(shapes[0][:-1])
    layers, batch, _ = next((shape for shape in shapes[1:] if len(shape) == 3), (len(weights), rows, 0))
    steps = -(-rows // max(batch, 1))
    works = []
    for number, (gates, inputs) in enumerate(weights):
        is_recurrent = number % max(len(weights) // layers, 1) > 0
        calls, count = (steps, batch) if is_recurrent else (1, rows)
        columns, depth = (inputs, gates) if op == "rnn_backward" else (gates, inputs)
        works.append(_product(1, count, columns, depth, unit, item)._replace(calls=calls))
        if is_recurrent:
            works[-1] = works[-1]._replace(block_clocks=2 * RECURRENT_TILE * depth * item / BLOCK_BYTES_PER_CLOCK[op])
            works.append(_memory_bound_work("add", ((batch, gates),), item)._replace(calls=calls))
        if op == "rnn_backward":  # add the gradient of the weight
            works.append(_product(1, gates, inputs, rows, unit, item))
    return works


def _softmax_blocks(shape: Shape, dim: int) -> float:
    # see Note [Softmax]
    neighbours = prod(shape[dim + 1 :])
    if neighbours == 1:
        return 0.0
    is_split = neighbours <= SHARED_SUMS <= shape[dim]
    return prod(shape[:dim]) * (1.0 if is_split else neighbours / MOST_THREADS)


def _flat(elements: int) -> tuple[int, int]:
    return max(elements // ELEMENTWISE_COLUMNS, 1), ELEMENTWISE_COLUMNS


def _memory_bound_work(op: str, shapes: Shapes, item: int) -> OpWork:
    largest = max(shapes, key=prod, default=())
    elements = prod(largest)
    columns = largest[-1] if largest else 1
    rows = elements // max(columns, 1)
    known = sum(map(prod, shapes))
    if op.startswith(("_foreach", "_fused")):  # one third of the bytes is written
        return OpWork("elementwise", _flat(known), 0, known * item * 3 // 2, item_bytes=item)
    if op == "embedding" and len(shapes) >= 2:  # the op reads only the rows that are looked up
        table, places = shapes[0], shapes[1]
        return OpWork("memory", (prod(places), table[-1]), 0, 2 * prod(places) * table[-1] * item, item_bytes=item)
    if op in _SOFTMAX:
        return OpWork("softmax", (rows, columns), 0, (3 if op.endswith("_backward") else 2) * elements * item, item_bytes=item)
    if op in _LAYER_NORM:
        passes = 4 if op.endswith("_backward") else 2
        return OpWork("layer_norm", (rows, columns), 0, passes * elements * item, item_bytes=item)
    if op.startswith("nll_loss"):  # the op reads or writes one score per label
        classes = largest[1] if len(largest) > 1 else columns
        labels = elements // max(classes, 1)
        return OpWork("memory", (labels, 1), 0, labels * (item + itemsize("int64")), item_bytes=item)
    moved = PASSES[op] * elements if op in PASSES else known + elements  # assumes an output as large as the largest input
    if op in ("batch_norm", "batch_norm_backward"):
        return OpWork("batch_norm", (rows, columns), 0, moved * item, item_bytes=item)
    if op in _ONE_INPUT:
        return OpWork("elementwise1", _flat(elements), 0, moved * item, item_bytes=item)
    if op in _MANY_INPUTS:
        return OpWork("elementwise", _flat(elements), 0, moved * item, item_bytes=item)
    return OpWork("memory", (rows, columns), 0, moved * item, item_bytes=item)


class ConvolutionOutputs:
    # see Note [Strides from shapes]

    def __init__(self, backward_calls: Iterable[Shapes]) -> None:
        self._outputs: dict[tuple[Shape, Shape], Shape] = {}
        for shapes in backward_calls:
            wide = [shape for shape in shapes if len(shape) > 2]
            if len(wide) >= 3:
                gradient, image, weight = gradient_image_weight(wide)
                self._outputs[image, weight] = gradient

    def of(self, shapes: Shapes) -> Shapes:
        wide = [shape for shape in shapes if len(shape) > 2]
        found = self._outputs.get((wide[0], wide[1])) if len(wide) >= 2 else None
        return (found,) if found is not None else ()
