"""Computes the total size, duration and rate of each kind of memory copy.

    transfers(trace)[0]             # TransferSum("Memcpy HtoD (Pageable -> Device)", count=6, bytes=..., ...)
    transfers(trace)[0].over_time   # (0.0, 1.7, ...): GB/s in equal parts of the trace's time
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.figures.measure import window_ns
from traces.model.trace import NONE, Column, DeviceKind, DeviceSpans, Trace

PARTS = 16


@dataclass(frozen=True, slots=True)
class TransferSum:
    """Contains the total size and duration of all copies of one kind."""

    kind: str  # such as "Memcpy HtoD (Pageable -> Device)"
    count: int  # number of copies
    bytes: int  # total size, without transfers of unknown size
    duration_ns: int  # total duration
    gbps: float | None  # None if all sizes are unknown
    over_time: tuple[float, ...]  # GB/s in equal parts of the trace's time; empty if all sizes are unknown


def transfers(trace: Trace) -> list[TransferSum]:
    start_ns, end_ns = window_ns(trace)
    edges = np.linspace(0, max(end_ns - start_ns, 1), PARTS + 1)
    found = []
    for kind, spans in _by_kind(trace).items():
        sized = spans.take((spans.bytes != NONE) & (spans.duration_ns > 0))
        moved, took_ns = int(sized.bytes.sum()), int(sized.duration_ns.sum())
        rate = moved / took_ns if took_ns else None
        duration_ns = int(spans.duration_ns.sum())
        found.append(TransferSum(kind, len(spans), moved, duration_ns, rate, _rates(sized, start_ns, edges)))
    return sorted(found, key=lambda of: (-of.bytes, of.kind))


def _rates(copies: DeviceSpans, start_ns: int, edges: Column) -> tuple[float, ...]:
    if not len(copies):
        return ()
    # assumes a constant rate during each copy
    rate = copies.bytes / copies.duration_ns
    times = np.concatenate([copies.start_ns, copies.end_ns]) - start_ns
    order = np.argsort(times, kind="stable")
    slope = np.cumsum(np.concatenate([rate, -rate])[order])
    moved = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(times[order]))])
    by_edge = np.interp(edges, times[order], moved, left=0.0)
    return tuple((np.diff(by_edge) / np.diff(edges)).tolist())


def _by_kind(trace: Trace) -> dict[str, DeviceSpans]:
    spans = trace.device.take(np.isin(trace.device.kind, (DeviceKind.MEMCPY, DeviceKind.MEMSET)))
    return {trace.strings[name]: spans.take(spans.name == name) for name in np.unique(spans.name).tolist()}
