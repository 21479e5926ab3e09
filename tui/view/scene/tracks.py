"""Makes the rows of the timeline for one trace, such as phases, CUDA streams, memory and host threads.

    tracks = gpu_tracks(trace)
    tracks[TrackKey(TrackKind.GPU, 0, 0, 7)].label   # "cuda:0 stream 7"
    {**tracks, **host_tracks(trace)}            # host tracks are loaded last, because most spans are host spans
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from traces.figures.measure import device_ranks, memory_curve, work_rows
from traces.model.row_order import grouped
from traces.model.trace import NONE, BatchKind, Column, DeviceKind, Thread, Trace
from tui.formatting import ranges_text
from tui.view.scene import categories
from tui.view.scene.categories import Category
from tui.view.scene.lanes import Curve, Lane


class TrackKind(IntEnum):
    PHASES = 0
    GPU = 1
    COLLECTIVES = 2
    LOADER = 3
    PARTS = 4
    MEMORY = 5
    HOST = 6


class TrackKey(NamedTuple):
    kind: TrackKind
    rank: int
    position: int = 0  # for example, the index of a GPU or the number of a host thread
    detail: int = 0  # for example, the number of a CUDA stream or the depth in a call stack


class Fold(NamedTuple):
    what: str
    rank: int
    position: int = 0


ALL = -2  # in `detail`: all streams of a device. In `position` too: all devices of a rank
SIMILAR = -3  # in `position`: all devices of similar ranks


@dataclass(frozen=True)
class Track:
    label: str
    table: str
    make: Callable[[], Lane | Curve]

    @cached_property
    def lane(self) -> Lane | Curve:
        return self.make()


Tracks = dict[TrackKey, Track]

_ROLES = ("main", "backward", "loader", "other")
_DEEPEST = 64  # maximum stack depth: deeper calls are shown in the last row


def _track(label: str, trace: Trace, table: str, rows: Column, kinds: Callable[[Trace, Column], Column] | Category) -> Track:
    def lane() -> Lane:
        spans = getattr(trace, table)
        categories = np.broadcast_to(kinds, len(rows)) if isinstance(kinds, Category) else kinds(trace, rows)
        return Lane(spans.start_ns[rows], spans.duration_ns[rows], categories, rows)

    return Track(label, table, lane)


def quick_tracks(trace: Trace) -> Tracks:
    kinds = phase_tracks, gpu_tracks, collective_tracks, loader_tracks, part_tracks, memory_tracks
    return {key: track for tracks in kinds for key, track in tracks(trace).items()}


def phase_tracks(trace: Trace) -> Tracks:
    found: Tracks = {}
    for rank, rows in _phases_of_ranks(trace, np.arange(len(trace.phases))):
        label = _of_rank(trace, rank, "phases")
        found[TrackKey(TrackKind.PHASES, rank)] = _track(label, trace, "phases", rows, categories.of_phases)
    return found


def _phases_of_ranks(trace: Trace, rows: Column) -> Iterator[tuple[int, Column]]:
    step = trace.phases.step[rows]
    inside = (step >= 0) & (step < len(trace.steps))
    ranks = np.where(inside, np.append(trace.steps.rank, min(trace.ranks))[np.where(inside, step, NONE)], min(trace.ranks))
    for (rank,), chosen in rows_by_key(rows, ranks):
        yield rank, chosen


def gpu_tracks(trace: Trace) -> Tracks:
    """Return one timeline row per CUDA stream, or one row per device if no kernels were recorded."""
    spans, found = trace.device, Tracks()
    rows = work_rows(trace)
    if not len(rows):
        return _phases_on_devices(trace)
    for (device, stream), chosen in rows_by_key(rows, spans.device[rows], spans.stream[rows]):
        label = f"{trace.device_label(device)} stream {stream}"
        key = TrackKey(TrackKind.GPU, trace.devices[device].rank, trace.devices[device].index, stream)
        found[key] = _track(label, trace, "device", chosen, categories.of_device)
    return found


def folded_tracks(trace: Trace, tracks: Tracks) -> Tracks:
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


def with_similar_ranks(tracks: Tracks, groups: Iterable[Sequence[int]]) -> Tracks:
    with_folds = dict(tracks)
    for similar in groups:
        if (track := tracks.get(TrackKey(TrackKind.GPU, similar[0], ALL, ALL))) is not None:
            key = TrackKey(TrackKind.GPU, similar[0], SIMILAR, ALL)
            with_folds[key] = Track(f"ranks {ranges_text(similar)}: similar", track.table, partial(getattr, track, "lane"))
    return with_folds


def _merged(label: str, tracks: list[Track]) -> Track:
    def lane() -> Lane:
        lanes = [track.lane for track in tracks if isinstance(track.lane, Lane)]
        names = ("start_ns", "end_ns", "category", "row")
        start_ns, end_ns, category, row = (np.concatenate([getattr(lane, name) for lane in lanes]) for name in names)
        return Lane(start_ns, end_ns - start_ns, category, row)

    return Track(label, tracks[0].table, lane)


def _phases_on_devices(trace: Trace) -> Tracks:
    phases, found = trace.phases, Tracks()
    timed = np.flatnonzero((phases.device != NONE) & phases.is_timed)
    for (device,), rows in rows_by_key(timed, phases.device[timed]):
        of = trace.devices[device]
        label = f"{trace.device_label(device)} phases"
        found[TrackKey(TrackKind.GPU, of.rank, of.index, NONE)] = Track(label, "phases", partial(_device_phases, trace, rows))
    return found


def _device_phases(trace: Trace, rows: Column) -> Lane:
    start_ns, end_ns = trace.phases.device_start_ns[rows], trace.phases.device_end_ns[rows]
    return Lane(start_ns, end_ns - start_ns, categories.of_phases(trace, rows), rows)


def collective_tracks(trace: Trace) -> Tracks:
    found, table = Tracks(), "collectives"
    if len(trace.collectives):
        rows, ranks = np.arange(len(trace.collectives)), trace.collectives.rank
    else:
        is_collective = trace.strings.matching(trace.device.name, categories.is_collective)
        rows = np.flatnonzero((trace.device.kind == DeviceKind.KERNEL) & is_collective)
        ranks = device_ranks(trace)[rows]
        table = "device"
    for (rank,), chosen in rows_by_key(rows, ranks):
        label = _of_rank(trace, rank, "collectives")
        found[TrackKey(TrackKind.COLLECTIVES, rank)] = _track(label, trace, table, chosen, Category.COLLECTIVE)
    return found


def loader_tracks(trace: Trace) -> Tracks:
    spans, found = trace.batches, Tracks()
    words: dict[int, str] = {BatchKind.WAIT: "loader", BatchKind.PIN: "pinning"}
    for (rank, loader, kind), rows in rows_by_key(np.arange(len(spans)), spans.rank, spans.loader, spans.kind):
        label = _of_rank(trace, rank, words.get(kind, "loader") + (f" {loader}" if int(spans.loader.max()) else ""))
        track = _track(label, trace, "batches", rows, categories.of_batches)
        found[TrackKey(TrackKind.LOADER, rank, loader, kind)] = track
    loads = np.flatnonzero(trace.phases.name == trace.strings.find("loader"))
    for rank, rows in _phases_of_ranks(trace, loads):
        label = _of_rank(trace, rank, "loader")
        found.setdefault(TrackKey(TrackKind.LOADER, rank), _track(label, trace, "phases", rows, Category.LOADER))
    return found


def part_tracks(trace: Trace) -> Tracks:
    parts, found = trace.parts, Tracks()
    for (thread,), rows in rows_by_key(np.arange(len(parts)), parts.thread):
        rank = trace.threads[thread].rank if 0 <= thread < len(trace.threads) else min(trace.ranks)
        position = 1 + sum(key.rank == rank for key in found)
        label = _of_rank(trace, rank, "parts" if position == 1 else f"parts {position}")
        found[TrackKey(TrackKind.PARTS, rank, position)] = _track(label, trace, "parts", rows, categories.of_parts)
    return found


def memory_tracks(trace: Trace) -> Tracks:
    found = Tracks()
    for device in np.flatnonzero(np.bincount(trace.memory.device + 1)[1:]).tolist():
        of = trace.devices[device]
        track = Track(f"{trace.device_label(device)} memory", "memory", partial(_memory_curve, trace, device))
        found[TrackKey(TrackKind.MEMORY, of.rank, of.index)] = track
    return found


def _memory_curve(trace: Trace, device: int) -> Curve:
    curve = memory_curve(trace, device)
    return Curve(curve.time_ns, curve.allocated_bytes, curve.source == "recorded")


def host_tracks(trace: Trace) -> Tracks:
    host, found = trace.host, Tracks()
    depth = stack_depth(trace)
    rows = np.flatnonzero(depth != NONE)
    positions = _thread_positions(trace.threads)
    for (thread, level), chosen in rows_by_key(rows, host.thread[rows], depth[rows]):
        of = trace.threads[thread]
        role, number = positions[thread]
        position = f" {number + 1}" if number else ""
        label = _of_rank(trace, of.rank, f"{_ROLES[role]}{position} +{level}" if level else f"{_ROLES[role]} thread{position}")
        key = TrackKey(TrackKind.HOST, of.rank, number * len(_ROLES) + role, level)
        found[key] = _track(label, trace, "host", chosen, categories.of_host)
    return found


def stack_depth(trace: Trace) -> Column:
    host = trace.host
    is_mark = trace.strings.matching(host.name, lambda text: text.startswith("ProfilerStep"))
    depth = np.zeros(len(host), dtype=np.int16)
    rows, at = np.arange(len(host)), (around := host.earlier_parent)
    for _ in range(_DEEPEST):
        rows, at = rows[at != NONE], at[at != NONE]
        if not len(rows):
            break
        depth[rows] += ~is_mark[at]
        at = around[at]
    depth[is_mark] = NONE
    return depth


def _thread_positions(threads: list[Thread]) -> list[tuple[int, int]]:
    seen: dict[tuple[int, str], int] = {}
    positions = []
    for thread in threads:
        role = thread.role if thread.role in _ROLES else "other"
        number = seen[thread.rank, role] = seen.get((thread.rank, role), -1) + 1
        positions.append((_ROLES.index(role), number))
    return positions


def rows_by_key(rows: Column, *keys: Column) -> Iterator[tuple[tuple[int, ...], Column]]:
    for chosen in grouped(*keys):
        yield tuple(int(key[chosen[0]]) for key in keys), rows[chosen]


def _of_rank(trace: Trace, rank: int, words: str) -> str:
    return words if len(trace.ranks) == 1 else f"rank {rank} {words}"
