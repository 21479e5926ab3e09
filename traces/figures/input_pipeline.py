"""Computes statistics of data loading.

    input_pipeline(trace).wait_per_step_ns      # 2100000: median wait for batches per step
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.figures.measure import steady_steps, step_windows
from traces.figures.spread import median, median_per_step
from traces.model.intervals import TimeWindows
from traces.model.row_order import sum_by
from traces.model.run import LoaderSettings
from traces.model.trace import NONE, Batches, BatchKind, Column, Trace


@dataclass(frozen=True, slots=True)
class InputPipeline:
    """Stores how long the script waited for batches and for their copies to pinned memory."""

    loaders: list[LoaderSettings]
    waits: int  # number of waits for a batch
    wait_median_ns: int | None  # median wait for a batch
    wait_total_ns: int  # sum of all waits
    wait_per_step_ns: int | None  # median over `steady_steps`
    batch_bytes: int | None  # median
    pins: int  # number of copies to pinned memory
    pin_median_ns: int | None  # median time of a copy to pinned memory
    pin_bytes_per_s: int | None  # counts only pins with a known size


def input_pipeline(trace: Trace) -> InputPipeline | None:
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
    step = step_windows(trace).holding(waits.start_ns, waits.rank)
    return sum_by(step[step != NONE], waits.duration_ns[step != NONE], len(trace.steps))


def batch_arrival_ns(trace: Trace, rank: int, start_ns: Column, end_ns: Column) -> Column:
    waits = trace.batches.take((trace.batches.kind == BatchKind.WAIT) & (trace.batches.rank == rank))
    arrival_ns: Column = np.zeros(len(start_ns), dtype=np.int64)
    phase = TimeWindows(start_ns, end_ns).holding(waits.start_ns)
    np.maximum.at(arrival_ns, phase[phase != NONE], waits.end_ns[phase != NONE])
    return np.asarray(np.where(arrival_ns > start_ns, np.minimum(arrival_ns, end_ns), end_ns))
