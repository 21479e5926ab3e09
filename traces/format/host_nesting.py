"""Parents, starts and durations of host spans as depths and gaps: what nests need not be said twice.

Host spans are stored in the order in which they begin, with the index of the enclosing span. Reading them as brackets,
`(` for a start and `)` for an end, each row's depth says all that the brackets say, and the times are the gaps between:

    row  parent  start  duration        depth   brackets  ( ( ) ( ) )
    0    NONE    100    50              0       gaps      0 5 9 6 20 10
    1    0       105    9               1
    2    0       120    20              1

Depths repeat from step to step, so they compress to almost nothing. Gaps are small (an op's own time, without its
children's), and a gap depends on which bracket it precedes and which it follows: sorted by that, gaps compress 15 %
better than starts and durations do in recordings of nanosecond resolution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traces.format.frames import Damaged
from traces.model.trace import NONE, Column, HostSpans

COLUMNS = ("parent", "start_ns", "duration_ns")  # of HostSpans; what a Nest stands for

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Nest:
    """Spans in the order of their starts, each within those before it that have not ended."""

    depth: Ints  # one per row: how many spans enclose it
    first_ns: int  # where row 0 starts
    gaps_ns: Ints  # two per row, in `_context_order`; negative where spans overlap or a new thread begins


def fold(spans: HostSpans, first_row: int = 0) -> Nest | None:
    """The nest of `spans`, whose row 0 is row `first_row` of the whole; None if the rows do not nest in order."""
    parent = np.where(spans.parent < 0, NONE, spans.parent.astype(np.int64) - first_row)
    if not len(spans) or not ((parent < np.arange(len(parent))) & ((parent >= 0) == (spans.parent >= 0))).all():
        return None
    depths: list[int] = []
    for enclosing in parent.tolist():
        depths.append(depths[enclosing] + 1 if enclosing >= 0 else 0)
    depth = np.array(depths, np.int64)
    if (np.diff(depth) > 1).any() or (_parents(depth) != parent).any():
        return None
    opens, closes = _brackets(depth)
    times = np.empty(2 * len(depth), np.int64)
    times[opens] = spans.start_ns
    times[closes] = spans.end_ns
    gaps = np.diff(times, prepend=times[0])
    return Nest(depth, int(times[0]), gaps[_context_order(spans.name, opens, closes)])


def unfold(nest: Nest, name: Column, first_row: int = 0) -> dict[str, Column]:
    """The three columns, given the spans' names. Raises Damaged for depths that no nest has."""
    depth = nest.depth
    if depth[0] != 0 or (depth < 0).any() or (np.diff(depth) > 1).any():
        raise Damaged("host spans whose depths do not nest")
    opens, closes = _brackets(depth)
    gaps = np.empty(2 * len(depth), np.int64)
    gaps[_context_order(name, opens, closes)] = nest.gaps_ns
    times = np.cumsum(gaps) + nest.first_ns
    start_ns = times[opens]
    parent = _parents(depth)
    parent[parent >= 0] += first_row
    return {"parent": parent.astype(np.int32), "start_ns": start_ns, "duration_ns": times[closes] - start_ns}


def _parents(depth: Ints) -> Ints:
    """In (depth, row) order a row is the first child of the row just before it, or shares its neighbour's parent."""
    order = _stable_order(depth)
    first_child = (depth - np.roll(depth, 1))[order] == 1
    latest = np.maximum.accumulate(np.where(first_child, np.arange(len(depth)), 0))
    parent = np.empty(len(depth), np.int64)
    parent[order] = np.where(depth[order] == 0, NONE, order[latest] - 1)
    return parent


def _brackets(depth: Ints) -> tuple[Ints, Ints]:
    """The places of each row's opening and closing bracket among all brackets.

    Before row i opens, i rows have opened and all but `depth[i]` of them closed. Brackets of one depth alternate.
    """
    rows = np.arange(len(depth))
    opens = 2 * rows - depth
    is_open = np.zeros(2 * len(depth), bool)
    is_open[opens] = True
    level = np.cumsum(np.where(is_open, 1, -1)) - is_open
    order = _stable_order(level)
    partner = np.empty(len(order), np.int64)
    partner[order[0::2]] = order[1::2]
    return opens, partner[opens]


def _context_order(name: Column, opens: Ints, closes: Ints) -> Ints:
    """Brackets sorted by what they are (name of the span, start or end), then by what the bracket before them is.

    Names count modulo 2**15 here: 16-bit keys sort by radix, ten times faster, and a clash costs only compression.
    """
    what = np.empty(2 * len(name), np.uint16)
    what[opens] = (name.astype(np.int64) << 1).astype(np.uint16)
    what[closes] = what[opens] + np.uint16(1)
    by_previous = np.argsort(np.roll(what, 1), kind="stable")
    return by_previous[np.argsort(what[by_previous], kind="stable")]


def _stable_order(keys: Ints) -> Ints:
    small = keys.astype(np.uint16) if keys.max(initial=0) < 1 << 16 else keys
    return np.argsort(small, kind="stable")
