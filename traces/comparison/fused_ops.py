"""Finds the eager ops that each fused kernel of a compiled program replaces.

    for one in fused_ops(eager, compiled, eager_step, compiled_step):
        one.kernels, one.ops, one.eager_ns, one.compiled_ns       # ("triton_poi_fused_add_relu_0",), {"add": 1, "relu": 1}, ...

The name of an Inductor kernel lists the ops that the kernel runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from traces.comparison.changed_ops import named_ops, ops_in_name
from traces.comparison.counterparts import counterparts, longest_rising
from traces.figures.measure import launch_steps, op_of, work_in_launch_order
from traces.model.trace import NONE, Column, Trace
from traces.names.equivalent_ops import canonical_op


@dataclass(frozen=True, slots=True)
class FusedOps:
    """Compares fused kernels with the eager ops that they replace. All times are GPU times per step."""

    kernels: tuple[str, ...]  # empty if no fused kernel's name contains the ops
    calls: int  # number of launches
    compiled_ns: int  # GPU time of the fused kernels
    ops: Mapping[str, int]  # number of eager calls by op name
    eager_ns: int  # GPU time of the eager ops

    @property
    def op_counts(self) -> str:
        return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in self.ops.items())


@dataclass
class _Stretch:
    places: list[int] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    compiled_ns: int = 0
    calls: int = 1
    ops: Counter[str] = field(default_factory=Counter)
    eager_ns: int = 0


def fused_ops(eager: Trace, compiled: Trace, eager_step: int, compiled_step: int) -> tuple[FusedOps, ...]:
    ours, theirs = _in_order(eager, eager_step), _in_order(compiled, compiled_step)
    pairs = counterparts(eager, compiled, [(eager_step, compiled_step)])
    place_of = [{row: place for place, row in enumerate(rows.tolist())} for rows in (ours, theirs)]
    is_fused = [bool(ops_in_name(compiled.strings[compiled.device.name[row]])) for row in theirs.tolist()]
    both = zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
    places = [(place_of[0].get(a), place_of[1].get(b)) for a, b in both]
    shared = sorted((a, b) for a, b in places if a is not None and b is not None and not is_fused[b])
    anchors = [shared[at] for at in longest_rising([b for _, b in shared])]
    launched = _launching_ops(eager, ours)
    stretches = _stretches(compiled, theirs, is_fused, {kind for kinds, _, _ in launched for kind in kinds})
    rest = _Stretch()
    paired = {a for a, _ in shared}
    counted = {launched[place][2] for place in paired}  # if both traces contain one of an op's kernels, the op was not removed
    for place, (kinds, name, op) in enumerate(launched):
        if place not in paired:
            near = [(_distance(anchors, place, one), number) for number, one in enumerate(stretches) if one.names & kinds]
            stretch = stretches[min(near)[1]] if near else rest
            if op == NONE or op not in counted:
                stretch.ops[name] += 1
            stretch.eager_ns += int(eager.device.duration_ns[ours[place]])
            counted.add(op)
    alike: dict[tuple[str, ...], _Stretch] = {}
    for one in [*stretches, *([rest] if rest.ops else [])]:
        if (same := alike.setdefault(tuple(one.kernels), one)) is not one:
            same.calls += 1
            same.compiled_ns += one.compiled_ns
            same.ops += one.ops
            same.eager_ns += one.eager_ns
    rows = [FusedOps(kernels, of.calls, of.compiled_ns, dict(of.ops), of.eager_ns) for kernels, of in alike.items()]
    return tuple(sorted(rows, key=lambda row: -abs(row.eager_ns - row.compiled_ns)))


def _stretches(trace: Trace, rows: Column, is_fused: list[bool], known: set[str]) -> list[_Stretch]:
    found: list[_Stretch] = []
    for place, row in enumerate(rows.tolist()):
        if is_fused[place]:
            if not place or not is_fused[place - 1]:
                found.append(_Stretch())
            name = trace.strings[trace.device.name[row]]
            found[-1].places.append(place)
            found[-1].kernels.append(name)
            found[-1].names.update(named_ops(name, known))
            found[-1].compiled_ns += int(trace.device.duration_ns[row])
    return found


def _in_order(trace: Trace, step: int) -> Column:
    rows = work_in_launch_order(trace)
    of_step: Column = rows[launch_steps(trace)[rows] == step]
    return of_step


def _launching_ops(trace: Trace, rows: Column) -> list[tuple[set[str], str, int]]:
    host, strings = trace.host, trace.strings
    found = []
    for row, op in zip(rows.tolist(), op_of(trace)[rows].tolist(), strict=True):
        name = canonical_op(strings[host.name[op]]) if op != NONE else strings[trace.device.name[row]]
        found.append(({canonical_op(strings[host.name[at]]) for at in host.outward(op)}, name, op))
    return found


def _distance(anchors: list[tuple[int, int]], place: int, stretch: _Stretch) -> int:
    after = bisect_right(anchors, (place, NONE))
    first = anchors[after - 1][1] if after else NONE
    last = anchors[after][1] if after < len(anchors) else stretch.places[-1]
    return max(first - stretch.places[-1], stretch.places[0] - last, 0)
