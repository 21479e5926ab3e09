"""Which kernels and ops were added, are gone, take longer or shorter: two traces compared by name, per step.

    changes(recorded, other, [0, 1, 2], [0, 1]).kernels.longer[0]
    # NameChange("volta_sgemm_128x64_nn", recorded_count=4.0, replayed_count=4.0, recorded_ns=1200000, replayed_ns=1500000)

Counts and times are means per step over the chosen steps, so that traces of different length compare fairly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from traces.equivalents import canonical_op, kernel_text
from traces.measure import launch_steps, op_of, work_rows
from traces.model import Column, Trace

TOP = 10  # rows of each list
_NEGLIGIBLE_NS = 1000  # per step; a smaller difference is not listed


@dataclass(frozen=True, slots=True)
class NameChange:
    """One name in both traces, per step. An op's count is how many of it had device work."""

    name: str
    recorded_count: float
    replayed_count: float
    recorded_ns: int
    replayed_ns: int


@dataclass(frozen=True, slots=True)
class ChangeLists:
    """Up to `top` names each, the largest difference of time first."""

    added: list[NameChange] = field(default_factory=list)
    gone: list[NameChange] = field(default_factory=list)
    longer: list[NameChange] = field(default_factory=list)
    shorter: list[NameChange] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs between two traces: GPU time by kernel name, and by the op that launched it."""

    kernels: ChangeLists
    ops: ChangeLists


@dataclass
class _Total:
    name: str
    count: float = 0.0
    duration_ns: float = 0.0


_NOTHING = _Total("")


def changes(
    recorded: Trace, other: Trace, recorded_steps: Column, other_steps: Column, tolerance: float = 0.0, top: int = TOP
) -> Changes:
    """Kernels and ops that two traces do not have alike. Kernels' parameters do not count: releases of a library change them.

    The steps are rows of each trace's `steps`, repeated where a step was replayed more than once; none: everything.
    `tolerance` is the relative change of a name's time below which it counts as the same. A phase-grained trace has no
    kernels or ops that could be compared.
    """
    if "phase" in (recorded.grain, other.grain):
        return Changes(ChangeLists(), ChangeLists())
    return Changes(
        _classified(_kernels(recorded, recorded_steps), _kernels(other, other_steps), tolerance, top, kernel_text),
        _classified(_ops(recorded, recorded_steps), _ops(other, other_steps), tolerance, top, canonical_op),
    )


def _weights(trace: Trace, steps: Column) -> Column:
    """How much each device span counts: 1 / number of steps for each time that its step was chosen, else 0."""
    if not len(steps):
        return np.ones(len(trace.device))
    weight = np.bincount(steps, minlength=len(trace.steps)) / len(steps)
    step = launch_steps(trace)
    return np.asarray(np.where(step >= 0, weight[step], 0.0))


def _kernels(trace: Trace, steps: Column) -> dict[str, _Total]:
    rows = work_rows(trace)
    weights = _weights(trace, steps)[rows]
    return _by_name(trace, trace.device.name[rows], weights, weights * trace.device.duration_ns[rows])


def _ops(trace: Trace, steps: Column) -> dict[str, _Total]:
    """The innermost ops. Compared by canonical name, for recorder, replayer and PyTorch releases differ in names."""
    rows = work_rows(trace)
    op = op_of(trace)[rows]
    rows, op = rows[op >= 0], op[op >= 0]
    weights = _weights(trace, steps)[rows]
    counted = np.zeros(len(rows))
    first = np.unique(op, return_index=True)[1]
    counted[first] = weights[first]
    return _by_name(trace, trace.host.name[op], counted, weights * trace.device.duration_ns[rows])


def _by_name(trace: Trace, names: Column, counts: Column, times_ns: Column) -> dict[str, _Total]:
    size = len(trace.strings)
    count = np.bincount(names, weights=counts, minlength=size)
    duration_ns = np.bincount(names, weights=times_ns, minlength=size)
    totals = (_Total(trace.strings[i], float(count[i]), float(duration_ns[i])) for i in np.flatnonzero(count).tolist())
    return {total.name: total for total in totals}


def _classified(
    recorded: dict[str, _Total], other: dict[str, _Total], tolerance: float, top: int, key: Callable[[str], str] = str
) -> ChangeLists:
    ours, theirs = _merged(recorded, key), _merged(other, key)
    lists: dict[str, list[NameChange]] = {"added": [], "gone": [], "longer": [], "shorter": []}
    for name in ours.keys() | theirs.keys():
        a, b = ours.get(name, _NOTHING), theirs.get(name, _NOTHING)
        change = NameChange(a.name or b.name, round(a.count, 3), round(b.count, 3), round(a.duration_ns), round(b.duration_ns))
        difference_ns = b.duration_ns - a.duration_ns
        if not a.count or not b.count:
            lists["gone" if a.count else "added"].append(change)
        elif abs(difference_ns) > max(tolerance * a.duration_ns, _NEGLIGIBLE_NS):
            lists["longer" if difference_ns > 0 else "shorter"].append(change)
    return ChangeLists(**{kind: sorted(rows, key=_size)[:top] for kind, rows in lists.items()})


def _merged(totals: dict[str, _Total], key: Callable[[str], str]) -> dict[str, _Total]:
    """Totals with names of one key put together, under the name with the most time."""
    merged: dict[str, _Total] = {}
    for total in sorted(totals.values(), key=lambda total: -total.duration_ns):
        into = merged.setdefault(key(total.name), _Total(total.name))
        into.count += total.count
        into.duration_ns += total.duration_ns
    return merged


def _size(change: NameChange) -> tuple[int, str]:
    return -abs(change.replayed_ns - change.recorded_ns), change.name
