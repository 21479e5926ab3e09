"""What the processes of one replay left, as one trace: a rank each, or one process that counts among several.

    trace, notes = one_replay({4711: load(...), 4712: load(...)}, main=4700)
    trace.ranks     # [0, 1]
    notes           # what a person should know of processes that were left out
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from traces.merge import merge_ranks
from traces.model import NONE, Trace
from traces.order import repointed


def one_replay(timelines: Mapping[int, Trace], main: int) -> tuple[Trace, list[str]]:
    """`timelines` by process id; `main` is the script's own process. Raises ValueError if there are none.

    Of several processes that say they are the same rank, the main one counts, else the one with most steps and GPU work. A
    process that only asked what GPUs there are (torchrun's own) counts where no other did more.
    """
    worked = {pid: trace for pid, trace in timelines.items() if len(trace.steps) or len(trace.device)} or dict(timelines)
    by_rank: dict[int, int] = {}
    for pid, trace in worked.items():
        rank = int(trace.provenance.get("rank", 0))
        if rank not in by_rank or _weight(pid, trace, main) > _weight(by_rank[rank], worked[by_rank[rank]], main):
            by_rank[rank] = pid
    notes = []
    if len(by_rank) == 1 and len(worked) > 1:
        notes.append(f"{len(worked)} processes used the GPU; the figures are those of process {next(iter(by_rank.values()))}")
    elif len(by_rank) < len(worked):
        notes.append(f"{len(worked)} processes used the GPU as {len(by_rank)} ranks; of each rank the longest one counts")
    kept = [worked[pid] for _, pid in sorted(by_rank.items())]
    if list(by_rank) == [0]:
        return kept[0], notes
    return merge_ranks([_with_used_devices(trace) for trace in kept]), notes  # also one alone that is not the first


def _weight(pid: int, trace: Trace, main: int) -> tuple[bool, int, int]:
    return pid == main, len(trace.steps), len(trace.device)


def _with_used_devices(trace: Trace) -> Trace:
    """A rank sees all GPUs of its machine and works on one: the others are the other ranks' to tell of."""
    used = {row for table in (trace.device, trace.phases, trace.memory) for row in np.unique(table.device).tolist()} - {NONE}
    rows = [row for row in range(len(trace.devices)) if row in used]
    if not rows:
        return trace
    places = np.full(len(trace.devices) + 1, NONE)
    places[rows] = np.arange(len(rows))
    return replace(repointed(trace, {"devices": places}), devices=[trace.devices[row] for row in rows])
