"""Tests which kernels of a recording the ranks share, and after which kernels they all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from replayer.cost_model.collective_costs import CollectiveCosts
from replayer.prediction.scaling import ScaledOp
from replayer.prediction.tensor_parallel import TensorSplit, tensor_parallel
from tests.replayer.recordings import Op, make_recording
from traces.model.trace import Trace, TraceError

Shape = tuple[int, ...]
Call = tuple[str, tuple[Shape, ...]]  # The name of an op and its shapes.
WIDTH, HIDDEN = 8, 32


def product(rows: int, depth: int, columns: int) -> Call:
    return "mm", ((rows, depth), (depth, columns))


def mlp(rows: int) -> list[Call]:
    """Return the three matrix products of an MLP. The gate and up products read the network's width, and the down product
    writes it."""
    return [product(rows, WIDTH, HIDDEN), product(rows, WIDTH, HIDDEN), product(rows, HIDDEN, WIDTH)]


def attention(head_size: int, rows: int = 16) -> list[Call]:
    heads = WIDTH // head_size
    scores = ((heads, rows, head_size), (heads, head_size, rows))
    return [*[product(rows, WIDTH, WIDTH)] * 3, ("bmm", scores), product(rows, WIDTH, WIDTH)]


def recorded(forward: Sequence[Call], backward: Sequence[Call]) -> tuple[Trace, list[ScaledOp]]:
    """Return a recording with one kernel for each op, and the ops."""
    called = [(name, shapes, "forward") for name, shapes in forward] + [(name, shapes, "backward") for name, shapes in backward]
    calls = [ScaledOp(name, shapes, "float32", phase) for name, shapes, phase in called]
    ops = [Op(f"aten::{of.op}", 10 * i, 8, kernel=(10 * i + 5, 5), shapes=of.shapes) for i, of in enumerate(calls)]
    phases = [("forward", 0, 10 * len(forward)), ("backward", 10 * len(forward), 10 * len(ops) + 10)]
    return make_recording(phases, ops), calls


def split_of(forward: Sequence[Call], backward: int = 0, ranks: int = 2) -> TensorSplit:
    """Return how ranks share a forward pass. After the forward pass, the recording has a backward pass of `backward` other
    ops."""
    trace, calls = recorded(forward, [("relu_backward", ((9, 9),))] * backward)
    return TensorSplit.of(trace, calls, lambda call: call.shapes, ranks)


@pytest.mark.parametrize(("backward", "places"), [(6, (10, 12, 14)), (7, (10, 12, 15)), (3, (9, 10, 11))])
def test_gradient_all_reduces_are_spread_evenly_over_the_backward_pass(backward: int, places: tuple[int, ...]) -> None:
    """GIVEN three pairs of products in kernels 0 to 8, and a backward pass that begins with kernel 9

    THEN each output is summed after the last product of its pair. The gradients of the third pair are summed after a third of
    the backward kernels. The gradients of the second pair are summed after two thirds, and the gradients of the first pair at
    the end.
    """
    split = split_of([*mlp(16), *mlp(24), *mlp(32)], backward)
    assert split.summed_bytes == {2: [512], 5: [768], 8: [1024]} | dict(zip(places, ([1024], [768], [512]), strict=True))
    assert split.pairs == 3 and split.elements == 3 * 3 * WIDTH * HIDDEN
    costs = CollectiveCosts("Tesla P100-PCIE-16GB", 10.0)
    found_ns = split.reductions_ns("Tesla P100-PCIE-16GB", 10.0, 9 + backward).tolist()
    bytes_after = {row: size for row, (size,) in split.summed_bytes.items()}
    assert found_ns == [
        costs.next("all_reduce", bytes_after[row], 2).duration_ns if row in bytes_after else 0 for row in range(9 + backward)
    ]


def test_without_a_backward_pass_tensor_parallel_ranks_sum_only_outputs() -> None:
    assert split_of([*mlp(16), *mlp(24)]).summed_bytes == {2: [512], 5: [768]}


@pytest.mark.parametrize(("head_size", "heads"), [(2, 4), (4, 2), (8, 1)])
def test_the_number_of_heads_is_the_width_divided_by_the_head_size(head_size: int, heads: int) -> None:
    assert split_of(attention(head_size), ranks=heads).pairs == 1
    with pytest.raises(TraceError, match=rf"^{2 * heads} ranks cannot share {heads} attention heads evenly"):
        split_of(attention(head_size), ranks=2 * heads)


def test_attention_heads_are_not_counted_if_they_do_not_fill_the_width() -> None:
    assert split_of(attention(3), ranks=4).pairs == 1


@pytest.mark.parametrize("bias", [(4, 16, 16), (16, 16), (16,), (4, 1, 1)])
def test_the_shape_of_an_attention_bias_is_not_mistaken_for_the_query_shape(bias: Shape) -> None:
    """`baddbmm` adds its first input to the product of its second and third inputs. The queries are the second input."""
    calls = attention(2)
    calls[3] = "baddbmm", (bias, *calls[3][1])
    with pytest.raises(TraceError, match="share 4 attention heads"):
        split_of(calls, ranks=8)


def test_the_number_of_heads_comes_from_the_first_attention_op() -> None:
    """Three ops before the attention op have no keys: a softmax, a matrix product and an addition. So the number of heads
    comes from the attention op."""
    calls = attention(2)
    calls[3:3] = [("softmax", ((4, 16, 16),)), ("bmm", ((16, 8), (8, 16))), ("add", ((4, 16, 1), (4, 16, 1)))]
    with pytest.raises(TraceError, match="share 4 attention heads"):
        split_of(calls, ranks=8)
    calls[3] = "bmm", ((4, 16, 0), (4, 0, 16))  # These heads have no elements.
    assert split_of(calls, ranks=8).pairs == 1


@pytest.mark.parametrize(("bias", "parts"), [((HIDDEN,), [(8,)]), ((16, HIDDEN), [(16, 8)]), ((1,), [(1,)]), ((), [()])])
def test_tensor_parallelism_splits_a_bias_like_the_columns_of_its_product(bias: Shape, parts: list[Shape]) -> None:
    """GIVEN a first product with 32 columns and a bias WHEN four ranks share this product THEN each rank has 8 columns of the
    product and of its bias. Of the second weight, each rank has 8 of 32 rows."""
    calls: list[Call] = [("addmm", (bias, (16, 8), (8, HIDDEN))), ("addmm", ((16, 8), (16, HIDDEN), (HIDDEN, 8)))]
    calls += [("mm", ((16, 8), (8, 9)))]  # With this product, most products read the width of 8.
    assert [part for _, _, part in split_of(calls, ranks=4).parts.values()] == [
        (*parts, (16, 8), (8, 8)),
        ((16, 8), (16, 8), (8, 8)),
    ]


def test_the_first_product_is_split_by_columns_and_the_second_by_rows() -> None:
    parts = split_of(mlp(16), ranks=4).parts
    assert {row: part for row, (_, _, part) in parts.items()} == {
        0: ((16, 8), (8, 8)),
        1: ((16, 8), (8, 8)),
        2: ((16, 8), (8, 8)),
    }


@pytest.mark.parametrize(("backward", "copies"), [([], 1), ([("mm", ((WIDTH, 16), (16, HIDDEN)))], 2)])
def test_two_ranks_store_half_of_the_weights_and_gradients_each(backward: list[Call], copies: int) -> None:
    """GIVEN weights of 3072 bytes WHEN two ranks share them THEN each rank's peak memory is 1536 bytes lower. In training,
    each weight has a gradient, so the peak is twice 1536 bytes lower."""
    trace, calls = recorded(mlp(16), backward)
    split = TensorSplit.of(trace, calls, lambda call: call.shapes, 2)
    found = tensor_parallel(trace, split, np.zeros(len(calls)), 1e6, 0, 10_000, 1)
    assert found.rank_bytes == {"parameters": 1536} | ({"gradients": 1536, "optimizer state": 0} if backward else {})
    assert found.peak_bytes == 10_000 - copies * 1536
    low = tensor_parallel(trace, split, np.zeros(len(calls)), 1e6, 0, 2_000, 1)
    assert low.peak_bytes == 1536  # The peak is never lower than the parameters.


def test_tensor_parallel_figures_are_per_step() -> None:
    """GIVEN all-reduces of two steps that take 6 ms in total THEN the all-reduces of one step take 3 ms and move half of the
    bytes."""
    trace, calls = recorded(mlp(16), [])
    split = TensorSplit.of(trace, calls, lambda call: call.shapes, 2)
    found = tensor_parallel(trace, split, np.array([1e6, 2e6, 3e6]), 1e6, 0, 10_000, 2)
    assert found.parts_ns == {"all-reduce": 3e6} and found.moved_bytes == split.moved_bytes // 2 > 0
