"""Which ranks keep the others waiting: how long each rank waited in collectives that another one entered late.

    for rank in stragglers(trace): print(rank)
    # RankLateness(rank=3, last=71, collectives=84, waited_ns=1_200_000, caused_ns=310_000_000)

A collective's kernel runs on each rank from when that rank is ready until the last one's data has come, so of its kernels
the shortest belongs to the rank that came last, and the others waited by how much longer theirs are. That needs
no common clock. Where recordings have the communicator's id and the operation's number in it, those tell which calls belong
together. Where they do not, the k-th collective of a name in a group is the same one on all ranks; a group of which not all
recorded ranks have as many is left out. So is what has no measured duration.

Holistic Trace Analysis ranks by normalised start times of the longest communication kernels instead, which needs clocks
that agree.
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
    for of_rank in _matched(table):
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


def _matched(table: Collectives) -> Iterator[list[Column]]:
    """By group and name, for two or more ranks: each one's rows of `table`, such that the k-th of all are one collective."""
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
    """Rows by their number; those of one number, which were enqueued together, also by their order."""
    seen: Counter[int] = Counter()
    found = {}
    for row, number in zip(rows.tolist(), sequence.tolist(), strict=True):
        found[number, seen[number]] = row
        seen[number] += 1
    return found
