"""Counts the launches of each CUDA graph in a trace, and measures their times.

    (first, *_) = cuda_graphs(trace, rank=0, steps=steady_steps(trace))
    first.name, first.launches, first.kernels, first.gpu_ns  # "CUDA graph 1"; 1.0 launch, 318.0 kernels, 14_200_000 ns per step
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median

import numpy as np

from traces.compiled.regions import is_graph_launch
from traces.figures.measure import device_ranks, enclosing, launch_steps
from traces.model.intervals import Intervals
from traces.model.trace import NONE, Column, DeviceKind, Trace


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """Describes a CUDA graph, with counts and times per step."""

    name: str  # numbered in the order of the first launches
    launches: float
    kernels: float
    gpu_ns: int  # time in which the device executes work of the graph
    gaps_ns: int  # time within a launch in which no work of the graph runs
    host_ns: int  # median duration of the launching calls
    longest: tuple[str, ...]  # kernels with the largest total time


_LONGEST = 3


def graph_launch_of(trace: Trace) -> Column:
    """For each kernel in a CUDA graph, return the call that launched the graph. For other kernels, return NONE."""
    return np.asarray(np.append(enclosing(trace.host, is_graph_launch(trace)), NONE)[trace.device.launch])


def cuda_graphs(trace: Trace, rank: int = 0, steps: Column | None = None) -> tuple[CudaGraph, ...]:
    """Return the CUDA graphs that one rank launches in the given steps. Without recorded graph ids, launches with the same
    kernels count as one CUDA graph. CUPTI may change a memset's name between launches (CUDA 13, H200)."""
    host, device = trace.host, trace.device
    at = graph_launch_of(trace)
    if (at == NONE).all():
        return ()
    step_of = launch_steps(trace)
    chosen = (at != NONE) & device.is_work & (device_ranks(trace) == rank)
    if steps is not None and len(steps):
        chosen &= np.isin(step_of, steps)
    by_launch: dict[int, list[int]] = {}
    rows = np.flatnonzero(chosen)
    for row in rows[np.lexsort((device.start_ns[rows], host.start_ns[at[rows]]))].tolist():
        by_launch.setdefault(int(at[row]), []).append(row)
    what = np.where(device.kind == DeviceKind.KERNEL, device.name, -1 - device.kind.astype("i8"))
    launches: dict[tuple[int, ...], list[int]] = {}
    for launch, work in by_launch.items():
        graph = int(device.graph[work[0]])
        key = (graph,) if graph != NONE else tuple(sorted(what[work].tolist()))
        launches.setdefault(key, []).append(launch)
    return tuple(
        _graph(trace, f"CUDA graph {number}", {row: by_launch[row] for row in of}, step_of)
        for number, of in enumerate(launches.values(), start=1)
    )


def _graph(trace: Trace, name: str, launches: dict[int, list[int]], step_of: Column) -> CudaGraph:
    device, host = trace.device, trace.host
    work = np.array([row for rows in launches.values() for row in rows], np.int64)
    steps = len(set(step_of[work].tolist()))
    each = [Intervals(device.start_ns[rows], device.end_ns[rows]) for rows in launches.values()]
    host_ns: Counter[int] = Counter()
    time_ns: Counter[str] = Counter()
    for row, rows in launches.items():
        host_ns[int(step_of[rows[0]])] += int(host.duration_ns[row])
    for row in work.tolist():
        time_ns[trace.strings[device.name[row]]] += int(device.duration_ns[row])
    return CudaGraph(
        name=name,
        launches=len(launches) / steps,
        kernels=len(work) / steps,
        gpu_ns=Intervals(device.start_ns[work], device.end_ns[work]).total_ns // steps,
        gaps_ns=sum(int(of.end_ns[-1] - of.start_ns[0]) - of.total_ns for of in each) // steps,
        host_ns=round(median(host_ns.values())),
        longest=tuple(kernel for kernel, _ in time_ns.most_common(_LONGEST)),
    )
