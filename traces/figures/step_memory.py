"""Measures how much the allocated memory of a GPU grows during a training step.

    step_rises(trace)   # {0: 2_791_636_480}: by index in `trace.devices`, the median over steady steps
"""

from __future__ import annotations

import numpy as np

from traces.model.row_order import by_value
from traces.model.trace import NONE, StepKind, Trace


def step_rises(trace: Trace) -> dict[int, int]:
    events, steps = trace.memory, trace.steps.take(trace.steps.kind == StepKind.STEADY)
    ranks = np.array([device.rank for device in trace.devices], dtype=np.int64)
    rises = {}
    for device, rows in by_value(events.device).items():
        if device == NONE:
            continue
        rows = rows[np.argsort(events.time_ns[rows], kind="stable")]
        of_rank = steps.take(steps.rank == ranks[device])
        first, last = np.searchsorted(events.time_ns[rows], [of_rank.start_ns, of_rank.end_ns])
        levels = np.concatenate(([0], np.cumsum(events.bytes[rows])))
        found = [int(levels[a : b + 1].max() - levels[a]) for a, b in zip(first.tolist(), last.tolist(), strict=True) if b > a]
        if found:
            rises[device] = sorted(found)[len(found) // 2]
    return rises
