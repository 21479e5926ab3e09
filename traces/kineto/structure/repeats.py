"""Finds training steps in recordings without step marks, by searching for repeated sequences of ops.

    repeated_steps(host, device, strings)       # Repeats(starts_ns=[...], has_rest=False), or None
    repeated_kernels(host, device, strings)     # the same for a recording without ops
    gpu_step_marks(host, device, strings)       # GpuMarks(numbers=[5, 6], starts_ns=[...]), or None
    marked_iterations(host, device, strings)    # [starts_ns], or None

Note [Repeated ops]
    If the whole recording repeats one sequence of ops at least twice, each repetition is a training step. Layers of a network
    also repeat. A training step must therefore contain something that a loop does once per iteration, such as a copy between
    CPU and GPU. Two ops on tokens also suffice: lookups in an embedding, or choices of the next token. A single lookup is not
    enough, because each layer may have an embedding. Each layer of a vector quantizer chooses the nearest entries of its
    codebook and looks them up. A choice of a token is therefore ignored if several tokens per row are looked up. In all other
    cases, a step must begin with new data, because a layer begins with the output of the previous layer. The kernels of an
    inference server depend on the number of requests. A sequence with a copy between CPU and GPU is therefore a step even if
    only its ops repeat. The first iteration may run different ops than later iterations, for example to process a prompt. If
    only launches of CUDA graphs repeat, training steps are found from these launches. In a recording without ops, the work of
    the stream with the most kernels and copies is searched instead. If the launches were recorded, a step begins with the
    launch of its first kernel. If one launch runs several iterations, their times on the host are unknown, so the recording is
    one step.

Note [Marked iterations]
    Inference servers put a profiler range around each iteration, for example "step[DECODE bs=32]". If the main thread has at
    least two such ranges and most work was launched inside them, each range is a step. Ranges with any other name are steps
    if they all have the same name and all work was launched inside them. Ranges around the layers of a network are not steps.
    They do not contain all work, because the network also launches work before its first layer and after its last layer.

Note [Step marks on the GPU]
    Profilers copy step marks to the GPU's timeline, and some files contain only these copies. A step then begins on the host
    with the launch of the first kernel inside the mark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traces.comparison.thresholds import MOSTLY_MARKED
from traces.kineto.spans.thread_roles import STEP_MARK
from traces.kineto.structure.annotations import is_iteration
from traces.model.intervals import Intervals, outermost
from traces.model.row_order import grouped, lists_by_key
from traces.model.trace import NONE, Column, DeviceKind, DeviceSpans, HostKind, HostSpans, Strings, parse_shapes
from traces.names.device_names import GRAPH_LAUNCHES, copy_direction

_OPTIMIZER_KERNEL = re.compile(r".*(?:multi_tensor_apply|optimizer|fused_?adam|fused_?sgd|adam_?kernel|lamb(?!da))", re.I)


@dataclass(frozen=True, slots=True)
class Repeats:
    starts_ns: list[int]
    has_rest: bool  # True if the last step is incomplete


@dataclass(frozen=True, slots=True)
class GpuMarks:
    numbers: list[int]
    starts_ns: list[int]


def gpu_step_marks(host: HostSpans, device: DeviceSpans, strings: Strings) -> GpuMarks | None:
    # see Note [Step marks on the GPU]
    rows = np.flatnonzero(device.kind == DeviceKind.ANNOTATION)
    rows = rows[strings.matching(device.name[rows], STEP_MARK.match)]
    if not len(rows):
        return None
    launched = device.is_work & (device.launch != NONE)
    work = np.flatnonzero(launched if launched.any() else device.is_work)
    top = _outermost(host)
    begins: dict[int, int] = {}
    for row in rows[np.argsort(device.start_ns[rows], kind="stable")].tolist():
        match = STEP_MARK.match(strings[int(device.name[row])])
        own = work[device.device[work] == device.device[row]]
        own = own[(device.start_ns[own] >= device.start_ns[row]) & (device.start_ns[own] < device.end_ns[row])]
        if match and len(own):
            started_ns = host.start_ns[top[device.launch[own]]] if launched.any() else device.start_ns[own]
            first_ns = int(started_ns.min())
            begins[int(match[1])] = min(begins.get(int(match[1]), first_ns), first_ns)
    found = sorted(begins.items(), key=lambda one: one[1])
    numbers = [number for number, _ in found]
    return GpuMarks(numbers, [start_ns for _, start_ns in found]) if found and numbers == sorted(numbers) else None


def marked_iterations(host: HostSpans, device: DeviceSpans, strings: Strings) -> list[int] | None:
    # see Note [Marked iterations]
    ranges = np.flatnonzero((host.thread == 0) & (host.kind == HostKind.ANNOTATION))
    named = ranges[strings.matching(host.name[ranges], is_iteration)]
    launch = device.launch[device.is_work & (device.launch != NONE)]
    for of, least in ((named, MOSTLY_MARKED), (ranges, 1.0)):
        outer = host.take(of[outermost(host.start_ns[of], host.end_ns[of])])
        is_one_loop = len(outer) > 1 and (of is named or len(np.unique(outer.name)) == 1)
        inside = Intervals(outer.start_ns, outer.end_ns).holds(host.start_ns[launch])
        if is_one_loop and len(launch) and inside.mean() >= least:
            starts_ns: list[int] = outer.start_ns.tolist()
            return starts_ns
    return None


def repeated_steps(host: HostSpans, device: DeviceSpans, strings: Strings) -> Repeats | None:
    # see Note [Repeated ops]
    calls = _calls(host, device, strings)
    exact, names = [call.symbol for call in calls], [call.symbol[:1] for call in calls]
    works = bool(device.is_work.any())
    for symbols in (exact, names):
        own = calls[: _unit(symbols)]
        begins_anew = symbols is exact and (any(call.is_graph for call in own) or _reads_new_data(own))
        if _is_iteration(own, works, begins_anew):
            return Repeats([call.start_ns for call in calls[:: len(own)]], len(calls) % len(own) > 0)
    graphs = [call for call in calls if call.is_graph]
    unit = _unit([call.symbol for call in graphs])
    if unit:
        return Repeats([call.start_ns for call in graphs[::unit]], len(graphs) % unit > 0)
    for first, unit in sorted(map(_repeated_to_the_end, (exact, names))):
        own = calls[first : first + unit]
        if _is_iteration(own, works):
            is_whole = first >= unit or not _once_calls(own).isdisjoint(_once_calls(calls[:first]))
            second = first if is_whole else first + unit
            return Repeats([call.start_ns for call in [calls[0], *calls[second::unit]]], False)
    return None


def repeated_kernels(host: HostSpans, device: DeviceSpans, strings: Strings) -> Repeats | None:
    # see Note [Repeated ops]
    work = np.flatnonzero(device.is_work)
    rows = max((work[of] for of in grouped(device.device[work], device.stream[work])), key=len, default=work)
    rows = rows[np.argsort(device.start_ns[rows], kind="stable")]
    names = device.name[rows].tolist()
    unit = _unit(names)
    if not unit or not any(_once(strings[name]) for name in names[:unit]):
        return None
    firsts, launch = rows[::unit], device.launch[rows[::unit]]
    starts_ns = device.start_ns[firsts] if (launch == NONE).any() else host.start_ns[launch]
    if (np.diff(starts_ns) <= 0).any():  # a launch of a CUDA graph may run several iterations
        return None
    return Repeats(starts_ns.tolist(), len(rows) % unit > 0)


class _Call(NamedTuple):
    start_ns: int
    symbol: tuple[int, ...]
    is_graph: bool
    is_once: bool
    of_tokens: bool
    looks_up_many: bool  # True if the op looks up several tokens per row
    computes: bool
    reads: str  # shape of the op's first argument, or ""


def _once_calls(calls: Sequence[_Call]) -> set[int]:
    return {call.symbol[0] for call in calls if call.is_once or call.of_tokens}


def _is_iteration(calls: Sequence[_Call], works: bool, begins_anew: bool = False) -> bool:
    lookups = [call for call in calls if call.looks_up_many] or [call for call in calls if call.of_tokens]
    is_loop = begins_anew or any(call.is_once for call in calls) or len(lookups) > 1
    return is_loop and (not works or any(call.computes for call in calls))


def _reads_new_data(calls: Sequence[_Call]) -> bool:
    # see Note [Repeated ops]
    others = {call.reads for call in calls[1:]} - {""}
    return bool(others and calls[0].reads) and calls[0].reads not in others


def _calls(host: HostSpans, device: DeviceSpans, strings: Strings) -> list[_Call]:
    top = _outermost(host)
    work = np.flatnonzero(device.is_work & (device.launch != NONE))
    work = work[np.argsort(device.start_ns[work], kind="stable")]
    work_of = lists_by_key(zip(top[device.launch[work]].tolist(), work.tolist(), strict=True))
    once = {name for name in np.unique(device.name[work]).tolist() if _once(strings[name])}
    tops = np.unique(
        top[(host.thread == 0) & ((host.kind == HostKind.OP) | np.isin(np.arange(len(host)), device.launch[work]))]
    )
    of_tokens = set(map(strings.find, ("aten::embedding", "aten::argmax", "aten::multinomial")))
    lookup = strings.find("aten::embedding")
    launches_graph = set(top[strings.matching(host.name, GRAPH_LAUNCHES.__contains__)].tolist())
    names, is_kernel, graph_of = device.name.tolist(), (device.kind == DeviceKind.KERNEL).tolist(), device.graph.tolist()
    tops = tops[np.argsort(host.start_ns[tops], kind="stable")]
    found = []
    columns = (of.tolist() for of in (tops, host.start_ns[tops], host.name[tops], host.shapes[tops]))
    for row, start_ns, name, shape in zip(*columns, strict=True):
        own = work_of.get(row, [])
        graphs = {graph_of[one] for one in own} - {NONE}
        own_names = [names[one] for one in own]
        found.append(
            _Call(
                start_ns,
                (name, *(sorted(graphs) or own_names)),
                row in launches_graph or bool(graphs),
                not once.isdisjoint(own_names),
                name in of_tokens,
                name == lookup and _has_several_per_row(strings[shape]),
                any(is_kernel[one] for one in own),
                strings[shape].partition(";")[0],
            )
        )
    return found


def _has_several_per_row(shapes: str) -> bool:
    indices = [*parse_shapes(shapes), ()][1:2]
    return any(len(shape) > 1 and shape[-1] > 1 for shape in indices)


def _once(name: str) -> bool:
    return copy_direction(name) in ("h2d", "d2h") or _OPTIMIZER_KERNEL.match(name) is not None


def _unit(symbols: Sequence[object]) -> int:
    """Return the period of a sequence, such as 2 for ABABA, or 0 if the sequence is not periodic (Knuth-Morris-Pratt
    algorithm)."""
    unit = _periods(symbols)[-1] if symbols else 0
    return unit if 2 * unit <= len(symbols) else 0


def _repeated_to_the_end(symbols: Sequence[object]) -> tuple[int, int]:
    """Find a part that repeats up to the end of a sequence. Return where the repetition begins, and the length of the repeated
    part, such as (1, 2) for XABABAB. The repeated part must occur at least three times. The number of elements before the
    repetition must be less than twice the length of the repeated part."""
    for length, unit in reversed(list(enumerate(_periods(symbols[::-1]), start=1))):
        if 3 * unit <= length and len(symbols) - length < 2 * unit:
            return len(symbols) - length // unit * unit, unit
    return 0, 0


def _periods(symbols: Sequence[object]) -> list[int]:
    """Return the period of each prefix of `symbols`. For ABAB, the periods of A, AB, ABA and ABAB are [1, 2, 2, 2]."""
    fails = [0] * len(symbols)
    for place in range(1, len(symbols)):
        length = fails[place - 1]
        while length and symbols[place] != symbols[length]:
            length = fails[length - 1]
        fails[place] = length + (symbols[place] == symbols[length])
    return [place - length for place, length in enumerate(fails, start=1)]


def _outermost(host: HostSpans) -> Column:
    top, above = np.arange(len(host)), host.parent.copy()
    while (above != NONE).any():
        top = np.where((above != NONE) & (host.kind[above] == HostKind.OP), above, top)
        above = np.where(above != NONE, host.parent[above], NONE)
    return top
