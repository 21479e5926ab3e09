"""Determines a GPU's memory bandwidth and shortest kernel duration.

    speed = data_sheet_speed("Tesla T4")         # DeviceSpeed(bytes_per_ns=192.0, floor_ns=1500)
    fitted_speed([(4_000_000, 40_000)] * 5, speed)      # bytes and ns of recorded ops: bytes_per_ns=100.0
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from replayer.cost_model.constants import BANDWIDTH_REACHED, KERNEL_FLOOR_NS, LONGEST_FLOOR_NS
from traces.model.trace import Column
from traces.names.cards import card_of


@dataclass(frozen=True)
class DeviceSpeed:
    bytes_per_ns: float
    floor_ns: int = KERNEL_FLOOR_NS


def data_sheet_speed(device_name: str) -> DeviceSpeed:
    return DeviceSpeed(card_of(device_name).memory_gbps * BANDWIDTH_REACHED)


def fitted_speed(samples: Iterable[tuple[int, int]], fallback: DeviceSpeed) -> DeviceSpeed:
    """Return the 90th percentile of the memory bandwidths that long ops reach. Return `fallback` for fewer than five ops."""
    reached = sorted(size_bytes / ns for size_bytes, ns in samples if size_bytes)
    return replace(fallback, bytes_per_ns=reached[len(reached) * 9 // 10]) if len(reached) >= 5 else fallback


def shortest_kernel_ns(durations_ns: Column) -> int:
    shortest_ns = int(np.percentile(durations_ns, 1)) if len(durations_ns) >= 100 else KERNEL_FLOOR_NS
    return shortest_ns if 0 < shortest_ns <= LONGEST_FLOOR_NS else KERNEL_FLOOR_NS
