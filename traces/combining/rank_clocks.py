"""Finds how far the clocks of ranks differ, and which ranks come from different runs.

    clocks = rank_clocks(recordings, [0, 1, 2])
    clocks.ahead_ns     # {0: 0, 1: 3_200_000}: the clock of rank 1 is 3.2 ms ahead
    clocks.unlike       # [(0, 2)]: ranks 0 and 2 did not take part in the same collectives

Note [Ends of collectives]
    An all-reduce ends at the same time on all ranks, because each rank needs the data of all other ranks. If the ends on two
    ranks always differ by the same time, the clocks of the two ranks differ by this time. If the difference changes, the two
    ranks did not run the same all-reduces, so they come from different runs. Clocks of different machines run at slightly
    different speeds. The difference may therefore change by up to CLOCK_DRIFT times the recorded time.
    Without sequence numbers, the k-th collective of one rank is compared with the k-th collective of another rank. If one
    recording began a step later, the ends of these collectives always differ by the time of a step. Step marks may not show
    whether both ranks recorded the same steps. In this case, the clocks are corrected only if the difference is less than half
    of a step. If marks show that the ranks recorded different steps, the ends are not compared.
    An all-to-all ends on a rank as soon as this rank has its parts, so the ends of all-to-alls are not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from traces.analyses.stragglers import matched_collectives
from traces.combining.merge import merge_ranks, shifted
from traces.comparison.thresholds import CLOCK_DRIFT, CLOCKS_WITHIN_NS, FEWEST_ENDS, RANKS_END_WITHIN_NS
from traces.figures.measure import window_ns
from traces.model.trace import NONE, TABLES, Collectives, Column, Ending, Trace

# functions of torch.distributed that end at the same time on all ranks
_END_TOGETHER = frozenset(
    {"all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "barrier"}
)


@dataclass(frozen=True)
class RankClocks:
    ahead_ns: dict[int, int]  # how far the clock of a rank is ahead; only of ranks with the same collectives as the first rank
    unlike: list[tuple[int, int]]  # pairs of ranks with collectives that do not end at the same time


def rank_clocks(recordings: Sequence[Trace], ranks: Sequence[int]) -> RankClocks:
    # see Note [Ends of collectives]
    unused: dict[str, Any] = {name: kind.empty() for name, kind in TABLES.items() if name not in ("steps", "collectives")}
    trace = merge_ranks([replace(recording, **unused) for recording in recordings], ranks)
    table = _collectives_that_end_together(trace)
    marks = {
        rank: of.steps.number.tolist() if of.provenance.get("steps_from") == "profiler" else None
        for rank, of in zip(ranks, recordings, strict=True)
    }
    ends_ns, numbered = defaultdict[tuple[int, int], list[Column]](list), defaultdict[tuple[int, int], bool](lambda: True)
    for rows in map(np.stack, matched_collectives(table)):
        first, *others = table.rank[rows[:, 0]].tolist()
        for place, rank in enumerate(others, 1):
            ends_ns[first, rank].append(table.end_ns[rows[[0, place]]])
            own, others_own = table.sequence[rows[[0, place]]]
            numbered[first, rank] &= bool(((own == others_own) & (own != NONE)).all())
    steps_ns = trace.steps.duration_ns
    nearest_ns = float(np.median(steps_ns)) / 2 if len(steps_ns) else 0.0
    alike, unlike = defaultdict[int, list[tuple[int, int]]](list), []
    for (first, other), pairs in ends_ns.items():
        both_ns = np.concatenate(pairs, axis=1)
        later_ns = both_ns[1] - both_ns[0]
        ahead_ns = int(np.sort(later_ns)[len(later_ns) // 2])
        varies_ns = float(np.median(np.abs(later_ns - ahead_ns)))
        same_steps = numbered[first, other] or marks[first] == marks[other] is not None
        other_steps = not same_steps and None not in (marks[first], marks[other])
        if len(later_ns) < FEWEST_ENDS or other_steps:
            continue
        if varies_ns > max(10 * RANKS_END_WITHIN_NS, CLOCK_DRIFT * np.ptp(both_ns[0])):
            unlike.append((first, other))
            continue
        if varies_ns <= RANKS_END_WITHIN_NS and (same_steps or abs(ahead_ns) < nearest_ns):
            alike[first].append((other, ahead_ns))
            alike[other].append((first, -ahead_ns))
    return RankClocks(_from_first(alike, min(ranks)), unlike)


def on_one_clock(recordings: Sequence[Trace], ahead_ns: Sequence[int]) -> list[Trace]:
    """Return copies of recordings, each of one rank, whose times are on the clock of the first rank."""
    return [
        shifted(recording, -ns) if abs(ns) > RANKS_END_WITHIN_NS else recording
        for recording, ns in zip(recordings, ahead_ns, strict=True)
    ]


def gap_ns(recordings: Sequence[Trace]) -> tuple[int, int, int]:
    """Return the longest time between recordings in which no rank was recorded, and the places of the recordings before and
    after it."""
    windows = sorted((*window_ns(recording), place) for place, recording in enumerate(recordings))
    found, (_, until_ns, before) = (0, 0, 0), windows[0]
    for start_ns, end_ns, place in windows[1:]:
        found = max(found, (start_ns - until_ns, before, place))
        if end_ns > until_ns:
            until_ns, before = end_ns, place
    return found


def _collectives_that_end_together(trace: Trace) -> Collectives:
    table, names = trace.collectives, trace.strings
    together = names.matching(table.name, _END_TOGETHER.__contains__)
    on_gpu = names.matching(table.backend, ("nccl", "xccl").__contains__)
    rows = np.flatnonzero(together & on_gpu & (table.ending == Ending.SEEN))
    return table.take(rows[np.argsort(table.call_ns[rows], kind="stable")])


def _from_first(alike: dict[int, list[tuple[int, int]]], rank: int) -> dict[int, int]:
    found, waiting = {rank: 0}, [rank]
    while waiting:
        rank = waiting.pop()
        for other, ahead_ns in alike.get(rank, []):
            if other not in found and abs(found[rank] + ahead_ns) <= CLOCKS_WITHIN_NS:
                found[other] = found[rank] + ahead_ns
                waiting.append(other)
    return found
