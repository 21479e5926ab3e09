"""Tests how many bytes ops read and write. The expected bytes were computed by hand from small shapes.

`f(2, 3)` is a float32 operand with the shape 2 x 3. The dtypes of `i`, `b`, `h` and `d` are int64, uint8, float16 and float64.
"""

from __future__ import annotations

import pytest

from traces.rates.op_traffic import Operand, Traffic, indexed_traffic, moved_once, traffic, triton_traffic


def f(*shape: int) -> Operand:
    return Operand(shape, 4)


def i(*shape: int) -> Operand:
    return Operand(shape, 8)


def b(*shape: int) -> Operand:
    return Operand(shape, 1)


def h(*shape: int) -> Operand:
    return Operand(shape, 2)


def d(*shape: int) -> Operand:
    return Operand(shape, 8)


@pytest.mark.parametrize(
    ("op", "name", "operands", "moved_bytes"),
    [
        # An elementwise op reads its inputs once and writes its output once. The in-place version moves as many bytes.
        ("add", "add", (f(8, 4), f(8, 4)), 3 * 128),
        ("add", "add_", (f(8, 4), f(8, 4)), 3 * 128),
        ("mul", "mul", (f(8, 1), f(1, 4)), 32 + 16 + 128),  # both tensors are broadcast
        ("mul", "mul", (h(8, 4), f(8, 1)), 64 + 32 + 128),  # the result has the wider of the two dtypes
        ("mul", "mul", (h(8, 4), d()), 64 + 8 + 64),  # a scalar does not change the dtype of the result
        ("gt", "gt", (f(8, 4), f(8, 4)), 128 + 128 + 32),  # the result has one byte per element
        ("fill", "fill_", (f(8, 4),), 128),
        ("copy", "copy_", (f(8, 4), i(8, 4)), 128 + 256),
        ("copy", "_to_copy", (f(8, 4),), 2 * 128),
        ("cat", "cat", (f(2, 4), f(6, 4)), 2 * (32 + 96)),
        ("sum", "sum", (f(8, 4),), 128),
        ("max_pool2d", "max_pool2d_with_indices", (f(1, 1, 4, 4),), 64),
        ("mm", "mm", (f(8, 4), f(4, 2)), 128 + 32 + 64),
        # The op reads gradient, image and weight, and writes the gradients of image and weight.
        ("convolution_backward", "convolution_backward", (f(2, 8, 4, 4), f(2, 3, 4, 4), f(8, 3, 3, 3)),
         1024 + 2 * 384 + 2 * 864),
        ("convolution_backward", "cudnn_convolution_backward", (f(2, 3, 4, 4), f(2, 8, 4, 4), f(8, 3, 3, 3)),
         1024 + 2 * 384 + 2 * 864),
        # If no weight matches the channels of the other inputs, the smaller input counts as the gradient.
        ("convolution_backward", "convolution_backward", (f(2, 6, 4, 4), f(8, 3, 3, 3)), 768 + 864 + 864),
        # The weight of a transposed convolution matches two inputs, and the smaller one counts as the gradient.
        ("convolution_backward", "convolution_backward", (f(2, 8, 4, 4), f(2, 8, 2, 2), f(8, 3, 3, 3)),
         2 * 1024 + 256 + 2 * 864),
        ("unified_attention_with_output", "unified_attention_with_output", (h(8, 2, 4), h(8, 1, 4), h(8, 1, 4), h(8, 2, 4)),
         128 + 64 + 64 + 128),
        ("rmsnorm", "rmsnorm", (h(8, 4), h(8, 4), h(4)), 64 + 64 + 8),
        # Ops with indices read only the rows that the indices select.
        ("embedding", "embedding", (f(100, 4), i(2, 3)), 48 + 2 * 6 * 16),
        ("index_select", "index_select", (f(100, 4), i(6)), 48 + 2 * 6 * 16),
        ("embedding_backward", "embedding_dense_backward", (f(2, 3, 4), i(2, 3)), 48 + 2 * 96),
        ("gather", "gather", (f(64, 1000), i(64, 1)), 64 * 8 + 2 * 64 * 4),
        ("index", "index", (f(100, 4), i(6)), 48 + 2 * 6 * 16),
        ("index", "index", (f(10, 10, 4), i(6, 1), i(1, 5)), 48 + 40 + 2 * 30 * 16),
        ("index_put", "index_put_", (f(100, 4), i(6), f(6, 4)), 48 + 96 + 96),
        # The target tensor is copied before it is changed.
        ("index_put", "index_put", (f(100, 4), i(6), f(6, 4)), 48 + 96 + 96 + 2 * 1600),
        ("_index_put_impl", "_index_put_impl_", (f(100, 4), f(6, 4)), 2 * 96),  # the indices were not recorded
        ("scatter", "scatter_", (f(100, 4), i(6, 4), f(6, 4)), 192 + 96 + 96),
        ("scatter_add", "scatter_add_", (f(100, 4), i(6, 4), f(6, 4)), 192 + 96 + 2 * 96),
        ("index_add", "index_add_", (f(100, 4), i(6), f(6, 4)), 48 + 96 + 2 * 96),
        ("nll_loss", "nll_loss_forward", (f(32, 1000), i(32)), 32 * 8 + 32 * 4),
        ("nll_loss_backward", "nll_loss_backward", (f(32, 1000), i(32)), 32 * 8 + 32 * 4),
        ("nll_loss_backward", "nll_loss_backward", (f(32), f(32, 1000), i(32)), 128 + 32 * 8 + 32 * 4),
        ("item", "_local_scalar_dense", (f(951, 1024),), 4),
        ("scatter", "scatter", (f(100, 4), i(6, 4), f(6, 4)), 192 + 96 + 96 + 2 * 1600),  # the result is a new tensor
        ("scatter", "scatter_", (f(100, 4), i(6, 4)), 192 + 96),  # the scattered value is a number
        ("index_add", "index_add", (f(100, 4), i(6), f(6, 4)), 48 + 96 + 2 * 96 + 2 * 1600),
        ("index", "index", (f(10, 10), i(6), i(6)), 48 + 48 + 2 * 6 * 4),  # each pair of indices selects one element
        ("nll_loss", "nll_loss_forward", (f(32, 1000), i(32), f(1000)), 32 * 8 + 2 * 32 * 4),  # the classes have weights
        ("_embedding_bag", "_embedding_bag", (f(100, 4), i(6), i(2)), 48 + 16 + 6 * 16 + 2 * 16),
        ("rnn", "_cudnn_rnn", (f(8, 4), f(16, 4)), 128 + 256),
        ("_scaled_mm", "_scaled_mm", (b(8, 4), b(4, 2), f(1), f(1)), 32 + 8 + 8 + 2 * 16),
        ("concat_and_cache_mla", "concat_and_cache_mla", (f(5, 16), f(5, 4), b(900, 16, 20), i(5)), 320 + 80 + 5 * 20 + 40),
        # These ops write new entries to caches of keys and values.
        ("reshape_and_cache_flash", "reshape_and_cache_flash",
         (f(5, 1, 8), f(5, 1, 8), f(900, 16, 1, 8), f(900, 16, 1, 8), i(5)), 2 * 160 + 2 * 160 + 40),
        ("rotary_embedding", "rotary_embedding", (i(5), f(5, 16), f(5, 8), f(4096, 8)), 40 + 2 * (320 + 160) + 5 * 32),
        ("attention", "_flash_attention_forward", (f(1, 8, 2, 4),) * 3, 4 * 256),
        ("attention_backward", "_flash_attention_backward", (f(1, 8, 2, 4),) * 5, 8 * 256),
    ],
)  # fmt: skip
def test_an_op_moves_the_expected_number_of_bytes(op: str, name: str, operands: tuple[Operand, ...], moved_bytes: int) -> None:
    of = traffic(op, name, operands)
    assert of is not None and of.moved_bytes == moved_bytes


def test_the_traffic_of_a_convolution_includes_its_output() -> None:
    operands = (f(1, 3, 8, 8), f(4, 3, 3, 3))
    assert traffic("convolution", "convolution", operands, (1, 4, 6, 6)) == Traffic(768 + 432 + 576, 768 + 432 + 576)
    resized = traffic("upsample_nearest2d", "upsample_nearest2d", (f(1, 3, 8, 8),), (1, 3, 4, 4))
    assert resized == moved_once(768 + 192)
    assert traffic("convolution", "convolution", operands) == Traffic(768 + 432, 768 + 432)


@pytest.mark.parametrize(
    ("op", "operands", "moved_bytes", "footprint_bytes"),
    [
        ("rotary_embedding", (i(5), f(5, 16), f(5, 8), f(4096, 8)), 40 + 2 * 480 + 160, 40 + 480 + 160),
        ("rotary_embedding", (i(5), f(5, 16), f(5, 8), f(3, 8)), 40 + 2 * 480 + 96, 40 + 480 + 96),  # the table has only 3 rows
        ("scatter_add", (f(100, 4), i(6, 4), f(6, 4)), 192 + 96 + 2 * 96 + 2 * 1600, 192 + 96 + 96 + 2 * 1600),
        ("fused_add_rms_norm", (h(8, 4), h(8, 4), h(4)), 2 * 128 + 8, 128 + 8),
    ],
)
def test_the_memory_footprint_of_an_op_counts_an_updated_tensor_once(
    op: str, operands: tuple[Operand, ...], moved_bytes: int, footprint_bytes: int
) -> None:
    assert traffic(op, op, operands) == Traffic(moved_bytes, footprint_bytes)


def test_the_traffic_of_index_add_includes_reading_and_writing_its_rows() -> None:
    of = traffic("index_add", "index_add", (f(100, 4), i(6), f(6, 4)))
    assert of is not None and of.footprint_bytes == 48 + 96 + 96 + 2 * 1600


def test_an_in_place_op_reads_and_writes_the_same_memory() -> None:
    assert traffic("relu", "relu_", (f(8, 4),)) == Traffic(moved_bytes=256, footprint_bytes=128)
    assert traffic("relu", "relu", (f(8, 4),)) == Traffic(moved_bytes=256, footprint_bytes=256)


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("index", (f(8, 4),)),  # the indices were not recorded
        ("index", (f(8, 4), b(8))),  # the number of selected elements depends on the values of the mask
        ("index_put", (i(8), i(3))),  # the second operand may be the indices or the values
        ("gather", (f(8, 4),)),
        ("reshape_and_cache", (f(5, 8), f(5, 8), f(900, 8), f(900, 8))),
        ("rotary_embedding", (i(5), f(5, 16))),
        ("_scaled_mm", (b(2, 8, 4), b(4, 2))),
        ("add", ()),
        ("upsample_nearest2d", (f(1, 3, 8, 8),)),  # the output size was not recorded
    ],
)
def test_traffic_is_unknown_if_shapes_do_not_determine_it(op: str, operands: tuple[Operand, ...]) -> None:
    assert traffic(op, op, operands) is None


def test_the_traffic_of_an_inductor_kernel_on_a_slice_counts_only_the_slice() -> None:
    # GIVEN a pointwise Triton kernel that reads a tensor of 2 x 4096 elements and writes 1000 elements
    name, pointers = "triton_poi_fused_slice_0", (f(2, 4096), f(1000))
    # THEN 125 programs process only 1000 elements, and 4 programs process the whole tensor
    assert triton_traffic(name, pointers, programs=4) == Traffic(8 * 4096 + 4000, 8 * 4096 + 4000)
    assert triton_traffic(name, pointers, programs=125) == Traffic(8000, 8000)
    # AND a table between input and output counts at most as many bytes as the input
    table = triton_traffic("triton_red_fused_add_0", (f(8, 64), f(1000, 64), f(8)), programs=8)
    assert table == Traffic(4 * (512 + 512 + 8), 4 * (512 + 512 + 8))


def test_the_traffic_of_an_index_op_is_estimated_from_its_number_of_blocks() -> None:
    """The op selects the upper triangles of 512 x 4 matrices of 128 x 128, with 8256 elements each. Its kernel has 33,024
    blocks of 512 elements."""
    table, kernel = Operand((512, 4, 128, 128), 4), "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index>"
    assert indexed_traffic(table, kernel, (33024,)) == moved_once(2 * 512 * 4 * 8256 * 4)
    assert indexed_traffic(table, kernel, (20,)) == moved_once(2 * 512 * 4 * 20 // 4 * 4)
    assert indexed_traffic(table, kernel, (19,)) is None  # the last block could contain more than 5 % of all elements
    assert indexed_traffic(table, "another_kernel", (33024,)) is None and indexed_traffic(table, kernel, ()) is None
    # The kernel copies 32 rows of 2880 elements, with two blocks for each row, and reads an index of 8 bytes for each row.
    rows = indexed_traffic(Operand((100, 2880), 2), "vectorized_gather_kernel<16, long>", (32, 2))
    assert rows == moved_once(32 * (2 * 2880 * 2 + 8))
