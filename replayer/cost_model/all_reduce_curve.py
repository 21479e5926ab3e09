"""Estimates the duration of NCCL's all-reduce from measurements on other machines.

    curve = AllReduceCurve.of("NVIDIA A100-SXM4-40GB", ranks=8)
    curve.duration_ns(25 << 20)         # 266 000; Origin.PUBLISHED, since this card was measured

The measurements and their source are in `all_reduce.json`.

Note [Links without measurements]
    If a link has half the bandwidth of a measured link, its all-reduce of n bytes takes the measured time of 2n bytes. GPUs
    with a switch use the A100's measurements. GPUs with PCI Express or direct links use the V100's measurements.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from replayer.cost_model.constants import BASE_LATENCY_NS, SWITCHED_GBPS
from traces.model.trace import Origin
from traces.names.cards import Card, card_of

TABLE = Path(__file__).with_name("all_reduce.json")


def wire_share(ranks: int) -> float:
    """In a ring all-reduce of n ranks, each rank sends 2(n-1)/n times the tensor's bytes."""
    return 2 * (ranks - 1) / ranks if ranks > 1 else 0.0


@dataclass(frozen=True)
class AllReduceCurve:
    sizes: npt.NDArray[np.float64]  # sizes in bytes, in ascending order
    times_ns: npt.NDArray[np.float64]
    latency_ns: int
    origin: Origin

    @classmethod
    def of(cls, device_name: str, ranks: int, bus_gbps: float = 0) -> AllReduceCurve:
        """Return the all-reduce durations for a GPU model. `bus_gbps` replaces the measured bandwidth between GPUs."""
        return _curve(card_of(device_name), max(ranks, 2), bus_gbps)

    def duration_ns(self, size_bytes: float) -> float:
        sizes, times_ns = self.sizes, self.times_ns
        if size_bytes <= sizes[0]:  # interpolate between the latency and the first measured point
            first_ns = float(times_ns[0])
            latency_ns = min(self.latency_ns, first_ns)
            return latency_ns + (first_ns - latency_ns) * size_bytes / float(sizes[0])
        if size_bytes >= sizes[-1]:
            return float(times_ns[-1]) * size_bytes / float(sizes[-1])
        return float(np.exp(np.interp(np.log(size_bytes), np.log(sizes), np.log(times_ns))))


def forget_measurements() -> None:
    _curve.cache_clear()
    _measured.cache_clear()


@cache
def _curve(card: Card, ranks: int, bus_gbps: float) -> AllReduceCurve:
    own = {card_of(name): points for name, points in _measured().items()}
    like = next((other for other in own if (other.link, other.architecture) == (card.link, card.architecture)), None)
    is_measured = like is not None and ranks in own[like] and not bus_gbps
    if like is None:
        is_switched = card.link.all_gbps >= SWITCHED_GBPS
        like = max(own, key=lambda other: (other.link.all_gbps >= SWITCHED_GBPS) == is_switched)
    known = max(n for n in own[like] if n <= ranks)
    sizes, times_ns = own[like][known]
    reached_gbps = sizes[-1] * wire_share(known) / times_ns[-1]
    if not bus_gbps:
        bus_gbps = reached_gbps if like.link == card.link else card.link.ring_gbps
    # Each additional rank adds two steps to a ring all-reduce.
    steps_ns = 2 * (ranks - known) * card.link.hop_ns
    sizes = sizes * (wire_share(known) / wire_share(ranks)) * (bus_gbps / reached_gbps)
    latency_ns = BASE_LATENCY_NS + 2 * (ranks - 1) * card.link.hop_ns
    return AllReduceCurve(sizes, times_ns + steps_ns, latency_ns, Origin.PUBLISHED if is_measured else Origin.ROOFLINE)


@cache
def _measured() -> dict[str, dict[int, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]]:
    curves = json.loads(TABLE.read_text())["curves"]
    found: dict[str, dict[int, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]] = {}
    for name, by_ranks in curves.items():
        for ranks, points in by_ranks.items():
            kib, ns = np.array(points, dtype=np.float64).T
            found.setdefault(name, {})[int(ranks)] = kib * 1024, ns
    return found
