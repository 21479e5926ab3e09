"""Finds calls of compiled code in a trace. A region is a function, or a part of a function, that torch.compile compiled as a
whole.

    calls = region_calls(trace, rank=0)
    calls[0].region, calls[0].is_backward    # "0/1", False: the second compilation of the first function that Dynamo traced
    calls[0].launching                       # host rows of the ops and graph launches that gave work to the device

Note [One call of a region]
    PyTorch puts nested profiler ranges around compiled code: `Torch-Compiled Region: N/M` around a compiled function,
    `CompiledFunction` around the forward pass of a graph, and `CompiledFunctionBackward` around its backward pass. A call of a
    region is the outermost range around one graph, so eager ops between graphs do not belong to a call. A backward pass belongs
    to the forward pass with the same autograd sequence number. If sequence numbers are missing, the first backward pass belongs
    to the last forward pass, and so on. Before the first launch of a Triton kernel, Inductor may measure several versions of
    the kernel, which does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from traces.model.row_order import lists_by_key
from traces.model.trace import NONE, Column, HostKind, Trace
from traces.names.device_names import GRAPH_LAUNCHES

REGION, GRAPH = "Torch-Compiled Region: ", "## Call CompiledFxGraph "
FORWARD, BACKWARD = "CompiledFunction", "CompiledFunctionBackward"
MEASURES = "CachingAutotuner.benchmark_all_configs"
# beginnings of the names of the ranges that PyTorch puts around compiled code
RANGES = (REGION, GRAPH, FORWARD, "TorchDynamo Cache Lookup", "Pregraph bytecode", "AOTDispatcher Runtime Wrapper ")


def is_stage_of_compilation(name: str) -> bool:
    return name.endswith(" (dynamo_timed)")


class _Range(IntEnum):
    OTHER = 0
    REGION = 1
    GRAPH = 2
    MEASUREMENT = 3


@dataclass(frozen=True, slots=True)
class RegionCall:
    region: str  # torch's number, or else the position among the step's graphs
    is_backward: bool
    inputs: str  # shapes of the forward pass's arguments, or ""
    graph: str  # Inductor's key of the compiled graph, or ""
    row: int  # host row of the call
    code: int  # host row of the code that Inductor generated, or else `row`
    region_row: int  # host row of the enclosing region, or NONE
    step: int
    launching: tuple[int, ...]  # host rows of the ops that launched GPU work
    work: tuple[int, ...]  # device rows of the launched GPU work, in launch order


def is_graph_launch(trace: Trace) -> Column:
    return trace.strings.matching(trace.host.name, GRAPH_LAUNCHES.__contains__)


def is_region_range(trace: Trace) -> Column:
    return trace.strings.matching(trace.host.name, _kind_of)


def is_triton_call(trace: Trace) -> Column:
    """Return True for calls of Triton kernels in the code that Inductor generated."""
    host, names = trace.host, trace.strings
    is_code = np.append(names.matching(host.name, lambda text: text.startswith(GRAPH)), False)
    is_kernel = (host.kind == HostKind.OP) & ~names.matching(host.name, lambda text: "::" in text)
    return np.asarray(is_kernel & is_code[host.parent])


def region_calls(trace: Trace, rank: int = 0) -> list[RegionCall]:
    # see Note [One call of a region]
    kinds = np.array([_kind_of(text) for text in trace.strings.texts], np.int8)
    host = trace.host
    if not kinds.any() or not len(host):
        return []
    ours = np.array([thread.rank == rank for thread in trace.threads], bool)[host.thread]
    kind = np.where(ours & (host.kind != HostKind.PYTHON), kinds[host.name], _Range.OTHER)
    if not kind.any():
        return []
    unit, region = _enclosing(kind, host.parent)
    units = _units(host.parent, kind, unit, region)
    unit = np.where((unit == NONE) & np.isin(region, units), region, unit)
    work = _work_by_unit(trace, unit)
    # Functions without a graph and without GPU work are left out, because torch.compile found nothing to compile in them.
    rows = sorted((row for row in units if kind[row] == _Range.GRAPH or row in work), key=lambda row: int(host.start_ns[row]))
    step_of = _step_of(trace, rank, host.start_ns[rows])
    names = trace.strings
    forwards = _ForwardCalls(trace, region)
    codes = _codes(trace, kind, unit)
    calls = []
    for row, step in zip(rows, step_of.tolist(), strict=True):
        is_backward = names[host.name[row]] == BACKWARD
        number, inputs = forwards.region_and_inputs(row, step, is_backward=is_backward)
        launched = work.get(row, [])
        code = codes.get(row, row)
        graph = _graph_key(names[host.name[code]])
        launching = _launching(trace, row, code, launched)
        calls.append(
            RegionCall(number, is_backward, inputs, graph, row, code, int(region[row]), step, launching, tuple(launched))
        )
    return calls


def _kind_of(text: str) -> int:
    if text in (FORWARD, BACKWARD) or text.startswith(GRAPH):
        return _Range.GRAPH
    if text == MEASURES:
        return _Range.MEASUREMENT
    return _Range.REGION if text.startswith(REGION) else _Range.OTHER


def _enclosing(kind: Column, parent: Column) -> tuple[Column, Column]:
    unit, region = [NONE] * len(kind), [NONE] * len(kind)
    for row, (of, outer) in enumerate(zip(kind.tolist(), parent.tolist(), strict=True)):
        if outer != NONE:
            unit[row], region[row] = unit[outer], region[outer]
        if of == _Range.REGION:
            unit[row], region[row] = NONE, row
        elif of == _Range.MEASUREMENT:
            unit[row] = region[row] = NONE
        elif of == _Range.GRAPH and unit[row] == NONE:
            unit[row] = row
    return np.array(unit), np.array(region)


def _units(parent: Column, kind: Column, unit: Column, region: Column) -> list[int]:
    graphs = np.flatnonzero((kind == _Range.GRAPH) & (unit == np.arange(len(kind)))).tolist()
    regions = np.flatnonzero(kind == _Range.REGION)
    # Regions and graphs may be nested. Only the inner ones count.
    within = {*region[graphs].tolist(), *np.append(region, NONE)[parent[regions]].tolist()}
    return graphs + [row for row in regions.tolist() if row not in within]


def _work_by_unit(trace: Trace, unit: Column) -> dict[int, list[int]]:
    device = trace.device
    rows = np.flatnonzero(device.is_work & (device.launch != NONE))
    rows = rows[np.lexsort((device.start_ns[rows], trace.host.start_ns[device.launch[rows]]))]
    rows = rows[unit[device.launch[rows]] != NONE]
    return lists_by_key(zip(unit[device.launch[rows]].tolist(), rows.tolist(), strict=True))


def _launching(trace: Trace, unit: int, code: int, work: list[int]) -> tuple[int, ...]:
    host = trace.host
    is_op = ((host.kind == HostKind.OP) | is_graph_launch(trace)) & ~is_region_range(trace)
    rows: dict[int, None] = {}
    for launched in work:
        at, op = int(trace.device.launch[launched]), NONE
        while at > code:
            op = at if is_op[at] else op
            at = int(host.parent[at])
        if at != code:
            continue  # AOTAutograd launches some ops outside Inductor's code.
        if op == NONE:
            return (unit,) if host.kind[unit] == HostKind.OP else ()
        rows[op] = None
    return tuple(rows)


def _codes(trace: Trace, kind: Column, unit: Column) -> dict[int, int]:
    graphs = np.flatnonzero(kind == _Range.GRAPH)[::-1].tolist()  # compiled code may call compiled code; outermost last
    return {int(unit[row]): row for row in graphs if _graph_key(trace.strings[trace.host.name[row]])}


def _graph_key(text: str) -> str:
    return text.removeprefix(GRAPH).removesuffix(" ##") if text.startswith(GRAPH) else ""


def _step_of(trace: Trace, rank: int, start_ns: Column) -> Column:
    rows = np.flatnonzero(trace.steps.rank == rank)
    if not len(rows):
        return np.full(len(start_ns), NONE)
    at = np.searchsorted(trace.steps.start_ns[rows], start_ns, side="right") - 1
    return np.where(at >= 0, rows[at], NONE)


class _ForwardCalls:
    def __init__(self, trace: Trace, region: Column) -> None:
        self._trace = trace
        self._region = region
        self._step = NONE
        self._forwards = 0
        self._by_sequence: dict[int, tuple[str, str]] = {}
        self._open: list[tuple[str, str]] = []

    def region_and_inputs(self, row: int, step: int, *, is_backward: bool) -> tuple[str, str]:
        host, names = self._trace.host, self._trace.strings
        if step != self._step:
            self._step, self._forwards = step, 0
        region, sequence = int(self._region[row]), int(host.sequence[row])
        number = names[host.name[region]].removeprefix(REGION).strip() if region != NONE else ""
        if is_backward:
            forward = self._forward_of(number, sequence)
            return number or forward[0], forward[1]
        number = number or f"graph {self._forwards}"
        self._forwards += 1
        if names[host.name[row]] != FORWARD:
            return number, ""
        numbered_shapes = number, names[host.shapes[row]]
        self._open.append(numbered_shapes)
        if sequence != NONE:
            self._by_sequence[sequence] = numbered_shapes
        return numbered_shapes

    def _forward_of(self, number: str, sequence: int) -> tuple[str, str]:
        known = self._by_sequence.pop(sequence, None)
        alike = [one for one in self._open if one[0] == number] or self._open
        forward = known or (alike[-1] if alike else ("", ""))
        if forward in self._open:
            del self._open[len(self._open) - 1 - self._open[::-1].index(forward)]
        return forward
