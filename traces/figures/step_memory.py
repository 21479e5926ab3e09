"""Measures how much the allocated memory of a GPU grows during a training step.

    step_rises(trace)   # {0: 2_791_636_480}: by index in `trace.devices`, the median over steady steps
"""

from __future__ import annotations

import numpy as np

from traces.model.trace import NONE, StepKind, Trace


def step_rises(trace: Trace) -> dict[int, int]:
    events = trace.memory.take(trace.memory.device != NONE)
    events = events.take(np.argsort(events.time_ns, kind="stable"))
    steps = trace.steps.take(trace.steps.kind == StepKind.STEADY)
    ranks = np.array([device.rank for device in trace.devices], dtype=np.int64)
    rises = {}
    for device in np.unique(events.device).tolist():
        here = events.take(events.device == device)
        of_rank = steps.take(steps.rank == ranks[device])
        first = np.searchsorted(here.time_ns, of_rank.start_ns)
        last = np.searchsorted(here.time_ns, of_rank.end_ns)
        levels = np.concatenate(([0], np.cumsum(here.bytes)))
        found = [int(levels[a : b + 1].max() - levels[a]) for a, b in zip(first.tolist(), last.tolist(), strict=True) if b > a]
        if found:
            rises[device] = sorted(found)[len(found) // 2]
    return rises
