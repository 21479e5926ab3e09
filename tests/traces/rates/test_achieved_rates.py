"""Tests that rates above the limits of a GPU's data sheet are explained or not shown.

A V100 has a bandwidth of 900 GB/s, a peak of 15.7 TFLOP/s, and 6 MiB of L2 cache. An A100 has a peak of 19.5 TFLOP/s in float32
and 156 TFLOP/s in TF32.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traces.handmade import US
from traces.kineto import read_kineto
from traces.model.trace import Device, DeviceKind, DeviceSpans, HostKind, HostSpans, Thread, Trace
from traces.rates.achieved_rates import IN_CACHE, PARTLY_IN_CACHE, OpRates, achieved, compared_text
from traces.rates.op_cost import attention_flops

V100, A100 = "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-80GB"


def one_op(
    op: str, shapes: str, dtypes: str, took_us: float, kernel: str = "kernel", card: str = V100, second: str = ""
) -> OpRates:
    """Return the rates of an op with one or two kernels. The first kernel takes `took_us`, and the second one takes no time."""
    trace = Trace(devices=[Device(0, 0, card)], threads=[Thread(0, 1, "main", "main")])
    add = trace.strings.add
    trace.host = HostSpans.of(
        thread=[0, 0], kind=[HostKind.OP, HostKind.RUNTIME], name=[add(op), add("cudaLaunchKernel")], start_ns=[0, US],
        duration_ns=[9 * US, US], parent=[-1, 0], shapes=[add(shapes), -1], dtypes=[add(dtypes), -1],
    )  # fmt: skip
    names = [kernel, second] if second else [kernel]
    trace.device = DeviceSpans.of(
        device=[0] * len(names), stream=[7] * len(names), kind=[DeviceKind.KERNEL] * len(names), name=[add(of) for of in names],
        start_ns=[20 * US, 900 * US][: len(names)], duration_ns=[round(took_us * US), 0][: len(names)], launch=[1] * len(names),
    )  # fmt: skip
    (row,) = achieved(trace, by_shape=True)
    return row


def test_an_op_whose_data_fits_in_the_cache_can_exceed_the_memory_bandwidth() -> None:
    # GIVEN an in-place op on 4 MiB that moves 8 MiB in 5 us THEN its rate of 1678 GB/s is explained by the cache
    row = one_op("aten::relu_", "1024,1024", "float32", 5)
    assert row.cached == IN_CACHE and row.bytes_share == pytest.approx(8 * 2**20 / 5000 / 900)


def test_an_op_that_partly_fits_in_the_cache_is_marked() -> None:
    # GIVEN an in-place op on 8 MiB that moves 16 MiB in 16 us. The memory can move 14.4 MB in this time, and the cache holds 6
    # MiB.
    row = one_op("aten::relu_", "2048,1024", "float32", 16)
    assert row.cached == PARTLY_IN_CACHE and (row.bytes_share or 0) > 1
    # WHEN the memory alone is fast enough THEN nothing is marked
    assert one_op("aten::relu_", "2048,1024", "float32", 40).cached == ""


@pytest.mark.parametrize(
    ("elements", "took_us", "cached"),
    [
        # An in-place op on 1.8 million elements moves 14.4 MB. The memory takes 16 us for them.
        (1_800_000, 16, ""),
        (1_800_000, 15.999, PARTLY_IN_CACHE),
        # Apart from the 6 MiB in the cache, the memory takes 9010 ns for the 14,400,456 bytes.
        (1_800_057, 9.010, PARTLY_IN_CACHE),
        (1_800_057, 9.009, None),
        # This op uses 6 MiB of memory, as much as the cache holds.
        (6 * 2**18, 1, IN_CACHE),
        (6 * 2**18 + 1, 1, None),
    ],
)
def test_only_ops_that_fit_in_the_cache_can_exceed_the_memory_bandwidth(
    elements: int, took_us: float, cached: str | None
) -> None:
    row = one_op("aten::relu_", str(elements), "float32", took_us)
    assert row.bytes == (None if cached is None else 8 * elements) and row.cached == (cached or "")


@pytest.mark.parametrize(("took_us", "share"), [(0.02, 0.5), (0.01, 1), (0.009, None)])
def test_flops_are_unknown_if_their_rate_would_exceed_the_peak(took_us: float, share: float | None) -> None:
    """At its peak of 15.7 TFLOP/s, the GPU takes 10 ns for 2 x 157 x 50 x 10 FLOPs."""
    row = one_op("aten::mm", "157,50;50,10", "float32;float32", took_us)
    assert row.flops == (None if share is None else 157_000) and row.flops_share == share


def test_the_bytes_of_an_op_are_unknown_if_they_imply_an_impossible_bandwidth() -> None:
    row = one_op("aten::relu_", "8192,8192", "float32", 10)
    assert row.gbps is None and row.bytes is None and row.bytes_share is None


@pytest.mark.parametrize(
    ("kernel", "took_us", "share"),
    [
        ("gemm", 1000, 17.18 / 19.5),  # the rate is below the float32 peak
        ("cutlass_80_tensorop_s1688gemm_128x128", 1000, 17.18 / 156),  # the kernel's name contains tensorop
        ("gemm", 500, 34.36 / 156),  # the rate is above the float32 peak
    ],
)
def test_float32_matrix_products_on_tensor_cores_are_compared_with_the_tf32_peak(
    kernel: str, took_us: float, share: float
) -> None:
    """A product of two 2048 x 2048 matrices has 2 x 2048 ^ 3 = 17.18 GFLOP."""
    row = one_op("aten::mm", "2048,2048;2048,2048", "float32;float32", took_us, kernel, A100)
    assert row.flops_share == pytest.approx(share, rel=1e-3) and row.tflops == pytest.approx(17.18 * 1000 / took_us, rel=1e-3)


def test_winograd_convolutions_are_rated_with_fewer_multiplications() -> None:
    """The convolution has 2 x 32 x 56 x 56 x 64 x 64 x 9 FLOPs = 7.40 GFLOP. Its output shape is unknown, so stride 1 is
    assumed."""
    row = one_op("aten::cudnn_convolution", "32,64,56,56;64,64,3,3", "float32;float32", 350, "volta_scudnn_winograd_128x128")
    assert row.winograd and row.tflops == pytest.approx(21.14, rel=1e-3)
    assert row.flops_share == pytest.approx(21.14 / 2.25 / 15.7, rel=1e-3)


@pytest.mark.parametrize(
    ("kernel", "second", "needed"),
    [
        ("volta_scudnn_winograd_128x128", "", 1 / 2.25),
        # Here, the second kernel computes one of the two gradients.
        ("volta_scudnn_winograd_128x128", "volta_sgemm_64x64_nt", (1 + 1 / 2.25) / 2),
        ("volta_scudnn_winograd_128x128", "elementwise", 1 / 2.25),
        ("winograd_nonfused", "", 1 / 4),
        ("winograd4x4", "", 1 / 4),
        ("winograd_nonfused", "volta_sgemm_64x64_nt", 1 / 4),  # the second kernel is a part of this algorithm
    ],
)
def test_winograd_gradients_are_rated_with_their_multiplications(kernel: str, second: str, needed: float) -> None:
    """The backward pass has two products of 7.40 GFLOP each, and takes 1 ms."""
    shapes, dtypes = "32,64,56,56;32,64,56,56;64,64,3,3", ";".join(["float32"] * 3)
    row = one_op("aten::convolution_backward", shapes, dtypes, 1000, kernel, second=second)
    assert row.winograd and not row.flops_bounded and row.tflops == pytest.approx(14.80, rel=1e-3)
    assert row.flops_share == pytest.approx(14.80 * needed / 15.7, rel=1e-3)


def test_flops_of_attention_depend_on_the_tensor_layout() -> None:
    """The shapes are batch size 2, 4 heads, 8 queries, 16 keys and 32 channels. Each of two products has 2 x 2 x 4 x 8 x 16 x
    32 FLOPs."""
    each = 2 * 2 * 4 * 8 * 16 * 32
    heads_first = ((2, 4, 8, 32), (2, 4, 16, 32), (2, 4, 16, 32))
    tokens_first = ((2, 8, 4, 32), (2, 16, 4, 32), (2, 16, 4, 32))
    assert attention_flops("_scaled_dot_product_flash_attention", heads_first) == (2 * each, True)
    assert attention_flops("_flash_attention_forward", tokens_first) == (2 * each, True)
    assert attention_flops("_flash_attention_backward", (tokens_first[0], *tokens_first)) == (5 * each, True)
    one_query = ((2, 4, 1, 32), *heads_first[1:])
    # A single query has no causal mask that would halve the FLOPs.
    assert attention_flops("_scaled_dot_product_flash_attention", one_query) == (each // 4, False)
    # Packed sequences have a known number of FLOPs only if there is one sequence.
    packed = ((8, 4, 32), (16, 4, 32), (16, 4, 32))
    assert attention_flops("_flash_attn_varlen_forward", (*packed, (2,), (2,))) == (each, True)
    assert attention_flops("_flash_attn_varlen_forward", (*packed, (3,), (3,))) == (0, False)


def test_attention_faster_than_the_gpus_peak_is_counted_as_causal_attention() -> None:
    # GIVEN attention with 68.7 GFLOP. At the float16 peak of 312 TFLOP/s, the GPU needs 220 us without a causal mask.
    shapes, dtypes = ";".join(["1,8,4096,128"] * 3), ";".join(["float16"] * 3)
    whole = one_op("aten::_scaled_dot_product_flash_attention", shapes, dtypes, 300, card=A100)
    causal = one_op("aten::_scaled_dot_product_flash_attention", shapes, dtypes, 150, card=A100)
    assert whole.flops_bounded and not causal.flops_bounded
    assert whole.flops is not None and causal.flops == whole.flops // 2


def test_the_traffic_of_a_means_gradient_counts_broadcast_values_once() -> None:
    row = one_op("aten::div", "32,2048,7,7", "float32", 24)
    assert row.bytes == 2 * 4 * 32 * 2048 * 49  # a single op reads and writes the whole tensor
    trace = Trace(devices=[Device(0, 0, V100)], threads=[Thread(0, 1, "main", "main")])
    add = trace.strings.add
    trace.host = HostSpans.of(
        thread=[0] * 3, kind=[HostKind.OP, HostKind.OP, HostKind.RUNTIME],
        name=[add("MeanBackward1"), add("aten::div"), add("cudaLaunchKernel")], start_ns=[0, US, 2 * US],
        duration_ns=[9 * US, 8 * US, US], parent=[-1, 0, 1], shapes=[add("32,2048,1,1"), add("32,2048,7,7"), -1],
        dtypes=[add("float32"), add("float32"), -1],
    )  # fmt: skip
    trace.device = DeviceSpans.of(
        device=[0], stream=[7], kind=[0], name=[add("div")], start_ns=[20 * US], duration_ns=[24 * US], launch=[2]
    )
    assert achieved(trace)[0].bytes == 4 * 32 * 2048 * 49


@pytest.mark.program
def test_no_op_of_a_real_recording_is_faster_than_the_data_sheet(shared_traces: Path) -> None:
    files = sorted(shared_traces.glob("*.json.gz"))
    assert len(files) > 20
    for path in files:
        for row in achieved(read_kineto(path), by_shape=True):
            assert (row.flops_share or 0) <= 1, (path.name, row)
            assert (row.bytes_share or 0) <= 1 or row.cached, (path.name, row)


def test_the_bias_is_not_mistaken_for_the_output_of_a_convolution() -> None:
    # GIVEN a convolution of 64 x 64 pixels. The op after the convolution has the bias as its first input, and the output as its
    # second input.
    trace = Trace(devices=[Device(0, 0, V100)], threads=[Thread(0, 1, "main", "main")])
    add = trace.strings.add
    trace.host = HostSpans.of(
        thread=[0, 0, 0], kind=[HostKind.OP, HostKind.RUNTIME, HostKind.OP], start_ns=[0, US, 20 * US],
        name=[add("aten::convolution"), add("cudaLaunchKernel"), add("aten::add")], duration_ns=[9 * US, US, 9 * US],
        parent=[-1, 0, -1], shapes=[add("1,8,64,64;8,8,3,3"), -1, add("1,8,1,1;1,8,64,64")], dtypes=[-1, -1, -1],
    )  # fmt: skip
    trace.device = DeviceSpans.of(
        device=[0], stream=[7], kind=[DeviceKind.KERNEL], name=[add("conv")], start_ns=[20 * US], duration_ns=[US], launch=[1]
    )
    (row,) = achieved(trace, by_shape=True)
    # THEN each of the 8 x 64 x 64 results needs 8 x 3 x 3 multiply-adds
    assert row.flops == 2 * (8 * 64 * 64) * (8 * 3 * 3) and not row.flops_bounded


def test_the_output_size_of_an_interpolation_is_taken_from_the_next_op() -> None:
    """GIVEN a resized image WHEN a convolution follows the resize THEN the size of the result is the input size of the
    convolution. The resize reads 1024 bytes and writes 4096 bytes."""
    trace = Trace(devices=[Device(0, 0, V100)], threads=[Thread(0, 1, "main", "main")])
    add = trace.strings.add
    trace.host = HostSpans.of(
        thread=[0, 0, 0], kind=[HostKind.OP, HostKind.RUNTIME, HostKind.OP], start_ns=[0, US, 9 * US],
        name=[add("aten::upsample_nearest2d"), add("cudaLaunchKernel"), add("aten::conv2d")], duration_ns=[9 * US, US, 9 * US],
        parent=[-1, 0, -1], shapes=[add("1,4,8,8"), -1, add("1,4,16,16;4,4,3,3")], dtypes=[-1, -1, -1],
    )  # fmt: skip
    trace.device = DeviceSpans.of(
        device=[0], stream=[7], kind=[DeviceKind.KERNEL], name=[add("resize")], start_ns=[20 * US], duration_ns=[US], launch=[1]
    )
    (row,) = achieved(trace, by_shape=True)
    assert row.bytes == 1024 + 4096


def test_fp8_matrix_products_are_compared_with_the_fp8_peak() -> None:
    """2048 ^ 3 multiply-adds are 17.18 GFLOP, and an H100 has a peak of 1979 TFLOP/s in fp8. Each of the two inputs has 4 MiB,
    and the output has 8 MiB."""
    card = "NVIDIA H100 80GB HBM3"
    without_scales = one_op("aten::_scaled_mm", "2048,2048;2048,2048", "float8_e4m3fn;float8_e4m3fn", 20, card=card)
    assert without_scales.flops == 2 * 2048**3
    row = one_op("aten::_scaled_mm", "2048,2048;2048,2048;1;1", "float8_e4m3fn;float8_e4m3fn;float32;float32", 20, card=card)
    assert row.flops_share == pytest.approx(17.18e9 / 20e-6 / 1979e12, rel=1e-3)
    assert row.bytes == 16 * 2**20 + 8


def test_shapes_are_compared_unchanged_if_one_of_them_is_unknown() -> None:
    assert [compared_text("mm", text) for text in ("2,3;?", "2,3;3,4", "")] == ["2,3;?", "2,3;3,4", ""]
