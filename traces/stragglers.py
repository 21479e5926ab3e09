"""Which ranks keep the others waiting: how long each rank waited in collectives that another one entered late.

    for rank in stragglers(trace): print(rank)
    # RankLateness(rank=3, last=71, collectives=84, waited_ns=1_200_000, caused_ns=310_000_000)

A collective's kernel runs on each rank from when that rank is ready until the last one's data has come, so of its kernels
the shortest belongs to the rank that came last, and the others waited by how much longer theirs are. That needs
no common clock. The k-th collective of a name in a group is the same one on all ranks; a group of which not all recorded
ranks have as many is left out, and so is what has no measured duration.

Holistic Trace Analysis ranks by normalised start times of the longest communication kernels instead, which needs clocks
that agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.measure import grouped
from traces.model import Ending, Trace


@dataclass(frozen=True, slots=True)
class RankLateness:
    """Over all collectives that could be matched: how often this rank was the last, how long it waited for others, and how long
    all others together waited for it."""

    rank: int
    collectives: int
    last: int
    waited_ns: int
    caused_ns: int


def stragglers(trace: Trace) -> list[RankLateness]:
    """By rank, who kept others waiting longest first; empty below two ranks."""
    table = trace.collectives.take(trace.collectives.ending == Ending.SEEN)
    count, last, waited_ns, caused_ns = (dict.fromkeys(table.rank.tolist(), 0) for _ in range(4))
    table = table.take(np.argsort(table.call_ns, kind="stable"))
    for rows in grouped(table.name, table.group, table.group_size):
        of_rank = [rows[own] for own in grouped(table.rank[rows])]
        if len(of_rank) < 2 or len({len(own) for own in of_rank}) > 1:
            continue
        durations_ns = np.stack([table.duration_ns[own] for own in of_rank])  # by rank and collective
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
