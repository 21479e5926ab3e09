"""Finds the functions that torch.compile compiled, and measures the compile time.

    (first, *_) = compilations(trace, rank=0)
    first.region, first.is_backward, first.step, first.host_ns      # "0/1", False, 7, 843_600_000

PyTorch records a range named "NAME (dynamo_timed)" around each stage of a compilation (torch/_dynamo/utils.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.compiled.regions import BACKWARD, is_stage_of_compilation
from traces.figures.measure import host_ranks
from traces.model.result_cache import cached_result
from traces.model.trace import Column, HostKind, Trace

_ID = "compile_id="


@dataclass(frozen=True, slots=True)
class Compilation:
    """Describes one compilation by torch.compile during the recording."""

    region: str  # "" if torch did not mark the compiled region
    is_backward: bool  # whether the backward pass was compiled
    step: int | None  # number of the step in which the compilation starts
    host_ns: int  # duration


@cached_result
def _stages(trace: Trace) -> Column:
    return trace.strings.matching(trace.host.name, is_stage_of_compilation)


def compilations(trace: Trace, rank: int = 0) -> tuple[Compilation, ...]:
    host, strings = trace.host, trace.strings
    is_timed = _stages(trace)
    if not is_timed.any():
        return ()
    ids = strings.matching(host.name, lambda name: _ID in name) & (host.kind != HostKind.PYTHON)
    found = []
    for row in np.flatnonzero(is_timed & (host_ranks(trace) == rank)).tolist():
        around = list(host.outward(row))
        if is_timed[around[1:]].any():
            continue  # a stage of a longer compilation
        near = np.flatnonzero(ids & np.isin(host.parent, around) & (host.start_ns < host.end_ns[row])).tolist()
        name = strings[host.name[near[-1]]] if near else ""
        is_backward = any(strings[host.name[outer]] == BACKWARD for outer in around)
        steps = np.flatnonzero((trace.steps.rank == rank) & (trace.steps.start_ns <= host.start_ns[row]))
        step = int(trace.steps.number[steps[-1]]) if len(steps) else None
        region = name.partition(_ID)[2].partition(",")[0].strip()
        found.append(Compilation(region, is_backward, step, int(host.duration_ns[row])))
    return tuple(found)
