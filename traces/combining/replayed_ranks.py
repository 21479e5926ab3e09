"""Merges the traces of several processes into one trace with one process per rank.

    process_of_each_rank({4711: load(...), 4712: load(...)}, main=4700)     # {0: 4711, 1: 4712}
    trace, notes = one_replay(timelines_in(folder), main=4700)
    trace.ranks     # [0, 1]
    notes           # messages about processes that were left out
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from traces.combining.merge import merge_ranks
from traces.format.growing_file import Follower, timeline_files
from traces.format.trace_file import load
from traces.model.intervals import containing
from traces.model.row_order import in_order, new_positions, repointed
from traces.model.trace import NONE, Column, HostKind, StepKind, Trace


def with_node_numbers(trace: Trace) -> Trace:
    """Copy missing sequence numbers of autograd nodes from an earlier step. The trace must be sorted by time and have only one
    rank."""
    host, steps = trace.host, trace.steps
    ops = np.flatnonzero(host.kind == HostKind.OP)
    if not len(steps) or not (host.forward_thread[ops] > 0).any():
        return trace
    step = containing(steps.start_ns, steps.end_ns, host.start_ns[ops])
    order = np.argsort(step, kind="stable")[(step == NONE).sum() :]
    ops, step = ops[order], step[order]
    bounds = np.searchsorted(step, np.arange(len(steps) + 1))
    spread = int(host.sequence.max()) + 1
    sequence, forward_thread = host.sequence.copy(), host.forward_thread.copy()
    numbered: dict[bytes, Column] = {}  # rows of the latest numbered step with these threads and names
    for row, (first, behind) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        rows = ops[first:behind]
        alike = np.stack([host.thread[rows], host.name[rows]]).tobytes()
        if (host.forward_thread[rows] > 0).any():
            numbered[alike] = rows
        elif (of := numbered.get(alike)) is not None:
            sequence[rows] = np.where(host.sequence[of] == NONE, NONE, host.sequence[of] + spread * row)
            forward_thread[rows] = host.forward_thread[of]
    return replace(trace, host=replace(host, sequence=sequence, forward_thread=forward_thread))


def timelines_in(folder: Path, *, are_complete: bool = True) -> dict[int, Trace]:
    """Return a dictionary from process ids to the traces of a replay's processes. Raises TraceError."""
    read = _whole if are_complete else _so_far
    return {int(file.stem.removeprefix("replay-")): with_node_numbers(read(file)) for file in timeline_files(folder)}


def _whole(file: Path) -> Trace:
    return in_order(load(file, is_ours=True))


def _so_far(file: Path) -> Trace:
    follower = Follower(file)
    follower.more()
    return follower.trace()


def with_work(traces: Mapping[int, Trace]) -> dict[int, Trace]:
    """Return the traces of the processes that ran a step or used the GPU."""
    return {process: trace for process, trace in traces.items() if len(trace.steps) or len(trace.device)}


def process_of_each_rank(traces: Mapping[int, Trace], main: int) -> dict[int, int]:
    """Return the process id of each rank. Several processes may have the same rank number, because child processes inherit
    environment variables."""
    worked = with_work(traces) or traces

    def claim(pid: int) -> tuple[bool, bool, bool, int, int]:
        trace = worked[pid]
        trained = bool((trace.steps.kind != StepKind.EVALUATION).any())
        used_gpu = bool(len(trace.device) or (trace.phases.device != NONE).any())
        return trained, used_gpu, pid == main, len(trace.steps), len(trace.device)

    by_rank: dict[int, int] = {}
    for pid, trace in worked.items():
        rank = min(trace.runs, default=0)
        by_rank[rank] = max(by_rank.get(rank, pid), pid, key=claim)
    return dict(sorted(by_rank.items()))


def one_replay(timelines: Mapping[int, Trace], main: int) -> tuple[Trace, list[str]]:
    """Merge the traces of a replay's processes into one trace. Raises ValueError if `timelines` is empty."""
    by_rank = process_of_each_rank(timelines, main)
    worked = len(with_work(timelines))
    notes = []
    if len(by_rank) == 1 and worked > 1:
        notes.append(f"{worked} processes used the GPU; the figures are those of process {next(iter(by_rank.values()))}")
    elif len(by_rank) < worked:
        notes.append(f"{worked} processes used the GPU as {len(by_rank)} ranks; only one process per rank counts")
    kept = [timelines[pid] for pid in by_rank.values()]
    if list(by_rank) == [0]:
        return kept[0], notes
    return merge_ranks([_with_used_devices(trace) for trace in kept]), notes


def _with_used_devices(trace: Trace) -> Trace:
    used = {row for table in (trace.device, trace.phases, trace.memory) for row in np.unique(table.device).tolist()} - {NONE}
    rows = [row for row in range(len(trace.devices)) if row in used]
    if not rows:
        return trace
    places = {"devices": new_positions(rows, len(trace.devices))}
    return replace(repointed(trace, places), devices=[trace.devices[row] for row in rows])
