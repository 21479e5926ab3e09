"""Computes statistics of compiled code in a trace.

    of = compiled_figures(trace, rank=0, steps=steady_steps(trace))
    of.regions[0].name, of.regions[0].calls, of.regions[0].gpu_ns     # "0/0", 1.0 call and 812_000 ns per step
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from traces.compiled.compilations import Compilation, compilations
from traces.compiled.cuda_graph_figures import CudaGraph, cuda_graphs, graph_launch_of
from traces.compiled.graph_breaks import GraphBreak, graph_breaks
from traces.compiled.regions import RegionCall, is_region_range, region_calls
from traces.figures.measure import device_ranks, launch_steps
from traces.model.intervals import Intervals
from traces.model.row_order import grouped, lists_by_key
from traces.model.run import EagerRegion
from traces.model.trace import NONE, Column, Trace
from traces.names.device_names import GRAPH_LAUNCHES

# Older releases of Inductor use kernel names such as triton_fused_add_0 or triton__0d1d2d. The names of handwritten Triton
# kernels may also begin with "triton_".
_FUSED = re.compile(r"triton_(?:(?:poi|red|per|tem|for|spl|ftn|mix)_|fused_|_\d|$)")


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """Describes a fused kernel: its launches and its GPU time per step."""

    name: str  # name of the kernel
    launches: float  # launches per step
    gpu_ns: int  # GPU time per step


@dataclass(frozen=True, slots=True)
class Region:
    """Describes one compilation of a function by torch.compile. Counts and times are per step, and host times are medians."""

    name: str  # such as "0/1", the second compilation of the first function
    function: str  # unknown for imported traces
    recompilation: int  # number of earlier compilations of the same function
    calls: float  # forward passes per step
    backwards: float  # backward passes per step
    gpu_ns: int  # time in which the device executes kernels of the region, forward and backward
    fused_ns: int  # the part of `gpu_ns` in fused kernels
    host_ns: int  # host time in the compiled graphs of the region
    kernels: float  # kernels per step
    graph_launches: float  # launches of CUDA graphs per step
    fused: tuple[FusedKernel, ...]  # longest first
    external: tuple[str, ...]  # ops that launch device work other than fused kernels


@dataclass(frozen=True, slots=True)
class CompiledFigures:
    """Contains the statistics of compiled code in one trace."""

    regions: tuple[Region, ...] = ()
    recompiles: int = 0  # number of repeated compilations of a function
    breaks: tuple[GraphBreak, ...] = ()  # graph breaks in the compared steps
    graphs: tuple[CudaGraph, ...] = ()
    compilations: tuple[Compilation, ...] = ()  # anywhere in the recording
    compiling_ns: int = 0  # mean time of compilations in a compared step
    region_share: float = 0.0  # compiled regions' fraction of the rank's GPU time
    fused_share: float = 0.0  # fused kernels' fraction of the rank's GPU time
    graph_share: float = 0.0  # CUDA graphs' fraction of the rank's GPU time
    compiled_functions: int | None = None  # number in the whole run, including recompilations; unknown for imported traces
    graph_breaks: int | None = None  # number in the whole run; unknown for imported traces
    break_reasons: Mapping[str, int] = field(default_factory=dict)  # number of graph breaks by reason
    recompile_reasons: Mapping[str, str] = field(default_factory=dict)  # why each region was recompiled
    compile_ns: int | None = None  # compile time of the whole run; unknown for imported traces
    eager: tuple[EagerRegion, ...] = ()  # functions that ran eagerly in the whole run; unknown for imported traces

    @property
    def is_compiled(self) -> bool:
        return bool(self.regions or self.eager or self.graph_breaks is not None or self.fused_share)

    @property
    def has_fused_kernels(self) -> bool:
        """Return True if a compiled function launches fused kernels. Some compiled functions launch only matrix products."""
        return any(region.fused for region in self.regions)


def runs_compiled_code(trace: Trace) -> bool:
    return bool(is_region_range(trace).any() or trace.strings.matching(trace.device.name, _is_fused).any())


def compiled_figures(trace: Trace, rank: int = 0, steps: Column | None = None) -> CompiledFigures:
    chosen = None if steps is None else set(steps.tolist())
    calls = [call for call in region_calls(trace, rank) if not chosen or call.step in chosen]
    by_name = lists_by_key((call.region, call) for call in calls)
    compiled = trace.run_of(rank).compiled
    functions = compiled.functions if compiled is not None else {}
    regions = tuple(_region(trace, name, of, functions.get(name, "")) for name, of in by_name.items())
    compiled_here = compilations(trace, rank)
    figures = CompiledFigures(
        regions,
        sum(region.recompilation > 0 for region in regions),
        graph_breaks(trace, calls, functions),
        cuda_graphs(trace, rank, steps),
        compiled_here,
        _compiling_ns(trace, compiled_here, rank, steps),
        *_shares(trace, calls, rank, steps),
    )
    if compiled is None:
        return figures
    recompiles = max(figures.recompiles, compiled.recompiles)
    return replace(
        figures, recompiles=recompiles, compiled_functions=compiled.regions, graph_breaks=compiled.graph_breaks,
        break_reasons=compiled.break_reasons, recompile_reasons=compiled.recompile_reasons, compile_ns=compiled.compile_ns,
        eager=compiled.eager,
    )  # fmt: skip


def _compiling_ns(trace: Trace, found: tuple[Compilation, ...], rank: int, steps: Column | None) -> int:
    rows = np.arange(len(trace.steps)) if steps is None else steps
    numbers = trace.steps.number[rows[trace.steps.rank[rows] == rank]].tolist()
    return sum(one.host_ns for one in found if one.step in numbers) // max(len(numbers), 1)


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
    return _FUSED.match(kernel) is not None


def _compilation(name: str) -> int:
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
