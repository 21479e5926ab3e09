"""Runs all analyses of a trace.

    of = analyse(load("v100.msgpack"))
    of.idle["cuda:0"].by_reason         # {"data": 352_470_000, "host": 77_120_000, ...}
    of.critical_path.by_kind            # {"host": 103_441_000, "data": 70_913_000, ...}
"""

from __future__ import annotations

from dataclasses import dataclass

from traces.analyses.critical_path import PathSums, critical_path
from traces.analyses.idle import IdleCall, IdleTime, idle_calls, idle_times
from traces.analyses.launches import LongLaunches, StreamLaunches, launch_figures, long_launches
from traces.analyses.modules import ModuleTime, module_times
from traces.analyses.stragglers import RankLateness, stragglers
from traces.analyses.transfers import TransferSum, transfers
from traces.compiled.region_figures import CompiledFigures, compiled_figures
from traces.figures.measure import profiled_steps
from traces.figures.problems import why_work_is_hidden
from traces.model.result_cache import result_cache
from traces.model.trace import Trace
from traces.rates.achieved_rates import OpRates, achieved_tables

MOST_ROWS = 500  # maximum rows per table; enough to compare all important rows of two traces


@dataclass(frozen=True, slots=True)
class Analyses:
    """Contains the results of all analyses. Analyses without data are None or empty."""

    idle: dict[str, IdleTime]
    idle_calls: list[IdleCall]
    launches: list[StreamLaunches]
    long_launches: list[LongLaunches]
    transfers: list[TransferSum]
    achieved: list[OpRates]
    op_shapes: list[OpRates]
    modules: list[ModuleTime]
    stragglers: list[RankLateness]
    critical_path: PathSums | None
    compiled: CompiledFigures | None = None


@result_cache()
def analyse(trace: Trace, *, details: bool = True) -> Analyses:
    """Run all analyses of a trace. If `details` is False, run only the analyses for the first screen of `trace info`."""
    lacks_work = bool(why_work_is_hidden(trace))
    compiled = compiled_figures(trace, trace.ranks[0], profiled_steps(trace))
    path = critical_path(trace) if details and not lacks_work else None
    kinds, shapes = achieved_tables(trace) if details else ([], [])
    return Analyses(
        idle={} if lacks_work else idle_times(trace),
        idle_calls=[] if lacks_work else idle_calls(trace)[:MOST_ROWS],
        launches=launch_figures(trace) if details else [],
        long_launches=long_launches(trace),
        transfers=transfers(trace) if details else [],
        achieved=kinds[:MOST_ROWS],
        op_shapes=shapes[:MOST_ROWS],
        modules=module_times(trace)[:MOST_ROWS] if details else [],
        stragglers=stragglers(trace),
        critical_path=None if path is None else path.sums,
        compiled=compiled if compiled.is_compiled or compiled.graphs else None,
    )
