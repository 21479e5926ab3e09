"""The op tree: spans of one thread, nested by time.

    order = nesting_order(thread, start_ns, duration_ns, rank_of_kind, entry)
    parent, overlaps = parents(thread[order], start_ns[order], end_ns[order])

Note [Rounded ends]
    Microsecond files round each start and duration on their own, so a child may end up to a microsecond after its
    parent: still a child. A span that starts within another and ends later than that is a real overlap (a
    record_function range begins within the Python frame of its `__enter__` and outlives it): it hangs on the innermost
    span that encloses it whole, and is counted.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from traces.model.trace import NONE, Column

ROUNDING_NS = 1000


def nesting_order(thread: Column, start_ns: Column, duration_ns: Column, outer: Column, entry: Column) -> Column:
    """The rows ordered by (thread, start, longest first). Spans with the same times are ordered from the outside in: by
    `outer` (smaller encloses greater), then by `entry` (an id given out on entry), then as they came."""
    order = np.lexsort((-duration_ns, start_ns, thread))
    t, s, d = thread[order], start_ns[order], duration_ns[order]
    same = (t[1:] == t[:-1]) & (s[1:] == s[:-1]) & (d[1:] == d[:-1])
    tied = np.flatnonzero(np.r_[same, False] | np.r_[False, same])
    if len(tied):
        rows = order[tied]
        within = np.lexsort((rows, entry[rows], outer[rows], -duration_ns[rows], start_ns[rows], thread[rows]))
        order[tied] = rows[within]
    return order


def parents(thread: Column, start_ns: Column, end_ns: Column) -> tuple[Column, int]:
    """For spans in nesting order: the row of the innermost enclosing span (or NONE), and how many overlap another.

    A span encloses those that start in it and end in it, or no later than Note [Rounded ends] allows.
    """
    parent: list[int] = []  # of the spans so far; those above the latest are the open ones
    overlaps = 0
    bounds = [*np.flatnonzero(np.diff(thread, prepend=NONE - 1)).tolist(), len(thread)]
    starts, ends = start_ns.tolist(), [*end_ns.tolist(), 1 << 63]  # the last is that of NONE: what is no span never ends
    for first, last in pairwise(bounds):
        inner, inner_end = NONE, ends[NONE]
        for row in range(first, last):
            end = ends[row]
            while inner_end < end:
                if inner_end > starts[row]:
                    if end - inner_end <= ROUNDING_NS:
                        break
                    overlaps += 1
                inner = parent[inner]
                inner_end = ends[inner]
            parent.append(inner)
            inner, inner_end = row, end
    return np.array(parent, "i4"), overlaps
