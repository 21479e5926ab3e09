"""Measures training phases in three ways: host time, time between CUDA events, and GPU busy time.

    phase_medians(trace, steady_steps(trace), profiled_steps(trace))["forward"]
    # PhaseMedians(median_ns=31_200_000, device_median_ns=48_100_000, busy_median_ns=45_900_000)

Note [Phase times add up to the step time]
    The medians of the phases may add up to much less than the median step time, because one step is long in its forward phase
    and another in its backward phase. If the sum differs from the median step time by more than DEFAULT_TOLERANCE, the phase
    times are the means over the steps that differ from the median step time by at most half of DEFAULT_TOLERANCE. One or two
    steps say little about the phases: for example, these steps may have no `h2d`. If fewer than FEWEST_ALIKE steps are near the
    median, the means of the three or four middle steps are used. If the mean step time of the middle steps is not near the
    median either, the phase times of the median step are used. An even number of steps has two median steps.

    With several ranks, a phase may be short on one half of the ranks and long on the other half. The median over all ranks
    would then depend on chance. Phase times are therefore computed for each rank, and the result is the mean of the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from traces.analyses.waits import host_waits
from traces.comparison.thresholds import DEFAULT_TOLERANCE, FEWEST_ALIKE
from traces.figures.measure import phase_busy_ns, phase_times
from traces.figures.pace import period_of_steps, step_times
from traces.figures.spread import are_usual, mean, median, median_per_step
from traces.model.row_order import by_value
from traces.model.trace import Column, Trace


@dataclass(frozen=True, slots=True)
class PhaseMedians:
    """Stores the median times of one training phase, such as "backward"."""

    median_ns: int | None = None  # host time
    device_median_ns: int | None = None  # time between CUDA events
    busy_median_ns: int | None = None  # GPU busy time


def phase_medians(
    trace: Trace, timed: Column, with_kernels: Column, period: int | None = None, *, means: bool = False
) -> dict[str, PhaseMedians]:
    """Return the times of each phase. For the arguments `period` and `means`, see `phase_average`."""
    busy_ns = phase_busy_ns(trace)
    average, busy_average = (phase_average(trace, rows, period, means=means) for rows in (timed, with_kernels))
    return {
        name: PhaseMedians(
            median_ns=average(times.host_ns),
            device_median_ns=None if times.device_ns is None else average(times.device_ns, ~times.is_untimed),
            busy_median_ns=busy_average(busy_ns[name]) if name in busy_ns else None,
        )
        for name, times in phase_times(trace).items()
    }


def phase_average(
    trace: Trace, rows: Column, period: int | None = None, *, means: bool = False
) -> Callable[..., int | None]:
    """Return a function that averages a time over the steps in `rows`. If `means` is true, the returned function computes the
    mean. Otherwise, the returned function computes the median of the means over each `period` of steps. The default of `period`
    is the period of the step times. The returned function takes an array with one time for each step of the trace and,
    optionally, a mask of the steps whose time is known."""
    # see Note [Phase times add up to the step time]
    times = step_times(trace)
    length = period or period_of_steps(times, rows)
    phases_ns = [of.host_ns for of in phase_times(trace).values()]
    steps_ns = sum(phases_ns, np.zeros(len(trace.steps), dtype=np.int64))
    chosen = list[tuple[Column, bool]]()  # the steps of each rank, and True if their mean is used
    for of_rank in by_value(times.rank[rows]).values():
        own = rows[of_rank]
        has_mean = means
        if means:
            own = own[are_usual(times.host_interval_ns[own])]
        elif length == 1 and not _add_up([median(of[own]) for of in phases_ns], median(steps_ns[own])):
            own, has_mean = own[_near_median(steps_ns[own])], True
        chosen.append((own, has_mean))

    def average(values: Column, is_known: Column | None = None) -> int | None:
        known = [(values[own if is_known is None else own[is_known[own]]], has_mean) for own, has_mean in chosen]
        found = [mean(of) if has_mean else median_per_step(of, length) for of, has_mean in known if len(of)]
        return mean(np.array(found)) if found else None

    return average


def _add_up(phases_ns: list[int | None], step_ns: int | None) -> bool:
    return abs(sum(of or 0 for of in phases_ns) - (step_ns or 0)) <= DEFAULT_TOLERANCE * (step_ns or 0)


def _near_median(values: Column) -> Column:
    """Return the positions of the values near the median. If there are too few, return the positions of the middle values."""
    median_ns, order = np.median(values), np.argsort(values, kind="stable")
    limit_ns = DEFAULT_TOLERANCE / 2 * median_ns
    near = np.flatnonzero(np.abs(values - median_ns) <= limit_ns)
    if len(near) >= FEWEST_ALIKE:
        return near
    few, fewest = (order[cut : len(order) - cut] for cut in (max((len(order) - FEWEST_ALIKE) // 2, 0), (len(order) - 1) // 2))
    return few if abs(values[few].mean() - median_ns) <= limit_ns else fewest


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
