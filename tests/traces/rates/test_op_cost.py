"""Tests that ops have the number of floating-point operations that was counted by hand. A multiply-add has two operations."""

from __future__ import annotations

import pytest

from traces.model.layouts import Shape
from traces.rates.op_cost import attention_flops, flops, itemsize, rnn_weights


@pytest.mark.parametrize(
    ("op", "shapes", "count"),
    [
        ("mm", ((2, 3), (3, 5)), 2 * 2 * 3 * 5),
        ("linear", ((2, 3), (5, 3)), 2 * 2 * 3 * 5),
        ("bmm", ((7, 2, 3), (7, 3, 5)), 7 * 2 * 2 * 3 * 5),
        ("addmm", ((2, 5), (2, 3), (3, 5)), 2 * 2 * 3 * 5),
        ("addmm", ((5,), (2, 3), (3, 5)), 2 * 2 * 3 * 5),
        ("convolution", ((2, 3, 8, 8), (4, 3, 3, 3), (4,)), 2 * 2 * 64 * 4 * 27),
        ("convolution_backward", ((2, 4, 6, 6), (2, 3, 8, 8), (4, 3, 3, 3)), 2 * 2 * 2 * 64 * 4 * 27),
        ("attention", ((2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 8)), 4 * 2 * 4 * 10 * 8 * 12),
        ("attention_backward", ((2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 8)), 10 * 2 * 4 * 10 * 8 * 12),
        ("attention", ((2, 4, 10, 8), (2, 4, 12, 8)), 0),
        ("attention", ((40, 10, 8), (40, 12, 8), (40, 12, 8)), 0),
        # An LSTM of 2 layers with 4 units has weights for 4 gates, so their first size is 16. The buffer of 688 elements and
        # the hidden state are no weights.
        ("rnn", ((5, 2, 3), (16, 3), (16, 4), (16,), (16,), (16, 4), (16, 4), (16,), (16,), (688,), (2, 2, 4)),
         2 * 10 * (16 * 3 + 3 * 16 * 4)),
        # A packed sequence has two dimensions. In the backward pass, the output and its gradient follow the hidden state.
        ("rnn_backward", ((10, 3), (16, 3), (16, 4), (688,), (1, 2, 4), (10, 4), (10, 4)), 2 * 2 * 10 * (16 * 3 + 16 * 4)),
        ("mm", ((2, 3),), 0),
        ("relu", ((2, 3), (3, 5)), 0),
    ],
)  # fmt: skip
def test_one_call_of_an_op_has_the_textbook_number_of_flops(op: str, shapes: tuple[Shape, ...], count: int) -> None:
    assert flops(op, shapes) == count


@pytest.mark.parametrize(("elements", "is_weight"), [(191, True), (192, False)])
def test_the_flat_buffer_that_contains_all_rnn_weights_is_not_counted_as_a_weight(elements: int, is_weight: bool) -> None:
    """GIVEN weights of 16 x 8 and 16 x 4, which have 192 elements in total THEN a buffer of 192 elements is not a weight."""
    weights: tuple[Shape, ...] = ((16, 8), (16, 4), (16,), (16,))
    found = rnn_weights(((5, 3, 8), *weights, (elements,), (2, 3, 4), (9, 9)))
    assert found == (*weights, *([(elements,)] if is_weight else []))


def test_attention_costs_two_matrix_products_forward_and_five_backward() -> None:
    """GIVEN attention with a mask as its first input THEN the mask does not count as a factor of a product.

    With 2 x 4 heads, 8 queries, 6 keys and 16 channels, one product has 2 x (2 x 4 x 8 x 6) x 16 FLOPs. The forward pass has 2
    products, and the backward pass has 5.
    """
    query, key, mask = (2, 4, 8, 16), (2, 4, 6, 16), (8, 6)
    product = 2 * (2 * 4 * 8 * 6) * 16
    assert attention_flops("scaled_dot_product_attention", (mask, query, key, key)) == (2 * product, True)
    backward = "_scaled_dot_product_flash_attention_backward"
    assert attention_flops(backward, (query, query, key, key)) == (5 * product, True)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float64", 8), ("float8_e4m3fn", 1), ("int8", 1), ("uint4", 1), ("bool", 1), ("complex128", 16), ("unknown", 4)],
)
def test_every_tensor_element_has_at_least_one_byte(dtype: str, size: int) -> None:
    assert itemsize(dtype) == size


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 4, 8, 16), (2, 4, 8, 16)),  # the values are missing
        ((2, 4, 8, 16), (2, 4, 8, 16), (4, 8, 16)),
        ((2, 4, 8, 16), (2, 4, 8, 32), (2, 4, 8, 32)),  # queries and keys have different numbers of channels
        ((1, 2, 4, 8, 16), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16)),
    ],
)
def test_attention_of_unknown_shapes_has_no_flops(shapes: tuple[Shape, ...]) -> None:
    assert attention_flops("scaled_dot_product_attention", shapes) == (0, False)
