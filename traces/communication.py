"""What the ranks of a run say to each other: bytes by operation, and how much of its time the GPUs have nothing else to do.

    facts = communication(trace)
    facts["operations"][0]      # {"name": "all_reduce", "phase": "backward", "count": 40, "bytes": 187032, ...}
    facts["exposed_ns"]         # the device only communicated (or waited for another rank to)
    facts["hidden_ns"]          # it computed meanwhile

A communication kernel runs from when its own rank is ready until the slowest one's data has arrived, so exposed time includes
waiting for slower ranks, as the kernels of a recording do.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from traces.model import NONE, Column, DeviceKind, Ending, Trace

_KERNEL = re.compile(r"(?:nccl|rccl|msccl)", re.IGNORECASE)
_WORK = (DeviceKind.KERNEL, DeviceKind.MEMCPY, DeviceKind.MEMSET)


def communication_kernels(trace: Trace) -> Column:
    """A mask over the device table: kernels of NCCL and its kind. All false where no collective is recorded, for
    nn.DataParallel copies by NCCL's kernels too, and those belong to the ops that launch them."""
    if not len(trace.collectives):
        return np.zeros(len(trace.device), dtype=bool)
    names = [name for name in np.unique(trace.device.name).tolist() if _KERNEL.search(trace.strings[name])]
    return np.asarray((trace.device.kind == DeviceKind.KERNEL) & np.isin(trace.device.name, names))


def communication(trace: Trace) -> dict[str, Any]:
    """Per operation (and phase that it was called in) count, bytes and time; and exposed against hidden time.

    Times are nanoseconds, summed over ranks and devices, and `steps` is the sum of the ranks' steps; bytes are those of
    each rank's input, None where not recorded. Of operations whose end nobody saw no time is in the sum, and of those that
    had ended when somebody looked the most that it can have been.
    """
    kernels = communication_kernels(trace)
    total_ns = hidden_ns = 0
    work = np.isin(trace.device.kind, _WORK)
    for device in np.unique(trace.device.device[kernels]).tolist():
        on = trace.device.device == device
        start, end = _union(trace, on & kernels)
        other_start, other_end = _union(trace, on & work & ~kernels)
        total_ns += int((end - start).sum())
        busy = _covered(other_start, other_end, end) - _covered(other_start, other_end, start)
        hidden_ns += int(busy.sum())
    times_ns = {"exposed_ns": total_ns - hidden_ns, "hidden_ns": hidden_ns}
    return {"operations": _operations(trace), **times_ns, "steps": len(trace.steps)}


def _operations(trace: Trace) -> list[dict[str, Any]]:
    table, phases = trace.collectives, trace.phases
    called_in = np.full(len(table), NONE)
    ranks = trace.steps.rank[phases.step] if len(phases) else np.zeros(0, int)
    for rank in np.unique(table.rank).tolist():
        own, theirs = np.flatnonzero(table.rank == rank), np.flatnonzero(ranks == rank)
        order = theirs[np.argsort(phases.start_ns[theirs], kind="stable")]
        if not len(order):
            continue
        at = order[np.maximum(np.searchsorted(phases.start_ns[order], table.start_ns[own], side="right") - 1, 0)]
        inside = (phases.start_ns[at] <= table.start_ns[own]) & (table.start_ns[own] < phases.end_ns[at])
        called_in[own] = np.where(inside, phases.name[at], NONE)
    found = []
    for name, phase in sorted(set(zip(table.name.tolist(), called_in.tolist(), strict=True))):
        rows = (table.name == name) & (called_in == phase)
        known = bool((table.bytes[rows] != NONE).all())
        found.append(
            {
                "name": trace.strings[name],
                "phase": trace.strings[phase],
                "count": int(rows.sum()),
                "bytes": int(table.bytes[rows].sum()) if known else None,
                "duration_ns": int(table.duration_ns[rows & (table.ending != Ending.UNSEEN)].sum()),
            }
        )
    return sorted(found, key=lambda row: (-(row["bytes"] or 0), -row["count"], row["name"], row["phase"]))


def _union(trace: Trace, mask: Column) -> tuple[Column, Column]:
    """The masked device rows as disjoint intervals in order: their starts and ends."""
    rows = np.flatnonzero(mask)
    rows = rows[np.argsort(trace.device.start_ns[rows], kind="stable")]
    start, reach = trace.device.start_ns[rows], np.maximum.accumulate(trace.device.end_ns[rows])
    begins = np.flatnonzero(np.append(True, start[1:] > reach[:-1])) if len(rows) else np.zeros(0, int)
    ends = np.append(begins[1:], len(rows)) - 1 if len(rows) else begins
    return start[begins], reach[ends]


def _covered(start: Column, end: Column, times_ns: Column) -> Column:
    """How much of the intervals lies before each time."""
    if not len(start):
        return np.zeros(len(times_ns), dtype="i8")
    before = np.append(0, np.cumsum(end - start))
    at = np.searchsorted(start, times_ns, side="right")
    last = np.maximum(at - 1, 0)
    return np.where(at > 0, before[last] + np.minimum(times_ns, end[last]) - start[last], 0)
