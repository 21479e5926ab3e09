"""What operations between ranks take: by bytes on the wire, from the recording or from data sheets."""

from __future__ import annotations

import pytest

from replayer.collectives import CollectiveCosts, kernel_label, wire_bytes
from traces.model import Device, Origin, Trace


def test_bytes_on_the_wire_are_those_of_a_ring() -> None:
    assert wire_bytes("all_reduce", 1_000, 4) == 1_500
    assert wire_bytes("reduce_scatter_tensor", 1_000, 4) == 750
    assert wire_bytes("all_gather_into_tensor", 1_000, 4) == 3_000
    assert wire_bytes("broadcast", 1_000, 4) == wire_bytes("send", 1_000, 2) == 1_000
    assert wire_bytes("all_reduce", 1_000, 1) == wire_bytes("barrier", 1_000, 4) == 0


@pytest.mark.parametrize(
    ("gpu", "gbps"), [("NVIDIA A100-SXM4-40GB", 240.0), ("Tesla T4", 12.6), ("NVIDIA H100 80GB HBM3", 360.0)]
)
def test_without_recorded_operations_the_link_s_data_sheet_tells(gpu: str, gbps: float) -> None:
    costs = CollectiveCosts.of(Trace(devices=[Device(0, 0, gpu)]))
    small, large = costs.next("broadcast", 4, 2), costs.next("broadcast", 1 << 30, 2)
    assert small.origin is large.origin is Origin.PUBLISHED
    assert (large.duration_ns - small.duration_ns) == pytest.approx((1 << 30) / gbps, rel=1e-6)
    assert costs.next("all_reduce", 1 << 30, 1).duration_ns == 6_600


@pytest.mark.parametrize(
    ("gpu", "name", "ranks", "latency_ns"),
    [
        ("NVIDIA A100-SXM4-40GB", "all_reduce", 2, 7_800),  # recorded ones take 7 600
        ("NVIDIA A100-SXM4-40GB", "all_reduce", 8, 15_000),
        ("NVIDIA A100-SXM4-40GB", "all_gather_into_tensor", 8, 10_800),
        ("NVIDIA A100-SXM4-40GB", "send", 8, 7_200),
        ("Tesla T4", "barrier", 2, 8_600),
    ],
)
def test_a_small_operation_takes_nccl_s_steps_over_the_link(gpu: str, name: str, ranks: int, latency_ns: int) -> None:
    costs = CollectiveCosts.of(Trace(devices=[Device(0, 0, gpu)]))
    assert costs.next(name, 0, ranks).duration_ns == latency_ns


def test_kernels_are_called_as_nccl_calls_them() -> None:
    assert kernel_label("all_reduce") == kernel_label("barrier") == "ncclDevKernel_AllReduce"
    assert kernel_label("all_to_all_single") == kernel_label("recv") == "ncclDevKernel_SendRecv"
