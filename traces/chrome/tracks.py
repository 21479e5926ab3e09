"""Creates timeline tracks for events without a thread or a CUDA stream, such as training phases.

    for track in side_tracks(trace):
        track.name, [span.name for span in track.spans()]   # ("phases", ["loader", "h2d", "forward", ...])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from traces.chrome.strict_nesting import nested_ends
from traces.model.trace import NONE, BatchKind, Column, Ending, Trace
from traces.names.profiler_json import ProfilerJson

# track ids above those of all threads and streams
TRACK_OF_PHASES, _PARTS, _WAITS, _PINNING, _COLLECTIVES = range(1_000_000_000, 1_000_000_005)
_DEVICE_PHASES = 0  # track id on a device; phase-grained traces have no streams
_WORTH = {int(Ending.BY): "at most", int(Ending.UNSEEN): "not measured"}
RANGE_OF_PARTS = "DataParallel."  # prefix of the ranges that our recorder adds around nn.DataParallel stages


class SideSpan(NamedTuple):
    name: str
    start_ns: int
    end_ns: int
    args: ProfilerJson


@dataclass
class SideTrack:
    name: str
    device: int
    tid: int
    order: int
    names: list[str]
    start_ns: Column
    end_ns: Column
    args: list[ProfilerJson]

    def spans(self) -> Iterator[SideSpan]:
        # see Note [Strict nesting] in traces/chrome/strict_nesting.py
        ends = nested_ends((np.zeros(len(self.names), "i8"),), self.start_ns, self.end_ns)
        yield from map(SideSpan, self.names, self.start_ns.tolist(), ends.tolist(), self.args)


def side_tracks(trace: Trace) -> list[SideTrack]:
    tracks = [*_phases(trace), *_parts(trace), *_batches(trace), _collectives(trace)]
    return [track for track in tracks if track.names]


def _phases(trace: Trace) -> Iterator[SideTrack]:
    phases = trace.phases
    names = [trace.strings[name] for name in phases.name.tolist()]
    yield SideTrack("phases", NONE, TRACK_OF_PHASES, -1, names, phases.start_ns, phases.end_ns, [{}] * len(phases))
    if trace.grain == "phase":
        yield from _on_devices("phases", _DEVICE_PHASES, phases, names)


def _parts(trace: Trace) -> Iterator[SideTrack]:
    parts = trace.parts
    names = [RANGE_OF_PARTS + trace.strings[name] for name in parts.name.tolist()]
    loose = np.flatnonzero(parts.thread == NONE)
    starts, ends = parts.start_ns[loose], parts.end_ns[loose]
    yield SideTrack("parts", NONE, _PARTS, 1, [names[row] for row in loose], starts, ends, [{}] * len(loose))
    if trace.grain == "phase":
        yield from _on_devices("parts", _PARTS, parts, names)


def _on_devices(name: str, tid: int, table: Any, names: list[str]) -> Iterator[SideTrack]:
    timed = (table.device != NONE) & table.is_timed
    for device in np.unique(table.device[timed]).tolist():
        rows = np.flatnonzero(timed & (table.device == device))
        starts, ends = table.device_start_ns[rows], table.device_end_ns[rows]
        yield SideTrack(name, device, tid, -1, [names[row] for row in rows], starts, ends, [{}] * len(rows))


def _batches(trace: Trace) -> Iterator[SideTrack]:
    for kind, tid, name in ((BatchKind.WAIT, _WAITS, "wait for batch"), (BatchKind.PIN, _PINNING, "pin batch")):
        rows = trace.batches.take(trace.batches.kind == kind)
        batches = zip(rows.loader.tolist(), rows.bytes.tolist(), strict=True)
        args = [{"loader": loader} | ({"bytes": size} if size != NONE else {}) for loader, size in batches]
        yield SideTrack(f"{name} (loader)", NONE, tid, 2, [name] * len(rows), rows.start_ns, rows.end_ns, args)


def _collectives(trace: Trace) -> SideTrack:
    rows, texts = trace.collectives, trace.strings
    args = [
        {"backend": texts[backend], "group": texts[group], "dtype": texts[dtype]}
        | ({"bytes": size} if size != NONE else {})
        | ({"duration": _WORTH[ending]} if ending in _WORTH else {})
        for backend, group, dtype, size, ending in zip(
            *(column.tolist() for column in (rows.backend, rows.group, rows.dtype, rows.bytes, rows.ending)), strict=True
        )
    ]
    names = [texts[name] for name in rows.name.tolist()]
    return SideTrack("collectives", NONE, _COLLECTIVES, 3, names, rows.start_ns, rows.end_ns, args)
