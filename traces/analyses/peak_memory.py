"""Lists the ops and phases that allocated the memory at the memory peak of a device.

    peak = held_at_peak(trace, device=0)
    peak.held[0]          # Held("convolution", "forward", count=53, bytes=1_207_959_552): most bytes first
    peak.by_size          # True: the recording has no addresses, so frees were matched by size

Memory that was allocated before the recording began is not included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.figures.measure import enclosing, innermost_at, memory_curve, phase_names, phase_windows
from traces.model.trace import NONE, Column, HostKind, MemoryEvents, Trace
from traces.names.equivalent_ops import canonical_op

_REQUESTS = ("empty", "resize")  # name prefixes of ops that only allocate memory


@dataclass(frozen=True, slots=True)
class Held:
    op: str
    phase: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class HeldAtPeak:
    time_ns: int
    held: list[Held]
    by_size: bool  # addresses were not recorded, so each free was matched with an allocation of equal size


def held_at_peak(trace: Trace, device: int) -> HeldAtPeak | None:
    events = trace.memory.take(trace.memory.device == device)
    events = events.take(np.argsort(events.time_ns, kind="stable"))
    if not len(events):
        return None
    curve = memory_curve(trace, device)
    time_ns = int(curve.time_ns[np.argmax(curve.allocated_bytes)])
    events = events.take(events.time_ns <= time_ns)
    by_size = not events.address[events.bytes > 0].all()
    rows = _not_freed(events, by_size)
    rank = trace.devices[device].rank
    op = _ops(trace, events.take(rows), rank)
    phase = phase_names(trace)[phase_windows(trace).holding(events.time_ns[rows], np.full(len(rows), rank))].tolist()
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for key in zip(op, phase, events.bytes[rows].tolist(), strict=True):
        count, size = sums.get(key[:2], (0, 0))
        sums[key[:2]] = count + 1, size + key[2]
    held = [Held(*key, count, size) for key, (count, size) in sums.items()]
    return HeldAtPeak(time_ns, sorted(held, key=lambda one: (-one.bytes, one.op, one.phase)), by_size)


def _not_freed(events: MemoryEvents, by_size: bool) -> Column:
    key = np.abs(events.bytes) if by_size else events.address
    order = np.argsort(key, kind="stable")
    allocates = events.bytes[order] > 0
    last = np.append(key[order][1:] != key[order][:-1], True)
    if not by_size:
        return np.sort(order[last & allocates])
    # If memory addresses were not recorded, each free is assumed to release the newest block of its size.
    held = np.cumsum(np.where(allocates, 1, -1))
    bounds = np.flatnonzero(last) + 1
    rows = [np.zeros(0, dtype=np.int64)]
    for begin, end in zip(np.append(0, bounds[:-1]).tolist(), bounds.tolist(), strict=True):
        level = held[begin:end]
        lowest = np.append(np.minimum.accumulate(level[::-1])[::-1][1:], np.iinfo(np.int64).max)
        rows.append(order[begin:end][allocates[begin:end] & (lowest >= level)])
    return np.sort(np.concatenate(rows))


def _ops(trace: Trace, events: MemoryEvents, rank: int) -> list[str]:
    """Return the op that allocated or freed the memory in each memory event."""
    host = trace.host
    if not len(host) or not len(events):
        return [""] * len(events)
    found = np.full(len(events), NONE, dtype=np.int64)
    for thread in np.unique(events.thread).tolist():
        threads = [thread] if thread != NONE else [n for n, of in enumerate(trace.threads) if of.rank == rank]
        own, selected = np.flatnonzero(np.isin(host.thread, threads)), np.flatnonzero(events.thread == thread)
        found[selected] = innermost_at(host, own, events.time_ns[selected])
    asks = trace.strings.matching(host.name, lambda text: canonical_op(text).startswith(_REQUESTS))
    around, asked_for = (enclosing(host, (host.kind == HostKind.OP) & mask) for mask in (~asks, asks))
    names = []
    for row in found.tolist():
        op = NONE if row == NONE else int(around[row]) if around[row] != NONE else int(asked_for[row])
        names.append(canonical_op(trace.strings[int(host.name[op])]) if op != NONE else "")
    return names
