"""Finds the op that made a CUDA runtime call, by the `External id` that Kineto writes with each call.

    made_by = CallOwners.of(spans, ids, named)
    made_by.names_ops     # whether the External ids of this file are ids of ops; None if no call has a known id
    made_by.op            # per host row: the row of the op that made the call, or NONE

Note [Threads that reuse ids]
    CUPTI records the lower 32 bits of a caller's pthread id, and Kineto assigns the call to the first system thread with this
    id. Threads that live for one step only, such as the replicas of nn.DataParallel, reuse the ids of earlier threads. So from
    the second step, calls of such short-lived threads are assigned to a thread that has ended. The External id of a call is
    always right, because the profiler sets it on the calling thread when an op begins. So the op of a call is found by its
    External id if possible. If a call has no External id of an op, or if the op with this id does not contain the call in time,
    the op that encloses the call on its thread is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.comparison.thresholds import ROUNDING_NS
from traces.model.trace import NONE, Column, HostSpans


@dataclass(frozen=True)
class CallOwners:
    """The op that made each runtime call. `op` contains the row of the op that made each runtime call, and NONE for host spans
    of other kinds.
    """

    op: Column
    names_ops: bool | None

    @classmethod
    def of(cls, spans: HostSpans, ids: Column, named: Column) -> CallOwners:
        """Find the op that made each runtime call. `ids` contains the id of each op, and `named` contains the External id of
        each runtime call. Both arrays contain NONE for all other host spans.

        From torch 1.12 to 2.3, the External id of a runtime call is not the id of an op but a copy of the call's correlation
        id. External ids are assumed to be ids of ops if most runtime calls run during the op that has the call's External id.
        """
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
        """Return the same owners for a host table whose rows were put in the order `order`."""
        place = np.empty(len(order) + 1, "i4")
        place[order], place[NONE] = np.arange(len(order)), NONE
        return CallOwners(place[self.op[order]], self.names_ops)

    def move_to_threads(self, spans: HostSpans) -> None:
        """Move each runtime call to the thread of the op that made the call."""
        calls = np.flatnonzero(self.op != NONE)
        spans.thread[calls] = spans.thread[self.op[calls]]

    def hang_under_ops(self, spans: HostSpans, ids: Column) -> None:
        """Correct the parents of runtime calls that were assigned to a wrong op because of their times. The column
        `spans.parent` must be filled already."""
        calls = np.flatnonzero(self.op != NONE)
        above = spans.parent[calls]
        climbing = np.flatnonzero((above != NONE) & (ids[above] <= 0))
        while len(climbing):
            above[climbing] = spans.parent[above[climbing]]
            climbing = climbing[(above[climbing] != NONE) & (ids[above[climbing]] <= 0)]
        elsewhere = calls[above != self.op[calls]]
        spans.parent[elsewhere] = self.op[elsewhere]


def latest_by_id(ids: Column, start_ns: Column, wanted: Column, before_ns: Column) -> Column:
    """Return, for each id in `wanted`, the number of a row that has this id, or NONE if no row has it.

    If several rows have the same id, the last row that starts at or before `before_ns` is returned. If all rows with the id
    start after `before_ns`, the first row is returned.
    """
    rows = np.flatnonzero(ids > 0)
    if not len(rows) or not len(wanted):
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
