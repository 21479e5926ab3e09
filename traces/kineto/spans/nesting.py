"""Builds the call tree of each thread's ops from their start and end times.

    order = nesting_order(thread, start_ns, duration_ns, rank_of_kind, entry)
    parent, overlaps, end_ns = parents(thread[order], start_ns[order], end_ns[order], is_frame[order], is_call[order])

Note [Rounded ends]
    In files with rounded times, a child span may seem to end up to a microsecond after its parent, and a span may seem to begin
    up to a microsecond before the end of the previous span. If the difference is larger than a microsecond, the two spans
    really overlap. The parent of an overlapping span is the innermost span that encloses it completely.

Note [Calls on another clock]
    The times of CUDA calls come from CUPTI, whose clock may differ from the clock of ops by a few microseconds. A call cannot
    end after the op that made it, so a call that mostly lies inside an op is a call of this op.

Note [Frames that never end]
    If a Python function raises an exception, Kineto may not record the function's return. In this case, Kineto writes a frame
    that lasts until the end of the recording. A Python frame cannot outlive its caller, so the importer ends the frame at the
    end of the caller's frame.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from traces.comparison.thresholds import ROUNDING_NS
from traces.model.trace import NONE, Column


def nesting_order(thread: Column, start_ns: Column, duration_ns: Column, outer: Column, entry: Column) -> Column:
    order = np.lexsort((-duration_ns, start_ns, thread))
    t, s, d = thread[order], start_ns[order], duration_ns[order]
    same = (t[1:] == t[:-1]) & (s[1:] == s[:-1]) & (d[1:] == d[:-1])
    tied = np.flatnonzero(np.r_[same, False] | np.r_[False, same])
    if len(tied):
        rows = order[tied]
        within = np.lexsort((rows, entry[rows], outer[rows], -duration_ns[rows], start_ns[rows], thread[rows]))
        order[tied] = rows[within]
    return order


def parents(
    thread: Column, start_ns: Column, end_ns: Column, is_frame: Column, is_call: Column
) -> tuple[Column, int, Column]:
    """Return the parent of each event, the number of events that partially overlap other events, and the end time of each
    event. If an event ends after its parent, its end time is corrected. The events must be sorted by `nesting_order`."""
    # see Note [Rounded ends], Note [Calls on another clock], Note [Frames that never end]
    parent: list[int] = []
    overlaps = 0
    bounds = [*np.flatnonzero(np.diff(thread, prepend=NONE - 1)).tolist(), len(thread)]
    frames, calls = is_frame.tolist(), is_call.tolist()
    starts, ends = start_ns.tolist(), [*end_ns.tolist(), 1 << 63]
    for first, last in pairwise(bounds):
        inner, inner_end = NONE, ends[NONE]
        last_end = max(ends[first:last], default=0)
        for row in range(first, last):
            end = ends[row]
            while inner_end < end:
                if inner_end > starts[row]:
                    if end - inner_end <= max(ROUNDING_NS, (inner_end - starts[row]) * calls[row]):
                        end = inner_end if calls[row] else end  # events after the op are not inside the call
                        break
                    overlaps += inner_end - starts[row] > ROUNDING_NS
                    if end == last_end and frames[row] and frames[inner]:
                        end = ends[row] = inner_end
                        break
                inner = parent[inner]
                inner_end = ends[inner]
            parent.append(inner)
            inner, inner_end = row, end
    return np.array(parent, "i4"), overlaps, np.array(ends[:-1], np.int64)
