"""Measures training phases in three ways: host time, time between CUDA events, and GPU busy time.

    phase_medians(trace, steady_steps(trace), profiled_steps(trace))["forward"]
    # PhaseMedians(median_ns=31_200_000, device_median_ns=48_100_000, busy_median_ns=45_900_000)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from traces.analyses.waits import host_waits
from traces.figures.measure import PhaseTimes, phase_busy_ns, phase_times
from traces.figures.pace import period_of_steps, step_times
from traces.figures.spread import median_per_step
from traces.model.trace import Column, Trace


@dataclass(frozen=True, slots=True)
class PhaseMedians:
    """Stores the median times of one training phase, such as "backward"."""

    median_ns: int | None = None  # host time
    device_median_ns: int | None = None  # time between CUDA events
    busy_median_ns: int | None = None  # GPU busy time


def phase_medians(
    trace: Trace, timed: Column, with_kernels: Column, average: Callable[[Column], int | None] | None = None
) -> dict[str, PhaseMedians]:
    busy_ns = phase_busy_ns(trace)
    average = average or partial(median_per_step, period=period_of_steps(step_times(trace), timed))
    return {
        name: PhaseMedians(
            median_ns=average(times.host_ns[timed]),
            device_median_ns=_between_events_ns(times, timed, average),
            busy_median_ns=average(busy_ns[name][with_kernels]) if name in busy_ns else None,
        )
        for name, times in phase_times(trace).items()
    }


def phase_waits_ns(trace: Trace) -> dict[str, Column]:
    phases, found = trace.phases, dict[str, Column]()
    rank_of_phase = trace.steps.rank[phases.step]
    for rank in trace.ranks:
        waits = host_waits(trace, rank).intervals
        if not waits.total_ns:
            continue
        rows = np.flatnonzero(rank_of_phase == rank)
        waited_ns = waits.within(phases.start_ns[rows], phases.end_ns[rows])
        for name in np.unique(phases.name[rows]).tolist():
            of = phases.name[rows] == name
            sums = found.setdefault(trace.strings[name], np.zeros(len(trace.steps), dtype=np.int64))
            np.add.at(sums, phases.step[rows[of]], waited_ns[of])
    return found


def _between_events_ns(times: PhaseTimes, timed: Column, average: Callable[[Column], int | None]) -> int | None:
    if times.device_ns is None:
        return None
    known = timed[~times.is_untimed[timed]]
    return average(times.device_ns[known]) if len(known) else None
