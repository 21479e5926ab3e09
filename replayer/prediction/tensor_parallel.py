"""Predicts step times of transformers with tensor parallelism from a recording of one GPU.

    split = TensorSplit.of(trace, calls, shapes_of, ranks=4)    # raises TraceError if the recording has no pairs
    split.durations_ns(durations_ns, trace.device.is_work, costs)

The work is split among the GPUs as in Megatron-LM (Shoeybi et al., 2019, section 3):

* The weights of the first matrix products, such as query, key and value, are split by columns.
* The weight of the last matrix product, such as attention's output projection, is split by rows.
* An all-reduce sums the outputs in the forward pass, and another all-reduce sums the gradients in the backward pass.
* Every rank computes the embedding, normalization and head completely.

Note [Pairs of matrix products]
    A pair is a group of matrix products that is split together, such as a transformer block's two linear layers. Its first
    product has the network's width as input size, and its last product as output size. The width is the most common input size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from math import prod

import numpy as np

from replayer.cost_model.collective_costs import CollectiveCosts, wire_bytes
from replayer.cost_model.op_costs import OpCosts
from replayer.prediction.batch_shapes import PRODUCTS, Shapes
from replayer.prediction.layers import layers_of
from replayer.prediction.optimizer_states import states_of
from replayer.prediction.parallel import Parallel
from replayer.prediction.scaling import ScaledOp, call_rows
from traces.analyses.modules import forward_ops
from traces.figures.measure import launch_time_ns
from traces.model.layouts import Shape
from traces.model.trace import NONE, Column, HostKind, Trace, TraceError
from traces.rates.op_cost import itemsize

_ATTENTION = frozenset({"bmm", "baddbmm", "softmax"})
_ADDS_A_BIAS_FIRST = frozenset({"addmm", "_addmm_activation", "baddbmm"})  # the first input is added to the product

_Call = tuple[ScaledOp, Shapes]


@dataclass(frozen=True)
class Product:
    """Describes the product of activations (rows x depth) and weights (depth x columns)."""

    rows: int
    depth: int
    columns: int

    @classmethod
    def of(cls, op: str, shapes: Shapes) -> Product | None:
        left, right = (*shapes[_first_factor(op) :], (), ())[:2]
        if op not in PRODUCTS or len(left) < 2 or len(right) != 2:
            return None
        columns = right[0] if op == "linear" else right[1]
        return cls(prod(left[:-1]), left[-1], columns)


@dataclass
class Pair:
    columns: list[int]
    between: list[int] = field(default_factory=list)
    last: int = NONE


def pairs_of(products: Sequence[Product | None], is_attention: Sequence[bool]) -> list[Pair]:
    # see Note [Pairs of matrix products]
    depths = Counter(product.depth for product in products if product is not None)
    if not depths:
        return []
    width = max(depths, key=lambda depth: (depths[depth], depth))
    found: list[Pair] = []
    pair, attended = Pair([]), False
    for number, product in enumerate(products):
        if product is None:
            attended = attended or (is_attention[number] and bool(pair.columns))
            if pair.columns:
                pair.between.append(number)
        elif pair.columns and product.columns == width and (product.depth != width or attended):
            pair.last = number
            found.append(pair)
            pair, attended = Pair([]), False
        elif product.depth == width and not attended:
            pair.columns.append(number)
        else:
            pair, attended = Pair([number] if product.depth == width else []), False
    return found


@dataclass(frozen=True)
class _Op:
    row: int
    call: ScaledOp
    shapes: Shapes
    kernels: list[int]

    @property
    def product(self) -> Product | None:
        return Product.of(self.call.op, self.shapes)

    @property
    def is_attention(self) -> bool:
        return self.call.op in _ATTENTION or self.call.op.startswith("attention")


@dataclass(frozen=True)
class TensorSplit:
    ranks: int
    pairs: int
    parts: dict[int, tuple[ScaledOp, Shapes, Shapes]]  # row of trace.device -> call, full shapes, shapes on one rank
    unknown_rows: list[int]  # rows of trace.device without a known op
    summed_bytes: dict[int, list[int]]  # row of trace.device -> bytes of the following all-reduces
    elements: int

    @classmethod
    def of(
        cls, trace: Trace, calls: Sequence[ScaledOp | None], shapes_of: Callable[[ScaledOp], Shapes], ranks: int
    ) -> TensorSplit:
        """Find the pairs in a recording, see Note [Pairs of matrix products]. Raises TraceError if the recording has no
        pairs."""
        known = [(call, shapes_of(call)) if call is not None else None for call in calls]
        ops, backward = _forward_and_backward(trace, known)
        found = pairs_of([op.product for op in ops], [op.is_attention for op in ops])
        if not found:
            raise TraceError(
                "tensor parallelism cannot be predicted, because the recording has no pairs of matrix products as in"
                " transformer blocks"
            )
        sizes: dict[int, int] = {}  # for each op, the size that is divided among the ranks
        summed: dict[int, list[int]] = {}
        elements = 0
        for pair in found:
            heads = _heads(ops, pair)
            if heads % ranks:
                text = f"{ranks} ranks cannot share {heads} attention heads evenly"
                raise TraceError(f"{text}: {heads} is not a multiple of {ranks}")
            sizes |= dict.fromkeys(pair.between, 0)
            for number in (*pair.columns, pair.last):
                product = ops[number].product
                assert product is not None
                sizes[number] = size = product.depth if number == pair.last else product.columns
                elements += product.depth * product.columns
                if size % ranks:
                    text = f"{ranks} ranks cannot share a product of depth {product.depth} and {product.columns} columns evenly"
                    raise TraceError(f"{text}: {size} is not a multiple of {ranks}")
            summed[ops[pair.last].kernels[-1]] = [_output_bytes(ops[pair.last])]
        parts = {
            kernel: (op.call, op.shapes, part_of(op.call.op, op.shapes, sizes[number], ranks))
            for number, op in enumerate(ops)
            if number in sizes
            for kernel in op.kernels
        }
        parts |= _backward_parts(trace, backward, ops, sizes, ranks)
        rows = list(backward)
        for number, pair in enumerate(reversed(found)):  # the backward pass runs the pairs in reverse order
            if backward:
                at = rows[min(len(backward) * (number + 1) // len(found), len(backward)) - 1]
                summed.setdefault(at, []).append(_input_bytes(ops[pair.columns[0]]))
        unknown_rows = [row for row in np.flatnonzero(trace.device.is_work).tolist() if calls[row] is None]
        return cls(ranks, len(found), parts, unknown_rows, summed, elements)

    def durations_ns(self, durations_ns: Column, is_work: Column, costs: OpCosts) -> Column:
        @cache
        def share_of(call: ScaledOp, whole: Shapes, part: Shapes) -> float:
            before, after = (costs.plain(call.op, shapes, call.dtype).ns for shapes in (whole, part))
            return min(after / before, 1.0)

        new = durations_ns.copy()
        for row, of in self.parts.items():
            new[row] = max(int(durations_ns[row] * share_of(*of)), min(int(durations_ns[row]), costs.floor_ns))
        is_known = is_work.copy()
        is_known[self.unknown_rows] = False
        share = new[is_known].sum() / max(durations_ns[is_known].sum(), 1)
        new[self.unknown_rows] = np.round(durations_ns[self.unknown_rows] * share)
        return new

    def reductions_ns(self, device_name: str, link_gbps: float, rows: int) -> Column:
        costs = CollectiveCosts(device_name, link_gbps)
        took = np.zeros(rows, dtype=np.int64)
        for row, sizes in self.summed_bytes.items() if self.ranks > 1 else ():
            took[row] = sum(costs.next("all_reduce", size, self.ranks).duration_ns for size in sizes)
        return took

    @property
    def moved_bytes(self) -> float:
        return sum(wire_bytes("all_reduce", size, self.ranks) for sizes in self.summed_bytes.values() for size in sizes)


def _heads(ops: Sequence[_Op], pair: Pair) -> int:
    last = ops[pair.last].product
    assert last is not None
    for number in pair.between:
        factors = ops[number].shapes[_first_factor(ops[number].call.op) :][:2]
        if ops[number].is_attention and [len(shape) > 2 for shape in factors] == [True, True]:
            head_size = factors[0][-1]
            return last.depth // head_size if head_size and last.depth % head_size == 0 else 0
    return 0


def _first_factor(op: str) -> int:
    return 1 if op in _ADDS_A_BIAS_FIRST else 0


def _forward_and_backward(trace: Trace, known: Sequence[_Call | None]) -> tuple[list[_Op], dict[int, _Call]]:
    op_row = call_rows(trace)
    order = np.flatnonzero(trace.device.is_work)
    order = order[np.argsort(launch_time_ns(trace)[order], kind="stable")]
    ops: dict[int, _Op] = {}
    backward: dict[int, _Call] = {}
    for row in order.tolist():
        if (of := known[row]) is None:
            continue
        if of[0].phase == "backward":
            backward[row] = of
        elif of[0].phase in ("forward", ""):
            host = int(op_row[row])
            ops.setdefault(host, _Op(host, *of, [])).kernels.append(row)
    return list(ops.values()), backward


def _backward_parts(
    trace: Trace, backward: dict[int, _Call], ops: Sequence[_Op], sizes: dict[int, int], ranks: int
) -> dict[int, tuple[ScaledOp, Shapes, Shapes]]:
    # see Note [Pairs of matrix products]
    forward, op_row = forward_ops(trace), call_rows(trace)
    of_node: dict[int, int] = {}
    of_product: dict[tuple[int, ...], int] = {}
    others = [op.call.op for number, op in enumerate(ops) if sizes.get(number) == 0]
    for number, size in sizes.items():
        for at in takewhile(lambda at: trace.host.kind[at] == HostKind.OP, trace.host.outward(ops[number].row)):
            of_node.setdefault(at, size)
        if size:
            of_product[_sorted(ops[number].product)] = size
    found = {}
    for row, (call, shapes) in backward.items():
        node = int(forward[op_row[row]])
        product = Product.of(call.op, shapes)
        of_call: int | None = 0 if call.op.removesuffix("_backward") in others else None
        if node != NONE:
            of_call = of_node.get(node)
        elif product is not None:
            of_call = of_product.get(_sorted(product))
        if of_call is not None:
            found[row] = call, shapes, part_of(call.op, shapes, of_call, ranks)
    return found


def _sorted(product: Product | None) -> tuple[int, ...]:
    return tuple(sorted((product.rows, product.depth, product.columns))) if product is not None else ()


def _output_bytes(op: _Op) -> int:
    product = op.product
    return product.rows * product.columns * itemsize(op.call.dtype) if product is not None else 0


def _input_bytes(op: _Op) -> int:
    product = op.product
    return product.rows * product.depth * itemsize(op.call.dtype) if product is not None else 0


def part_of(op: str, shapes: Shapes, size: int, ranks: int) -> Shapes:
    """Return one rank's input shapes for an op that is split among the ranks."""
    product = Product.of(op, shapes) if size else None
    if product is None:
        return tuple(_cut(shape, ranks) for shape in shapes)
    left = _first_factor(op)
    right = left + 1
    rows_of_weight, columns_of_weight = (1, 0) if op == "linear" else (0, 1)
    new = list(shapes)
    if product.columns == size:
        biases = [at for at, shape in enumerate(shapes) if at not in (left, right) and shape[-1:] == (size,)]
        for at, dimension in [(right, columns_of_weight), *((at, -1) for at in biases)]:
            new[at] = _divided(shapes[at], dimension, ranks)
    elif product.depth == size:
        new[left], new[right] = _divided(shapes[left], -1, ranks), _divided(shapes[right], rows_of_weight, ranks)
    else:
        new[left] = _divided(shapes[left], -2, ranks)
    return tuple(new)


def _cut(shape: Shape, ranks: int) -> Shape:
    at = next((i for i, size in enumerate(shape) if size >= ranks), None) if len(shape) > 1 else None
    return shape if at is None else _divided(shape, at, ranks)


def _divided(shape: Shape, at: int, ranks: int) -> Shape:
    divided = list(shape)
    divided[at] = -(-shape[at] // ranks)
    return tuple(divided)


def tensor_parallel(
    trace: Trace, split: TensorSplit, reduced_ns: Column, step_ns: float, parameters: int, peak_bytes: int | None, steps: int
) -> Parallel:
    """Predict each rank's training step under tensor parallelism. `step_ns` includes the all-reduces."""
    layers = layers_of(trace)
    layer_bytes = sum(layer.parameter_bytes for layer in layers)
    elements = sum(prod(weight) for layer in layers for weight in layer.weights)
    parameters = parameters or layer_bytes
    split_bytes = min(round(split.elements / steps * parameters / max(elements, 1)), parameters)
    kept = parameters - split_bytes + -(-split_bytes // split.ranks)
    trains = any(call.phase == "backward" for call, _, _ in split.parts.values())
    states = states_of(trace) if trains else 0
    memory = {"parameters": kept} | ({"gradients": kept, "optimizer state": kept * states} if trains else {})
    saved = (parameters - kept) * (2 + states if trains else 1)
    return Parallel(
        "tensor parallelism", split.ranks, step_ns, {"all-reduce": float(reduced_ns.sum()) / steps}, parameters,
        moved_bytes=round(split.moved_bytes / steps),
        rank_bytes=memory,
        peak_bytes=max(peak_bytes - saved, kept) if peak_bytes else None,
        assumed=f"{split.pairs / steps:g} pairs of products and the ops between them are split by columns and rows, as in"
        " Megatron-LM; every rank computes the rest; all-reduces overlap with nothing; activations keep their size",
    )  # fmt: skip
