"""Computes statistics of data loading, collective operations and nn.DataParallel stages.

    input_pipeline(trace).wait_per_step_ns      # 2100000: median wait for batches per step
    collectives(trace)[0]                       # CollectiveTotals("all_reduce", "nccl", count=40, ...)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.figures.measure import steady_steps, step_windows
from traces.figures.spread import median, median_per_step
from traces.figures.stage_times import by_stage, device_median
from traces.model.intervals import TimeWindows
from traces.model.row_order import grouped
from traces.model.run import LoaderSettings
from traces.model.trace import NONE, Batches, BatchKind, Column, Ending, StepKind, Trace


@dataclass(frozen=True, slots=True)
class StepsOfKind:
    count: int
    median_ns: int


@dataclass(frozen=True, slots=True)
class InputPipeline:
    """Stores the time that the script spent waiting for batches and copying them to pinned memory."""

    loaders: list[LoaderSettings]
    waits: int
    wait_median_ns: int | None
    wait_total_ns: int
    wait_per_step_ns: int | None  # median over `steady_steps`
    batch_bytes: int | None
    pins: int
    pin_median_ns: int | None
    pin_bytes_per_s: int | None  # counts only pins with a known size


@dataclass(frozen=True, slots=True)
class CollectiveTotals:
    """Counts the calls of one collective on all ranks, and sums up their durations."""

    name: str
    backend: str
    count: int
    bytes: int | None  # None if no sizes were recorded
    timed: int  # calls whose end was recorded
    bounded: int  # calls with an upper bound of the duration only
    duration_ns: int  # sum over timed and bounded calls
    median_ns: int | None  # of the timed calls, or of the upper bounds if none was timed


@dataclass(frozen=True, slots=True)
class StageMedians:
    """Stores the median times of one nn.DataParallel stage, such as scatter."""

    name: str
    device: str | None
    count: int
    median_ns: int | None
    device_median_ns: int | None


def step_kinds(trace: Trace) -> dict[str, StepsOfKind]:
    durations = {kind: trace.steps.duration_ns[trace.steps.kind == kind] for kind in StepKind}
    return {
        kind.name.lower(): StepsOfKind(len(duration_ns), middle_ns)
        for kind, duration_ns in durations.items()
        if (middle_ns := median(duration_ns)) is not None
    }


def input_pipeline(trace: Trace) -> InputPipeline | None:
    """Return statistics of data loading, or None if no data loading was recorded."""
    loaders = list(trace.run_of(trace.ranks[0]).loaders)
    waits = trace.batches.take(trace.batches.kind == BatchKind.WAIT)
    pins = trace.batches.take(trace.batches.kind == BatchKind.PIN)
    if not len(trace.batches) and not loaders:
        return None
    sized = pins.take((pins.bytes != NONE) & (pins.duration_ns > 0))
    return InputPipeline(
        loaders=loaders,
        waits=len(waits),
        wait_median_ns=median(waits.duration_ns),
        wait_total_ns=int(waits.duration_ns.sum()),
        wait_per_step_ns=median_per_step(_per_step(trace, waits)[steady_steps(trace)]) if len(waits) else None,
        batch_bytes=median(waits.bytes[waits.bytes != NONE]),
        pins=len(pins),
        pin_median_ns=median(pins.duration_ns),
        pin_bytes_per_s=round(int(sized.bytes.sum()) / int(sized.duration_ns.sum()) * 1e9) if len(sized) else None,
    )


def _per_step(trace: Trace, waits: Batches) -> Column:
    waited_ns = np.zeros(len(trace.steps), dtype=np.int64)
    step = step_windows(trace).holding(waits.start_ns, waits.rank)
    np.add.at(waited_ns, step[step != NONE], waits.duration_ns[step != NONE])
    return waited_ns


def batch_arrival_ns(trace: Trace, rank: int, start_ns: Column, end_ns: Column) -> Column:
    waits = trace.batches.take((trace.batches.kind == BatchKind.WAIT) & (trace.batches.rank == rank))
    arrival_ns: Column = np.zeros(len(start_ns), dtype=np.int64)
    phase = TimeWindows(start_ns, end_ns).holding(waits.start_ns)
    np.maximum.at(arrival_ns, phase[phase != NONE], waits.end_ns[phase != NONE])
    return np.asarray(np.where(arrival_ns > start_ns, np.minimum(arrival_ns, end_ns), end_ns))


def collectives(trace: Trace) -> list[CollectiveTotals]:
    table, texts = trace.collectives, trace.strings
    found = []
    for rows in map(table.take, grouped(table.name, table.backend)):
        sizes = rows.bytes[rows.bytes != NONE]
        seen, bounds = (rows.duration_ns[rows.ending == ending] for ending in (Ending.SEEN, Ending.BY))
        found.append(
            CollectiveTotals(
                texts[rows.name[0]],
                texts[rows.backend[0]],
                count=len(rows),
                bytes=int(sizes.sum()) if len(sizes) else None,
                timed=len(seen),
                bounded=len(bounds),
                duration_ns=int(seen.sum() + bounds.sum()),
                median_ns=median(seen if len(seen) else bounds),
            )
        )
    return sorted(found, key=lambda row: (-row.duration_ns, row.name))


def stage_medians(trace: Trace) -> list[StageMedians]:
    steady = np.isin(np.append(trace.phases.step, NONE)[trace.parts.phase], steady_steps(trace))
    parts = trace.parts.take(steady) if steady.any() else trace.parts
    parts = parts.take(np.argsort(parts.start_ns, kind="stable"))
    return [
        StageMedians(name, device or None, len(rows), median(rows.duration_ns), device_median(rows))
        for (name, device), rows in by_stage(trace, parts).items()
    ]
