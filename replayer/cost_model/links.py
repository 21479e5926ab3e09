"""What connects two GPUs of a kind, by the figures of those who make them: for copies and operations that no recording shows.

    link_of("Tesla V100-SXM2-16GB").copy_gbps      # 46.0: what a large copy from one to another reaches
    link_of("Tesla V100-SXM2-16GB").ring_gbps      # 120.0: what each reaches in an operation of several

An estimate, and marked as one: boards differ in how many links join a pair, and copies through a switch or the host are slower.
"""

from __future__ import annotations

from typing import NamedTuple


class Link(NamedTuple):
    """In gigabytes per second (bytes per nanosecond) and one direction, as the data sheet has it."""

    pair_gbps: float  # of all links between two neighbours
    all_gbps: float  # of all links of one GPU
    is_pcie: bool = False

    @property
    def copy_gbps(self) -> float:
        """What a large copy between two neighbours reaches."""
        return self.pair_gbps * (_REACHED_OVER_PCIE if self.is_pcie else _REACHED_BY_COPIES)

    @property
    def ring_gbps(self) -> float:
        """What an operation of several GPUs moves over the links of each: nccl-tests' "bus bandwidth"."""
        return self.all_gbps * _REACHED_BY_RINGS

    @property
    def hop_ns(self) -> int:
        """What a small operation takes for each step from one GPU to the next."""
        return _HOP_OVER_PCIE_NS if self.is_pcie else _HOP_NS


# What of it is reached. Copies: 47.9 of 50 GB/s between two V100-SXM2 and 18.3 of 20 between two P100-SXM2
# (p2pBandwidthLatencyTest, in Dell's account of its HPC systems); 54.3 of 63 over PCI Express 5.0, less where a host's bridge
# lies between (github.com/lukealonso/p2pmark). Operations: 370 of 450 on H100, for NCCL's protocol takes some 20 % (its author,
# in github.com/NVIDIA/nccl-tests/issues/212); 235 of 300 is what NCCL itself reckons with on A100 (nccl, src/graph/tuning.cc).
_REACHED_BY_COPIES = 0.92
_REACHED_BY_RINGS = 0.8
_REACHED_OVER_PCIE = 0.8
# The steps of the ring algorithm in protocol LL, over NVLink and over PCI Express (nccl 2.19, src/graph/tuning.cc, hwLat).
_HOP_NS, _HOP_OVER_PCIE_NS = 600, 1_000

_PCIE_3, _PCIE_4, _PCIE_5 = (Link(gbps, gbps, is_pcie=True) for gbps in (15.75, 31.5, 63.0))  # 16 lanes; PCI-SIG
_NVLINK_A100, _NVLINK_H100, _NVLINK_B200 = Link(300, 300), Link(450, 450), Link(900, 900)  # all links lead to a switch

# By a part of the device's name, the longest first; makers give both directions together. What is not listed is a card for
# PCI Express 3.0, as Tesla T4 and the P100 and V100 without NVLink are.
_LINKS = {
    "P100-SXM2": Link(20, 80),  # 4 links of 20 GB/s; one to each neighbour in a DGX-1 (nvidia.com on NVLink; Dell)
    "V100-SXM": Link(50, 150),  # 6 links of 25 GB/s; two to each where four GPUs are joined, else one or two (nvidia.com; Dell)
    "V100-DGXS": Link(25, 100),  # DGX Station: 4 of them used, one or two to each
    "A100": _NVLINK_A100,  # 600 GB/s (nvidia.com on NVLink)
    "A100-PCIE": _PCIE_4,  # product brief PB-10137-001; without the bridge that may join two
    "A100 80GB PCIe": _PCIE_4,
    "A800-SXM": Link(200, 200),  # 400 GB/s (techpowerup.com, on the A800)
    "H100": _NVLINK_H100,  # 900 GB/s (nccl-tests issue 212)
    "H100 PCIe": _PCIE_5,  # product brief PB-11133-001; without the bridge
    "H100 NVL": Link(300, 300),  # 600 GB/s by the bridge that joins two
    "H800": Link(200, 200),  # 400 GB/s, as reported
    "H20": _NVLINK_H100,  # 900 GB/s, as reported
    "H200": _NVLINK_H100,  # 900 GB/s, as H100; also in GH200
    "B200": _NVLINK_B200,  # 1.8 TB/s (glennklockwood.com on B200); also in GB200
    "B300": _NVLINK_B200,
    "MI250": Link(50, 50),  # a link of 25 GT/s and 16 lanes (rocm.docs.amd.com, MI250 microarchitecture)
    "MI300X": Link(64, 448),  # 7 links of 128 GB/s, one to each other of eight (emergentmind.com on MI300X)
    **dict.fromkeys(("A10", "A16", "A30", "A40", "L4", "L40", "RTX 30", "RTX 40", "RTX A", "RTX 4000", "RTX 6000"), _PCIE_4),
}


def link_of(device_name: str) -> Link:
    """What connects devices of this name."""
    part = max((part for part in _LINKS if part in device_name), key=len, default="")
    return _LINKS.get(part, _PCIE_3)
