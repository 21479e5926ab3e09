"""Tests the estimated times of ops, which come from kinds of work, from curves for several GPUs, and from similar recorded
ops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.cost_model.constants import ELEMENTWISE_COLUMNS
from replayer.cost_model.efficiency import EfficiencyCurves, features, network_name, peaks_of
from replayer.cost_model.op_costs import OpCosts
from replayer.cost_model.op_work import ConvolutionOutputs, OpWork, gradient_image_weight, is_part, op_work
from traces.model.layouts import CHANNELS_LAST, CONTIGUOUS
from traces.model.machine import TorchSettings
from traces.model.trace import Origin
from traces.names.cards import card_of

V100, A100, H100 = (card_of(name) for name in ("Tesla V100-PCIE-32GB", "NVIDIA A100-PCIE-40GB", "NVIDIA H100 PCIe"))
PRODUCT = ((4096,), (4096, 4096), (4096, 4096))


def kind(works: list[OpWork]) -> tuple[str, ...]:
    return tuple(work.kind for work in works)


def test_ops_are_classified_by_kind_of_work() -> None:
    assert kind(op_work("addmm", PRODUCT)) == ("matmul",)
    assert kind(op_work("convolution", ((8, 64, 56, 56), (64, 64, 3, 3)))) == ("conv3",)
    assert kind(op_work("convolution", ((8, 64, 56, 56), (256, 64, 1, 1)))) == ("conv",)
    assert kind(op_work("convolution", ((8, 64, 56, 56), (64, 1, 3, 3)))) == ("depthwise",)
    assert op_work("convolution", ((8, 64, 56, 56), (64, 2, 1, 1)))[0].sizes[0] == 32  # The first size is the number of groups.
    backward = op_work("convolution_backward", ((8, 256, 28, 28), (8, 64, 56, 56), (256, 64, 1, 1)))
    assert kind(backward) == ("conv", "conv_weight") and backward[0].flops == 2 * 8 * 28 * 28 * 256 * 64
    assert kind(op_work("softmax", ((64, 1000),))) == ("softmax",) and kind(op_work("sort", ((64, 1000),))) == ("memory",)


def test_a_recurrent_layer_computes_its_time_steps_in_sequence() -> None:
    lstm = ((5, 2, 3), (16, 3), (16, 4), (16,), (16,), (144,), (1, 2, 4))  # 5 time steps, 2 sequences, 3 inputs and 4 units.
    inputs, recurrent, gates = (1, 10, 16, 3), (1, 2, 16, 4), (1, ELEMENTWISE_COLUMNS)
    assert [(work.sizes, work.calls) for work in op_work("rnn", lstm)] == [(inputs, 1), (recurrent, 5), (gates, 5)]
    backward = [(work.sizes, work.calls) for work in op_work("rnn_backward", lstm)]
    of_weights = (1, 16, 3, 10), (1, 16, 4, 10)
    assert backward == [((1, 10, 3, 16), 1), (of_weights[0], 1), ((1, 2, 4, 16), 5), (gates, 5), (of_weights[1], 1)]
    packed = ((10, 3), *lstm[1:])  # A packed sequence has no dimension of time steps.
    assert op_work("rnn", packed) == op_work("rnn", lstm)
    projected = ((5, 2, 3), (16, 3), (16, 2), (2, 4), (1, 2, 2), (1, 2, 4))  # This layer projects 4 units to 2.
    assert [work.calls for work in op_work("rnn", projected)] == [1, 5, 5, 5, 5]
    costs = OpCosts(V100, floor_ns=1_500)  # Each of 1 000 time steps has two kernels. One product computes the inputs.
    assert costs.estimate("rnn", ((1000, 2, 3), *lstm[1:]), "float32").ns > 2_001 * 1_500


def test_the_stride_of_a_convolution_follows_from_its_output_size() -> None:
    image, weight, gradient = (8, 64, 56, 56), (128, 64, 3, 3), (8, 128, 28, 28)
    places = ConvolutionOutputs([(gradient, image, weight)])
    assert places.of((image, weight)) == (gradient,) and places.of((image, (1, 64, 3, 3))) == ()
    whole, strided = (op_work("convolution", (image, weight), outputs=out)[0] for out in ((), places.of((image, weight))))
    assert whole.flops == 4 * strided.flops


@pytest.mark.parametrize(("card", "least", "most"), [(V100, 11.0, 14.0), (A100, 14.0, 19.5)])
def test_a_large_matrix_product_reaches_the_measured_throughput(card: object, least: float, most: float) -> None:
    """The peaks are 14.0 and 19.5 TFLOP/s in fp32. For matrix products of this size, 12 and 16 TFLOP/s were measured."""
    estimate = OpCosts(card).estimate("addmm", PRODUCT, "float32")  # type: ignore[arg-type]
    assert least < 2 * 4096**3 / estimate.ns / 1000 < most and estimate.origin is Origin.PUBLISHED


def test_an_estimate_comes_from_a_table_a_curve_or_a_data_sheet() -> None:
    assert OpCosts(V100).estimate("addmm", PRODUCT, "float32").origin is Origin.PUBLISHED
    assert OpCosts(H100).estimate("addmm", PRODUCT, "float32").origin is Origin.CURVE
    assert OpCosts(A100).estimate("addmm", PRODUCT, "bfloat16").origin is Origin.ROOFLINE
    assert OpCosts(A100).estimate("sort", ((4096, 4096),), "float32").origin is Origin.ROOFLINE


def test_half_precision_products_are_faster_with_aligned_sizes() -> None:
    costs = OpCosts(H100, TorchSettings(tf32_matmul=False))
    full, half = (costs.estimate("addmm", PRODUCT, dtype).ns for dtype in ("float32", "float16"))
    assert 5 < full / half < 20
    odd = costs.estimate("mm", ((4095, 4095), (4095, 4095)), "float16").ns
    assert odd > 1.5 * costs.estimate("mm", ((4096, 4096), (4096, 4096)), "float16").ns
    small, large = (costs.estimate("convolution", ((1, 512, side, side), (512, 512, 3, 3)), "float16").ns for side in (7, 8))
    assert small < 1.3 * large  # For a convolution, only the number of channels has to be aligned.


def test_recorded_ops_correct_estimates_of_similar_ops() -> None:
    costs = OpCosts(V100)
    near, far = ((4096, 4096), (4096, 4096)), ((64, 64), (64, 64))
    plain_near, plain_far = (costs.plain("mm", shapes, "float32").ns for shapes in (near, far))
    costs.learn([("mm", near, (), "float32", "", int(2 * plain_near))])
    told = costs.estimate("mm", near, "float32")
    assert told.ns == pytest.approx(2 * plain_near, rel=0.01) and told.origin is Origin.SCALED
    assert plain_far < costs.estimate("mm", far, "float32").ns < 1.2 * plain_far


def test_the_time_of_a_layer_at_a_new_batch_size_is_scaled_by_the_curve() -> None:
    costs = OpCosts(V100)
    before, after = (((batch, 64, 56, 56), (64, 64, 3, 3)) for batch in (32, 128))
    assert costs.ratio("convolution", "float32", (before, ()), (after, ())) == pytest.approx(4, rel=0.25)


def test_the_time_of_a_slow_recorded_call_is_scaled_with_its_work() -> None:
    """If launch overhead matters, a product with half the rows takes more than half the time. If the product took 6.4 ms in
    the recording, half the rows take half the time."""
    before, after = ((64, 64), (64, 64)), ((32, 64), (64, 64))
    costs = OpCosts(card_of("Tesla P100-PCIE-16GB"), floor_ns=1_500)
    assert costs.ratio("mm", "float32", (before, ()), (after, ())) > 0.6
    costs.learn([("mm", before, (), "float32", "", 6_400_000)])
    assert costs.ratio("mm", "float32", (before, ()), (after, ())) == pytest.approx(0.5, abs=0.01)


def test_fused_attention_with_few_keys_is_limited_by_fp32() -> None:
    """With many keys, fused attention on an H100 reaches 45 % of 989.4 TFLOP/s in bf16. Its two products of 1024 x 1024 have
    17.18 GFLOP, with 64 heads and 64 channels. With few keys, the fp32 work limits the time: 230 FLOPs for each element of the
    queries and each product. In fp32, an H100 sustains 0.75 x 67 TFLOP/s."""
    costs = OpCosts(card_of("NVIDIA H100 80GB HBM3"))
    ns = {tokens: costs.estimate("attention", ((4, 16, tokens, 64),) * 3, "bfloat16").ns for tokens in (256, 512, 1024, 2048)}
    assert ns[1024] == pytest.approx(17.18e9 / 0.45 / 989.4e3, rel=1e-3)
    assert ns[256] == pytest.approx(2 * 64 * 256 * 64 * 230 / 50.25e3) and ns[512] == pytest.approx(2 * ns[256])
    assert ns[2048] == pytest.approx(4 * ns[1024])


def test_on_tensor_cores_a_convolution_is_computed_as_a_matrix_product() -> None:
    """GIVEN contiguous images WHEN a convolution with windows of 3 x 3 runs on tensor cores THEN the image, the weight and the
    output are each transposed. A window of one pixel needs no transposes. An A100 has 312 TFLOP/s."""
    costs, image, weight = OpCosts(A100), (8, 64, 56, 56), (128, 64, 3, 3)
    shortest_ns = 2 * 8 * 56 * 56 * 128 * 576 / 0.7 / 312e3
    layouts = CHANNELS_LAST, CONTIGUOUS
    last, first = (costs.estimate("convolution", (image, weight), "float16", layout=layout).ns for layout in layouts)
    assert shortest_ns < last < 1.5 * shortest_ns
    works = op_work("convolution", (image, weight), "float16", layout=CONTIGUOUS)
    moved = 8 * 64 * 56 * 56, 128 * 64 * 9, 8 * 128 * 56 * 56
    assert [(work.kind, work.size_bytes) for work in works[1:]] == [("transpose", 2 * 2 * elements) for elements in moved]
    assert first > last
    assert len(op_work("convolution", (image, (128, 64, 1, 1)), "float16", layout=CONTIGUOUS)) == 1


def test_gpus_without_tensor_cores_do_not_transpose_images() -> None:
    shapes = (8, 64, 56, 56), (128, 64, 3, 3)
    last, first = (OpCosts(V100).estimate("convolution", shapes, "float32", layout=of) for of in (CHANNELS_LAST, CONTIGUOUS))
    assert last == first


def test_the_flops_of_a_transposed_convolution_follow_from_its_smaller_images() -> None:
    """GIVEN a transposed convolution that doubles both sides of its images THEN each input pixel is multiplied by each weight
    once. Each output pixel gets a bias."""
    work, bias = op_work("convolution", ((8, 512, 24, 24), (512, 256, 2, 2), (256,)), outputs=((8, 256, 48, 48),))
    assert work.flops == 2 * 8 * 24 * 24 * 512 * 256 * 4 and work.sizes[0] == 1
    assert bias.size_bytes == 2 * 4 * 8 * 256 * 48 * 48


@pytest.mark.parametrize("shapes", [((4096, 32_000), (4096,)), ((64, 1000, 8, 8), (64, 8, 8))])
def test_the_nll_loss_reads_one_score_per_label(shapes: tuple[tuple[int, ...], ...]) -> None:
    for op in ("nll_loss", "nll_loss_backward", "nll_loss2d"):
        (work,) = op_work(op, shapes)
        assert work.size_bytes == 4096 * (4 + 8)


def test_recording_half_of_a_convolution_backward_pass_does_not_change_its_estimate() -> None:
    """GIVEN a recorded half of a convolution's backward op WHEN the time of a whole backward op is scaled from this half THEN
    the result equals the estimate. Profilers of 2020 recorded the halves as separate ops."""
    half, whole = ((32, 512, 7, 7), (512, 512, 3, 3)), ((32, 64, 56, 56), (32, 64, 56, 56), (64, 64, 3, 3))
    costs = OpCosts(V100)
    costs.learn([("convolution_backward", half, (), "float32", "", 900_000)])
    scaled_ns = 900_000 * costs.ratio("convolution_backward", "float32", (half, ()), (whole, ()))
    assert scaled_ns == pytest.approx(costs.estimate("convolution_backward", whole, "float32").ns)


def test_the_estimate_for_a_slot_powered_gpu_is_below_its_peak() -> None:
    assert peaks_of(card_of("Tesla T4"))[0] == pytest.approx(5640, rel=0.01)
    assert peaks_of(A100)[0] == 19_500


def test_the_cost_of_an_elementwise_op_depends_only_on_its_element_count() -> None:
    assert op_work("add", ((32, 64, 56, 56), (32, 64, 56, 56)))[0].sizes == op_work("add", ((64, 100_352),) * 2)[0].sizes


def test_the_bias_of_a_convolution_is_a_separate_kernel() -> None:
    image, weight = (8, 64, 56, 56), (128, 64, 3, 3)
    assert kind(op_work("convolution", (image, weight, (128,)))) == ("conv3", "bias")
    added = op_work("convolution", (image, weight, (128,)), outputs=((8, 128, 28, 28),))[1]
    assert added.size_bytes == 2 * 4 * 8 * 128 * 28 * 28  # The op reads and writes each output.


def test_the_backward_pass_of_the_first_convolution_omits_the_image_gradient() -> None:
    first = op_work("convolution_backward", ((8, 64, 112, 112), (8, 3, 224, 224), (64, 3, 7, 7)))
    assert kind(first) == ("conv_weight",)


def test_depthwise_convolutions_with_larger_windows_and_their_backward_take_longer() -> None:
    image = (32, 96, 56, 56)
    costs = OpCosts(V100)
    small, large = (costs.estimate("convolution", (image, (96, 1, side, side)), "float32").ns for side in (3, 5))
    backward = costs.estimate("convolution_backward", (image, image, (96, 1, 3, 3)), "float32").ns
    # Networks with depthwise convolutions show ratios of 1 and 4.3 on a V100.
    assert large > 1.5 * small and 3 < backward / small < 6


def test_convolution_time_at_larger_batches_averages_a_curve_and_a_power_law() -> None:
    """The curve alone or the power law alone would be less accurate, as Note [Convolutions with another batch size]
    explains."""
    costs = OpCosts(V100)
    before, after = (((batch, 256, 14, 14), (1024, 256, 1, 1)) for batch in (32, 128))
    by_curve = costs.plain("convolution", after, "float32").ns / costs.plain("convolution", before, "float32").ns
    ratio = costs.ratio("convolution", "float32", (before, ()), (after, ()))
    assert ratio == pytest.approx(by_curve**0.25 * (4**0.9) ** 0.75)
    grouped, grown = (((batch, 256, 14, 14), (256, 8, 3, 3)) for batch in (32, 128))
    by_curve = costs.plain("convolution", grown, "float32").ns / costs.plain("convolution", grouped, "float32").ns
    assert costs.ratio("convolution", "float32", (grouped, ()), (grown, ())) == pytest.approx(by_curve)


def test_the_assumed_fp32_peak_of_an_rtx_a6000_is_below_its_data_sheet() -> None:
    a6000 = card_of("NVIDIA RTX A6000")
    assert peaks_of(a6000)[0] == pytest.approx(0.75 * a6000.tflops["fp32"] * 1e3)
    assert peaks_of(a6000, "fp16")[0] == a6000.tflops["fp16"] * 1e3 and peaks_of(A100)[0] == A100.tflops["fp32"] * 1e3


def test_narrow_convolution_groups_waste_part_of_each_tile() -> None:
    """Groups of 8 outputs are computed as groups of 32, so they take as long as four times as much work."""
    image, weight = (32, 256, 56, 56), (256, 8, 3, 3)
    flops = 2 * 32 * 56 * 56 * 256 * 8 * 9
    assert OpCosts(V100).plain("convolution", (image, weight), "float32").ns > 4 * flops / peaks_of(V100)[0]


def test_a_gpu_without_measurements_is_estimated_between_the_measured_ones() -> None:
    """The estimate multiplies this GPU's roofline time by the mean ratio of the measured GPUs."""
    curves, work = EfficiencyCurves.installed(), ("matmul", (1, 4096, 4096, 4096), 3 * 4096 * 4096 * 4, 2 * 4096**3)
    slower, origin = curves.slower(*work, card_of("NVIDIA H100 80GB HBM3"))
    measured = [curves.slower(*work, card_of(name))[0] for name in curves.about["gpus"]["matmul"]]
    assert origin is Origin.CURVE and min(measured) * 0.7 < slower < max(measured) * 1.3


def test_a_variant_of_a_measured_gpu_uses_the_efficiency_curve_of_this_gpu() -> None:
    curves, work = EfficiencyCurves.installed(), ("matmul", (1, 4096, 4096, 4096), 3 * 4096 * 4096 * 4, 2 * 4096**3)
    slower, origin = curves.slower(*work, card_of("NVIDIA A100-SXM4-80GB"))
    assert origin is Origin.CURVE and slower == pytest.approx(curves.slower(*work, A100)[0], rel=0.02)


@given(
    st.sampled_from(
        [("matmul", (1024, 16_384, 65_536, 65_536)), ("conv3", (256, 2048, 2048, 65_536)), ("rows", (1 << 22, 8192))]
    ),
    st.integers(0, 3),
    st.integers(2, 64),
)
def test_sizes_above_the_measured_range_are_as_efficient_as_the_largest_size(
    net: tuple[str, tuple[int, ...]], at: int, times: int
) -> None:
    """GIVEN an op that is larger than the largest measured op THEN the network gets the inputs of the largest measured op. So
    the efficiency is that of the largest measured op."""
    name, limits = net
    at = min(at, len(limits) - 1)
    larger = np.array([[size * times if i == at else size for i, size in enumerate(limits)]], dtype=np.float64)
    within = np.array([limits], dtype=np.float64)
    kinds, peaks = np.zeros(1), np.array([peaks_of(V100)])
    moved, flops = np.array([1e9]), np.array([1e12])
    cut = features(name, kinds, larger, moved * times, flops * times, peaks)
    assert np.allclose(cut, features(name, kinds, within, moved, flops, peaks))


@pytest.mark.parametrize(
    ("op", "shapes", "dtype"),
    [
        ("addmm", PRODUCT, "float32"),
        ("addmm", PRODUCT, "bfloat16"),
        ("convolution", ((8, 64, 56, 56), (64, 64, 3, 3)), "float32"),
        ("convolution", ((8, 64, 56, 56), (64, 1, 3, 3)), "float32"),  # This convolution is depthwise.
        ("softmax", ((64, 1000),), "float32"),
        ("sort", ((64, 1000),), "float32"),
    ],
)
def test_the_cost_of_an_op_includes_the_shortest_kernel_time_once(
    op: str, shapes: tuple[tuple[int, ...], ...], dtype: str
) -> None:
    short, long = (OpCosts(H100, floor_ns=floor_ns).estimate(op, shapes, dtype).ns for floor_ns in (1_000, 4_000))
    assert long - short == pytest.approx(3_000)


LOG_3, LOG_5 = 1.584963, 2.321928  # These are binary logarithms.


def test_the_cost_network_for_matrix_products_has_the_documented_inputs() -> None:
    """GIVEN one product of 256 x 64 by 64 x 128, and three products of 20 x 33 by 33 x 640

    THEN the inputs include the time by arithmetic, the time by bytes, and the waves of tiles of 128 x 128. The next input
    shows how full the last wave is. Three inputs show whether a size is a multiple of 32 (1) or of 4 (0.5). The last input
    shows whether the op has only one product.

    The GPU has 8 GFLOP/s, 4 GB/s and 10 multiprocessors.
    """
    sizes = np.array([[1, 256, 128, 64], [3, 20, 640, 33]], dtype=np.float64)
    peaks = np.array([[8.0, 4.0, 10.0], [8.0, 4.0, 4.0]])
    found = features("matmul", np.zeros(2), sizes, np.array([2.0**12, 2.0**10]), np.array([2.0**13, 2.0**14]), peaks)
    log_20, log_33 = 2 + LOG_5, 5.044394
    assert found == pytest.approx(
        np.array(
            [
                [0, 8, 7, 6, 10, 10, -LOG_5, 0, 1, 1, 1, 1],
                [LOG_3, log_20, 7 + LOG_5, log_33, 11, 8, LOG_5 - 2, 2 / 1.25, 0.5, 1, 0, 0],
            ]
        ),
        abs=1e-5,
    )


@pytest.mark.parametrize(("tiles", "last"), [(1, 0), (2, 1), (3, 4 / 3), (4, 1), (15, 16 / 15), (16, 0), (17, 0)])
def test_the_last_wave_is_a_feature_only_if_a_kernel_has_few_waves(tiles: int, last: float) -> None:
    """GIVEN a GPU with two multiprocessors THEN two tiles are one wave. For half a wave and for 8 waves, the input of the
    network is 0."""
    sizes, peaks = np.array([[1, 128 * tiles, 128, 64]], dtype=np.float64), np.array([[8.0, 4.0, 2.0]])
    found = features("matmul", np.zeros(1), sizes, np.array([2.0**12]), np.array([2.0**13]), peaks)
    assert found[0][7] == pytest.approx(last)


def test_the_cost_network_for_convolutions_has_the_documented_inputs() -> None:
    """GIVEN a batch of 4 with 64 input channels, 128 output channels and 32 x 8 places

    THEN the network gets 4 x 256 rows and 128 columns. These are 8 tiles, so one multiprocessor needs 8 waves.
    """
    sizes, peaks = np.array([[4, 64, 128, 256]], dtype=np.float64), np.array([[8.0, 4.0, 1.0]])
    found = features("conv3", np.zeros(1), sizes, np.array([2.0**12]), np.array([2.0**13]), peaks)
    assert found[0].tolist() == pytest.approx([2, 6, 7, 8, 10, 10, 3, 0, 1, 1, 0])


def test_the_cost_network_for_row_ops_has_the_documented_inputs() -> None:
    """GIVEN an op of the third kind with 320 rows of 36 elements on 10 multiprocessors THEN each multiprocessor has 32 rows."""
    found = features(
        "rows", np.array([2.0]), np.array([[320.0, 36.0]]), np.array([2.0**12]), np.array([0.0]), np.array([[8.0, 4.0, 10.0]])
    )
    kinds = len(found[0]) - 5
    assert found[0].tolist() == pytest.approx(
        [6 + LOG_5, 2 + 2 * LOG_3, 10, 5, 0.5, *(float(kind == 2) for kind in range(kinds))], abs=1e-5
    )


FLOOR_NS = 1_000
SQUARE = (1024, 1024)


def test_a_memory_bound_op_takes_its_bytes_divided_by_the_bandwidth() -> None:
    """A sort reads 4 MiB and writes 4 MiB. Half of the bytes that fit in the L2 cache need no memory access."""
    moved = 2 * 4 * 1024 * 1024
    missed = moved - 0.5 * min(moved, V100.l2_bytes)
    estimate = OpCosts(V100, floor_ns=FLOOR_NS).plain("sort", (SQUARE,), "float32")
    assert V100.l2_bytes < moved and estimate.ns == pytest.approx(missed / V100.memory_gbps * 1.6 + FLOOR_NS)


def test_recurrent_matrix_products_of_large_depth_are_slower() -> None:
    """On an H100, cuDNN takes 19.25 us for a backward product of 32 x 4096 by 4096 x 1024. For a forward product of 32 x 1024
    by 1024 x 4096, cuDNN takes 8 us."""
    costs = OpCosts(card_of("NVIDIA H100 80GB HBM3"), floor_ns=1_000)
    weights = ((4096, 512), (4096, 1024))
    recurrent = {
        op: next(work for work in op_work(op, ((32, 64, 512), *weights, (1, 32, 1024))) if work.calls == 64 and work.flops)
        for op in ("rnn", "rnn_backward")
    }
    times_us = {op: costs._worked_out(work)[0] / 1e3 for op, work in recurrent.items()}
    assert 16 < times_us["rnn_backward"] < 20 and 7 < times_us["rnn"] < 9


@pytest.mark.parametrize(
    ("image", "forward_us", "backward_us"),
    [
        ((8, 32, 128, 128), 53.8, 184.0),  # Only 32 of 132 multiprocessors work.
        ((32, 64, 112, 112), 242.2, 618.1),
        ((32, 256, 56, 56), 124.5, 226.1),
        ((128, 512, 28, 28), 242.5, 382.3),
    ],
)
def test_batch_normalization_of_few_channels_does_not_use_all_multiprocessors(
    image: tuple[int, ...], forward_us: float, backward_us: float
) -> None:
    """The times are from recordings of an H100 in benchmarks/recordings/h100."""
    costs = OpCosts(card_of("NVIDIA H100 80GB HBM3"), floor_ns=1_000)
    channels = (image[1],)
    forward = costs.estimate("batch_norm", (image, channels, channels), "float32", layout=CONTIGUOUS).ns / 1e3
    backward = costs.estimate("batch_norm_backward", (image, image, channels), "float32", layout=CONTIGUOUS).ns / 1e3
    assert 0.8 < forward / forward_us < 1.3 and 0.8 < backward / backward_us < 1.3
    # WHEN the image has the memory layout channels_last THEN the number of channels does not matter
    alike = (image[0], 2 * image[1], image[2], image[3] // 2)
    of_others = costs.estimate("batch_norm", (alike, (2 * image[1],)), "float32", layout=CHANNELS_LAST).ns
    assert of_others == costs.estimate("batch_norm", (image, channels), "float32", layout=CHANNELS_LAST).ns <= forward * 1e3


def test_evaluated_batch_normalization_reads_and_writes_each_element_once() -> None:
    """GIVEN an image with few channels WHEN batch normalization runs in evaluation mode THEN all multiprocessors work. The op
    takes 1.3 times as long as an H100 needs to move its bytes at 3352 bytes per ns."""
    costs, image = OpCosts(card_of("NVIDIA H100 80GB HBM3")), (128, 32, 128, 128)
    ns = {
        option: costs.estimate("batch_norm", (image, (32,)), "float32", layout=CONTIGUOUS, option=option).ns
        for option in (None, True, False)
    }
    moved_bytes = 2 * 4 * 128 * 32 * 128 * 128
    assert ns[None] == ns[True] > 5 * ns[False]
    assert ns[False] == pytest.approx(1.3 * (moved_bytes - costs.card.l2_bytes / 2) / costs.card.memory_gbps)


@pytest.mark.parametrize(("op", "recorded_us"), [("log_softmax", 968.6), ("log_softmax_backward", 788.3)])
def test_a_softmax_over_an_earlier_dimension_has_few_blocks_of_threads(op: str, recorded_us: float) -> None:
    """The times are from a recording of an H100, benchmarks/recordings/h100/lstm.msgpack."""
    costs, scores = OpCosts(card_of("NVIDIA H100 80GB HBM3")), (32, 10_000, 64)
    tensors = (scores,) * (1 + op.endswith("backward"))
    last, unknown, middle, of_end = (costs.estimate(op, tensors, "float32", option=dim).ns / 1e3 for dim in (2, None, 1, -2))
    assert last == unknown < 0.2 * recorded_us
    assert middle == of_end == pytest.approx(recorded_us, rel=0.1)


def test_a_softmax_over_channels_of_large_images_has_many_blocks_of_threads() -> None:
    """The memory bandwidth limits a softmax over 21 classes for 16 images of 513 x 513 pixels."""
    costs, scores = OpCosts(card_of("NVIDIA H100 80GB HBM3")), (16, 21, 513, 513)
    times_ns = [costs.estimate("log_softmax", (scores,), "float32", option=dim).ns for dim in (1, 3)]
    assert times_ns[0] == times_ns[1] >= 2 * 4 * 16 * 21 * 513 * 513 / costs.card.memory_gbps


def test_threads_share_the_sums_of_a_softmax_with_few_columns() -> None:
    costs = OpCosts(card_of("NVIDIA H100 80GB HBM3"))
    shared, alone = (costs.estimate("softmax", ((8, 4096, columns),), "float32", option=1).ns / columns for columns in (64, 65))
    assert alone == pytest.approx(1024 / 65 * shared)


def test_depthwise_convolution_time_depends_on_the_bytes_and_the_window() -> None:
    image = (8, 64, 56, 56)
    moved = 4 * (2 * 8 * 64 * 56 * 56 + 64 * 9)
    estimate = OpCosts(V100, floor_ns=FLOOR_NS).plain("convolution", (image, (64, 1, 3, 3)), "float32")
    assert estimate.ns == pytest.approx(moved / V100.memory_gbps * (1.6 + 0.2 * 9) + FLOOR_NS)


def test_the_least_certain_kernel_determines_the_origin_of_an_op() -> None:
    image, weight = (8, 64, 56, 56), (128, 64, 3, 3)
    alone, with_bias = (
        OpCosts(V100).estimate("convolution", shapes, "float32") for shapes in ((image, weight), (image, weight, (128,)))
    )
    assert (alone.origin, with_bias.origin) == (Origin.PUBLISHED, Origin.ROOFLINE)


SAME = ((4096, 4096), (4096, 4096))
FOUR_TIMES_THE_ROWS = ((16_384, 4096), (4096, 4096))
ONE_BATCH = ((1, 4096, 4096), (1, 4096, 4096))


def learned(*ops: tuple[str, tuple[tuple[int, ...], ...], float], repeated: int = 1) -> OpCosts:
    """Return the costs on a V100 of ops with the given ratios of recorded to estimated duration."""
    costs, samples = OpCosts(V100), []
    for op, shapes, ratio in ops * repeated:
        samples.append((op, shapes, (), "float32", "", round(ratio * costs.plain(op, shapes, "float32").ns)))
    costs.learn(samples)
    return costs


@pytest.mark.parametrize("repeated", [1, 5])
def test_recorded_ops_of_similar_size_correct_estimates_more_than_others(repeated: int) -> None:
    """GIVEN a product of another size that takes twice its estimate, and another op that takes eight times its estimate

    THEN the product, at a distance of one octave, has more weight than the op, at two octaves. The mean exponent is (1/e +
    3/e^2) / (1/e + 1/e^2) = 1.5379. At a distance of one octave, this exponent is multiplied by exp(-1/1.5) = 0.5134.
    """
    costs = learned(("mm", FOUR_TIMES_THE_ROWS, 2), ("bmm", ONE_BATCH, 8), repeated=repeated)
    ratio = costs.estimate("mm", SAME, "float32").ns / costs.plain("mm", SAME, "float32").ns
    assert ratio == pytest.approx(2 ** (1.5379 * 0.5134), rel=1e-3)


def test_memory_bound_ops_are_similar_if_they_move_similar_numbers_of_bytes() -> None:
    costs = learned(("sort", (SQUARE,), 2))
    four_times = ((2048, 2048),)
    ratio = costs.estimate("sort", four_times, "float32").ns / costs.plain("sort", four_times, "float32").ns
    assert ratio == pytest.approx(2**0.2636, rel=1e-3)  # The size differs by two octaves, and exp(-2 / 1.5) = 0.2636.
    assert costs.estimate("sort", ((0, 4),), "float32").ns > 0


def test_very_short_ops_do_not_correct_estimates() -> None:
    for ns, is_learned in ((2 * FLOOR_NS, False), (2 * FLOOR_NS + 1, True)):
        costs = OpCosts(V100, floor_ns=FLOOR_NS)
        costs.learn([("sort", ((64, 64),), (), "float32", "", ns)])
        origin = costs.estimate("sort", ((64, 64),), "float32").origin
        assert origin is (Origin.SCALED if is_learned else Origin.ROOFLINE)


def test_time_above_four_times_the_estimate_grows_with_the_work() -> None:
    """GIVEN a sort that took ten times its estimate WHEN its work grows fourfold THEN 40 % of its time grows like the
    estimate, and 60 % of its time grows fourfold."""
    before, after = (SQUARE,), ((2048, 2048),)
    costs = OpCosts(V100, floor_ns=50_000)
    before_ns, after_ns = (costs.plain("sort", shapes, "float32").ns for shapes in (before, after))
    costs.learn([("sort", before, (), "float32", "", round(10 * before_ns))])
    assert costs.ratio("sort", "float32", (before, ()), (after, ())) == pytest.approx(
        0.4 * after_ns / before_ns + 0.6 * 4, rel=1e-4
    )


def test_flops_of_unusual_shapes_agree_with_the_textbook() -> None:
    linear = op_work("linear", ((2, 3, 5), (7, 5)))[0]
    assert (linear.sizes, linear.flops, linear.size_bytes) == ((1, 6, 7, 5), 2 * 6 * 7 * 5, 4 * (30 + 35 + 42))
    batched = op_work("bmm", ((2, 3, 5), (2, 5, 7)))[0]
    assert (batched.sizes, batched.flops, batched.size_bytes) == ((2, 3, 7, 5), 2 * 2 * 3 * 7 * 5, 4 * 2 * (15 + 35 + 21))
    two_images = op_work("convolution", ((8, 64, 56, 56), (64, 64, 3, 3)), outputs=((8, 64, 44, 44),))[0]
    assert two_images.kind == "conv3"  # The output has 62 % of the places of the input, so the stride is 1.
    # The output has 59 % of the places.
    assert op_work("convolution", ((8, 64, 56, 56), (64, 64, 3, 3)), outputs=((8, 64, 43, 43),))[0].kind == "conv"


@pytest.mark.parametrize(("channels", "kinds"), [(4, ("conv_weight",)), (5, ("conv", "conv_weight"))])
def test_a_convolution_of_at_most_four_channels_has_no_image_gradient(channels: int, kinds: tuple[str, ...]) -> None:
    shapes = ((8, 64, 28, 28), (8, channels, 56, 56), (64, channels, 2, 2))
    assert kind(op_work("convolution_backward", shapes)) == kinds


@pytest.mark.parametrize(
    ("first", "second", "weight", "is_swapped"),
    [
        ((8, 64, 28, 28), (8, 32, 56, 56), (64, 32, 3, 3), False),
        ((8, 32, 56, 56), (8, 64, 28, 28), (64, 32, 3, 3), True),
        ((8, 64, 28, 28), (8, 64, 56, 56), (64, 64, 3, 3), False),  # With equal channels, the smaller tensor is the gradient.
        ((8, 64, 56, 56), (8, 64, 28, 28), (64, 64, 3, 3), True),
        ((8, 64, 56, 56), (8, 64, 56, 56), (64, 64, 3, 3), False),
        ((8, 16, 28, 28), (8, 32, 28, 28), (64, 32, 3, 3), False),  # No tensor has as many channels as the weight has outputs.
    ],
)
def test_the_output_gradient_of_a_convolution_has_the_channels_of_the_weight(
    first: tuple[int, ...], second: tuple[int, ...], weight: tuple[int, ...], is_swapped: bool
) -> None:
    found = gradient_image_weight([first, second, weight])
    assert found == ((second, first, weight) if is_swapped else (first, second, weight))


def test_a_convolution_backward_with_two_tensors_computes_one_gradient() -> None:
    image, weight = (8, 64, 56, 56), (64, 64, 3, 3)
    assert is_part("convolution_backward", (image, weight)) and is_part("convolution_backward", (image, weight, (64, 64)))
    assert not is_part("convolution_backward", (image, image, weight)) and not is_part("mm", ((4, 4), (4, 4)))


@pytest.mark.parametrize("op", ["softmax", "layer_norm", "add"])
@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_an_op_without_elements_takes_the_shortest_time(op: str, shape: tuple[int, int]) -> None:
    assert OpCosts(A100, floor_ns=800).plain(op, (shape,), "float32", (shape,)).ns == 800


def test_the_second_cost_network_for_an_op_kind_gets_the_number_1() -> None:
    assert [network_name("matmul", seed) for seed in range(3)] == ["matmul", "matmul1", "matmul2"]


@pytest.mark.parametrize(
    ("name", "fp32_tflops"),
    [
        ("Tesla P4", 3.9173),  # A P100 has 9.3 TFLOP/s, so the figure is 5.5 * sqrt(75 W / 250 W * 9.3 / 5.5).
        ("Tesla T4", 5.6349),  # A V100 has 14.0 TFLOP/s, so the figure is 8.1 * sqrt(70 W / 250 W * 14.0 / 8.1).
        ("Tesla V100-PCIE-16GB", 14.0),
    ],
)
def test_a_gpu_powered_only_by_its_slot_cannot_sustain_its_peak_speed(name: str, fp32_tflops: float) -> None:
    gflops, _, _ = peaks_of(card_of(name))
    assert gflops == pytest.approx(1_000 * fp32_tflops, rel=1e-4)


def test_larger_products_do_not_take_less_time() -> None:
    costs = OpCosts(card_of("A100"), floor_ns=2_000)
    row, rows = (((count, 1048), (1048, 7290)) for count in (1, 4))
    assert costs.plain("mm", rows, "float32").ns < costs.plain("mm", row, "float32").ns
    assert costs.ratio("mm", "float32", (row, ()), (rows, ())) == 1.0
    assert costs.ratio("mm", "float32", (rows, ()), (row, ())) == 1.0
    # A product with padding may take less time.
    odd, padded = (((4096, depth), (depth, 4096)) for depth in (4095, 4096))
    assert costs.ratio("mm", "float16", (odd, ()), (padded, ())) < 0.9


def test_a_ratio_of_two_products_contains_the_errors_of_recorded_products() -> None:
    narrow, wide = (((columns,), (1024, 1024), (1024, columns)) for columns in (256, 1024))  # The sizes differ by two octaves.
    costs = OpCosts(V100)
    narrow_ns, wide_ns = (costs.plain("addmm", shapes, "float32").ns for shapes in (narrow, wide))

    def ratio() -> float:
        return costs.ratio("addmm", "float32", (narrow, ()), (wide, ())) / (wide_ns / narrow_ns)

    assert ratio() == pytest.approx(1.0)
    # WHEN the narrow product took twice its estimate THEN exp(-2 / 1.5) = 0.2636 of its exponent applies to the wide product
    costs.learn([("addmm", narrow, (), "float32", "", round(2 * narrow_ns))])
    assert ratio() == pytest.approx(2 ** (0.2636 - 1), rel=1e-3)
    # WHEN the wide product took eight times its estimate THEN both exponents are means of 1 and 3 with weights 1 and 1/e^2
    costs.learn([("addmm", wide, (), "float32", "", round(8 * wide_ns))])
    assert ratio() == pytest.approx(2 ** (2.7616 - 1.2384), rel=1e-3)
