"""Computes the times of nn.DataParallel stages, such as scatter and gather, and compares them in two traces.

    stage_medians(trace)[0]             # StageMedians("replicate", device=None, count=40, median_ns=...)
    stage_errors(recorded, ours, other, theirs)["scatter"].error     # 0.01: 1 % longer

If a stage runs on several GPUs, the name of the stage includes the GPU: "parallel_apply (cuda:1)".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.figures.measure import steady_steps
from traces.figures.spread import median, relative_error
from traces.model.row_order import grouped, lists_by_key
from traces.model.trace import NONE, Column, Parts, Trace

_ABSENT = 1 << 30
Key = tuple[str, str]  # the stage's name, then its device label or ""


@dataclass(frozen=True, slots=True)
class StageMedians:
    """Stores the median times of one nn.DataParallel stage, such as scatter."""

    name: str  # name of the stage
    device: str | None  # such as "cuda:0"
    count: int  # number of times that the stage ran
    median_ns: int | None  # host time
    device_median_ns: int | None  # time between CUDA events


@dataclass(frozen=True, slots=True)
class StageError:
    """Contains the median times of one nn.DataParallel stage in two traces."""

    recorded_median_ns: int | None  # median host time
    replayed_median_ns: int | None  # median host time
    error: float | None  # relative difference of the medians
    device_recorded_median_ns: int | None  # median time between CUDA events
    device_replayed_median_ns: int | None  # median time between CUDA events
    device_error: float | None  # relative difference of these medians


def stage_medians(trace: Trace) -> list[StageMedians]:
    steady = np.isin(np.append(trace.phases.step, NONE)[trace.parts.phase], steady_steps(trace))
    parts = trace.parts.take(steady) if steady.any() else trace.parts
    parts = parts.take(np.argsort(parts.start_ns, kind="stable"))
    return [
        StageMedians(name, device or None, len(rows), median(rows.duration_ns), _device_median(rows))
        for (name, device), rows in _by_stage(trace, parts).items()
    ]


def stage_errors(recorded: Trace, ours: Column, other: Trace, theirs: Column) -> dict[str, StageError]:
    a, b = _by_key(recorded, ours), _by_key(other, theirs)
    keys = sorted(a | b, key=lambda key: min(_order(of, key) for of in (a, b)))
    devices = lists_by_key(keys)
    return {
        f"{name} ({device})" if len(devices[name]) > 1 else name: _error(a.get((name, device)), b.get((name, device)))
        for name, device in keys
    }


def _by_key(trace: Trace, steps: Column) -> dict[Key, Parts]:
    step_of = np.append(trace.phases.step, NONE)[trace.parts.phase]
    return _by_stage(trace, trace.parts.take(np.isin(step_of, steps) & (trace.parts.phase != NONE)))


def _by_stage(trace: Trace, parts: Parts) -> dict[Key, Parts]:
    found: dict[Key, Parts] = {}
    for rows in map(parts.take, sorted(grouped(parts.name, parts.device), key=lambda rows: int(rows[0]))):
        device = int(rows.device[0])
        found[trace.strings[rows.name[0]], trace.device_label(device) if device != NONE else ""] = rows
    return found


def _order(parts: dict[Key, Parts], key: Key) -> tuple[int, str]:
    return (list(parts).index(key) if key in parts else _ABSENT, key[1])


def _error(ours: Parts | None, theirs: Parts | None) -> StageError:
    host = [None if parts is None else median(parts.duration_ns) for parts in (ours, theirs)]
    device = [None if parts is None else _device_median(parts) for parts in (ours, theirs)]
    return StageError(host[0], host[1], relative_error(*host), device[0], device[1], relative_error(*device))


def _device_median(parts: Parts) -> int | None:
    return median((parts.device_end_ns - parts.device_start_ns)[parts.is_timed])
