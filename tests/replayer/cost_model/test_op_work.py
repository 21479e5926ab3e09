# mypy: allow-untyped-calls
"""Tests that the FLOPs and bytes of ops equal those of torch's own FLOP counter and of the tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from replayer.cost_model.constants import ELEMENTWISE_COLUMNS, PICTURE_CHANNELS
from replayer.cost_model.op_work import op_work
from traces.names.equivalent_ops import canonical_op

SIZES = st.integers(1, 9)
PRODUCTS = st.sampled_from(["mm", "addmm", "linear", "matmul", "bmm", "baddbmm"])
ITEM = {"float32": 4, "float16": 2}


def made(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta", requires_grad=True)


def counted(call: Callable[[], torch.Tensor]) -> tuple[int, torch.Tensor]:
    with FlopCounterMode(display=False) as counter:
        result = call()
    return counter.get_total_flops(), result


def shapes_of(*tensors: torch.Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(of.shape) for of in tensors)


@given(SIZES, SIZES, SIZES, SIZES, PRODUCTS, st.sampled_from(list(ITEM)))
def test_a_matrix_product_has_the_expected_flops_and_bytes(
    batch: int, rows: int, depth: int, columns: int, op: str, dtype: str
) -> None:
    tensors = {
        "mm": (made(rows, depth), made(depth, columns)),
        "addmm": (made(columns), made(rows, depth), made(depth, columns)),
        "linear": (made(batch, rows, depth), made(columns, depth), made(columns)),
        "matmul": (made(batch, rows, depth), made(depth, columns)),
        "bmm": (made(batch, rows, depth), made(batch, depth, columns)),
        "baddbmm": (made(batch, rows, columns), made(batch, rows, depth), made(batch, depth, columns)),
    }[op]
    flops, result = counted(lambda: F.linear(*tensors) if op == "linear" else getattr(torch, op)(*tensors))
    (work,) = op_work(op, shapes_of(*tensors), dtype)
    factors = [of for of in tensors if of.dim() > 1][-2:]
    assert (work.kind, work.flops, 2 * prod(work.sizes)) == ("matmul", flops, flops)
    assert work.size_bytes == ITEM[dtype] * (sum(of.numel() for of in factors) + result.numel())


@given(
    *(st.integers(1, 4) for _ in range(4)), st.integers(5, 9), st.integers(1, 5), st.integers(1, 2), st.integers(0, 2),
    st.integers(1, 3),
)  # fmt: skip
def test_a_convolution_and_its_backward_pass_have_the_expected_flops_and_bytes(
    images: int, groups: int, inputs: int, outputs: int, side: int, window: int, stride: int, padding: int, dims: int
) -> None:
    """The output of the convolution is no larger than its image. Each of the two gradients takes as many FLOPs as the forward
    pass."""
    padding = min(padding, (window - 1) // 2)
    image, weight = made(images, groups * inputs, *[side] * dims), made(groups * outputs, inputs, *[window] * dims)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    flops, result = counted(lambda: convolve(image, weight, None, stride, padding, 1, groups))
    (work,) = op_work("convolution", shapes_of(image, weight), outputs=shapes_of(result))
    elements = image.numel() + weight.numel() + result.numel()
    assert (work.flops, work.size_bytes) == (flops, 4 * elements)
    is_depthwise = inputs == 1 and groups > 1
    is_square = dims == 2 and groups == 1 and window >= 3 and result[0, 0].numel() >= 0.6 * side**2
    assert work.kind == ("depthwise" if is_depthwise else "conv3" if is_square else "conv")
    if work.kind == "conv":
        assert 2 * prod(work.sizes) == flops and work.sizes[0] == groups
    elif work.kind == "depthwise":
        assert 2 * prod(work.sizes) * outputs == flops
    backward = op_work("convolution_backward", shapes_of(result, image, weight))
    assert {of.flops for of in backward} == {flops}
    assert len(backward) == (1 if groups * inputs <= PICTURE_CHANNELS else 2)
    assert all(prod(of.sizes) == prod(work.sizes) for of in backward)


@given(SIZES, SIZES, SIZES, SIZES, SIZES, st.sampled_from(list(ITEM)))
def test_attention_has_the_expected_flops_and_bytes(
    batch: int, heads: int, rows: int, keys: int, depth: int, dtype: str
) -> None:
    """The forward pass of attention has two matrix products. The backward pass has five products, because it computes the
    scores again."""
    query, key, value = made(batch, heads, rows, depth), made(batch, heads, keys, depth), made(batch, heads, keys, depth)
    flops, result = counted(lambda: torch.softmax(query @ key.transpose(2, 3), -1) @ value)
    forward = op_work("attention", shapes_of(query, key, value), dtype)
    assert sum(of.flops for of in forward) == flops
    assert sum(of.size_bytes for of in forward) == ITEM[dtype] * sum(of.numel() for of in (query, key, value, result))
    backward = op_work("attention_backward", shapes_of(result, query, key, value)[1:], dtype)
    assert 2 * sum(of.flops for of in backward) == 5 * flops


def test_attention_on_a_batch_of_ragged_sequences_is_memory_bound() -> None:
    (work,) = op_work("attention", ((100, 8, 64),) * 3)
    assert (work.kind, work.size_bytes) == ("memory", 4 * 4 * 100 * 8 * 64)


@given(SIZES, SIZES, st.integers(1, 1500), st.sampled_from(list(ITEM)))
def test_the_traffic_of_row_ops_is_the_bytes_they_read_and_write(first: int, second: int, columns: int, dtype: str) -> None:
    shape, elements = (first, second, columns), first * second * columns
    flat = (max(elements // ELEMENTWISE_COLUMNS, 1), ELEMENTWISE_COLUMNS)
    rows = (first * second, columns)
    for op, count, kind, sizes, moved in (
        ("softmax", 1, "softmax", rows, 2),
        ("softmax_backward", 2, "softmax", rows, 3),
        ("layer_norm", 1, "layer_norm", rows, 2),
        ("layer_norm_backward", 2, "layer_norm", rows, 4),
        ("relu", 1, "elementwise1", flat, 2),
        ("lerp", 2, "elementwise", flat, 3),
        ("sort", 1, "memory", rows, 2),
    ):
        (work,) = op_work(op, (shape,) * count, dtype)
        assert (work.kind, work.sizes, work.flops) == (kind, sizes, 0), op
        assert work.size_bytes == moved * elements * ITEM[dtype], op


@given(st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=5), st.sampled_from(list(ITEM)))
def test_an_op_on_lists_of_tensors_writes_half_as_many_bytes_as_it_reads(shapes: list[tuple[int, int]], dtype: str) -> None:
    (work,) = op_work("_foreach_add", tuple(shapes), dtype)
    read = sum(map(prod, shapes)) * ITEM[dtype]
    assert (work.kind, work.size_bytes) == ("elementwise", read + read // 2)


@given(st.integers(10, 99), SIZES, SIZES, SIZES, st.sampled_from(list(ITEM)))
def test_an_embedding_reads_and_writes_the_rows_that_it_looks_up(table: int, width: int, a: int, b: int, dtype: str) -> None:
    (work,) = op_work("embedding", ((table, width), (a, b)), dtype)
    assert (work.kind, work.sizes, work.size_bytes) == ("memory", (a * b, width), 2 * a * b * width * ITEM[dtype])


@pytest.mark.parametrize("shapes", [(), ((),), ((0,),), ((4, 0),)])
def test_an_op_without_elements_moves_nothing(shapes: tuple[tuple[int, ...], ...]) -> None:
    for op in ("relu", "add", "softmax", "sort"):
        (work,) = op_work(op, shapes)
        assert work.flops == 0 and work.size_bytes <= 8 and min(work.sizes) >= 0


class Calls(TorchDispatchMode):
    """Stores the first call of each op. A call has the number of input tensors, the bytes of inputs and result, and the shapes
    of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, tuple[int, int, tuple[tuple[int, ...], ...]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = [value for value in args if isinstance(value, torch.Tensor)]
        if isinstance(result, torch.Tensor):
            name = canonical_op(func.__name__)
            self.made.setdefault(name, (len(inputs), sum(of.nbytes for of in inputs) + result.nbytes, shapes_of(*inputs)))
        return result


_OF_ONE: tuple[Callable[..., torch.Tensor], ...] = (
    F.relu, F.gelu, F.silu, F.hardtanh, F.hardswish, F.leaky_relu, torch.tanh, torch.sigmoid, torch.exp, torch.log, torch.sqrt,
    torch.rsqrt, torch.neg, torch.abs, torch.erf, torch.sin, torch.cos, torch.square, torch.reciprocal, torch.clone,
    lambda x: x.pow(2), lambda x: x.clamp(0, 1),
)  # fmt: skip
_OF_TWO: tuple[Callable[..., torch.Tensor], ...] = (
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.rsub,
    lambda x, y: torch.lerp(x, y, 0.5), lambda x, y: torch.addcmul(x, y, y), lambda x, y: torch.addcdiv(x, y, y),
)  # fmt: skip


def test_elementwise_ops_and_their_gradients_move_the_bytes_of_torchs_tensors() -> None:
    """Ops on one tensor and ops on several tensors are different kinds of work. PyTorch's gradients of activations are ops on
    several tensors."""
    calls = Calls()
    for function, count in ((of, count) for functions, count in ((_OF_ONE, 1), (_OF_TWO, 2)) for of in functions):
        tensors = [torch.rand(4, ELEMENTWISE_COLUMNS, requires_grad=True) for _ in range(count)]
        with calls:
            function(*tensors).sum().backward()
    expected = set(
        "relu gelu silu hardswish leaky_relu tanh sigmoid exp log sqrt rsqrt neg abs erf sin cos reciprocal clone pow hardtanh"
        " clamp add sub mul div maximum minimum rsub lerp addcmul addcdiv".split()
    )
    backward = {f"{name}_backward" for name in "gelu silu hardswish tanh sigmoid threshold hardtanh".split()}
    assert expected | backward <= calls.made.keys()
    for name in expected | backward:
        tensors_read, moved, shapes = calls.made[name]
        (work,) = op_work(name, shapes)
        assert (work.kind, work.size_bytes) == ("elementwise1" if tensors_read == 1 else "elementwise", moved), name
