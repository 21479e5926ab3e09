"""What connects two GPUs of a kind."""

from __future__ import annotations

import pytest

from replayer.links import link_gbps


@pytest.mark.parametrize(
    ("name", "gbps"),
    [
        ("Tesla P100-PCIE-16GB", 12.6),
        ("Tesla P100-SXM2-16GB", 32),
        ("Tesla V100-SXM2-32GB", 40),
        ("Tesla V100-PCIE-16GB", 12.6),
        ("NVIDIA A100-SXM4-80GB", 240),
        ("NVIDIA A100-PCIE-40GB", 25.2),
        ("NVIDIA A10", 25.2),
        ("NVIDIA H100 80GB HBM3", 360),
        ("NVIDIA H100 PCIe", 50.4),
        ("AMD Instinct MI300X", 51.2),
        ("", 12.6),
    ],
)
def test_a_device_is_known_by_the_longest_part_of_its_name(name: str, gbps: float) -> None:
    assert link_gbps(name) == pytest.approx(gbps)
