"""Figures of compiled code in a trace.

    of = compiled_figures(trace, rank=0, steps=steady_steps(trace))
    of.regions[0].name, of.regions[0].calls, of.regions[0].gpu_ns     # "0/0", 1.0 call and 812_000 ns per step
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from traces.compiled.compilations import Compilation, compilations
from traces.compiled.cuda_graph_figures import CudaGraph, cuda_graphs, graph_launch_of
from traces.compiled.graph_breaks import GraphBreak, graph_breaks
from traces.compiled.regions import GRAPH_LAUNCHES, RegionCall, region_calls
from traces.figures.measure import device_ranks, launch_steps
from traces.model.intervals import Intervals
from traces.model.row_order import grouped
from traces.model.run import EagerRegion
from traces.model.trace import NONE, Column, Trace

_FUSED = "triton_"


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """A fused kernel of a compiled region: launches and GPU time per step, for the steps in which the region was
    called."""

    name: str
    launches: float
    gpu_ns: int


@dataclass(frozen=True, slots=True)
class Region:
    """One compilation of a function. Counts and times are given per step, for the steps in which the compiled region was
    called. Host times are medians.

    `gpu_ns` is the time in which the device executes kernels of the region, in forward and backward pass together. `fused_ns`
    is the time in which the device executes fused kernels of the region. `host_ns` is the time that the host spends in the
    compiled graphs of the region. `fused` lists the fused kernels, longest first. `external` names the region's ops that launch
    device work other than fused kernels. `recompilation` is the number of earlier compilations of the same function. `function`
    is known for replays only.
    """

    name: str
    function: str
    recompilation: int
    calls: float
    backwards: float
    gpu_ns: int
    fused_ns: int
    host_ns: int
    kernels: float
    graph_launches: float
    fused: tuple[FusedKernel, ...]
    external: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompiledFigures:
    """Compiled code in one trace. `recompiles` lists the compiled regions that are recompilations of a function.

    `breaks` are the graph breaks in the compared steps. `compilations` happened anywhere in the recording. The shares show how
    much of the rank's GPU work in the compared steps belongs to compiled regions, fused kernels and CUDA graphs. A CUDA graph
    that the script captured can run fused kernels outside of compiled regions. The fields `graph_breaks`, `eager` and
    `compile_ns` are known for replays only, and cover the whole run.
    """

    regions: tuple[Region, ...] = ()
    recompiles: int = 0
    breaks: tuple[GraphBreak, ...] = ()
    graphs: tuple[CudaGraph, ...] = ()
    compilations: tuple[Compilation, ...] = ()
    region_share: float = 0.0
    fused_share: float = 0.0
    graph_share: float = 0.0
    graph_breaks: int | None = None
    break_reasons: Mapping[str, int] = field(default_factory=dict)
    compile_ns: int | None = None
    eager: tuple[EagerRegion, ...] = ()

    @property
    def is_compiled(self) -> bool:
        """Whether torch.compile was used. A CUDA graph that contains fused kernels is evidence of torch.compile."""
        return bool(self.regions or self.eager or self.graph_breaks is not None or self.fused_share)


def compiled_figures(trace: Trace, rank: int = 0, steps: Column | None = None) -> CompiledFigures:
    """Return the figures of one rank. If `steps` are given, only compiled regions that were called in these steps are
    included."""
    chosen = None if steps is None else set(steps.tolist())
    calls = [call for call in region_calls(trace, rank) if not chosen or call.step in chosen]
    by_name: dict[str, list[RegionCall]] = {}
    for call in calls:
        by_name.setdefault(call.region, []).append(call)
    notes = trace.run_of(rank).replay
    told = notes.compiled if notes is not None else None
    functions = told.functions if told is not None else {}
    regions = tuple(_region(trace, name, of, functions.get(name, "")) for name, of in by_name.items())
    figures = CompiledFigures(
        regions,
        sum(region.recompilation > 0 for region in regions),
        graph_breaks(trace, calls, functions),
        cuda_graphs(trace, rank, steps),
        compilations(trace, rank),
        *_shares(trace, calls, rank, steps),
    )
    if told is None:
        return figures
    recompiles = max(figures.recompiles, told.recompiles)
    return replace(
        figures, recompiles=recompiles, graph_breaks=told.graph_breaks, break_reasons=told.break_reasons,
        compile_ns=told.compile_ns, eager=told.eager,
    )  # fmt: skip


def _shares(trace: Trace, calls: list[RegionCall], rank: int, steps: Column | None) -> tuple[float, float, float]:
    device = trace.device
    is_own = device.is_work & (device_ranks(trace) == rank)
    if steps is not None and len(steps):
        is_own &= np.isin(launch_steps(trace), steps)
    of_regions = np.zeros(len(device), bool)
    of_regions[[row for call in calls for row in call.work]] = True
    is_fused = trace.strings.matching(device.name, _is_fused)
    whole_ns = max(int(device.duration_ns[is_own].sum()), 1)
    parts = (of_regions, is_fused, graph_launch_of(trace) != NONE)
    first, second, third = (float(device.duration_ns[is_own & part].sum() / whole_ns) for part in parts)
    return first, second, third


def _fused_kernels(trace: Trace, work: Column, steps: int) -> tuple[FusedKernel, ...]:
    device = trace.device
    of_kernels = [(trace.strings[device.name[rows[0]]], rows) for rows in (work[of] for of in grouped(device.name[work]))]
    made = [FusedKernel(name, len(rows) / steps, int(device.duration_ns[rows].sum()) // steps) for name, rows in of_kernels]
    return tuple(sorted(made, key=lambda kernel: -kernel.gpu_ns))


def _is_fused(kernel: str) -> bool:
    return kernel.startswith(_FUSED)


def _compilation(name: str) -> int:
    """Return how often the function had been compiled before, which is the number M in a region's name "N/M"."""
    number = name.partition("/")[2].partition("_")[0]
    return int(number) if number.isdigit() else 0


def _region(trace: Trace, name: str, calls: list[RegionCall], function: str) -> Region:
    steps = max(len({call.step for call in calls}), 1)
    work = np.array([row for call in calls for row in call.work], np.int64)
    device, host, strings = trace.device, trace.host, trace.strings
    launching = [row for call in calls for row in call.launching]
    names = dict.fromkeys(strings[host.name[row]] for row in launching)
    host_ns: Counter[int] = Counter()
    for call in calls:
        host_ns[call.step] += int(host.duration_ns[call.row])
    busy = Intervals(device.start_ns[work], device.end_ns[work])
    fused = work[trace.strings.matching(device.name[work], _is_fused)]
    backwards = sum(call.is_backward for call in calls)
    return Region(
        name=name,
        function=function,
        recompilation=_compilation(name),
        calls=(len(calls) - backwards) / steps,
        backwards=backwards / steps,
        gpu_ns=busy.total_ns // steps,
        fused_ns=Intervals(device.start_ns[fused], device.end_ns[fused]).total_ns // steps,
        host_ns=round(median(host_ns.values())),
        kernels=len(work) / steps,
        graph_launches=sum(strings[host.name[row]] in GRAPH_LAUNCHES for row in launching) / steps,
        fused=_fused_kernels(trace, fused, steps),
        external=tuple(one for one in names if not _is_fused(one) and one not in GRAPH_LAUNCHES),
    )
