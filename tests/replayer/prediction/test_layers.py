"""Tests that the layers with parameters, and the blocks that a network repeats, are found from the shapes of a forward pass."""

from __future__ import annotations

import numpy as np
import pytest

from replayer.cost_model.constants import BUCKET_BYTES
from replayer.prediction.layers import layers_of
from tests.replayer.recordings import Op, make_recording
from traces.model.trace import NONE, HostKind, Strings, Trace

Shape = tuple[int, ...]


def forward(*calls: tuple[str, tuple[Shape, ...]]) -> Trace:
    ops = [Op(f"aten::{name}", 10 * at, 8, kernel=(10 * at + 5, 5), shapes=shapes) for at, (name, shapes) in enumerate(calls)]
    return make_recording([("forward", 0, 10 * len(ops) + 10)], ops)


def products(*sizes: Shape) -> Trace:
    """Return a forward pass with one product for each weight size in `sizes`."""
    return forward(*(("mm", ((32, depth), (depth, columns))) for depth, columns in sizes))


def blocks(*sizes: Shape) -> list[str]:
    return [layer.block for layer in layers_of(products(*sizes))]


def test_layers_outside_a_repeated_sequence_belong_to_no_block() -> None:
    assert blocks((2, 2), *[(2, 3), (3, 2)] * 3, (2, 9)) == ["", *(f"block {n}" for n in (0, 0, 1, 1, 2, 2)), ""]
    assert blocks(*[(2, 3), (3, 2)] * 2) == ["block 0", "block 0", "block 1", "block 1"]
    assert blocks((2, 3), (3, 2), (2, 4), (4, 2)) == ["part 0"] * 4  # No sequence of layers repeats.
    # The third repetition of the block is incomplete.
    assert blocks(*[(2, 3), (3, 2), (2, 2)] * 2, (2, 3)) == [*["block 0"] * 3, *["block 1"] * 3, ""]


def test_a_repeated_block_has_at_least_half_of_the_parameters() -> None:
    """GIVEN a repeated layer with 24 parameters in total WHEN the rest of the network has 24 parameters THEN the repeated
    layer is a block. If the rest has 25 parameters, the repeated layer is not a block."""
    assert blocks((4, 6), *[(2, 3), (3, 2)] * 2) == ["", "block 0", "block 0", "block 1", "block 1"]
    assert blocks((5, 5), *[(2, 3), (3, 2)] * 2) == ["part 0"] * 5


def test_the_larger_of_two_repeated_sequences_is_the_block() -> None:
    small, large = [(2, 3), (3, 2)] * 3, [(9, 8), (8, 9)] * 2
    assert blocks(*small, *large) == [*[""] * 6, "block 0", "block 0", "block 1", "block 1"]


def test_layers_without_blocks_are_grouped_up_to_the_size_of_a_bucket() -> None:
    rows = BUCKET_BYTES // 4 // 256  # Each row has 256 floats.
    assert blocks((rows, 256), (256, 3)) == ["part 0", "part 1"]
    assert blocks((rows - 1, 256), (255, 1), (3, 5)) == ["part 0", "part 0", "part 0"]
    assert blocks((rows - 1, 256), (256, 1), (1, 5)) == ["part 0", "part 0", "part 1"]


def module(name: str, start: int, lasts: int, *inside: Op) -> Op:
    return Op(f"nn.Module: {name}", start, lasts, children=list(inside))


def product(start: int, depth: int, columns: int) -> Op:
    return Op("aten::mm", start, 4, shapes=((32, depth), (depth, columns)))


def test_blocks_are_the_outermost_modules_of_the_class_that_repeats() -> None:
    """GIVEN a network with a Sequential container, two modules of class Block, a third Block inside the second Block, and a
    head THEN only the two outer modules of class Block are blocks, and the head belongs to no block."""
    first = module("Block_0", 2, 18, product(3, 2, 3), product(9, 3, 2))
    second = module("Block_1", 22, 20, module("Block_2", 23, 18, product(24, 2, 3), product(30, 3, 2)))
    net = module("Net_0", 0, 60, module("Sequential_0", 1, 45, first, second), product(50, 2, 9))
    trace = make_recording([("forward", 0, 70)], [net])
    trace.host.kind[trace.strings.matching(trace.host.name, lambda text: text.startswith("nn."))] = HostKind.ANNOTATION
    inside = "Net_0/Sequential_0"
    assert [layer.block for layer in layers_of(trace)] == [*[f"{inside}/Block_0"] * 2, *[f"{inside}/Block_1"] * 2, ""]


@pytest.mark.parametrize(
    ("op", "shapes", "weights"),
    [
        ("mm", ((32, 8), (8, 4)), ((8, 4),)),
        ("matmul", ((2, 32, 8), (8, 4)), ((8, 4),)),
        ("matmul", ((2, 32, 8), (2, 8, 4)), None),  # Both factors are activations, so this op has no parameters.
        ("matmul", ((32, 8), (8,)), None),
        ("batch_norm", ((2, 4, 8, 8), (4,), (4,), (4,), (4,)), ((4,), (4,))),
        ("relu", ((32, 8),), None),
    ],
)
def test_the_parameters_of_a_layer_are_found_from_the_shapes_of_its_op(
    op: str, shapes: tuple[Shape, ...], weights: tuple[Shape, ...] | None
) -> None:
    found = layers_of(forward((op, shapes)))
    assert [layer.weights for layer in found] == ([] if weights is None else [weights])
    if weights is not None:
        assert found[0].parameter_bytes == 4 * sum(of[0] * (of[1] if len(of) > 1 else 1) for of in weights)


def nested() -> Trace:
    """Return a linear layer whose op contains other ops, and then another layer. The product inside the linear layer has the
    same weight."""
    inner = [Op("aten::t", 1, 1, shapes=((4, 8),)), Op("aten::addmm", 3, 4, kernel=(6, 5), shapes=((4,), (32, 8), (8, 4)))]
    outer = Op("aten::linear", 0, 9, shapes=((32, 8), (4, 8), (4,)), children=inner)
    return make_recording([("forward", 0, 30)], [outer, Op("aten::mm", 12, 4, kernel=(20, 5), shapes=((32, 4), (4, 2)))])


def test_an_op_inside_a_layer_does_not_count_as_a_layer() -> None:
    trace = nested()
    found = layers_of(trace)
    assert [trace.strings[int(trace.host.name[layer.row])] for layer in found] == ["aten::linear", "aten::mm"]
    assert [layer.parameter_bytes for layer in found] == [4 * (4 * 8 + 4), 4 * 4 * 2]


@pytest.mark.parametrize(
    ("dtypes", "item_bytes"), [("float16;float16", 2), ("int64;float64", 8), ("float64;int64", 8), ("", 4)]
)
def test_parameters_have_the_dtype_of_the_last_floating_point_input(dtypes: str, item_bytes: int) -> None:
    trace = products((8, 4))
    trace.host.dtypes[:] = trace.strings.add(dtypes) if dtypes else NONE
    assert [layer.parameter_bytes for layer in layers_of(trace)] == [8 * 4 * item_bytes]


def test_shapes_may_be_the_first_text_of_the_string_table() -> None:
    """Texts are numbered from 0, and a missing text is -1."""
    trace = products((8, 4))
    renumbered = Strings(["32,8;8,4"])
    trace.host.name = np.array([renumbered.add(trace.strings[name]) for name in trace.host.name.tolist()])
    trace.phases.name = np.array([renumbered.add(trace.strings[name]) for name in trace.phases.name.tolist()])
    trace.host.shapes = np.where(trace.host.shapes == NONE, NONE, renumbered.add(trace.strings[int(trace.host.shapes.max())]))
    trace.strings = renumbered
    assert [layer.weights for layer in layers_of(trace)] == [((8, 4),)]
