"""Joins several profiles of one process into one trace. torch.profiler writes one profile per cycle of
`torch.profiler.schedule`.

    for places in cycles_of(traces, names, ids):    # eight ranks of two cycles each: eight lists of two places
        trace = joined_cycles([traces[place] for place in places])

Note [Process ids are not unique]
    Two runs in containers often have the same process id. The correlation ids of a process increase from cycle to cycle, and
    start again at a low number in each run. A run takes at least NEW_PROCESS_NS to import torch, so recordings with less time
    between them are from one process. With TEARDOWN_CUPTI=1, the profiler loads CUPTI again in each cycle, so correlation ids
    may also restart within one process. In this case, recordings are from one process if autograd's sequence numbers on the
    main thread increase.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from traces.combining.merge import merge_ranks
from traces.comparison.thresholds import NEW_PROCESS_NS
from traces.figures.measure import window_ns
from traces.model.row_order import in_order, lists_by_key, repointed
from traces.model.trace import NONE, TABLES, Device, Thread, Trace

_Range = tuple[int, int]  # the smallest and the largest number

_STAMP = re.compile(r"(?<=\.)\d{10,}(?=\.)")
_STEP_IN_NAME = re.compile(r"(?<!\d)\d+(?=(\.pt)?(\.trace)?\.json)")  # such as "trace_10.json"


def cycles_of(
    recordings: Sequence[Trace],
    names: Sequence[tuple[str, int | None]],
    correlations: Sequence[_Range | None],
) -> list[list[int]]:
    """For each process, return the indices of its recordings in time order. `names` contains the file name and the rank of each
    recording, and `correlations` the smallest and the largest correlation id."""
    processes = [_process(recording, *name) for recording, name in zip(recordings, names, strict=True)]
    found: list[list[int]] = []
    for group in lists_by_key(zip(processes, range(len(processes)), strict=True)).values():
        ordered = sorted(group, key=lambda place: window_ns(recordings[place]))
        epochal = all(recordings[place].run_of(0).is_epochal for place in group)
        windows = [window_ns(recordings[place]) for place in ordered]
        apart = all(one[1] <= other[0] for one, other in pairwise(windows))
        pairs = pairwise((recordings[place], correlations[place]) for place in ordered)
        begins_anew = any(_is_new_process(*pair) for pair in pairs)
        if len({_STAMP.sub("", names[place][0]) for place in group if names[place][1] is None}) > 1:
            begins_anew |= not _are_numbered_on([recordings[place] for place in ordered])
        found += [ordered] if epochal and apart and not begins_anew else [[place] for place in group]
    return found


def _are_numbered_on(ordered: list[Trace]) -> bool:
    """Return True if the step marks of each recording have larger numbers than the step marks of earlier recordings."""
    marked = all(of.provenance.get("steps_from") == "profiler" for of in ordered)
    return marked and all(one.steps.number.max() < other.steps.number.min() for one, other in pairwise(ordered))


def _is_new_process(earlier: tuple[Trace, _Range | None], later: tuple[Trace, _Range | None]) -> bool:
    # see Note [Process ids are not unique]
    (one, ids), (other, later_ids) = earlier, later
    if ids is None or later_ids is None or window_ns(other)[0] - window_ns(one)[1] < NEW_PROCESS_NS:
        return False
    numbers, later_numbers = _sequence_numbers(one), _sequence_numbers(other)
    goes_on = numbers is not None and later_numbers is not None and numbers[1] <= later_numbers[0]
    return later_ids[0] <= ids[1] and not goes_on


def _sequence_numbers(recording: Trace) -> _Range | None:
    """Return the smallest and the largest sequence number of autograd on the main thread."""
    main = [row for row, thread in enumerate(recording.threads) if thread.role == "main"]
    numbers = recording.host.sequence[np.isin(recording.host.thread, main) & (recording.host.sequence != NONE)]
    return (int(numbers.min()), int(numbers.max())) if len(numbers) else None


def _process(recording: Trace, file: str, rank: int | None) -> Hashable:
    main = next((thread.tid for thread in recording.threads if thread.role == "main"), None)
    name = _STEP_IN_NAME.sub("", _STAMP.sub("", file)) if rank is None else ""
    gpus = tuple((device.index, device.name) for device in recording.devices)
    return rank, recording.run_of(0).distributed, name, main, gpus, recording.grain


def joined_cycles(cycles: Sequence[Trace]) -> Trace:
    stacked = merge_ranks(cycles, range(len(cycles)))
    threads: dict[tuple[int, str], Thread] = {}
    devices: dict[int, Device] = {}
    for thread in stacked.threads:
        threads.setdefault((thread.tid, thread.role), replace(thread, rank=0))
    for device in stacked.devices:
        devices.setdefault(device.index, replace(device, rank=0))
    row_of_thread, row_of_device = (dict(zip(of, range(len(of)), strict=True)) for of in (threads, devices))
    places = {
        "threads": np.array([*(row_of_thread[thread.tid, thread.role] for thread in stacked.threads), NONE]),
        "devices": np.array([*(row_of_device[device.index] for device in stacked.devices), NONE]),
    }
    trace = repointed(stacked, places)
    tables: dict[str, Any] = {name: getattr(trace, name) for name, kind in TABLES.items() if "rank" in kind.DTYPES}
    for table in tables.values():
        table.rank = np.zeros(len(table), "i4")
    first = cycles[0]
    return in_order(
        replace(
            trace,
            **tables,
            threads=list(threads.values()),
            devices=list(devices.values()),
            machines=first.machines,
            runs=first.runs,
            provenance=dict(first.provenance),
        )
    )
