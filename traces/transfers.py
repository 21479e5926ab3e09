"""What copies move: by kind in all, and over time.

    transfers(trace)[0]                             # Transfers("Memcpy HtoD (Pageable -> Device)", count=6, bytes=..., ...)
    bandwidth_over_time(trace, bins=100)[0]         # of the same kind: gigabytes per second in each hundredth of the time

Bytes per nanosecond are gigabytes per second. The rate of a kind is its bytes over the time that its copies took, as the
"memory bandwidth" that a profiler writes at each copy is; the rate over time spreads a copy evenly over its duration and
divides by the clock, so that an idle bus shows as 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.measure import window_ns
from traces.model import NONE, Column, DeviceKind, DeviceSpans, Trace


@dataclass(frozen=True, slots=True)
class Transfers:
    """Copies or memsets of one kind, summed over devices; those of unknown size are counted, and are in no other figure."""

    kind: str
    count: int
    bytes: int
    duration_ns: int
    gbps: float | None  # None where no size is known


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """`gbps[i]` is what this kind moved from `start_ns + i * bin_ns` on, for `bin_ns`."""

    kind: str
    start_ns: int
    bin_ns: float
    gbps: Column


def transfers(trace: Trace) -> list[Transfers]:
    """By kind, most bytes first."""
    found = []
    for kind, spans in _by_kind(trace).items():
        sized = spans.take((spans.bytes != NONE) & (spans.duration_ns > 0))
        moved, took_ns = int(sized.bytes.sum()), int(sized.duration_ns.sum())
        found.append(Transfers(kind, len(spans), moved, took_ns, moved / took_ns if took_ns else None))
    return sorted(found, key=lambda of: (-of.bytes, of.kind))


def bandwidth_over_time(trace: Trace, bins: int = 200) -> list[Bandwidth]:
    """Of each kind with known sizes, over the whole trace."""
    start_ns, end_ns = window_ns(trace)
    edges = np.linspace(0, max(end_ns - start_ns, 1), bins + 1)
    found = []
    for kind, spans in _by_kind(trace).items():
        sized = spans.take((spans.bytes != NONE) & (spans.duration_ns > 0))
        if not len(sized):
            continue
        # What all copies have moved by a time is the sum of ramps; its slope changes where a copy begins and where it ends.
        rate = sized.bytes / sized.duration_ns
        times = np.concatenate([sized.start_ns, sized.end_ns]) - start_ns
        order = np.argsort(times, kind="stable")
        slope = np.cumsum(np.concatenate([rate, -rate])[order])
        moved = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(times[order]))])
        by_edge = np.interp(edges, times[order], moved, left=0.0)
        found.append(Bandwidth(kind, start_ns, float(edges[1]), np.diff(by_edge) / edges[1]))
    return found


def _by_kind(trace: Trace) -> dict[str, DeviceSpans]:
    """Copies and memsets by their names, which say from where to where."""
    rows = np.isin(trace.device.kind, (DeviceKind.MEMCPY, DeviceKind.MEMSET))
    spans = trace.device.take(rows)
    return {trace.strings[name]: spans.take(spans.name == name) for name in np.unique(spans.name).tolist()}
