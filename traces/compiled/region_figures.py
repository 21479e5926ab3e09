"""Figures of compiled code in a trace.

of = compiled_figures(trace, rank=0, steps=steady_steps(trace))
of.regions[0].name, of.regions[0].calls, of.regions[0].gpu_ns     # "0/0", 1.0 call and 812_000 ns per step
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.compiled.regions import GRAPH_LAUNCHES, RegionCall, region_calls
from traces.model.intervals import Intervals
from traces.model.run import EagerRegion
from traces.model.trace import Column, Trace

_FUSED = ("triton_", "cpp_fused_")


@dataclass(frozen=True, slots=True)
class Region:
    """One compilation of a function. Counts and times are per step in which the region was called.

    `gpu_ns` is the time that the region's kernels keep the device busy, forward and backward together. `fused` names fused
    kernels, `external` names the other ops with device work.
    """

    name: str
    calls: float
    backwards: float
    gpu_ns: int
    kernels: float
    graph_launches: float
    fused: tuple[str, ...]
    external: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompiledFigures:
    """Compiled code in one trace. `recompiles` are regions that are a further compilation of the same function.

    `graph_breaks`, `compile_ns` and `eager` are known for replays only. The replaying host took `compile_ns`.
    """

    regions: tuple[Region, ...] = ()
    recompiles: int = 0
    graph_breaks: int | None = None
    compile_ns: int | None = None
    eager: tuple[EagerRegion, ...] = ()

    @property
    def is_compiled(self) -> bool:
        return bool(self.regions or self.eager or self.graph_breaks is not None)


def compiled_figures(trace: Trace, rank: int = 0, steps: Column | None = None) -> CompiledFigures:
    """Return the figures of one rank. If `steps` are given, only regions called in these rows of the steps count."""
    by_name: dict[str, list[RegionCall]] = {}
    chosen = None if steps is None else set(steps.tolist())
    for call in region_calls(trace, rank):
        if not chosen or call.step in chosen:
            by_name.setdefault(call.region, []).append(call)
    regions = tuple(_region(trace, name, calls) for name, calls in by_name.items())
    recompiles = sum(_compilation(name) > 0 for name in by_name)
    notes = trace.run_of(rank).replay
    told = notes.compiled if notes is not None else None
    if told is None:
        return CompiledFigures(regions, recompiles)
    return CompiledFigures(regions, max(recompiles, told.recompiles), told.graph_breaks, told.compile_ns, told.eager)


def _compilation(name: str) -> int:
    """Return M of a region "N/M": how many earlier compilations the function has."""
    number = name.partition("/")[2].partition("_")[0]
    return int(number) if number.isdigit() else 0


def _region(trace: Trace, name: str, calls: list[RegionCall]) -> Region:
    steps = max(len({call.step for call in calls}), 1)
    work = np.array([row for call in calls for row in call.work], np.int64)
    device, host, strings = trace.device, trace.host, trace.strings
    launching = [row for call in calls for row in call.launching]
    names = list(dict.fromkeys(strings[host.name[row]] for row in launching))
    busy = Intervals(device.start_ns[work], device.end_ns[work])
    backwards = sum(call.is_backward for call in calls)
    return Region(
        name=name,
        calls=(len(calls) - backwards) / steps,
        backwards=backwards / steps,
        gpu_ns=busy.total_ns // steps,
        kernels=len(work) / steps,
        graph_launches=sum(strings[host.name[row]] in GRAPH_LAUNCHES for row in launching) / steps,
        fused=tuple(one for one in names if one.startswith(_FUSED)),
        external=tuple(one for one in names if not one.startswith(_FUSED) and one not in GRAPH_LAUNCHES),
    )
