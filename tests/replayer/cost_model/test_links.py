"""What connects two GPUs of a kind."""

from __future__ import annotations

import pytest

from replayer.cost_model.links import link_of


@pytest.mark.parametrize(
    ("name", "copy_gbps", "ring_gbps"),
    [
        ("Tesla P100-PCIE-16GB", 12.6, 12.6),
        ("Tesla P100-SXM2-16GB", 18.4, 64),  # measured between two: 18.3
        ("Tesla V100-SXM2-32GB", 46, 120),  # measured between two: 47.9
        ("Tesla V100-PCIE-16GB", 12.6, 12.6),
        ("NVIDIA A100-SXM4-80GB", 276, 240),  # NCCL's own limit: 235
        ("NVIDIA A100-PCIE-40GB", 25.2, 25.2),
        ("NVIDIA A100 80GB PCIe", 25.2, 25.2),
        ("NVIDIA A10", 25.2, 25.2),
        ("NVIDIA L40S", 25.2, 25.2),
        ("Tesla T4", 12.6, 12.6),
        ("NVIDIA H100 80GB HBM3", 414, 360),  # measured by NCCL's authors: 370
        ("NVIDIA H100 PCIe", 50.4, 50.4),
        ("NVIDIA H200", 414, 360),
        ("NVIDIA B200", 828, 720),
        ("AMD Instinct MI300X", 58.88, 358.4),
        ("", 12.6, 12.6),
    ],
)
def test_a_device_is_known_by_the_longest_part_of_its_name(name: str, copy_gbps: float, ring_gbps: float) -> None:
    link = link_of(name)
    assert (link.copy_gbps, link.ring_gbps) == pytest.approx((copy_gbps, ring_gbps))
    assert link.hop_ns == (600 if ring_gbps > 60 else 1_000)
