"""Finds the op that made a CUDA runtime call, using the `External id` in Kineto's events.

    made_by = CallOwners.of(spans, ids, named)
    made_by.op            # per host span: the index of the op that made the call, or NONE

Note [Threads that reuse ids]
    CUPTI identifies the caller of a runtime call by the lower 32 bits of its pthread id. Short-lived threads, such as the
    replicas of nn.DataParallel, reuse the ids of earlier threads, so Kineto assigns their calls to a wrong thread. The External
    id of a call is always right, because the profiler sets the id on the calling thread. If a call has no usable External id,
    its op is the op that encloses the call in time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.comparison.thresholds import ROUNDING_NS
from traces.model.trace import NONE, Column, HostSpans


@dataclass(frozen=True)
class CallOwners:
    op: Column
    names_ops: bool | None

    @classmethod
    def of(cls, spans: HostSpans, ids: Column, named: Column) -> CallOwners:
        owner = np.full(len(spans), NONE, "i4")
        calls = np.flatnonzero(named > 0)
        ops = latest_by_id(ids, spans.start_ns, named[calls], spans.start_ns[calls])
        calls, ops = calls[ops != NONE], ops[ops != NONE]
        if not len(calls):
            return cls(owner, None)
        starts, ends = spans.start_ns, spans.end_ns
        inside = (starts[ops] <= starts[calls]) & (ends[calls] <= ends[ops] + ROUNDING_NS)
        if 2 * int(inside.sum()) < len(calls):
            return cls(owner, False)
        owner[calls[inside]] = ops[inside]
        return cls(owner, True)

    def in_order(self, order: Column) -> CallOwners:
        place = np.empty(len(order) + 1, "i4")
        place[order], place[NONE] = np.arange(len(order)), NONE
        return CallOwners(place[self.op[order]], self.names_ops)

    def move_to_threads(self, spans: HostSpans) -> None:
        calls = np.flatnonzero(self.op != NONE)
        spans.thread[calls] = spans.thread[self.op[calls]]

    def set_parents(self, spans: HostSpans, ids: Column) -> None:
        calls = np.flatnonzero(self.op != NONE)
        above = spans.parent[calls]
        climbing = np.flatnonzero((above != NONE) & (ids[above] <= 0))
        while len(climbing):
            above[climbing] = spans.parent[above[climbing]]
            climbing = climbing[(above[climbing] != NONE) & (ids[above[climbing]] <= 0)]
        elsewhere = calls[above != self.op[calls]]
        spans.parent[elsewhere] = self.op[elsewhere]


def latest_by_id(ids: Column, start_ns: Column, wanted: Column, before_ns: Column) -> Column:
    """For each id, return the last event with this id before a given time, or NONE."""
    rows = np.flatnonzero(ids > 0)
    if not len(rows):
        return np.full(len(wanted), NONE, "i4")
    rows = rows[np.lexsort((start_ns[rows], ids[rows]))]
    of_rows = ids[rows]
    first, end = np.searchsorted(of_rows, wanted), np.searchsorted(of_rows, wanted, side="right")
    found = np.where(first < end, rows[np.minimum(first, len(rows) - 1)], NONE)
    for place in np.flatnonzero(end - first > 1).tolist():
        several = rows[first[place] : end[place]]
        at = int(np.searchsorted(start_ns[several], before_ns[place], side="right"))
        found[place] = several[max(at - 1, 0)]
    return found.astype("i4")
