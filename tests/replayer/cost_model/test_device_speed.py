"""Tests that device speeds come from data sheets and recorded ops, and that FLOPs and bytes of ops are the textbook figures."""

from __future__ import annotations

import numpy as np
import pytest

from replayer.cost_model.constants import KERNEL_FLOOR_NS
from replayer.cost_model.device_speed import (
    DeviceSpeed,
    data_sheet_speed,
    fitted_speed,
    shortest_kernel_ns,
)
from traces.rates.op_cost import flops, size_bytes

SPEED = DeviceSpeed(bytes_per_ns=500.0)


def test_flops_of_matrix_products_and_convolutions_agree_with_the_textbook() -> None:
    assert flops("mm", ((64, 128), (128, 32))) == 2 * 64 * 128 * 32
    assert flops("addmm", ((32,), (64, 128), (128, 32))) == 2 * 64 * 128 * 32
    assert flops("convolution", ((1, 3, 8, 8), (16, 3, 3, 3))) == 2 * 8 * 8 * 16 * 3 * 3 * 3
    assert flops("relu", ((64, 64),)) == 0


def test_half_precision_tensors_have_half_as_many_bytes_as_float32() -> None:
    assert size_bytes(((10, 10),), "float16") * 2 == size_bytes(((10, 10),), "float32") == 400


@pytest.mark.parametrize(("name", "gbps"), [("Tesla V100-DGXS-32GB", 900), ("Quadro GP100", 717), ("NVIDIA H200", 4800)])
def test_the_speed_of_a_known_device_comes_from_its_data_sheet(name: str, gbps: int) -> None:
    assert data_sheet_speed(name).bytes_per_ns == pytest.approx(gbps * 0.6)


def test_an_unknown_device_gets_a_default_speed() -> None:
    assert data_sheet_speed("Imaginary 9000").bytes_per_ns > 0


def test_the_fitted_bandwidth_is_the_90th_percentile_of_at_least_five_long_ops() -> None:
    samples = [(40_000 * gbps, 40_000) for gbps in range(1, 11)]
    assert fitted_speed(samples, SPEED).bytes_per_ns == 10 and fitted_speed(samples[:9], SPEED).bytes_per_ns == 9
    assert fitted_speed(samples[:5], SPEED).bytes_per_ns == 5 and fitted_speed(samples[:4], SPEED) == SPEED
    unknown = [(0, 40_000)]
    assert fitted_speed(samples[:4] + unknown, SPEED) == SPEED


def test_kernels_rounded_to_zero_do_not_lower_the_shortest_kernel_time() -> None:
    durations_ns = np.array([0] * 50 + [2_000] * 150)
    assert shortest_kernel_ns(durations_ns) == KERNEL_FLOOR_NS


def test_the_shortest_kernel_time_is_known_from_at_least_a_hundred_kernels() -> None:
    assert shortest_kernel_ns(np.full(100, 2_000)) == 2_000
    assert shortest_kernel_ns(np.full(99, 2_000)) == KERNEL_FLOOR_NS
    assert shortest_kernel_ns(np.full(100, 10_000)) == 10_000
    assert shortest_kernel_ns(np.full(100, 10_001)) == KERNEL_FLOOR_NS
