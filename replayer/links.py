"""How fast two GPUs copy to each other where a recording has no such copy: by what connects devices of that kind.

    link_gbps("Tesla V100-SXM2-16GB")   # 40.0
    link_gbps("Tesla P100-PCIE-16GB")   # 12.6

An estimate, and marked as one: boards differ in how many links join a pair, and copies through a switch or the host are slower.
"""

from __future__ import annotations

# GB/s in one direction between two GPUs, by the vendors' data sheets, matched by a part of the device name, the longest first:
# NVLink 1 and 2 with the two links that join a neighbour on an eight-GPU board, NVSwitch from the A100 on, AMD's links. What is
# not listed is a PCI Express card of its generation.
_LINKS = {
    "P100-SXM2": 40, "V100-SXM": 50, "V100-DGXS": 50, "A100": 300, "A100-PCIE": 31.5, "A10": 31.5, "H100": 450,
    "H100 PCIe": 63, "H200": 450, "B200": 900, "MI250": 100, "MI300X": 64,
}  # fmt: skip
_PCI_EXPRESS_3 = 15.75  # with 16 lanes
_REACHED = 0.8  # the share of it that large copies reach


def link_gbps(device_name: str) -> float:
    """What a large copy reaches, in GB/s (bytes per nanosecond)."""
    part = max((part for part in _LINKS if part in device_name), key=len, default="")
    return _LINKS.get(part, _PCI_EXPRESS_3) * _REACHED
