"""Find the ranks that delay other ranks. A rank waits in a collective if another rank enters the collective late.

    for rank in stragglers(trace): print(rank)
    # RankLateness(rank=3, last=71, collectives=84, waited_ns=1_200_000, caused_ns=310_000_000)

On each rank, a collective's kernel runs from when that rank is ready until the last rank's data has arrived. So the last rank
has the shortest kernel, and each other rank waited for the difference. No common clock is needed.

If the recordings have the communicator's id and the operation's number, calls are matched by id and number. Otherwise the k-th
collective with a name in a group is assumed to be the same one on all ranks. A group is left out if ranks have different
numbers of collectives. Collectives without a measured duration are left out too.

Holistic Trace Analysis ranks by normalized start times of the longest communication kernels, which needs synchronized clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traces.figures.measure import grouped
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
    """Return the lateness of each rank. The rank that caused the longest waits comes first. Fewer than two ranks give an
    empty list.
    """
    table = trace.collectives.take(trace.collectives.ending == Ending.SEEN)
    count, last, waited_ns, caused_ns = (dict.fromkeys(table.rank.tolist(), 0) for _ in range(4))
    table = table.take(np.argsort(table.call_ns, kind="stable"))
    for of_rank in _matched(table):
        durations_ns = np.stack([table.duration_ns[own] for own in of_rank])  # (rank, collective)
        late = durations_ns.argmin(axis=0)
        waits_ns = durations_ns - durations_ns.min(axis=0)
        names = [int(table.rank[own[0]]) for own in of_rank]
        for place, rank in enumerate(names):
            count[rank] += durations_ns.shape[1]
            last[rank] += int((late == place).sum())
            waited_ns[rank] += int(waits_ns[place].sum())
            caused_ns[rank] += int(waits_ns[:, late == place].sum())
    found = [RankLateness(rank, count[rank], last[rank], waited_ns[rank], caused_ns[rank]) for rank in count if count[rank]]
    return sorted(found, key=lambda of: (-of.caused_ns, of.rank))


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
