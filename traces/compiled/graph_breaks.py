"""Finds graph breaks: places where a compiled function runs eager code between two compiled graphs.

    (first,) = graph_breaks(trace, region_calls(trace), functions)
    first.after, first.before, first.host_ns      # "0/0", "1/0", 412_000: from the end of one graph to the start of the next

Note [What follows a graph break]
    After a graph break, torch.compile compiles the rest of the function as another function, with the line of the break in its
    name. The code between two graphs may call other compiled functions, and their time does not count as time of the graph
    break. Imported traces do not contain the names of functions. In such a trace, the rest of a function is recognized by its
    profiler range, which is inside the range of the function.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from traces.compiled.regions import RegionCall, is_region_range
from traces.figures.measure import op_of
from traces.model.intervals import Intervals
from traces.model.row_order import lists_by_key
from traces.model.trace import NONE, Column, Trace

# a function that Dynamo compiled, such as "forward (model.py:3)" or "torch_dynamo_resume_in_forward_at_5 (model.py:5)"
_FUNCTION = re.compile(r"(torch_dynamo_resume_in_)?(.*?)(?(1)_at_\d+) \((.*):(\d+)\)")


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """Describes a graph break of torch.compile: how often it was reached, and how long it took, per step."""

    after: str  # region before the break
    before: str  # region after the break
    place: str  # the script's file and line; unknown for imported traces
    count: float  # number of occurrences per step
    host_ns: int  # time from the end of the first graph to the start of the second; median of the steps
    gpu_ns: int  # GPU busy time of the eager ops
    ops: tuple[str, ...]  # eager ops between the two graphs


@dataclass
class _FoundBreak:
    steps: list[int] = field(default_factory=list)  # the step of each graph break
    between: list[tuple[RegionCall, RegionCall]] = field(default_factory=list)  # successive graphs with eager code in between


def graph_breaks(trace: Trace, calls: Sequence[RegionCall], functions: Mapping[str, str]) -> tuple[GraphBreak, ...]:
    # see Note [What follows a graph break]
    host = trace.host
    forwards = lists_by_key(((call.step, int(host.thread[call.row])), call) for call in calls if not call.is_backward)
    found: dict[tuple[str, str], _FoundBreak] = {}
    for (step, _), of_step in forwards.items():
        pairs = _by_name(of_step, functions) if functions else _by_nesting(trace, of_step)
        # compiled code may call a compiled function
        pairs = [(i, j) for i, j in pairs if host.end_ns[of_step[i].row] <= host.start_ns[of_step[j].row]]
        for i, j in pairs:
            found.setdefault((of_step[i].region, of_step[j].region), _FoundBreak()).steps.append(step)
        for place in range(len(of_step) - 1):
            around = [(j - i, i, j) for i, j in pairs if i <= place < j]
            if around:
                _, i, j = min(around)
                between = of_step[place], of_step[place + 1]
                found[of_step[i].region, of_step[j].region].between.append(between)
    launcher = op_of(trace, outermost=True) if found else np.array([])
    return tuple(_break(trace, launcher, names, _place(functions.get(names[1], "")), of) for names, of in found.items())


def _by_name(calls: Sequence[RegionCall], functions: Mapping[str, str]) -> list[tuple[int, int]]:
    parsed = {region: match.groups() for region, text in functions.items() if (match := _FUNCTION.fullmatch(text))}
    first_lines = lists_by_key(((name, file), int(line)) for resumed, name, file, line in parsed.values() if not resumed)
    found = []
    last: dict[tuple[str, str, int], tuple[int, int]] = {}
    for place, call in enumerate(calls):
        if call.region in parsed:
            resumed, name, file, text = parsed[call.region]
            line = int(text)
            whole = name, file, max((one for one in first_lines.get((name, file), ()) if one <= line), default=0)
            if resumed and whole in last and last[whole][1] < line:
                found.append((last[whole][0], place))
            last[whole] = place, line
    return found


def _by_nesting(trace: Trace, calls: Sequence[RegionCall]) -> list[tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    last: dict[int, int] = {}
    for place, call in enumerate(calls):
        outer = next((row for row in [*trace.host.outward(call.region_row)][1:] if row in last), None)
        if outer is not None:
            found[outer] = last[outer], place
        last[call.region_row] = place
    return list(found.values())


def _place(function: str) -> str:
    match = _FUNCTION.fullmatch(function)
    return f"{match[3]}:{match[4]}" if match else ""


def _break(trace: Trace, launcher: Column, names: tuple[str, str], place: str, of: _FoundBreak) -> GraphBreak:
    host, device = trace.host, trace.device
    steps = len(set(of.steps))
    launch = device.launch
    start_ns = np.where(launch == NONE, -1, host.start_ns[launch])
    work = np.zeros(len(device), bool)
    host_ns = Counter(dict.fromkeys(of.steps, 0))
    for one, other in of.between:
        end_ns = int(host.end_ns[one.row])
        within = (start_ns >= end_ns) & (start_ns < host.start_ns[other.row])
        work |= within & (host.thread[launch] == host.thread[one.row])
        host_ns[one.step] += max(int(host.start_ns[other.row]) - end_ns, 0)
    rows = np.flatnonzero(work & (launcher != NONE))
    ops = launcher[rows][~is_region_range(trace)[launcher[rows]]]  # the function may launch kernels without an op
    eager = dict.fromkeys(trace.strings[host.name[row]] for row in ops.tolist())
    return GraphBreak(
        *names,
        place,
        count=len(of.steps) / steps,
        host_ns=round(median(host_ns.values())),
        gpu_ns=Intervals(device.start_ns[rows], device.end_ns[rows]).total_ns // steps,
        ops=tuple(eager),
    )
