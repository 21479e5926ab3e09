"""Reads the data sheets of GPUs (cards.csv and architectures.csv), which supply the GPU properties that a recording lacks.

    card = card_of("NVIDIA A100-SXM4-80GB")
    card.tflops["bf16"]             # 312.0, dense, with accumulation in fp32
    card.link.copy_gbps             # 276.0: between two A100 GPUs
    known_properties(device).multi_processor_count      # the recorded value, or the value of the data sheet

Peak FLOP/s are those of dense matrices, without structured sparsity. The entries of cards with two GPUs (K80 and MI250)
describe one of the two GPUs.

Note [A name's words]
    A device name is split into words ("NVIDIA A100-SXM4-80GB": a100, sxm, 80gb). A GPU model matches if the device name
    contains all its words, so "NVIDIA L40S" does not match "L4". If several models match, the one with the most words is used.
    Some words denote a different product (Ti, SUPER, Laptop, Ada). Both names must contain the same words of this kind.

Note [A slice of a card]
    The name "NVIDIA A100-SXM4-40GB MIG 3g.20gb" denotes a slice of an A100, made by NVIDIA's Multi-Instance GPU (MIG). The
    slice "3g.20gb" has three of the card's seven compute slices and 20 GB of the card's memory. An A30 has four compute slices.
    The slice's share of the card's bandwidth and cache equals its share of the card's memory.

Note [What a context takes]
    A CUDA context reserves 2 KiB of local memory for every thread that the card can run at once. By this rule, a context takes
    320 MiB for a TITAN V (pycuda: 320, github.com/pytorch/pytorch/issues/28394), 426 MiB for an RTX 6000 Ada (PyTorch 2.10 with
    CUDA 13.0: 426, github.com/unslothai/unsloth-zoo/pull/1053) and 528 MiB for an H200 (PyTorch 2.11 with CUDA 13.0, driver
    580: 527, our measurement). The memory of loaded kernels (256 MiB for training a ResNet-50 on the H200) is ignored.
    benchmarks/library_memory.py lists the sizes by compute capability. The context size of AMD GPUs is unknown, so 0 is used.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from traces.model.machine import DeviceProperties
from traces.model.trace import Device, TraceError
from traces.names import did_you_mean

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

# Bandwidths are for one direction. Data sheets add both directions.
_LINKS = {
    # PCI Express with 16 lanes (PCI-SIG)
    **{f"PCIe {number}": Link(gbps, gbps, is_pcie=True) for number, gbps in ((3, 15.75), (4, 31.5), (5, 63.0))},
    "NVLink P100": Link(20, 80),  # 4 links of 20 GB/s, one per neighbour (DGX-1, nvidia.com on NVLink; Dell)
    "NVLink V100": Link(50, 150),  # 6 links of 25 GB/s, two per neighbour among four GPUs (nvidia.com; Dell)
    "NVLink DGX Station": Link(25, 100),  # 4 links, one or two per neighbour
    **{f"NVLink {card}": Link(gbps, gbps) for card, gbps in (("A100", 300), ("A800", 200), ("H100", 450), ("B200", 900))},
    "NVLink NVL": Link(300, 300),
    "xGMI MI100": Link(46, 138), "xGMI MI200": Link(50, 150), "xGMI MI250": Link(50, 50), "xGMI MI300": Link(64, 448),
    "xGMI MI355X": Link(76.8, 537.6),
}  # fmt: skip


def _rows(file: str) -> list[dict[str, str]]:
    with Path(__file__).with_name(file).open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def _architecture(row: dict[str, str]) -> DeviceProperties:
    values: dict[str, Any] = {name: int(value) if value.isdecimal() else value for name, value in row.items()}
    return DeviceProperties(**values)


# the properties that all GPUs of one compute capability share (CUDA C++ Programming Guide, HIP documentation)
_ARCHITECTURES = {row.pop("architecture"): _architecture(row) for row in _rows("architectures.csv")}


@dataclass(frozen=True)
class Card:
    names: tuple[str, ...]  # names from torch.cuda.get_device_name; the first one is displayed
    architecture: DeviceProperties
    multi_processors: int
    l2_bytes: int
    memory_bytes: int
    memory_gbps: float
    # peak rates of "fp64", "fp32", "tf32", "fp16", "bf16", "fp8" and "int8"; types that are no faster than fp32 are left out
    tflops: Mapping[str, float] = field(hash=False)
    link: Link
    source: str
    memory_side_cache_bytes: int = 0  # size of a cache between L2 and memory, such as AMD's Infinity Cache

    @property
    def cache_bytes(self) -> int:
        return max(self.l2_bytes, self.memory_side_cache_bytes)

    @property
    def context_bytes(self) -> int:
        # see Note [What a context takes]
        threads = self.multi_processors * (self.architecture.max_threads_per_multi_processor or 0)
        return 0 if self.architecture.gcnArchName else threads * _CONTEXT_BYTES_PER_THREAD

    @property
    def uses_winograd(self) -> bool:
        """Return True for GPUs without TF32 tensor cores, where cuDNN may use the Winograd algorithm for convolutions."""
        return not self.architecture.gcnArchName and "tf32" not in self.tflops

    @property
    def properties(self) -> DeviceProperties:
        return replace(self.architecture, multi_processor_count=self.multi_processors, L2_cache_size=self.l2_bytes)


_RATES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")


def _card(row: Mapping[str, str]) -> Card:
    tflops = {kind: float(row[kind]) for kind in _RATES if row[kind]}
    return Card(
        tuple(row["names"].split("|")), _ARCHITECTURES[row["architecture"]], int(row["multi_processors"]),
        int(row["l2_kib"]) * _KIB, int(row["memory_bytes"]), float(row["memory_gbps"]), tflops, _LINKS[row["link"]],
        row["source"], int(row["memory_side_cache_mib"] or 0) * _MIB,
    )  # fmt: skip


CARDS: tuple[Card, ...] = tuple(map(_card, _rows("cards.csv")))

# A GPU that is not in this file gets the properties of the oldest architecture that PyTorch supports.
UNKNOWN_CARD = Card(
    ("",), _ARCHITECTURES["Turing"], 40, 4 * _MIB, 16 * _GIB, 600, {"fp64": 0.3, "fp32": 10}, _LINKS["PCIe 3"], "none: assumed"
)

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
    # "ti" or "3080" alone does not denote an RTX 3080 Ti
    meant = [name for name, of in parts.items() if of & _VARIANTS < wanted <= of]
    if meant:
        nearest = min(meant, key=lambda name: len(parts[name]))
        return next(card for card in CARDS if nearest in card.names)
    raise unknown_gpu(text)


_WELL_KNOWN = "V100, T4, A100, H100, L4 or RTX 4090"


def unknown_gpu(text: str) -> TraceError:
    prefix = "^(nvidia|amd|tesla|geforce|quadro|instinct)+"
    short = {re.sub(prefix, "", _squeezed(name)): name for card in CARDS for name in card.names}
    hint = did_you_mean(re.sub(prefix, "", _squeezed(text)), short, shown=short) or f"give a name such as {_WELL_KNOWN}"
    return TraceError(f"unknown GPU: {text.strip() or '(empty name)'}; {hint}")


def _parts(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+|[0-9]+", name.lower()))


def _squeezed(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def known_properties(device: Device) -> DeviceProperties:
    """Return the properties of a GPU. Properties that were not recorded come from the data sheet."""
    return device.properties.completed_by(card_of(device.name).properties)
