"""Computes statistics of kernels and ops, such as call counts and mean times.

    totals = kernel_totals(trace, weights)["volta_sgemm_128x64_nn"]
    totals.calls, totals.total_ns, totals.mean_ns, totals.least_ns, totals.most_ns
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from traces.figures.measure import op_of, work_rows
from traces.model.trace import NONE, Column, Trace
from traces.names.equivalent_ops import canonical_op


@dataclass(frozen=True)
class Totals:
    """Contains the call count and the total time of one op or kernel. If two traces are shown, counts and times are means per
    step."""

    name: str
    calls: float
    total_ns: float
    least_ns: int
    most_ns: int

    @property
    def mean_ns(self) -> float:
        return self.total_ns / self.calls if self.calls else 0.0


def kernel_totals(trace: Trace, weights: Column) -> dict[str, Totals]:
    rows = work_rows(trace)
    rows = rows[weights[rows] > 0]
    return totals_by_name(trace.strings.__getitem__, trace.device.name[rows], weights[rows], trace.device.duration_ns[rows])


def op_totals(trace: Trace, weights: Column) -> dict[str, Totals]:
    rows = work_rows(trace)
    rows = rows[weights[rows] > 0]
    return totals_by_op(trace, rows, weights[rows], trace.device.duration_ns[rows])


def totals_by_op(trace: Trace, rows: Column, weights: Column, duration_ns: Column) -> dict[str, Totals]:
    op = op_of(trace)[rows]
    known = op != NONE
    ops, first, call = np.unique(op[known], return_index=True, return_inverse=True)
    of_ops_ns = np.bincount(call, weights=duration_ns[known], minlength=len(ops)).astype(np.int64)
    names = trace.host.name[ops] if len(ops) else ops
    return totals_by_name(trace.strings.__getitem__, names, weights[known][first], of_ops_ns, canonical_op)


def totals_by_name(
    text_of: Callable[[int], str], names: Column, weights: Column, duration_ns: Column, key: Callable[[str], str] = str
) -> dict[str, Totals]:
    order = np.argsort(names, kind="stable")
    names, weights, duration_ns = names[order], weights[order], duration_ns[order]
    begins = np.flatnonzero(np.diff(names, prepend=-2))
    found: dict[str, Totals] = {}
    if not len(begins):
        return found
    columns = zip(
        names[begins].tolist(),
        np.add.reduceat(weights, begins).tolist(),
        np.add.reduceat(weights * duration_ns, begins).tolist(),
        np.minimum.reduceat(duration_ns, begins).tolist(),
        np.maximum.reduceat(duration_ns, begins).tolist(),
        strict=True,
    )
    for name, calls, total_ns, least_ns, most_ns in columns:
        text = text_of(name)
        of = Totals(text, calls, total_ns, least_ns, most_ns)
        other = found.get(key(text))
        if other is not None:  # the group gets the name with the most time
            longer = other if other.total_ns >= total_ns else of
            of = Totals(
                longer.name,
                of.calls + other.calls,
                of.total_ns + other.total_ns,
                min(of.least_ns, other.least_ns),
                max(of.most_ns, other.most_ns),
            )
        found[key(text)] = of
    return found
