"""Contains data sheets of GPUs, which supply the GPU properties that a recording lacks.

    card = card_of("NVIDIA A100-SXM4-80GB")
    card.tflops["bf16"]             # 312.0, dense, with accumulation in fp32
    card.link.copy_gbps             # 276.0: between two A100 GPUs
    known_properties(device).multi_processor_count      # the recorded value, or the value of the data sheet

Peak FLOP/s are those of dense matrices, without structured sparsity. The entries of cards with two GPUs (K80 and MI250)
describe one of the two GPUs.

Note [A name's words]
    A device name is split into words ("NVIDIA A100-SXM4-80GB": a100, sxm, 80gb). A GPU model matches if the device name
    contains all its words, so "NVIDIA L40S" does not match "L4". If several models match, the one with the most words is used.
    Words that denote a different product (Ti, SUPER, Laptop, Ada) must match in both directions.

Note [A slice of a card]
    The name "NVIDIA A100-SXM4-40GB MIG 3g.20gb" denotes a slice of an A100, made by NVIDIA's Multi-Instance GPU (MIG). The
    slice "3g.20gb" has three of the card's seven compute slices and 20 GB of the card's memory. An A30 has four compute slices.
    The slice has the same share of the card's bandwidth and cache as of its memory.

Note [What a context takes]
    A CUDA context reserves 2 KiB of local memory for every thread that the card can run at once. By this rule, a context takes
    320 MiB for a TITAN V (pycuda: 320, github.com/pytorch/pytorch/issues/28394), 426 MiB for an RTX 6000 Ada (PyTorch 2.10 with
    CUDA 13.0: 426, github.com/unslothai/unsloth-zoo/pull/1053) and 528 MiB for an H200 (PyTorch 2.11 with CUDA 13.0, driver
    580: 527, our measurement). The memory of loaded kernels (256 MiB for training a ResNet-50 on the H200) is ignored.
    benchmarks/library_memory.py lists the sizes by compute capability. The context size of AMD GPUs is unknown, so 0 is used.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from traces.model.machine import DeviceProperties
from traces.model.trace import Device, TraceError

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB


_CONTEXT_BYTES_PER_THREAD = 2 * _KIB


class Link(NamedTuple):
    """Contains the bandwidth between two GPUs of the same model in GB/s. The bandwidth is an estimate, because the number of
    links between two GPUs depends on the server."""

    pair_gbps: float  # all links between two neighbours together
    all_gbps: float  # all links of one GPU together
    is_pcie: bool = False

    @property
    def copy_gbps(self) -> float:
        return self.pair_gbps * (_REACHED_OVER_PCIE if self.is_pcie else _REACHED_BY_COPIES)

    @property
    def ring_gbps(self) -> float:
        """Return the bandwidth per GPU in a collective (nccl-tests: "bus bandwidth")."""
        return self.all_gbps * _REACHED_BY_RINGS

    @property
    def hop_ns(self) -> int:
        return _HOP_OVER_PCIE_NS if self.is_pcie else _HOP_NS


_REACHED_BY_COPIES = 0.92
_REACHED_BY_RINGS = 0.8
_REACHED_OVER_PCIE = 0.8
# Latency per step of NCCL's ring algorithm, protocol LL (nccl 2.19, src/graph/tuning.cc, hwLat)
_HOP_NS, _HOP_OVER_PCIE_NS = 600, 1_000

# PCI Express with 16 lanes (PCI-SIG)
_PCIE_3, _PCIE_4, _PCIE_5 = (Link(gbps, gbps, is_pcie=True) for gbps in (15.75, 31.5, 63.0))
# Bandwidths are for one direction. Data sheets add both directions.
_NVLINK_P100 = Link(20, 80)  # 4 links of 20 GB/s, one per neighbour (DGX-1, nvidia.com on NVLink; Dell)
# 6 links of 25 GB/s, two per neighbour among four GPUs (nvidia.com; Dell)
_NVLINK_V100 = Link(50, 150)
_NVLINK_DGXS = Link(25, 100)  # 4 links, one or two per neighbour
_NVLINK_A100, _NVLINK_A800, _NVLINK_H100, _NVLINK_B200 = (Link(gbps, gbps) for gbps in (300, 200, 450, 900))
_NVLINK_NVL = Link(300, 300)
_XGMI_MI100, _XGMI_MI200, _XGMI_MI300 = Link(46, 138), Link(50, 150), Link(64, 448)


class Architecture(NamedTuple):
    """Contains the properties that all GPUs of one compute capability share (CUDA C++ Programming Guide, HIP documentation)."""

    major: int
    minor: int
    max_threads: int
    shared_kib: int
    shared_optin_kib: int
    registers: int = 65_536
    shared_per_block_kib: int = 48
    warp_size: int = 32
    name: str = ""


_KEPLER = Architecture(3, 7, 2048, 112, 48, registers=131_072)
_MAXWELL = Architecture(5, 2, 2048, 96, 48)
_PASCAL, _PASCAL_61 = Architecture(6, 0, 2048, 64, 48), Architecture(6, 1, 2048, 96, 48)
_VOLTA = Architecture(7, 0, 2048, 96, 96)
_TURING = Architecture(7, 5, 1024, 64, 64)
_AMPERE, _AMPERE_86 = Architecture(8, 0, 2048, 164, 163), Architecture(8, 6, 1536, 100, 99)
_ADA = Architecture(8, 9, 1536, 100, 99)
_HOPPER = Architecture(9, 0, 2048, 228, 227)
_BLACKWELL, _BLACKWELL_103 = Architecture(10, 0, 2048, 228, 227), Architecture(10, 3, 2048, 228, 227)
_BLACKWELL_120 = Architecture(12, 0, 1536, 100, 99)
_CDNA, _CDNA2, _CDNA3, _CDNA4 = (
    Architecture(9, minor, 2048, shared, shared, 131_072, shared, 64, name)
    for minor, shared, name in ((0, 64, "gfx908"), (0, 64, "gfx90a"), (4, 64, "gfx942"), (5, 160, "gfx950"))
)


@dataclass(frozen=True)
class Card:
    names: tuple[str, ...]  # as in torch.cuda.get_device_name; the first one is displayed
    architecture: Architecture
    multi_processors: int
    l2_bytes: int
    memory_bytes: int
    memory_gbps: float
    # peak rates of "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", except types that are no faster than fp32
    tflops: Mapping[str, float] = field(hash=False)
    link: Link
    source: str
    memory_side_cache_bytes: int = 0  # between L2 and memory, such as AMD's Infinity Cache

    @property
    def cache_bytes(self) -> int:
        return max(self.l2_bytes, self.memory_side_cache_bytes)

    @property
    def context_bytes(self) -> int:
        # see Note [What a context takes]
        of = self.architecture
        return 0 if of.name else self.multi_processors * of.max_threads * _CONTEXT_BYTES_PER_THREAD

    @property
    def uses_winograd(self) -> bool:
        """Return True for GPUs without TF32 tensor cores, where cuDNN may use the Winograd algorithm for convolutions."""
        return not self.architecture.name and "tf32" not in self.tflops

    @property
    def properties(self) -> DeviceProperties:
        of = self.architecture
        return DeviceProperties(
            major=of.major,
            minor=of.minor,
            multi_processor_count=self.multi_processors,
            warp_size=of.warp_size,
            max_threads_per_block=1024,
            max_threads_per_multi_processor=of.max_threads,
            regs_per_multiprocessor=of.registers,
            shared_memory_per_block=of.shared_per_block_kib * _KIB,
            shared_memory_per_block_optin=of.shared_optin_kib * _KIB,
            shared_memory_per_multiprocessor=of.shared_kib * _KIB,
            L2_cache_size=self.l2_bytes,
            gcnArchName=of.name,
        )


def _variant_of(card: Card, *names: str, **changed: Any) -> Card:
    return replace(card, names=names, **changed)


def _rates(
    fp64: float, fp32: float, fp16: float = 0, int8: float = 0, *, tf32: float = 0, bf16: float = 0, fp8: float = 0
) -> dict[str, float]:
    rates = {"fp64": fp64, "fp32": fp32, "tf32": tf32, "fp16": fp16, "bf16": bf16, "fp8": fp8, "int8": int8}
    return {name: rate for name, rate in rates.items() if rate}


# fmt: off
_P100_PCIE = Card(("Tesla P100-PCIE-16GB", "Tesla P100"), _PASCAL, 56, 4 * _MIB, 17_071_734_784, 732, _rates(4.7, 9.3, 18.7), _PCIE_3, "NVIDIA Tesla P100 data sheet")
_V100_RATES, _V100_PCIE_RATES = _rates(7.8, 15.7, 125), _rates(7.0, 14.0, 112)
_V100_SXM = Card(("Tesla V100-SXM2-16GB", "Tesla V100"), _VOLTA, 80, 6 * _MIB, 16_945_512_448, 900, _V100_RATES, _NVLINK_V100, "NVIDIA V100 data sheet")
_V100_PCIE = _variant_of(_V100_SXM, "Tesla V100-PCIE-16GB", tflops=_V100_PCIE_RATES, link=_PCIE_3)
_RTX_6000 = Card(("Quadro RTX 6000",), _TURING, 72, 6 * _MIB, 25_386_352_640, 672, _rates(0.51, 16.3, 130.5, 261), _PCIE_3, "NVIDIA Quadro RTX 6000 data sheet")
_A100_RATES = _rates(19.5, 19.5, 312, 624, tf32=156, bf16=312)
_A100_SXM = Card(("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PG509", "NVIDIA A100"), _AMPERE, 108, 40 * _MIB, 42_314_694_656, 1555, _A100_RATES, _NVLINK_A100, "NVIDIA A100 data sheet")
_H100_RATES = _rates(67, 67, 989.4, 1979, tf32=494.7, bf16=989.4, fp8=1979)
_H100_SXM = Card(("NVIDIA H100 80GB HBM3", "NVIDIA H100-SXM5-80GB", "NVIDIA H100"), _HOPPER, 132, 50 * _MIB, 85_045_477_376, 3350, _H100_RATES, _NVLINK_H100, "NVIDIA H100 data sheet")
_H100_NVL = _variant_of(_H100_SXM, "NVIDIA H100 NVL", memory_bytes=99_857_989_632, memory_gbps=3938, tflops=_rates(60, 60, 835.5, 1670.5, tf32=417.5, bf16=835.5, fp8=1670.5), link=_NVLINK_NVL, source="NVIDIA H100 NVL data sheet")
_B200 = Card(("NVIDIA B200",), _BLACKWELL, 148, 126 * _MIB, 191_503_138_816, 8000, _rates(37, 75, 2250, 4500, tf32=1125, bf16=2250, fp8=4500), _NVLINK_B200, "NVIDIA DGX B200 data sheet, an eighth")
_INFINITY_CACHE = 256 * _MIB
_MI250_RATES = _rates(45.3, 45.3, 181, 181, bf16=181)
_MI300X_RATES = _rates(163.4, 163.4, 1307.4, 2614.9, tf32=653.7, bf16=1307.4, fp8=2614.9)
_MI300X = Card(("AMD Instinct MI300X",), _CDNA3, 304, 4 * _MIB, 206_141_652_992, 5300, _MI300X_RATES, _XGMI_MI300, "AMD Instinct MI300X data sheet", _INFINITY_CACHE)

CARDS: tuple[Card, ...] = (
    Card(("Tesla K80",), _KEPLER, 13, 1536 * _KIB, 11_996_954_624, 240, _rates(1.37, 4.1), _PCIE_3, "NVIDIA Tesla K80 board specification BD-07317, one of two GPUs"),
    Card(("Tesla M40", "Tesla M40 12GB"), _MAXWELL, 24, 3 * _MIB, 11_996_954_624, 288, _rates(0.21, 6.8), _PCIE_3, "NVIDIA Tesla M40 data sheet"),
    Card(("Tesla M40 24GB",), _MAXWELL, 24, 3 * _MIB, 24 * _GIB, 288, _rates(0.21, 6.8), _PCIE_3, "NVIDIA Tesla M40 24GB data sheet"),
    Card(("Tesla M60",), _MAXWELL, 16, 2 * _MIB, 8 * _GIB, 160, _rates(0.15, 4.8), _PCIE_3, "NVIDIA Tesla M60 data sheet, one of two GPUs"),
    Card(("Tesla P4",), _PASCAL_61, 20, 2 * _MIB, 8 * _GIB, 192, _rates(0.17, 5.5, int8=22), _PCIE_3, "NVIDIA Tesla P4 data sheet"),
    Card(("Tesla P40",), _PASCAL_61, 30, 3 * _MIB, 24 * _GIB, 346, _rates(0.37, 12, int8=47), _PCIE_3, "NVIDIA Tesla P40 data sheet"),
    Card(("NVIDIA GeForce GTX 1080 Ti",), _PASCAL_61, 28, 2816 * _KIB, 11 * _GIB, 484, _rates(0.35, 11.3), _PCIE_3, "NVIDIA GeForce GTX 1080 Ti specifications"),
    Card(("NVIDIA TITAN Xp",), _PASCAL_61, 30, 3 * _MIB, 12 * _GIB, 548, _rates(0.38, 12.1), _PCIE_3, "NVIDIA TITAN Xp specifications"),
    _P100_PCIE,
    _variant_of(_P100_PCIE, "Tesla P100-PCIE-12GB", memory_bytes=12 * _GIB, memory_gbps=549),
    _variant_of(_P100_PCIE, "Tesla P100-SXM2-16GB", tflops=_rates(5.3, 10.6, 21.2), link=_NVLINK_P100),
    Card(("Quadro GP100",), _PASCAL, 56, 4 * _MIB, 17_069_309_952, 717, _rates(5.2, 10.3, 20.7), _PCIE_3, "NVIDIA Quadro GP100 data sheet"),
    _V100_SXM,
    _variant_of(_V100_SXM, "Tesla V100-SXM2-32GB", "Tesla V100-SXM3-32GB", memory_bytes=34_079_637_504),
    _variant_of(_V100_SXM, "Tesla V100-DGXS-16GB", memory_bytes=16_945_512_448, link=_NVLINK_DGXS, source="NVIDIA DGX Station data sheet"),
    _variant_of(_V100_SXM, "Tesla V100-DGXS-32GB", memory_bytes=34_084_028_416, link=_NVLINK_DGXS, source="NVIDIA DGX Station data sheet"),
    _V100_PCIE,
    _variant_of(_V100_PCIE, "Tesla V100-PCIE-32GB", memory_bytes=34_079_637_504),
    _variant_of(_V100_PCIE, "Tesla V100S-PCIE-32GB", memory_bytes=34_079_637_504, memory_gbps=1134, tflops=_rates(8.2, 16.4, 130)),
    Card(("NVIDIA TITAN V",), _VOLTA, 80, 4608 * _KIB, 12 * _GIB, 653, _rates(6.9, 13.8, 110), _PCIE_3, "NVIDIA TITAN V specifications"),
    Card(("Tesla T4",), _TURING, 40, 4 * _MIB, 15_843_721_216, 320, _rates(0.25, 8.1, 65, 130), _PCIE_3, "NVIDIA T4 data sheet"),
    Card(("NVIDIA GeForce RTX 2080 Ti",), _TURING, 68, 5632 * _KIB, 11_554_586_624, 616, _rates(0.42, 13.4, 53.8, 215.2), _PCIE_3, "NVIDIA Turing architecture whitepaper"),
    Card(("NVIDIA GeForce RTX 2080",), _TURING, 46, 4 * _MIB, 8 * _GIB, 448, _rates(0.31, 10.0, 40.3, 161.1), _PCIE_3, "NVIDIA Turing architecture whitepaper"),
    Card(("NVIDIA TITAN RTX",), _TURING, 72, 6 * _MIB, 24 * _GIB, 672, _rates(0.51, 16.3, 130.5, 261), _PCIE_3, "NVIDIA TITAN RTX specifications"),
    _RTX_6000,
    _variant_of(_RTX_6000, "Quadro RTX 8000", memory_bytes=48 * _GIB, source="NVIDIA Quadro RTX 8000 data sheet"),
    _A100_SXM,
    _variant_of(_A100_SXM, "NVIDIA A100-SXM4-80GB", memory_bytes=85_174_583_296, memory_gbps=2039),
    _variant_of(_A100_SXM, "NVIDIA A100-PCIE-40GB", memory_bytes=42_346_610_688, link=_PCIE_4),
    _variant_of(_A100_SXM, "NVIDIA A100 80GB PCIe", memory_bytes=84_987_740_160, memory_gbps=1935, link=_PCIE_4),
    _variant_of(_A100_SXM, "NVIDIA A800-SXM4-80GB", "NVIDIA A800", memory_bytes=85_174_583_296, memory_gbps=2039, link=_NVLINK_A800, source="NVIDIA A800 data sheet"),
    _variant_of(_A100_SXM, "NVIDIA A800 80GB PCIe", memory_bytes=84_987_740_160, memory_gbps=1935, link=_PCIE_4, source="NVIDIA A800 data sheet"),
    Card(("NVIDIA A30",), _AMPERE, 56, 24 * _MIB, 24 * _GIB, 933, _rates(10.3, 10.3, 165, 330, tf32=82, bf16=165), _PCIE_4, "NVIDIA A30 data sheet"),
    Card(("NVIDIA A2",), _AMPERE_86, 10, 2 * _MIB, 16 * _GIB, 200, _rates(0.07, 4.5, 18, 36, tf32=9, bf16=18), _PCIE_4, "NVIDIA A2 data sheet"),
    Card(("NVIDIA A10",), _AMPERE_86, 72, 6 * _MIB, 24 * _GIB, 600, _rates(0.49, 31.2, 125, 250, tf32=62.5, bf16=125), _PCIE_4, "NVIDIA A10 data sheet"),
    Card(("NVIDIA A10G",), _AMPERE_86, 80, 6 * _MIB, 23_836_819_456, 600, _rates(0.49, 35, 70, 140, tf32=35, bf16=70), _PCIE_4, "NVIDIA A10G data sheet"),
    Card(("NVIDIA A16",), _AMPERE_86, 10, 2 * _MIB, 16 * _GIB, 200, _rates(0.07, 4.5, 17.9, 35.9, tf32=9, bf16=17.9), _PCIE_4, "NVIDIA A16 data sheet, one of four GPUs"),
    Card(("NVIDIA A40",), _AMPERE_86, 84, 6 * _MIB, 48 * _GIB, 696, _rates(0.58, 37.4, 149.7, 299.3, tf32=74.8, bf16=149.7), _PCIE_4, "NVIDIA A40 data sheet"),
    Card(("NVIDIA RTX A4000",), _AMPERE_86, 48, 4 * _MIB, 16 * _GIB, 448, _rates(0.3, 19.2, 76.7, 153.4, tf32=38.3, bf16=76.7), _PCIE_4, "NVIDIA RTX A4000 data sheet"),
    Card(("NVIDIA RTX A5000",), _AMPERE_86, 64, 6 * _MIB, 24 * _GIB, 768, _rates(0.43, 27.8, 111.1, 222.2, tf32=55.6, bf16=111.1), _PCIE_4, "NVIDIA RTX A5000 data sheet"),
    Card(("NVIDIA RTX A6000",), _AMPERE_86, 84, 6 * _MIB, 48 * _GIB, 768, _rates(0.6, 38.7, 154.8, 309.7, tf32=77.4, bf16=154.8), _PCIE_4, "NVIDIA RTX A6000 data sheet"),
    Card(("NVIDIA GeForce RTX 3080",), _AMPERE_86, 68, 5 * _MIB, 10 * _GIB, 760, _rates(0.47, 29.8, 59.5, 238, tf32=29.8, bf16=59.5), _PCIE_4, "NVIDIA Ampere GA102 whitepaper"),
    Card(("NVIDIA GeForce RTX 3090",), _AMPERE_86, 82, 6 * _MIB, 25_447_170_048, 936, _rates(0.56, 35.6, 71, 284, tf32=35.6, bf16=71), _PCIE_4, "NVIDIA Ampere GA102 whitepaper"),
    Card(("NVIDIA GeForce RTX 3090 Ti",), _AMPERE_86, 84, 6 * _MIB, 25_447_170_048, 1008, _rates(0.63, 40, 80, 320, tf32=40, bf16=80), _PCIE_4, "NVIDIA Ada architecture whitepaper, appendix"),
    Card(("NVIDIA GeForce RTX 4080",), _ADA, 76, 64 * _MIB, 16 * _GIB, 717, _rates(0.76, 48.7, 97.5, 389.9, tf32=48.7, bf16=97.5, fp8=194.9), _PCIE_4, "NVIDIA Ada architecture whitepaper"),
    Card(("NVIDIA GeForce RTX 4090",), _ADA, 128, 72 * _MIB, 25_393_692_672, 1008, _rates(1.29, 82.6, 165.2, 660.6, tf32=82.6, bf16=165.2, fp8=330.3), _PCIE_4, "NVIDIA Ada architecture whitepaper"),
    Card(("NVIDIA L4",), _ADA, 58, 48 * _MIB, 23_580_639_232, 300, _rates(0.49, 30.3, 121, 242.5, tf32=60, bf16=121, fp8=242.5), _PCIE_4, "NVIDIA L4 data sheet"),
    Card(("NVIDIA L40",), _ADA, 142, 96 * _MIB, 48 * _GIB, 864, _rates(1.41, 90.5, 181, 362, tf32=90.5, bf16=181, fp8=362), _PCIE_4, "NVIDIA L40 data sheet"),
    Card(("NVIDIA L40S",), _ADA, 142, 96 * _MIB, 48 * _GIB, 864, _rates(1.43, 91.6, 362, 733, tf32=183, bf16=362, fp8=733), _PCIE_4, "NVIDIA L40S data sheet"),
    Card(("NVIDIA RTX 6000 Ada Generation",), _ADA, 142, 96 * _MIB, 51_038_978_048, 960, _rates(1.42, 91.1, 364.2, 728.5, tf32=182.1, bf16=364.2, fp8=728.5), _PCIE_4, "NVIDIA RTX 6000 Ada data sheet"),
    _H100_SXM,
    _variant_of(_H100_SXM, "NVIDIA H100 PCIe", multi_processors=114, memory_gbps=2039, tflops=_rates(51, 51, 756, 1513, tf32=378, bf16=756, fp8=1513), link=_PCIE_5),
    _H100_NVL,
    _variant_of(_H100_SXM, "NVIDIA H800", memory_bytes=85_045_477_376, link=_NVLINK_A800, source="reported to be an H100 with half as many links"),
    Card(("NVIDIA H20",), _HOPPER, 78, 60 * _MIB, 96 * _GIB, 4000, _rates(1, 44, 148, 296, tf32=74, bf16=148, fp8=296), _NVLINK_H100, "as reported; NVIDIA has no public data sheet"),
    _variant_of(_H100_SXM, "NVIDIA H200", l2_bytes=60 * _MIB, memory_bytes=150_109_880_320, memory_gbps=4800, source="NVIDIA H200 data sheet; L2 and memory as PyTorch reports them on an H200"),
    _variant_of(_H100_NVL, "NVIDIA H200 NVL", memory_bytes=150_110_011_392, memory_gbps=4800, link=_NVLINK_H100, source="NVIDIA H200 data sheet"),
    _variant_of(_H100_SXM, "NVIDIA GH200 480GB", "NVIDIA GH200 120GB", "NVIDIA GH200", memory_bytes=96 * _GIB, memory_gbps=4000, source="NVIDIA GH200 data sheet"),
    _variant_of(_H100_SXM, "NVIDIA GH200 144G HBM3e", memory_bytes=144 * _GIB, memory_gbps=4900, source="NVIDIA GH200 data sheet"),
    _B200,
    _variant_of(_B200, "NVIDIA GB200", tflops=_rates(40, 80, 2500, 5000, tf32=1250, bf16=2500, fp8=5000), source="NVIDIA GB200 NVL72 data sheet"),
    _variant_of(_B200, "NVIDIA B300", "NVIDIA GB300", architecture=_BLACKWELL_103, memory_bytes=270 * _GIB, tflops=_rates(1.2, 75, 2250, tf32=1125, bf16=2250, fp8=4500), source="NVIDIA HGX B300 data sheet, an eighth"),
    Card(("NVIDIA GeForce RTX 5090",), _BLACKWELL_120, 170, 96 * _MIB, 32 * _GIB, 1792, _rates(1.64, 104.8, 209.5, 838, tf32=104.8, bf16=209.5, fp8=419), _PCIE_5, "NVIDIA RTX Blackwell architecture whitepaper"),
    Card(("AMD Instinct MI100",), _CDNA, 120, 8 * _MIB, 32 * _GIB, 1229, _rates(11.5, 46.1, 184.6, 184.6, bf16=92.3), _XGMI_MI100, "AMD Instinct MI100 data sheet"),
    Card(("AMD Instinct MI210",), _CDNA2, 104, 8 * _MIB, 64 * _GIB, 1638, _MI250_RATES, _XGMI_MI200, "AMD Instinct MI210 data sheet"),
    Card(("AMD Instinct MI250",), _CDNA2, 104, 8 * _MIB, 64 * _GIB, 1638, _MI250_RATES, Link(50, 50), "AMD Instinct MI250 data sheet, one of two dies"),
    Card(("AMD Instinct MI250X", "AMD Instinct MI250X/MI250"), _CDNA2, 110, 8 * _MIB, 64 * _GIB, 1638, _rates(47.9, 47.9, 191.5, 191.5, bf16=191.5), Link(50, 50), "AMD Instinct MI250X data sheet, one of two dies"),
    Card(("AMD Instinct MI300A",), _CDNA3, 228, 4 * _MIB, 128 * _GIB, 5300, _rates(122.6, 122.6, 980.6, 1961.2, tf32=490.3, bf16=980.6, fp8=1961.2), _XGMI_MI300, "AMD Instinct MI300A data sheet", _INFINITY_CACHE),
    _MI300X,
    _variant_of(_MI300X, "AMD Instinct MI325X", memory_bytes=256 * _GIB, memory_gbps=6000, source="AMD Instinct MI325X data sheet"),
    Card(("AMD Instinct MI355X",), _CDNA4, 256, 4 * _MIB, 288 * _GIB, 8000, _rates(78.6, 157.3, 2516.6, 5033.2, bf16=2516.6, fp8=5033.2), Link(76.8, 537.6), "AMD Instinct MI355X data sheet", _INFINITY_CACHE),
)
# fmt: on

# A GPU that is not in this file gets the properties of the oldest architecture that PyTorch supports.
UNKNOWN_CARD = Card(("",), _TURING, 40, 4 * _MIB, 16 * _GIB, 600, _rates(0.3, 10), _PCIE_3, "none: assumed")

_IDLE_WORDS = frozenset({"nvidia", "amd", "tesla", "geforce", "instinct", "generation", "radeon", "graphics"})
# Words that denote a different product, see Note [A name's words]
_VARIANTS = frozenset({"ti", "super", "laptop", "mobile", "max", "ada", "pro", "d"})


@cache
def _words(name: str) -> frozenset[str]:
    words = re.findall(r"[a-z0-9]+", name.lower())
    return frozenset(re.sub(r"^sxm\d$", "sxm", word) for word in words).difference(_IDLE_WORDS)


_MIG = re.compile(r"\bMIG (\d)g\.(\d+)gb", re.IGNORECASE)
_SLICES, _SLICES_OF_A30 = 7, 4


@cache
def card_of(name: str) -> Card:
    # see Note [A name's words]
    words = _words(name)
    found, most = UNKNOWN_CARD, 0
    for card in CARDS:
        for own in map(_words, card.names):
            if own <= words and words & _VARIANTS <= own and len(own) > most:
                found, most = card, len(own)
    part = _MIG.search(name)
    return _slice(found, int(part[1]), int(part[2])) if part is not None and found is not UNKNOWN_CARD else found


def is_slice(name: str) -> bool:
    return _MIG.search(name) is not None and card_of(name) is not UNKNOWN_CARD


def _slice(card: Card, compute: int, memory_gib: int) -> Card:
    share = min(compute / (_SLICES_OF_A30 if "A30" in card.names[0] else _SLICES), 1.0)
    of_memory = min(memory_gib * _GIB / card.memory_bytes, 1.0)
    return replace(
        card,
        multi_processors=int(card.multi_processors * share),
        l2_bytes=int(card.l2_bytes * of_memory),
        memory_side_cache_bytes=int(card.memory_side_cache_bytes * of_memory),
        memory_bytes=int(card.memory_bytes * of_memory),
        memory_gbps=card.memory_gbps * of_memory,
        tflops={kind: rate * share for kind, rate in card.tflops.items()},
    )


def find_card(text: str) -> Card:
    """Return the data sheet of a GPU that a user names, such as "v100" or "rtx 4090". Raises TraceError with a list of similar
    names if no GPU matches."""
    wanted = _parts(text)
    parts = {name: _parts(name) for card in CARDS for name in card.names}
    meant = [name for name, of in parts.items() if wanted and wanted <= of and of & _VARIANTS <= wanted]
    if meant:
        nearest = min(meant, key=lambda name: len(parts[name]))
        return next(card for card in CARDS if nearest in card.names)
    raise unknown_gpu(text)


_WELL_KNOWN = "V100, T4, A100, H100, L4 or RTX 4090"


def unknown_gpu(text: str) -> TraceError:
    known = {_squeezed(name): name for card in CARDS for name in card.names}
    prefix = "^(nvidia|amd|tesla|geforce|quadro|instinct)+"
    short = {re.sub(prefix, "", squeezed): name for squeezed, name in known.items()}
    near = difflib.get_close_matches(re.sub(prefix, "", _squeezed(text)), list(short), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(short[one] for one in near)}?" if near else f"give a name such as {_WELL_KNOWN}"
    return TraceError(f"unknown GPU: {text.strip() or '(empty name)'}; {hint}")


def _parts(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+|[0-9]+", name.lower()))


def _squeezed(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def known_properties(device: Device) -> DeviceProperties:
    """Return the properties of a GPU. Properties that were not recorded come from the data sheet."""
    return device.properties.completed_by(card_of(device.name).properties)
