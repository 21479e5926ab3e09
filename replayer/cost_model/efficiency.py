"""Predicts how many times longer an operator takes than the roofline model says.

    curves = EfficiencyCurves.installed()
    curves.slower("matmul", (1, 4096, 4096, 4096), card_of("NVIDIA A100-PCIE-40GB"))    # 1.2, Origin.PUBLISHED

The predictions come from small neural networks. The networks were trained on operator durations that the NeuSight project
measured on five GPUs (benchmarks/cost_tables.py).

Note [GPUs without measurements]
    A GPU uses the network of a measured GPU if both have the same design and the same number of multiprocessors. All other GPUs
    use the geometric mean of all networks.

Note [Sustained clocks]
    A GPU board with 75 W or less cannot sustain the clock rate in its data sheet. The estimate compares the FLOP/s per watt of
    such a board and of the largest board from the same manufacturing process. The clock rate is divided by the square root of
    the ratio of these values. Power grows with the square of the clock rate. A T4 therefore reaches 5.6 of 8.1 TFLOP/s.

Note [Shared lanes]
    A multiprocessor with 128 fp32 lanes (compute capability 8.6, 8.9, and 9.0 or later) cannot run loads and multiplications in
    parallel. Matrix products therefore reach about 0.75 of the data sheet's FLOP/s. For example, a 4070 Ti reaches 29.2 of 40.1
    TFLOP/s (github.com/Yinghan-Li/YHs_Sample/issues/4).
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Required, TypedDict

import numpy as np
import numpy.typing as npt

from replayer.cost_model.constants import CURVE_LIMITS, MEASURED_TENSORS, SHARED_LANES_REACHED, SLOT_POWERED
from traces.model.trace import Origin
from traces.names.cards import Card, card_of

Floats = npt.NDArray[np.float64]

_INSTALLED = Path(__file__).with_name("efficiency.npz")
ELSEWHERE = "TRACE_EFFICIENCY"  # environment variable for another curve file

ROWS_KINDS = tuple(MEASURED_TENSORS)

NETS = {
    "matmul": "matmul", "conv": "matmul", "conv_weight": "matmul", "conv3": "conv3", **dict.fromkeys(ROWS_KINDS, "rows"),
}  # fmt: skip


def features(net: str, kinds: Floats, sizes: Floats, moved_bytes: Floats, flops: Floats, peaks: Floats) -> Floats:
    """Return the input matrix of the neural network `net`. Each row describes one operator.

    Args:
        net: "matmul", "conv3" or "rows" (softmax, layer norm and elementwise operators)
        kinds: indices into `ROWS_KINDS`, for "rows"
        sizes: see op_work.py
        peaks: columns GFLOP/s, GB/s and number of multiprocessors
    """
    within = np.clip(sizes, 1, np.array(CURVE_LIMITS[net], dtype=np.float64))
    part = (within / np.maximum(sizes, 1)).prod(1)
    sizes, flops, moved_bytes, log = within, flops * part, moved_bytes * part, np.log2(within)
    flops_time, bytes_time = np.log2(np.maximum(flops, 1) / peaks[:, 0]), np.log2(moved_bytes / peaks[:, 1])
    bytes_time = np.clip(bytes_time, 0, 27)
    if net == "rows":
        which = np.eye(len(ROWS_KINDS))[kinds.astype(int)]
        aligned = _aligned(sizes[:, 1:2])
        per_processor = np.log2(np.maximum(sizes[:, 0] / peaks[:, 2], 0.01)).clip(-6, 14)
        return np.hstack([log, _columns(bytes_time, per_processor), aligned, which])
    if net == "conv3":
        rows, columns = sizes[:, 0] * sizes[:, 3], sizes[:, 2]
        aligned = _aligned(sizes[:, 1:3])
        more = log.sum(1, keepdims=True) * 0
    else:
        rows, columns = sizes[:, 0] * sizes[:, 1], sizes[:, 2]
        aligned = _aligned(sizes[:, 1:4])
        more = (sizes[:, :1] == 1).astype(np.float64)
    waves = np.ceil(rows / 128) * np.ceil(columns / 128) / peaks[:, 2]
    last = np.where((waves > 0.5) & (waves < 8), np.ceil(waves) / np.maximum(waves, 1e-3), 0.0)
    times = _columns(flops_time.clip(0, 27), bytes_time, np.log2(waves).clip(-6, 8), last)
    return np.hstack([log, times, aligned, more])


def _columns(*columns: Floats) -> Floats:
    return np.array(columns, dtype=np.float64).T


def _aligned(sizes: Floats) -> Floats:
    """Return 1 for multiples of 32, 0.5 for other multiples of 4, and 0 for all other sizes."""
    return np.asarray((sizes % 4 == 0) * 0.5 + (sizes % 32 == 0) * 0.5, dtype=np.float64)


def peaks_of(card: Card, unit: str = "fp32") -> tuple[float, float, float]:
    tflops = card.tflops.get(unit, card.tflops["fp32"]) * _sustained(card)
    of = card.architecture
    if (unit == "fp32" or unit not in card.tflops) and not of.gcnArchName and of.capability > (8, 0):
        tflops *= SHARED_LANES_REACHED
    return tflops * 1e3, card.memory_gbps, float(card.multi_processors)


def clock_ghz(card: Card) -> float:
    """Return the clock rate at which the GPU reaches its fp32 peak."""
    lanes = 128 if card.architecture.capability > (8, 0) else 64
    return card.tflops["fp32"] * _sustained(card) * 1e3 / (2 * lanes * card.multi_processors)


@cache
def _sustained(card: Card) -> float:
    # see Note [Sustained clocks]
    limit = SLOT_POWERED.get(card.names[0])
    if limit is None:
        return 1.0
    watts, like, like_watts = limit
    return math.sqrt(min(1.0, watts / like_watts * card_of(like).tflops["fp32"] / card.tflops["fp32"]))


def roofline_ns(flops: float, size_bytes: float, peaks: tuple[float, float, float]) -> float:
    return max(flops / peaks[0], size_bytes / peaks[1])


@dataclass(frozen=True)
class _Net:
    mean: Floats
    scale: Floats
    embeddings: Floats
    fastest: Floats  # for each GPU, the lower limit of the curve outside of the measured range
    layers: tuple[tuple[Floats, Floats], ...]

    def log_slower(self, inputs: Floats, gpu: int) -> Floats:
        values = np.hstack([(inputs - self.mean) / self.scale, np.tile(self.embeddings[gpu], (len(inputs), 1))])
        for weight, bias in self.layers[:-1]:
            values = np.tanh(values @ weight.T + bias)
        weight, bias = self.layers[-1]
        logs: Floats = np.maximum((values @ weight.T + bias)[:, 0], self.fastest[gpu])
        return logs


def network_name(net: str, seed: int) -> str:
    return f"{net}{seed or ''}"


def _net(file: Any, name: str) -> _Net:
    layers = tuple((file[f"{name}_w{i}"].astype(np.float64), file[f"{name}_b{i}"].astype(np.float64)) for i in range(3))
    mean, scale, embeddings, fastest = (
        file[f"{name}_{part}"].astype(np.float64) for part in ("mean", "scale", "embeddings", "fastest")
    )
    return _Net(mean, scale, embeddings, fastest, layers)


class _About(TypedDict, total=False):
    seeds: int
    gpus: Required[dict[str, list[str]]]  # for each network, the measured GPUs


class EfficiencyCurves:
    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            self.about: _About = json.loads(str(file["about"]))
            self._nets = {
                net: [_net(file, network_name(net, seed)) for seed in range(self.about.get("seeds", 1))]
                for net in self.about["gpus"]
            }

    @classmethod
    def installed(cls) -> EfficiencyCurves:
        return _read(os.environ.get(ELSEWHERE) or str(_INSTALLED))

    def slower(
        self, kind: str, sizes: tuple[int, ...], size_bytes: int, flops: int, card: Card, unit: str = "fp32"
    ) -> tuple[float, Origin]:
        net = NETS[kind]
        gpus, origin = _measured_gpus_like(tuple(self.about["gpus"][net]), card)
        index = np.array([ROWS_KINDS.index(kind) if net == "rows" else 0], dtype=np.float64)
        row = np.array([sizes], dtype=np.float64)
        moved, work = np.array([size_bytes], dtype=np.float64), np.array([flops], dtype=np.float64)
        inputs = features(net, index, row, np.maximum(moved, 1), work, np.array([peaks_of(card, unit)]))
        logs = [of.log_slower(inputs, gpu)[0] for of in self._nets[net] for gpu in gpus]
        return float(np.exp(np.mean(logs))), origin


@cache
def _measured_gpus_like(gpus: tuple[str, ...], card: Card) -> tuple[tuple[int, ...], Origin]:
    # see Note [GPUs without measurements]
    cards = [card_of(name) for name in gpus]
    if card in cards:
        return (cards.index(card),), Origin.PUBLISHED
    design = card.architecture, card.multi_processors
    alike = [i for i, like in enumerate(cards) if (like.architecture, like.multi_processors) == design]
    return tuple(alike[:1] or range(len(cards))), Origin.CURVE


@cache
def _read(path: str) -> EfficiencyCurves:
    return EfficiencyCurves(Path(path))
