"""Compares the times of the parts of nn.DataParallel in two traces: scatter, each replica, gather...

    part_errors(recorded, ours, other, theirs)["scatter"].error     # 0.01: 1 % longer

The device is added to the name of a part that runs on several devices: "parallel_apply (cuda:1)".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.figures.measure import grouped
from traces.figures.spread import median, relative_error
from traces.model.trace import NONE, Column, Parts, Trace

_ABSENT = 1 << 30  # sorts after every real place
Key = tuple[str, str]  # the part's name, and the label of its device or ""


@dataclass(frozen=True, slots=True)
class PartError:
    """A part's median time on the host, and between two CUDA events on its device. None: not in that trace."""

    recorded_median_ns: int | None
    replayed_median_ns: int | None
    error: float | None
    device_recorded_median_ns: int | None
    device_replayed_median_ns: int | None
    device_error: float | None


def part_errors(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> dict[str, PartError]:
    """Return the errors of the parts in these steps (rows of both traces), in the order in which they run."""
    a, b = _by_key(recorded, ours), _by_key(other, theirs)
    keys = sorted(a.keys() | b.keys(), key=lambda key: min(_place(of, key) for of in (a, b)))
    devices: dict[str, set[str]] = {}
    for name, device in keys:
        devices.setdefault(name, set()).add(device)
    return {
        f"{name} ({device})" if len(devices[name]) > 1 else name: _error(a.get((name, device)), b.get((name, device)))
        for name, device in keys
    }


def _by_key(trace: Trace, steps: Column) -> dict[Key, Parts]:
    """Return the parts in these steps by name and device."""
    step_of = np.append(trace.phases.step, NONE)[trace.parts.phase]
    parts = trace.parts.take(np.isin(step_of, steps) & (trace.parts.phase != NONE))
    found: dict[Key, Parts] = {}
    for rows in map(parts.take, sorted(grouped(parts.name, parts.device), key=lambda rows: int(rows[0]))):
        device = int(rows.device[0])
        found[trace.strings[rows.name[0]], trace.device_label(device) if device != NONE else ""] = rows
    return found


def _place(parts: dict[Key, Parts], key: Key) -> tuple[int, str]:
    """Return the sort key of a part: where it first occurs in the trace, then its device."""
    return (list(parts).index(key) if key in parts else _ABSENT, key[1])


def _error(ours: Parts | None, theirs: Parts | None) -> PartError:
    host = [None if parts is None else median(parts.duration_ns) for parts in (ours, theirs)]
    device = [None if parts is None else _device_median(parts) for parts in (ours, theirs)]
    return PartError(host[0], host[1], relative_error(*host), device[0], device[1], relative_error(*device))


def _device_median(parts: Parts) -> int | None:
    timed = (parts.device_start_ns != NONE) & (parts.device_end_ns != NONE)
    return median((parts.device_end_ns - parts.device_start_ns)[timed])
