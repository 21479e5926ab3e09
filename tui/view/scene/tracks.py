"""Finds the rows of a trace: phases, streams, collectives, data loading, DataParallel stages, memory, and host threads by stack
depth.

    tracks = gpu_tracks(trace)
    tracks[TrackKey(TrackKind.GPU, 0, 0, 7)].label   # "cuda:0 stream 7"
    {**tracks, **host_tracks(trace)}            # most spans of a trace are host spans, so they are loaded last

A `TrackKey` identifies a row in both traces, and rows with the same key are aligned.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from traces.figures.measure import device_ranks, memory_curves, work_rows
from traces.model.trace import NONE, BatchKind, Column, DeviceKind, Thread, Trace
from tui.view.scene import categories
from tui.view.scene.categories import Category
from tui.view.scene.lanes import Curve, Lane


class TrackKind(IntEnum):
    """The kind of a row. The numbers of the row kinds give the order of rows from top to bottom."""

    PHASES = 0
    GPU = 1
    COLLECTIVES = 2
    LOADER = 3
    PARTS = 4
    MEMORY = 5
    HOST = 6


class TrackKey(NamedTuple):
    """Identifies a row in both traces.

    `position` and `detail` depend on the kind. For a stream, `position` and `detail` are the device's index and the stream; for
    a loader, the loader and its activity. For host threads, they are the role, the index within that role, and the stack depth.
    """

    kind: TrackKind
    rank: int
    position: int = 0
    detail: int = 0


class Fold(NamedTuple):
    """Identifies a group of rows that can be folded into one row: streams of a "device", the stack of a "thread", everything of
    a "rank", or everything of similar "ranks". For similar ranks, `rank` is the first of them.
    """

    what: str
    rank: int
    position: int = 0


ALL = -2  # in `detail`: all streams of a device. In `position` too: all devices of a rank
SIMILAR = -3  # in `position`: all devices of similar ranks


@dataclass(frozen=True)
class Track:
    """A row of one trace. `table` names the trace table that the lane's row numbers refer to."""

    label: str
    table: str
    lane: Lane | Curve


Tracks = dict[TrackKey, Track]

_ROLES = ("main", "backward", "loader", "other")
_DEEPEST = 64  # maximum stack depth: deeper calls are shown in the last row


def _track(label: str, trace: Trace, table: str, rows: Column, kinds: Column | Category) -> Track:
    spans = getattr(trace, table)
    return Track(label, table, Lane(spans.start_ns[rows], spans.duration_ns[rows], np.broadcast_to(kinds, len(rows)), rows))


def quick_tracks(trace: Trace) -> Tracks:
    """Returns all tracks except those of host threads."""
    found: Tracks = {}
    for tracks in (phase_tracks, gpu_tracks, collective_tracks, loader_tracks, part_tracks, memory_tracks):
        found.update(tracks(trace))
    return found


def phase_tracks(trace: Trace) -> Tracks:
    phases = trace.phases
    inside = (phases.step >= 0) & (phases.step < len(trace.steps))
    rank = np.where(inside, trace.steps.rank[np.where(inside, phases.step, 0)], min(trace.ranks)) if len(trace.steps) else None
    kinds = categories.of_phases(trace)
    found: Tracks = {}
    for number in trace.ranks:
        rows = np.flatnonzero(rank == number) if rank is not None else np.arange(len(phases))
        if len(rows):
            label = _of_rank(trace, number, "phases")
            found[TrackKey(TrackKind.PHASES, number)] = _track(label, trace, "phases", rows, kinds[rows])
    return found


def gpu_tracks(trace: Trace) -> Tracks:
    """Returns a track for each device and stream. A trace with only phase times gets one track per device."""
    spans, found = trace.device, Tracks()
    rows = work_rows(trace)
    if not len(rows):
        return _phases_on_devices(trace)
    for (device, stream), chosen in groups(rows, spans.device[rows], spans.stream[rows]):
        label = f"{trace.device_label(device)} stream {stream}"
        key = TrackKey(TrackKind.GPU, trace.devices[device].rank, trace.devices[device].index, stream)
        found[key] = _track(label, trace, "device", chosen, categories.of_device(trace, chosen))
    return found


def folded_tracks(trace: Trace, tracks: Tracks) -> Tracks:
    """Returns the tracks that folded rows show: one for all streams of a device, and one for all devices of a rank.

    While several streams are busy, the row shows the work that began first.
    """
    found = Tracks()
    streams = {key: track for key, track in tracks.items() if key.kind == TrackKind.GPU and key.detail != ALL}
    for rank, position in dict.fromkeys((key.rank, key.position) for key in streams):
        own = [track for key, track in streams.items() if (key.rank, key.position) == (rank, position)]
        if len(own) > 1:
            device = next(n for n, of in enumerate(trace.devices) if (of.rank, of.index) == (rank, position))
            found[TrackKey(TrackKind.GPU, rank, position, ALL)] = _merged(f"{trace.device_label(device)} all", own)
    if len(trace.ranks) > 1:
        for rank in dict.fromkeys(key.rank for key in streams):
            own = [track for key, track in streams.items() if key.rank == rank]
            found[TrackKey(TrackKind.GPU, rank, ALL, ALL)] = _merged(f"rank {rank} GPU", own)
    return found


def with_similar(tracks: Tracks, similar: Sequence[int]) -> Tracks:
    """Returns the tracks and the track of the row for the similar ranks. The row shows the first of these ranks."""
    track = tracks.get(TrackKey(TrackKind.GPU, similar[0], ALL, ALL)) if similar else None
    if track is None:
        return tracks
    key = TrackKey(TrackKind.GPU, similar[0], SIMILAR, ALL)
    return {**tracks, key: replace(track, label=f"ranks {ranges_text(similar)}: similar")}


def ranges_text(numbers: Sequence[int]) -> str:
    """Returns ascending numbers as text in which consecutive numbers are ranges: "0, 2-255"."""
    gaps = [n for n in range(1, len(numbers)) if numbers[n] != numbers[n - 1] + 1]
    runs = [numbers[begin:end] for begin, end in itertools.pairwise([0, *gaps, len(numbers)])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _merged(label: str, tracks: list[Track]) -> Track:
    lanes = [track.lane for track in tracks if isinstance(track.lane, Lane)]
    columns = [np.concatenate([getattr(lane, name) for lane in lanes]) for name in ("start_ns", "end_ns", "category", "row")]
    start_ns, end_ns, category, row = columns
    return Track(label, tracks[0].table, Lane(start_ns, end_ns - start_ns, category, row))


def _phases_on_devices(trace: Trace) -> Tracks:
    phases, found = trace.phases, Tracks()
    timed = np.flatnonzero((phases.device >= 0) & (phases.device_start_ns != NONE) & (phases.device_end_ns != NONE))
    for (device,), rows in groups(timed, phases.device[timed]):
        start_ns = phases.device_start_ns[rows]
        lane = Lane(start_ns, phases.device_end_ns[rows] - start_ns, categories.of_phases(trace)[rows], rows)
        of = trace.devices[device]
        label = f"{trace.device_label(device)} phases"
        found[TrackKey(TrackKind.GPU, of.rank, of.index, NONE)] = Track(label, "phases", lane)
    return found


def collective_tracks(trace: Trace) -> Tracks:
    """Returns tracks of communication between ranks. The tracks show the table of collectives, or else communication kernels.
    """
    found, table = Tracks(), "collectives"
    if len(trace.collectives):
        rows, ranks = np.arange(len(trace.collectives)), trace.collectives.rank
    else:
        is_collective = trace.strings.matching(trace.device.name, categories.is_collective)
        rows = np.flatnonzero((trace.device.kind == DeviceKind.KERNEL) & is_collective)
        ranks = device_ranks(trace)[rows]
        table = "device"
    for (rank,), chosen in groups(rows, ranks):
        label = _of_rank(trace, rank, "collectives")
        found[TrackKey(TrackKind.COLLECTIVES, rank)] = _track(label, trace, table, chosen, Category.COLLECTIVE)
    return found


def loader_tracks(trace: Trace) -> Tracks:
    """Returns the tracks of waits for data. The tracks show the table of batches, or else the loader phases."""
    spans, found = trace.batches, Tracks()
    words: dict[int, str] = {BatchKind.WAIT: "loader", BatchKind.PIN: "pinning"}
    for (rank, loader, kind), rows in groups(np.arange(len(spans)), spans.rank, spans.loader, spans.kind):
        label = _of_rank(trace, rank, words.get(kind, "loader") + (f" {loader}" if int(spans.loader.max()) else ""))
        track = _track(label, trace, "batches", rows, categories.of_batches(trace)[rows])
        found[TrackKey(TrackKind.LOADER, rank, loader, kind)] = track
    for key, phases in phase_tracks(trace).items():
        if not isinstance(phases.lane, Lane) or TrackKey(TrackKind.LOADER, key.rank) in found:
            continue
        rows = phases.lane.row[phases.lane.category == Category.LOADER]
        if len(rows):
            label = _of_rank(trace, key.rank, "loader")
            found[TrackKey(TrackKind.LOADER, key.rank)] = _track(label, trace, "phases", rows, Category.LOADER)
    return found


def part_tracks(trace: Trace) -> Tracks:
    """Returns one track per thread for concurrent stages within phases (nn.DataParallel)."""
    parts, found = trace.parts, Tracks()
    for (thread,), rows in groups(np.arange(len(parts)), parts.thread):
        rank = trace.threads[thread].rank if 0 <= thread < len(trace.threads) else min(trace.ranks)
        position = 1 + sum(key.rank == rank for key in found)
        label = _of_rank(trace, rank, "parts" if position == 1 else f"parts {position}")
        found[TrackKey(TrackKind.PARTS, rank, position)] = _track(label, trace, "parts", rows, categories.of_parts(trace)[rows])
    return found


def memory_tracks(trace: Trace) -> Tracks:
    found = Tracks()
    for device, curve in memory_curves(trace).items():
        of = trace.devices[device]
        lane = Curve(curve.time_ns, curve.allocated_bytes, curve.source == "recorded")
        track = Track(f"{trace.device_label(device)} memory", "memory", lane)
        found[TrackKey(TrackKind.MEMORY, of.rank, of.index)] = track
    return found


def host_tracks(trace: Trace) -> Tracks:
    """Returns a track for each host thread and stack depth. Profiler marks of whole steps are left out, because the ruler shows
    steps.
    """
    host, found = trace.host, Tracks()
    depth = stack_depth(trace)
    rows = np.flatnonzero(depth != NONE)
    kinds = categories.of_host(trace)
    positions = _thread_positions(trace.threads)
    for (thread, level), chosen in groups(rows, host.thread[rows], depth[rows]):
        of = trace.threads[thread]
        role, number = positions[thread]
        position = f" {number + 1}" if number else ""
        label = _of_rank(trace, of.rank, f"{_ROLES[role]}{position} +{level}" if level else f"{_ROLES[role]} thread{position}")
        key = TrackKey(TrackKind.HOST, of.rank, number * len(_ROLES) + role, level)
        found[key] = _track(label, trace, "host", chosen, kinds[chosen])
    return found


def stack_depth(trace: Trace) -> Column:
    """Returns the number of enclosing spans for each host span. Profiler marks of whole steps do not count as enclosing spans,
    and the depth of a mark is NONE.
    """
    host = trace.host
    is_mark = trace.strings.matching(host.name, lambda text: text.startswith("ProfilerStep"))
    depth = np.zeros(len(host), dtype=np.int16)
    rows, at = np.arange(len(host)), (around := host.around)
    for _ in range(_DEEPEST):
        rows, at = rows[at >= 0], at[at >= 0]
        if not len(rows):
            break
        depth[rows] += ~is_mark[at]
        at = around[at]
    depth[is_mark] = NONE
    return depth


def _thread_positions(threads: list[Thread]) -> list[tuple[int, int]]:
    """Returns for each thread the number of its role, and its index among the threads with the same role and rank."""
    seen: dict[tuple[int, str], int] = {}
    positions = []
    for thread in threads:
        role = thread.role if thread.role in _ROLES else "other"
        number = seen[thread.rank, role] = seen.get((thread.rank, role), -1) + 1
        positions.append((_ROLES.index(role), number))
    return positions


def groups(rows: Column, *keys: Column) -> Iterator[tuple[tuple[int, ...], Column]]:
    """Groups row numbers by the values of the keys. Within a group, rows keep their order."""
    if not len(rows):
        return
    changes = np.zeros(len(rows), dtype=bool)
    changes[0] = True
    if len(keys) == 1 and (keys[0][1:] >= keys[0][:-1]).all():
        order = np.arange(len(rows))
    else:
        order = np.lexsort(keys[::-1])
    for key in keys:
        changes[1:] |= key[order][1:] != key[order][:-1]
    bounds = [*np.flatnonzero(changes).tolist(), len(rows)]
    for begin, end in itertools.pairwise(bounds):
        chosen = order[begin:end]
        yield tuple(int(key[chosen[0]]) for key in keys), rows[chosen]


def _of_rank(trace: Trace, rank: int, words: str) -> str:
    return words if len(trace.ranks) == 1 else f"rank {rank} {words}"
