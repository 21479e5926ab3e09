"""Finds graph breaks: places where a compiled function runs eager code between two compiled graphs.

    (first,) = graph_breaks(trace, region_calls(trace))
    first.after, first.before, first.host_ns      # "0/0", "1/0", 412_000: from the end of one graph to the start of the next
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from traces.compiled.regions import RegionCall, is_region_range
from traces.figures.measure import op_of
from traces.model.intervals import Intervals
from traces.model.trace import NONE, Column, Trace

RESUMED = "torch_dynamo_resume_in_"  # Dynamo's name of the function that continues after a graph break


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """Describes a graph break between two compiled functions, with counts and times per step."""

    after: str  # region before the break
    before: str  # region after the break
    count: float  # per step
    host_ns: int  # from the end of the first graph to the start of the second, median of the steps
    gpu_ns: int  # GPU busy time of the eager ops
    ops: tuple[str, ...]  # eager ops between the two graphs


def graph_breaks(trace: Trace, calls: Sequence[RegionCall], functions: Mapping[str, str]) -> tuple[GraphBreak, ...]:
    found: dict[tuple[str, str], list[tuple[RegionCall, RegionCall]]] = {}
    threads, starts, ends = trace.host.thread, trace.host.start_ns, trace.host.end_ns
    for one, other in pairwise(call for call in calls if not call.is_backward):
        is_same_run = one.step == other.step and threads[one.row] == threads[other.row]
        follows = is_same_run and ends[one.row] <= starts[other.row]  # a graph may call a compiled function within an op
        is_inner = one.region_row in [*trace.host.outward(other.region_row)][1:]
        if follows and (is_inner or functions.get(other.region, "").startswith(RESUMED)):
            found.setdefault((one.region, other.region), []).append((one, other))
    if not found:
        return ()
    launcher = op_of(trace, outermost=True)
    return tuple(_break(trace, launcher, pairs) for pairs in found.values())


def _break(trace: Trace, launcher: Column, pairs: list[tuple[RegionCall, RegionCall]]) -> GraphBreak:
    host, device = trace.host, trace.device
    ends = host.end_ns
    steps = len({one.step for one, _ in pairs})
    launch = device.launch
    start_ns = np.where(launch == NONE, -1, host.start_ns[launch])
    work = np.zeros(len(device), bool)
    for one, other in pairs:
        within = (start_ns >= ends[one.row]) & (start_ns < host.start_ns[other.row])
        work |= within & (host.thread[launch] == host.thread[one.row])
    rows = np.flatnonzero(work & (launcher != NONE))
    ops = launcher[rows][~is_region_range(trace)[launcher[rows]]]  # the function may launch kernels without an op
    names = dict.fromkeys(trace.strings[host.name[row]] for row in ops.tolist())
    host_ns: Counter[int] = Counter()
    for one, other in pairs:
        host_ns[one.step] += int(host.start_ns[other.row] - ends[one.row])
    return GraphBreak(
        after=pairs[0][0].region,
        before=pairs[0][1].region,
        count=len(pairs) / steps,
        host_ns=round(median(host_ns.values())),
        gpu_ns=Intervals(device.start_ns[rows], device.end_ns[rows]).total_ns // steps,
        ops=tuple(names),
    )
