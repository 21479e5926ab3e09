"""Computes the number of bytes that an op reads and writes, from its input shapes.

    weight, tokens = Operand((50257, 768), 4), Operand((8, 128), 8)
    traffic("embedding", "aten::embedding", (weight, tokens))       # Traffic(moved_bytes=6_299_648, footprint_bytes=6_299_648)

`moved_bytes` counts every read and write. `footprint_bytes` counts each memory address once.

Note [Bytes that an op touches]
    Recordings contain the shapes of an op's inputs, but no values, scalars or outputs. In the following rules, n is the number
    of indices:

    elementwise, norms                  inputs once, and the output with the inputs' broadcast shape; 1 byte for comparisons
    products, convolutions, attention   inputs once and the output (backward: one gradient for each input)
    scaled products of 8 bits           inputs once, and the output with two bytes per element
    reductions, pooling                 inputs once; the output is small, or its size is unknown
    upsampling                          unknown: the output is larger than the input, and its size is not recorded
    fill, zero, random numbers          the target once
    copy, clone                         the source and the target, each with its own element type
    cat, stack                          inputs twice
    gather, take, index, index_select,  n elements or rows of the table are read and written, and the indices are read;
    embedding                           the indexed dimension is not recorded, so the one with the fewest bytes is assumed
    scatter, index_put, index_add       n elements or rows are read from the source and written, and the indices are read;
                                        adding also reads the target; out of place, the target is copied first
    embedding_backward                  the gradient and the indices are read, the same rows are written
    nll_loss                            one element per target, the targets, and their weights; backward: one element per target
    item                                one element
    cache stores (reshape_and_cache)    keys and values are read and written; the rest of the cache is not touched
    rotary_embedding                    queries and keys are read and written, one row of the table per position
    lists of tensors (foreach, fused)   all tensors once
    Triton kernels of Inductor          every pointer once, at most as many elements as the kernel has (see `triton_elements`)

    Ops that are not in this list, such as ops of other libraries, are treated as elementwise ops.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from traces.comparison.thresholds import INDEX_BLOCKS
from traces.model.layouts import Shape
from traces.rates.op_cost import MATMULS, SCALED_PRODUCTS, flops

_INDEX_KERNEL, _GATHER_KERNEL = re.compile(r"index_elementwise_kernel<(\d+), (\d+)"), "vectorized_gather_kernel"
_INDEX_BYTES = 8
_REDUCTIONS = frozenset(
    "all amax amin aminmax any argmax argmin linalg__powsum linalg_vector_norm logsumexp max mean median min nansum norm prod"
    " std std_mean sum topk var var_mean nonzero masked_select unique unique_consecutive unique_dim"
    " unique_dim_consecutive _unique2 count_nonzero bincount histc".split()
)
_WRITES_ONLY = frozenset("fill zero uniform normal random exponential log_normal geometric cauchy".split())
_COMPARES = frozenset(
    "eq ne lt le gt ge logical_and logical_or logical_not logical_xor isnan isinf isfinite signbit isin".split()
)
_JOINS = frozenset("cat stack hstack vstack concat concatenate _cat".split())
_POOLS = re.compile(r"(adaptive_)?(avg|max)_pool|pixel_")
_RESIZES = re.compile(r"_?upsample|interpolate")
_LISTS = re.compile(r"_?(foreach|fused_(adam|adamw|sgd|adagrad)|amp_foreach|multi_tensor)")


@dataclass(frozen=True, slots=True)
class Operand:
    shape: Shape
    itemsize: int

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.itemsize


@dataclass(frozen=True, slots=True)
class Traffic:
    moved_bytes: int
    footprint_bytes: int


def moved_once(moved_bytes: int) -> Traffic:
    return Traffic(moved_bytes, moved_bytes)


def traffic(op: str, name: str, operands: tuple[Operand, ...], output: Shape | None = None) -> Traffic | None:
    # see Note [Bytes that an op touches]
    if op == "item":
        return moved_once(operands[0].itemsize if operands else 4)
    if not operands:
        return None
    if op in _RULES:
        least, rule = _RULES[op]
        found = rule(name.rstrip("0123456789").endswith("_"), *operands) if len(operands) >= least else None
        return moved_once(found) if isinstance(found, int) else found
    sizes = sum(of.bytes for of in operands)
    wide = [of for of in operands if len(of.shape) > 1]
    own = operands[0].itemsize
    if op in MATMULS and len(wide) >= 2:
        return moved_once(sizes + flops(op, tuple(of.shape for of in operands)) // (2 * max(wide[-2].shape[-1], 1)) * own)
    if op == "convolution":
        return moved_once(sizes + (prod(output) * own if output is not None else 0))
    if op == "convolution_backward":
        images = [of for of in wide if len(of.shape) > 2]
        gradient, _ = output_gradient(images) or (min(images, key=lambda of: of.elements, default=None), None)
        return moved_once(sizes + sum(of.bytes for of in images if of is not gradient))
    if op.startswith("attention") and wide:
        return moved_once(sizes + sum(of.bytes for of in (wide[1:4] if op.endswith("backward") else wide[:1])))
    if is_resize(op):
        return None if output is None else moved_once(sizes + prod(output) * operands[0].itemsize)
    if op.endswith("_with_output") or op in _REDUCTIONS or op.startswith("rnn") or _POOLS.match(op) or _LISTS.match(op):
        return moved_once(sizes)
    return _elementwise(op, operands, name.partition(".")[0].endswith("_"))


def is_resize(op: str) -> bool:
    return _RESIZES.match(op) is not None


def _elementwise(op: str, operands: tuple[Operand, ...], in_place: bool) -> Traffic:
    sizes = sum(of.bytes for of in operands)
    elements = _broadcast(tuple(of.shape for of in operands))
    itemsize = 1 if op in _COMPARES else _promoted_itemsize(operands)
    written = operands[0].bytes if in_place else elements * itemsize
    return Traffic(sizes + written, sizes + (0 if in_place else written))


def _promoted_itemsize(operands: tuple[Operand, ...]) -> int:
    own = max(operands, key=lambda of: of.elements).itemsize
    return max([own, *(of.itemsize for of in operands if of.shape and of.itemsize <= 4)])


def output_gradient(images: list[Operand]) -> tuple[Operand, Operand] | None:
    """Return two inputs of convolution_backward: the gradient of the output, and the weight."""
    for weight in reversed(images):
        others = [of for of in images if of is not weight and len(of.shape) == len(weight.shape)]
        found = [of for of in others if of.shape[1] == weight.shape[0]]
        if found:
            return min(found, key=lambda of: of.elements), weight
    return None


def _broadcast(shapes: tuple[Shape, ...]) -> int:
    try:
        return prod(np.broadcast_shapes(*shapes))
    except ValueError:
        return max(map(prod, shapes))


# The functions below return the number of bytes that an op reads and writes. A byte that an op reads twice is counted twice.


def _copy(_in_place: bool, target: Operand, *sources: Operand) -> int:
    return target.bytes + (sources[0] if sources else target).bytes  # the first operand of `copy_` is the target


def _gather(_in_place: bool, table: Operand, index: Operand, *_: Operand) -> int:
    return index.bytes + 2 * index.elements * table.itemsize


def _scatter(in_place: bool, target: Operand, index: Operand, *rest: Operand) -> int:
    source = index.elements * rest[0].itemsize if rest else 0
    return index.bytes + source + index.elements * target.itemsize + (0 if in_place else 2 * target.bytes)


def _scatter_add(in_place: bool, target: Operand, index: Operand, *rest: Operand) -> Traffic:
    written = _scatter(in_place, target, index, *rest)
    return Traffic(written + index.elements * target.itemsize, written)


def _rows(table: Shape, count: int) -> int:
    return count * min((prod(table) // max(size, 1) for size in table), default=1)


def _index_select(_in_place: bool, table: Operand, index: Operand, *_: Operand) -> int:
    return index.bytes + 2 * _rows(table.shape, index.elements) * table.itemsize


def _embedding(_in_place: bool, table: Operand, index: Operand, *_: Operand) -> int:
    return index.bytes + 2 * index.elements * prod(table.shape[1:]) * table.itemsize


def _embedding_bag(_in_place: bool, table: Operand, index: Operand, offsets: Operand, *_: Operand) -> int:
    return index.bytes + offsets.bytes + (index.elements + offsets.elements) * prod(table.shape[1:]) * table.itemsize


def _index_add(in_place: bool, target: Operand, index: Operand, source: Operand, *_: Operand) -> Traffic:
    rows = source.elements * target.itemsize
    footprint = index.bytes + source.bytes + rows + (0 if in_place else 2 * target.bytes)
    return Traffic(footprint + rows, footprint)


def _indexed(table: Operand, indices: tuple[Operand, ...]) -> int | None:
    if not indices or len(indices) > len(table.shape) or any(of.itemsize == 1 for of in indices):
        return None
    return _broadcast(tuple(of.shape for of in indices)) * prod(table.shape[len(indices) :])


def _index(_in_place: bool, table: Operand, *indices: Operand) -> int | None:
    chosen = _indexed(table, indices)
    return None if chosen is None else 2 * chosen * table.itemsize + sum(of.bytes for of in indices)


def _index_put(in_place: bool, target: Operand, *rest: Operand) -> int | None:
    if not rest or target.itemsize == 8:
        return None
    copied = 0 if in_place else 2 * target.bytes
    if rest[0].itemsize == target.itemsize:
        return 2 * rest[0].bytes + copied
    chosen = _indexed(target, tuple(of for of in rest if of.itemsize != target.itemsize))
    return None if chosen is None else sum(of.bytes for of in rest) + chosen * target.itemsize + copied


def _nll_loss(_in_place: bool, scores: Operand, target: Operand, *weights: Operand) -> int:
    return target.bytes + target.elements * scores.itemsize * (2 if weights else 1)


def _nll_loss_backward(_in_place: bool, *operands: Operand) -> int | None:
    place = next((n for n, of in enumerate(operands[1:], 1) if len(of.shape) == len(operands[n - 1].shape) - 1), None)
    if place is None:
        return None
    scores, target = operands[place - 1], operands[place]
    return target.bytes + target.elements * scores.itemsize + sum(of.bytes for of in operands[: place - 1])


def _cache_store(
    _in_place: bool, keys: Operand, values: Operand, key_cache: Operand, value_cache: Operand, slots: Operand, *_: Operand
) -> int:
    written = keys.elements * key_cache.itemsize + values.elements * value_cache.itemsize
    return keys.bytes + values.bytes + written + slots.bytes


def _latent_cache_store(_in_place: bool, latent: Operand, keys: Operand, cache: Operand, slots: Operand, *_: Operand) -> int:
    return latent.bytes + keys.bytes + (latent.elements + keys.elements) * cache.itemsize + slots.bytes


def _rotary(_in_place: bool, positions: Operand, *rest: Operand) -> Traffic:
    *rotated, table = rest
    rows = min(positions.elements, table.shape[0]) * prod(table.shape[1:]) * table.itemsize
    own = sum(of.bytes for of in rotated)
    return Traffic(positions.bytes + 2 * own + rows, positions.bytes + own + rows)


def _scaled_product(_in_place: bool, left: Operand, right: Operand, *scales: Operand) -> int | None:
    if not len(left.shape) == len(right.shape) == 2:
        return None
    return sum(of.bytes for of in (left, right, *scales)) + 2 * left.shape[0] * right.shape[1]


def _outputs_given(_in_place: bool, *operands: Operand) -> int:
    return sum(of.bytes for of in operands)


def _added_norm(_in_place: bool, *operands: Operand) -> Traffic:
    own = sum(of.bytes for of in operands)
    return Traffic(own + sum(of.bytes for of in operands[:2]), own)


# for each op, the smallest number of operands, and a function that returns the number of bytes read and written
_RULES: dict[str, tuple[int, Callable[..., int | Traffic | None]]] = {
    **dict.fromkeys(_WRITES_ONLY, (1, lambda _, written, *__: written.bytes)),
    **dict.fromkeys(_JOINS, (1, lambda _, *parts: 2 * sum(of.bytes for of in parts))),
    **dict.fromkeys(("copy", "clone", "contiguous", "to"), (1, _copy)),
    **dict.fromkeys(("gather", "take", "take_along_dim"), (2, _gather)),
    **dict.fromkeys(("scatter", "index_copy", "index_fill"), (2, _scatter)),
    **dict.fromkeys(("scatter_add", "scatter_reduce"), (2, _scatter_add)),
    **dict.fromkeys(SCALED_PRODUCTS, (2, _scaled_product)),
    "index_select": (2, _index_select),
    "embedding": (2, _embedding),
    **dict.fromkeys(("_embedding_bag", "embedding_bag", "_embedding_bag_forward_only"), (3, _embedding_bag)),
    "embedding_backward": (1, lambda _, gradient, *rest: 2 * gradient.bytes + sum(of.bytes for of in rest)),
    "index_add": (3, _index_add),
    **dict.fromkeys(("index", "_unsafe_index"), (1, _index)),
    **dict.fromkeys(("index_put", "_index_put_impl", "_unsafe_index_put"), (1, _index_put)),
    "nll_loss": (2, _nll_loss),
    "nll_loss_backward": (2, _nll_loss_backward),
    **dict.fromkeys(("reshape_and_cache", "reshape_and_cache_flash"), (5, _cache_store)),
    "concat_and_cache_mla": (4, _latent_cache_store),
    "rotary_embedding": (3, _rotary),
    **dict.fromkeys(
        ("rms_norm_out", "rmsnorm", "add_rmsnorm", "silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"), (1, _outputs_given)
    ),
    **dict.fromkeys(("fused_add_rms_norm", "fused_add_rmsnorm"), (1, _added_norm)),
}


def indexed_traffic(table: Operand, kernel: str, grid: tuple[int, ...]) -> Traffic | None:
    """Estimate how many bytes an indexing op reads and writes, from the number of blocks in the kernel's launch grid."""
    if not grid:
        return None
    if by_element := _INDEX_KERNEL.search(kernel):
        elements = grid[0] * int(by_element[1]) * int(by_element[2])
        return moved_once(2 * elements * table.itemsize) if grid[0] >= INDEX_BLOCKS else None
    if _GATHER_KERNEL in kernel:
        return moved_once(grid[0] * (2 * prod(table.shape[1:]) * table.itemsize + _INDEX_BYTES))
    return None


def is_inductor_kernel(name: str) -> bool:
    return name.startswith(("triton_poi_", "triton_red_", "triton_per_"))


def triton_traffic(name: str, pointers: tuple[Operand, ...], programs: int | None) -> Traffic | None:
    """Return the bytes of all tensors that an Inductor kernel reads or writes, each counted once."""
    if not pointers:
        return None
    most = triton_elements(name, tuple(of.elements for of in pointers), programs)
    return moved_once(sum(min(of.elements, most) * of.itemsize for of in pointers))


def triton_elements(name: str, sizes: tuple[int, ...], programs: int | None) -> int:
    first, last = sizes[0], sizes[-1]
    if not name.startswith("triton_poi_") or programs is None or first == last:
        return max(first, last)
    return min((first, last), key=lambda size: (_excess(size, programs), -size))


def _excess(size: int, programs: int) -> float:
    each = 1 << max(ceil(size / programs) - 1, 0).bit_length()
    return each * programs / max(size, 1)
