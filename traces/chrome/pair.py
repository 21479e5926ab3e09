"""Writes two traces side by side into one Chrome trace, with arrows between matching kernels.

    export_pair(load("v100.msgpack"), load("replay.msgpack"), "both.json.gz", names=("recorded", "replayed"))

The times of the second trace are shifted, so that the first matching steps start together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from traces.chrome.events import RankEvents
from traces.chrome.export import write_events
from traces.chrome.export_notes import PAIR_KEY
from traces.comparison.counterparts import Counterparts, KernelChange, counterparts, paired_steps
from traces.figures.measure import window_ns
from traces.model.trace import NONE, Trace
from traces.names.profiler_json import ProfilerJson

_SECOND_PIDS = 1_000_000  # larger than the process ids of the first trace
_SECOND_IDS = 1 << 40  # larger than the flow ids of the first trace
_ARROWS = 1 << 41


def export_pair(first: Trace, second: Trace, path: str | os.PathLike[str], names: tuple[str, str]) -> Path:
    """Write two traces (the first rank of each) to one Chrome trace file. Raises OSError."""
    pairs = paired_steps(first, second)
    events = _PairEvents(first, second, counterparts(first, second, pairs), _shift_ns(first, second, pairs), names)
    target = Path(path)
    header = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": events.base_ns, PAIR_KEY: list(names)}
    write_events(events, header, target)
    return target


def _shift_ns(first: Trace, second: Trace, pairs: list[tuple[int, int]]) -> int:
    for ours, theirs in pairs:
        if ours != NONE and theirs != NONE:
            return int(first.steps.start_ns[ours] - second.steps.start_ns[theirs])
    return window_ns(first)[0] - window_ns(second)[0]


class _PairEvents:
    def __init__(self, first: Trace, second: Trace, found: Counterparts, shift_ns: int, names: tuple[str, str]) -> None:
        self._found, self._names = found, names
        self._sides = [RankEvents(trace, trace.ranks[0]) for trace in (first, second)]
        self._tables = (first, second)
        self._shifts_ns = (0, shift_ns)
        self.base_ns = min(side.base_ns + shift for side, shift in zip(self._sides, self._shifts_ns, strict=True))
        for side, shift in zip(self._sides, self._shifts_ns, strict=True):
            side.base_ns = self.base_ns - shift

    def __iter__(self) -> Iterator[ProfilerJson]:
        for place, side in enumerate(self._sides):
            for event in side:
                yield self._of_side(place, event)
        yield from self._arrows()

    def _of_side(self, place: int, event: ProfilerJson) -> ProfilerJson:
        if event["ph"] == "M" and event["name"] == "process_name":
            event["args"] = {"name": f"{self._names[place]}: {event['args']['name']}"}
        elif event["ph"] == "M" and event["name"] == "process_sort_index":
            # sort the rows: GPU next to GPU, host next to host, first trace above second trace
            event["args"] = {"sort_index": 2 * event["args"]["sort_index"] + place}
        if place:
            event["pid"] += _SECOND_PIDS
            if "id" in event:
                event["id"] += _SECOND_IDS
        return event

    def _arrows(self) -> Iterator[ProfilerJson]:
        both = np.flatnonzero((self._found.first != NONE) & (self._found.second != NONE))
        columns = (self._found.first, self._found.second, self._found.change, self._found.change_ns)
        for number, (ours, theirs, change, change_ns) in enumerate(zip(*(c[both].tolist() for c in columns), strict=True)):
            change_name = KernelChange(change).name.lower().replace("_", " ")
            flow: ProfilerJson = {"cat": "counterpart", "name": change_name, "id": _ARROWS + number}
            yield {"ph": "s", **flow, **self._middle(0, ours), "args": {"longer_us": change_ns / 1000}}
            yield {"ph": "f", "bp": "e", **flow, **self._middle(1, theirs)}

    def _middle(self, number: int, row: int) -> ProfilerJson:
        """Return the middle of a kernel. Viewers draw an arrow only if the arrow begins and ends inside kernels."""
        trace, side = self._tables[number], self._sides[number]
        table = trace.device
        pid = trace.devices[int(table.device[row])].index + number * _SECOND_PIDS
        middle_ns = int(table.start_ns[row]) + int(table.duration_ns[row]) // 2
        return {"pid": pid, "tid": int(table.stream[row]), "ts": (middle_ns - side.base_ns) / 1000}
