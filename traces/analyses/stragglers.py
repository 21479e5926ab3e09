"""Finds the ranks that delay other ranks in collective operations.

    for rank in stragglers(trace): print(rank)
    # RankLateness(rank=3, collectives=84, last=71, waited_ns=1_200_000, late_ns=310_000_000)

The rank that reaches a collective last does not have to wait, so its communication kernel is the shortest. All ranks use the
same communicator id and sequence number for one collective.

Note [Late ranks]
    A rank is late if it reaches a collective after the median rank. If ranks differ only by chance, all ranks are late for a
    similar time in total. A straggler is therefore late for more than STRAGGLER_TIMES the median time of all ranks.

Note [Only kernels]
    Profiles of CUDA graphs contain the communication kernels of collectives, but not their calls. If the kernels of most
    collectives end within RANKS_END_WITHIN_NS on all ranks, the k-th kernel with a name belongs to the same collective on all
    ranks. The clocks of two machines may differ, so the median difference between the ends is subtracted first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median_low
from typing import NamedTuple

import numpy as np

from traces.analyses.communication import communication_kernels
from traces.combining.merge import trace_of_ranks
from traces.comparison.thresholds import RANKS_END_WITHIN_NS, SIMILAR_WORK, STRAGGLER_SHARE, STRAGGLER_TIMES
from traces.figures.measure import device_ranks, step_windows
from traces.model.row_order import grouped
from traces.model.trace import NONE, Collectives, Column, Ending, Trace

_FEW_SIMILAR = 8  # if there are more similar ranks, they are shown as one


# see Note [Late ranks]
@dataclass(frozen=True, slots=True)
class RankLateness:
    """Counts how often a rank was the last to reach a collective, and sums up the delays."""

    rank: int  # number of the rank
    collectives: int  # number of compared collectives
    last: int  # number of collectives that the rank reached last
    waited_ns: int  # time in which the rank waited for other ranks
    late_ns: int  # total delay after the median rank
    late_per_step_ns: int = 0  # `late_ns` per step with compared collectives; equal to `late_ns` if there are no steps


def stragglers(trace: Trace) -> list[RankLateness]:
    table = _timed_collectives(trace)
    count, last, waited_ns, late_ns = (dict.fromkeys(np.unique(table.rank).tolist(), 0) for _ in range(4))
    for rows, waits_ns in _waits(table):
        arrived_ns = waits_ns.max(axis=0) - waits_ns  # arrival times, relative to the arrival of the first rank
        median_ns = np.sort(arrived_ns, axis=0)[(len(rows) - 1) // 2]
        behind_ns = np.maximum(arrived_ns - median_ns, 0).sum(axis=1)
        is_last = (waits_ns.argmin(axis=0) == np.arange(len(rows))[:, np.newaxis]) & waits_ns.any(axis=0)
        for place, rank in enumerate(table.rank[rows[:, 0]].tolist()):
            count[rank] += rows.shape[1]
            last[rank] += int(is_last[place].sum())
            waited_ns[rank] += int(waits_ns[place].sum())
            late_ns[rank] += int(behind_ns[place])
    step = step_windows(trace).holding(table.call_ns, table.rank)
    steps = {rank: len(np.unique(step[(table.rank == rank) & (step != NONE)])) or 1 for rank in count}
    figures = ((rank, count[rank], last[rank], waited_ns[rank], late_ns[rank], late_ns[rank] // steps[rank]) for rank in count)
    found = [RankLateness(*of_rank) for of_rank in figures if count[of_rank[0]]]
    return sorted(found, key=lambda of: (-of.late_ns, of.rank))


def late_ranks(found: Sequence[RankLateness]) -> list[RankLateness]:
    # see Note [Late ranks]
    similar = set(similar_ranks(found))
    return [of for of in found if of.rank not in similar]


def similar_ranks(found: Sequence[RankLateness]) -> list[int]:
    # see Note [Late ranks]
    if not found:
        return []
    late_ns = sorted(of.late_ns for of in found)
    least_ns, usual_ns = late_ns[-1] * STRAGGLER_SHARE, late_ns[(len(found) - 1) // 2]
    return sorted(of.rank for of in found if of.late_ns < least_ns or of.late_ns <= STRAGGLER_TIMES * usual_ns)


class RankGroups(NamedTuple):
    """Lists the ranks that are shown first, each by itself, and the groups of ranks with similar times and similar work. One
    rank stands for the other ranks of its group."""

    first: tuple[int, ...] = ()
    similar: tuple[tuple[int, ...], ...] = ()

    @property
    def omitted(self) -> list[int]:
        return sorted(chain.from_iterable(group[1:] for group in self.similar))


def rank_groups(*traces: Trace) -> RankGroups:
    """Compare each rank with the median rank. The ranks that differ from it are compared with each other in the same way."""
    ranks = traces[0].ranks
    if len(ranks) <= _FEW_SIMILAR:
        return RankGroups()
    found = [(stragglers(trace), _events_of_ranks(trace)) for trace in traces]
    first = rest = _standing_out(ranks, found) or ranks[:1]
    groups = [tuple(rank for rank in ranks if rank not in set(first))]
    while groups[-1] and len(rest) > _FEW_SIMILAR:
        others = _standing_out(rest, found)
        groups.append(tuple(sorted(set(rest) - set(others))))
        rest = others
    similar = tuple(group for group in groups if len(group) > _FEW_SIMILAR)
    return RankGroups(tuple(rank for rank in first if not any(rank in group for group in similar)), similar)


def _standing_out(ranks: Sequence[int], found: Sequence[tuple[list[RankLateness], Counter[int]]]) -> list[int]:
    apart = list[int]()
    for lateness, events in found:
        late = [of for of in lateness if of.rank in set(ranks)]
        similar = similar_ranks(late) if late else ranks
        usual = median_low(events[rank] for rank in similar) if similar else 0
        like_usual = {rank for rank in similar if abs(events[rank] - usual) <= SIMILAR_WORK * usual}
        apart += [rank for rank in [*(of.rank for of in late), *ranks] if rank not in like_usual]
    return [rank for rank in dict.fromkeys(apart) if rank in set(ranks)]


def _events_of_ranks(trace: Trace) -> Counter[int]:
    events = Counter[int]()
    of_devices = np.bincount(trace.device.device, minlength=len(trace.devices)).tolist()
    for device, count in zip(trace.devices, of_devices, strict=True):
        events[device.rank] += count
    return events


def without_similar_ranks(traces: Sequence[Trace]) -> tuple[RankGroups, list[Trace]]:
    """Group similar ranks, and return the groups and a copy of each trace with only one rank per group. Traces with different
    ranks are not changed."""
    groups = rank_groups(*traces)
    if not groups.similar or any(trace.ranks != traces[0].ranks for trace in traces):
        return groups, list(traces)
    omitted = set(groups.omitted)
    return groups, [trace_of_ranks(trace, [rank for rank in trace.ranks if rank not in omitted]) for trace in traces]


def without_waits(trace: Trace) -> Trace:
    table, spans, ranks = _timed_collectives(trace), trace.device, device_ranks(trace)
    kernels = np.flatnonzero(communication_kernels(trace))
    kernel_at = dict(zip(zip(ranks[kernels].tolist(), spans.start_ns[kernels].tolist(), strict=True), kernels, strict=True))
    waited_ns = np.zeros(len(spans), dtype=np.int64)
    for rows, waits_ns in _waits(table):
        calls = zip(table.rank[rows].flat, table.start_ns[rows].flat, waits_ns.flat, strict=True)
        for rank, start_ns, wait_ns in calls:
            if (kernel := kernel_at.get((rank, start_ns))) is not None:
                waited_ns[kernel] = min(wait_ns, spans.duration_ns[kernel])
    if not waited_ns.any():
        return trace
    columns = spans.columns() | {"start_ns": spans.start_ns + waited_ns, "duration_ns": spans.duration_ns - waited_ns}
    return replace(trace, device=type(spans)(**columns))


def _timed_collectives(trace: Trace) -> Collectives:
    # see Note [Only kernels]
    seen = np.flatnonzero(trace.collectives.ending == Ending.SEEN)
    if len(seen):
        return trace.collectives.take(seen[np.argsort(trace.collectives.call_ns[seen], kind="stable")])
    kernels = np.flatnonzero(communication_kernels(trace))
    kernels = kernels[np.argsort(trace.device.start_ns[kernels], kind="stable")]
    spans, ranks = trace.device.take(kernels), device_ranks(trace)[kernels]
    table = Collectives.of(rank=ranks, name=spans.name, start_ns=spans.start_ns, duration_ns=spans.duration_ns)
    common = [np.stack(of_rank) for of_rank in matched_collectives(table)]
    together = [rows for rows in common if _end_together(table.end_ns[rows])]
    return table.take(np.sort(np.concatenate([rows.ravel() for rows in together]))) if together else table.take(seen)


def _end_together(ends_ns: Column) -> bool:
    after_first_ns = ends_ns - ends_ns[0]
    if ends_ns.shape[1] >= 3:
        after_first_ns = after_first_ns - np.median(after_first_ns, axis=1, keepdims=True)
    return bool(np.median(np.ptp(after_first_ns, axis=0)) <= RANKS_END_WITHIN_NS)


def _waits(table: Collectives) -> Iterator[tuple[Column, Column]]:
    for of_rank in matched_collectives(table):
        rows = np.stack(of_rank)
        durations_ns = table.duration_ns[rows]
        yield rows, durations_ns - durations_ns.min(axis=0)


def matched_collectives(table: Collectives) -> Iterator[list[Column]]:
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
