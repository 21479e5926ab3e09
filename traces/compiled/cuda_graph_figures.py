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
from traces.model.row_order import lists_by_key
from traces.model.trace import NONE, Column, DeviceKind, Trace


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """Describes how often a CUDA graph was launched, and how long it took, per step."""

    name: str  # numbered in the order of the first launches
    launches: float  # launches per step
    kernels: float  # kernels per step
    gpu_ns: int  # time in which the device executes work of the graph
    gaps_ns: int  # time within a launch in which no work of the graph runs
    host_ns: int  # median duration of the launching calls
    longest: tuple[str, ...]  # kernels with the largest total time


_LONGEST = 3


def graph_launch_of(trace: Trace) -> Column:
    return np.asarray(np.append(enclosing(trace.host, is_graph_launch(trace)), NONE)[trace.device.launch])


def cuda_graphs(trace: Trace, rank: int = 0, steps: Column | None = None) -> tuple[CudaGraph, ...]:
    """Return the CUDA graphs that one rank launches in the given steps. If a recording has no ids of graphs, launches of the
    same kernels are assumed to be launches of the same graph."""
    step_of = launch_steps(trace)
    chosen = device_ranks(trace) == rank
    if steps is not None and len(steps):
        chosen &= np.isin(step_of, steps)
    graphs = launches_by_graph(trace, np.flatnonzero(chosen))
    return tuple(_graph(trace, f"CUDA graph {number}", launches, step_of) for number, launches in enumerate(graphs, start=1))


def launches_by_graph(trace: Trace, rows: Column | None = None) -> list[dict[int, list[int]]]:
    """For each CUDA graph, return the launch calls (rows of `host`) and the launched GPU work (rows of `device`)."""
    host, device = trace.host, trace.device
    at = graph_launch_of(trace)
    if (at == NONE).all():
        return []
    in_graph = np.flatnonzero((at != NONE) & device.is_work)
    rows = in_graph if rows is None else np.intersect1d(in_graph, rows)
    rows = rows[np.lexsort((device.start_ns[rows], host.start_ns[at[rows]]))]
    by_launch = lists_by_key(zip(at[rows].tolist(), rows.tolist(), strict=True))
    what = np.where(device.kind == DeviceKind.KERNEL, device.name, -1 - device.kind.astype("i8"))
    rank_of = device_ranks(trace)
    graphs: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for launch, work in by_launch.items():
        graph, rank = int(device.graph[work[0]]), int(rank_of[work[0]])
        key = (rank, graph) if graph != NONE else (rank, *sorted(what[work].tolist()))
        graphs.setdefault(key, {})[launch] = work
    return list(graphs.values())


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
