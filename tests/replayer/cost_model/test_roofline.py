"""Estimates: their ratios matter, and that they never come out as nothing."""

from __future__ import annotations

import numpy as np
import pytest

from replayer.cost_model.roofline import (
    FLOOR_NS,
    DeviceSpeed,
    data_sheet_speed,
    fitted_speed,
    shortest_kernel_ns,
)
from traces.machine import TorchSettings
from traces.model import Shape
from traces.op_cost import flops, size_bytes

SPEED = DeviceSpeed(bytes_per_ns=500.0, flops_per_ns=10_000.0)


def test_flops_of_a_matrix_product_and_of_a_convolution_are_the_textbook_ones() -> None:
    assert flops("mm", ((64, 128), (128, 32))) == 2 * 64 * 128 * 32
    assert flops("addmm", ((32,), (64, 128), (128, 32))) == 2 * 64 * 128 * 32
    assert flops("convolution", ((1, 3, 8, 8), (16, 3, 3, 3))) == 2 * 8 * 8 * 16 * 3 * 3 * 3
    assert flops("relu", ((64, 64),)) == 0


def test_twice_the_batch_of_a_large_convolution_takes_twice_as_long() -> None:
    one = SPEED.duration_ns("convolution", ((32, 64, 56, 56), (64, 64, 3, 3)), "float32")
    two = SPEED.duration_ns("convolution", ((64, 64, 56, 56), (64, 64, 3, 3)), "float32")
    assert two / one == pytest.approx(2, rel=0.01)


def test_the_smallest_op_still_takes_as_long_as_a_kernel_does() -> None:
    assert SPEED.duration_ns("add", ((1,),), "float32") >= FLOOR_NS


def test_half_precision_moves_half_the_bytes() -> None:
    assert size_bytes(((10, 10),), "float16") * 2 == size_bytes(((10, 10),), "float32") == 400


@pytest.mark.parametrize(("name", "gbps"), [("Tesla V100-DGXS-32GB", 900), ("Quadro GP100", 717), ("NVIDIA H200", 4800)])
def test_known_devices_take_their_data_sheet(name: str, gbps: int) -> None:
    assert data_sheet_speed(name).bytes_per_ns == pytest.approx(gbps * 0.6)


def test_a_device_nobody_knows_still_has_a_speed() -> None:
    assert data_sheet_speed("Imaginary 9000").flops_per_ns > 0


def test_the_fitted_speed_is_what_long_ops_reached() -> None:
    samples: list[tuple[str, tuple[Shape, ...], str, int]] = [("relu", ((1_000_000,),), "float32", 40_000)] * 6
    samples += [("mm", ((1000, 1000), (1000, 1000)), "float32", 200_000)] * 6
    speed = fitted_speed(samples, SPEED)
    assert speed.bytes_per_ns == pytest.approx(4_000_000 / 40_000)
    assert speed.flops_per_ns == pytest.approx(2e9 / 200_000)
    assert fitted_speed(samples[:3], SPEED) == SPEED


@pytest.mark.parametrize(
    ("op", "dtype", "settings", "tflops"),
    [
        ("mm", "float32", TorchSettings(), 19.5),
        ("mm", "float32", TorchSettings(tf32_matmul=True), 156),
        ("convolution", "float32", TorchSettings(), 156),
        ("convolution", "float32", TorchSettings(tf32_cudnn=False), 19.5),
        ("mm", "float16", TorchSettings(), 312),
        ("convolution", "bfloat16", TorchSettings(), 312),
        ("mm", "float64", TorchSettings(), 19.5),
        ("mm", "", TorchSettings(), 19.5),
        ("mm", "float8_e4m3fn", TorchSettings(), 19.5),  # an A100 has no such unit
    ],
)
def test_a_product_goes_at_the_peak_of_its_dtype(op: str, dtype: str, settings: TorchSettings, tflops: float) -> None:
    speed = data_sheet_speed("NVIDIA A100-SXM4-40GB", settings)
    shapes: tuple[Shape, ...] = ((8192, 8192), (8192, 8192))
    if op == "convolution":
        shapes = ((256, 256, 56, 56), (256, 256, 3, 3))
    expected_ns = flops(op, shapes) / (tflops * 1000 * 0.6)
    assert speed.duration_ns(op, shapes, dtype) == pytest.approx(expected_ns + FLOOR_NS, rel=0.001)


def test_each_unit_is_fitted_from_its_own_ops() -> None:
    fallback = data_sheet_speed("NVIDIA A100-SXM4-40GB")
    samples = [("mm", ((1000, 1000), (1000, 1000)), "float16", 25_000)] * 6
    speed = fitted_speed(samples, fallback)  # type: ignore[arg-type]
    assert speed.rates["fp16"] == pytest.approx(2e9 / 25_000) and speed.flops_per_ns == fallback.flops_per_ns
    assert speed.rates["tf32"] == fallback.rates["tf32"]


def test_a_recording_of_whole_microseconds_shows_short_kernels_as_nothing_which_is_no_floor() -> None:
    durations_ns = np.array([0] * 50 + [2_000] * 150)
    assert shortest_kernel_ns(durations_ns) == FLOOR_NS
