"""Estimates the duration of an unrecorded copy as bytes divided by bandwidth.

    transfers = CopyCosts.of(trace, speed)
    transfers.copy("h2d", pinned=True, size_bytes=77_070_336)    # 6 370 947 ns, Origin.PUBLISHED without recorded copies

The bandwidth is measured from recorded copies in the same direction. If the recording has no copies in that direction, the
estimate uses a published bandwidth.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

import numpy as np

from replayer.cost_model.constants import BANDWIDTH_FROM_BYTES, KERNEL_FLOOR_NS, PAGEABLE_GBPS, PINNED_GBPS
from replayer.cost_model.device_speed import DeviceSpeed
from traces.model.trace import DeviceKind, Origin, Trace
from traces.names.cards import card_of
from traces.names.device_names import copy_direction

_HOST = ("h2d", "d2h")

CopyKind = tuple[str, bool]  # ("h2d", "d2h", "d2d" or "p2p"; True for pinned memory)

_LABELS = {
    ("h2d", True): "Memcpy HtoD (Pinned -> Device)", ("h2d", False): "Memcpy HtoD (Pageable -> Device)",
    ("d2h", True): "Memcpy DtoH (Device -> Pinned)", ("d2h", False): "Memcpy DtoH (Device -> Pageable)",
    ("d2d", False): "Memcpy DtoD (Device -> Device)", ("p2p", False): "Memcpy PtoP (Device -> Device)",
}  # fmt: skip


class Copy(NamedTuple):
    label: str
    size_bytes: int
    duration_ns: int
    origin: Origin
    others: frozenset[int]
    kind: DeviceKind = DeviceKind.MEMCPY


class CopyCosts:
    def __init__(self, speed: DeviceSpeed, device_name: str = "") -> None:
        self.slowdown = 1.0  # slowdown of this GPU, see RecordedRun
        # bandwidth in bytes per ns
        self._bandwidths: dict[CopyKind, tuple[float, Origin]] = {
            ("h2d", True): (PINNED_GBPS, Origin.PUBLISHED),
            ("h2d", False): (PAGEABLE_GBPS, Origin.PUBLISHED),
            ("d2h", True): (PINNED_GBPS, Origin.ROOFLINE),
            ("d2h", False): (PAGEABLE_GBPS, Origin.ROOFLINE),
            ("d2d", False): (speed.bytes_per_ns / 2, Origin.ROOFLINE),
            ("p2p", False): (card_of(device_name).link.copy_gbps, Origin.ROOFLINE),
        }
        self._latencies_ns: dict[CopyKind, int] = {}  # time of a copy of 0 bytes, estimated from small recorded copies
        self._others: dict[CopyKind, frozenset[int]] = {}  # names of recorded copies of other kinds

    @classmethod
    def of(cls, trace: Trace, speed: DeviceSpeed, given_link_gbps: float = 0) -> CopyCosts:
        """For each kind of memory copy, use the median bandwidth of the recording's copies of at least 64 KiB."""
        transfers = cls(speed, trace.devices[0].name if trace.devices else "")
        device = trace.device
        copies = (device.kind == DeviceKind.MEMCPY) & (device.duration_ns > 0)
        rows = zip(*(column[copies].tolist() for column in (device.name, device.bytes, device.duration_ns)), strict=True)
        rates: dict[CopyKind, list[float]] = {}
        small_ns: dict[CopyKind, list[int]] = {}
        kinds = {name: _kinds(trace.strings[name]) for name in np.unique(device.name[copies]).tolist()}
        for name, size_bytes, duration_ns in rows:
            for kind in kinds[name]:
                if size_bytes >= BANDWIDTH_FROM_BYTES:
                    rates.setdefault(kind, []).append(size_bytes / duration_ns)
                elif size_bytes >= 0:
                    small_ns.setdefault(kind, []).append(duration_ns)
        transfers._bandwidths |= {kind: (median(values), Origin.SCALED) for kind, values in rates.items()}
        if given_link_gbps:
            transfers._bandwidths["p2p", False] = given_link_gbps, Origin.ROOFLINE
        transfers._latencies_ns = {kind: int(median(values)) for kind, values in small_ns.items()}
        for direction in _HOST:
            transfers._bound(direction)
        for key in _LABELS:
            of_host = (name for name, those in kinds.items() if those and those[0][0] in _HOST and key not in those)
            transfers._others[key] = frozenset(of_host)
        return transfers

    def _bound(self, direction: str) -> None:
        (pinned, of_pinned), (pageable, of_pageable) = (self._bandwidths[direction, kind] for kind in (True, False))
        if pageable <= pinned or of_pinned == of_pageable:
            return
        if of_pageable is Origin.SCALED:
            self._bandwidths[direction, True] = pageable, Origin.ROOFLINE
        else:
            self._bandwidths[direction, False] = pinned, Origin.ROOFLINE

    def copy(self, kind: str, pinned: bool, size_bytes: int) -> Copy:
        """Return a copy with its estimated duration. `kind` is "h2d" (CPU to GPU), "d2h", "d2d" or "p2p" (between GPUs)."""
        key = (kind, pinned and kind in _HOST)
        bandwidth, origin = self._bandwidths[key]
        duration_ns = int(size_bytes / bandwidth) + self._latencies_ns.get(key, KERNEL_FLOOR_NS)
        return Copy(_LABELS[key], size_bytes, round(duration_ns * self.slowdown), origin, self._others.get(key, frozenset()))

    def read(self, size_bytes: int) -> Copy:
        copy = self.copy("d2h", False, size_bytes)
        return copy._replace(others=copy.others & self._others.get(("d2h", True), frozenset()))


def directions_of(trace: Trace) -> dict[int, str]:
    """Map each recorded copy's name to its direction: "h2d" (CPU to GPU), "d2h" or "p2p" (between GPUs)."""
    names = np.unique(trace.device.name[trace.device.kind == DeviceKind.MEMCPY]).tolist()
    found = {name: _kinds(trace.strings[name]) for name in names}
    return {name: kinds[0][0] for name, kinds in found.items() if kinds and kinds[0][0] != "d2d"}


def _kinds(name: str) -> list[CopyKind]:
    direction = copy_direction(name)
    if not direction:
        return []
    if direction not in _HOST:
        return [(direction, False)]
    return [(direction, pinned) for pinned, mark in ((True, "Pageable"), (False, "Pinned")) if mark not in name]
