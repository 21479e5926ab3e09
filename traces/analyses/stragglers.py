"""Find the ranks that delay other ranks. A rank waits in a collective if another rank enters the collective late.

    for rank in stragglers(trace): print(rank)
    # RankLateness(rank=3, last=71, collectives=84, waited_ns=1_200_000, caused_ns=310_000_000)

On each rank, a collective's kernel runs from when that rank is ready until the last rank's data has arrived. The last rank in a
collective therefore has the shortest kernel, and each other rank waited for the difference. No common clock is needed.

If the recordings have the communicator's id and the operation's number, calls are matched by id and number. Without ids, the
k-th collective with a given name in a group is assumed to be the same collective on all ranks. The analysis leaves out a group
if its ranks have different numbers of collectives. The analysis also leaves out collectives without a measured duration.

Holistic Trace Analysis ranks by normalized start times of the longest communication kernels, which needs synchronized clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traces.analyses.communication import communication_kernels
from traces.comparison.thresholds import STRAGGLER_SHARE
from traces.figures.measure import device_ranks, grouped
from traces.model.trace import NONE, Collectives, Column, Ending, Trace


@dataclass(frozen=True, slots=True)
class RankLateness:
    """Describes one rank over all matched collectives: how often it was last, how long it waited, and how long other ranks
    waited for it.
    """

    rank: int
    collectives: int
    last: int
    waited_ns: int
    caused_ns: int


def stragglers(trace: Trace) -> list[RankLateness]:
    """Return the lateness of each rank. In the returned list, the rank that caused the longest waits comes first. If the trace
    has fewer than two ranks, the list is empty.
    """
    table = trace.collectives
    count, last, waited_ns, caused_ns = (
        dict.fromkeys(np.unique(table.rank[table.ending == Ending.SEEN]).tolist(), 0) for _ in range(4)
    )
    for rows, waits_ns in _waits(trace):
        late = table.duration_ns[rows].argmin(axis=0)
        for place, rank in enumerate(table.rank[rows[:, 0]].tolist()):
            count[rank] += rows.shape[1]
            last[rank] += int(((late == place) & waits_ns.any(axis=0)).sum())
            waited_ns[rank] += int(waits_ns[place].sum())
            caused_ns[rank] += int(waits_ns[:, late == place].sum())
    found = [RankLateness(rank, count[rank], last[rank], waited_ns[rank], caused_ns[rank]) for rank in count if count[rank]]
    return sorted(found, key=lambda of: (-of.caused_ns, of.rank))


def similar_ranks(found: Sequence[RankLateness]) -> list[int]:
    """Return the ranks that are not stragglers, in ascending order. A straggler caused at least a tenth of the longest waits
    that one rank caused.
    """
    most_ns = max((of.caused_ns for of in found), default=0)
    return sorted(of.rank for of in found if of.caused_ns < most_ns * STRAGGLER_SHARE or not most_ns)


def without_waits(trace: Trace) -> Trace:
    """Return a copy of the trace in which each communication kernel begins when the last rank was ready.

    Kernels of collectives that were not found on other ranks stay unchanged. Only device spans differ from `trace`.
    """
    table, spans, ranks = trace.collectives, trace.device, device_ranks(trace)
    kernels = np.flatnonzero(communication_kernels(trace))
    kernel_at = dict(zip(zip(ranks[kernels].tolist(), spans.start_ns[kernels].tolist(), strict=True), kernels, strict=True))
    waited_ns = np.zeros(len(spans), dtype=np.int64)
    for rows, waits_ns in _waits(trace):
        calls = zip(table.rank[rows].flat, table.start_ns[rows].flat, waits_ns.flat, strict=True)
        for rank, start_ns, wait_ns in calls:
            if (kernel := kernel_at.get((rank, start_ns))) is not None:
                waited_ns[kernel] = min(wait_ns, spans.duration_ns[kernel])
    if not waited_ns.any():
        return trace
    columns = spans.columns() | {"start_ns": spans.start_ns + waited_ns, "duration_ns": spans.duration_ns - waited_ns}
    return replace(trace, device=type(spans)(**columns))


def _waits(trace: Trace) -> Iterator[tuple[Column, Column]]:
    """Return arrays of the same collectives on several ranks: rows of `trace.collectives`, and how long each call waited.

    Both returned arrays have one row per rank and one column per collective.
    """
    seen = np.flatnonzero(trace.collectives.ending == Ending.SEEN)
    seen = seen[np.argsort(trace.collectives.call_ns[seen], kind="stable")]
    for of_rank in _matched(trace.collectives.take(seen)):
        rows = np.stack([seen[own] for own in of_rank])
        durations_ns = trace.collectives.duration_ns[rows]
        yield rows, durations_ns - durations_ns.min(axis=0)


def _matched(table: Collectives) -> Iterator[list[Column]]:
    numbered = (table.communicator != NONE) & (table.sequence != NONE)
    counted = np.flatnonzero(~numbered)
    for rows in grouped(table.name[counted], table.group[counted], table.group_size[counted]):
        of_rank = [counted[rows[own]] for own in grouped(table.rank[counted[rows]])]
        if len(of_rank) > 1 and len({len(own) for own in of_rank}) == 1:
            yield of_rank
    identified = np.flatnonzero(numbered)
    for rows in grouped(table.name[identified], table.communicator[identified]):
        of_rank = [identified[rows[own]] for own in grouped(table.rank[identified[rows]])]
        by_number = [_by_number(own, table.sequence[own]) for own in of_rank]
        shared = sorted(set.intersection(*map(set, by_number)))
        if len(of_rank) > 1 and shared:
            yield [np.array([own[number] for number in shared]) for own in by_number]


def _by_number(rows: Column, sequence: Column) -> dict[tuple[int, int], int]:
    seen: Counter[int] = Counter()
    found = {}
    for row, number in zip(rows.tolist(), sequence.tolist(), strict=True):
        found[number, seen[number]] = row
        seen[number] += 1
    return found
