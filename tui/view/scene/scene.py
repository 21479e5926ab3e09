"""Defines the class `Scene`, which contains everything that the timeline app can show.

    scene = Scene.of(("v100.msgpack", recorded), ("replay.msgpack", replayed))
    scene.rows[1].label                      # "cuda:0 stream 7/0"
    scene.axis(Alignment.STEP).length_ns

A `Scene` object never changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from traces.analyses.analyse import Analyses, analyse
from traces.analyses.idle import IdleSpans, idle_spans
from traces.analyses.stragglers import RankGroups, rank_groups, without_similar_ranks
from traces.comparison.compare import compare, have_same_stream_numbers, pair_streams
from traces.comparison.comparison_figures import Comparison
from traces.comparison.counterparts import Counterparts, StepPairs, counterparts, paired_steps, steps_in_order
from traces.figures.summary import Outline, Summary, outline, summarize
from traces.model.trace import NONE, Column, Trace
from traces.rates.achieved_rates import OpRates, achieved
from tui.view.scene import alignment
from tui.view.scene.alignment import Alignment, extent_ns
from tui.view.scene.axis import Axis
from tui.view.scene.character_rows import one_column_each
from tui.view.scene.compared import Sums, kernel_differences
from tui.view.scene.difference import Difference
from tui.view.scene.lanes import Curve, Lane
from tui.view.scene.short_names import short_name
from tui.view.scene.tracks import (
    ALL,
    SIMILAR,
    Fold,
    Track,
    TrackKey,
    TrackKind,
    Tracks,
    folded_tracks,
    host_tracks,
    quick_tracks,
    with_similar_ranks,
)

TABLE_ROWS = 1000  # maximum length of a list of changes, because longer tables would be slow


@dataclass(frozen=True)
class SceneRow:
    key: TrackKey
    label: str
    tracks: tuple[Track | None, ...]
    similar: int | None = None  # number of the first similar rank, if the row belongs to one of several similar ranks

    @property
    def kind(self) -> TrackKind:
        return self.key.kind

    @cached_property
    def stands_for(self) -> Fold | None:
        if self.kind is not TrackKind.GPU or self.key.detail != ALL:
            return None
        if self.key.position == SIMILAR:
            return Fold("ranks", self.key.rank)
        return Fold("rank", self.key.rank) if self.key.position == ALL else Fold("device", self.key.rank, self.key.position)

    @cached_property
    def folds(self) -> tuple[Fold, ...]:
        rank = Fold("rank", self.key.rank)
        ranks = () if self.similar is None or self.key.position == SIMILAR else (Fold("ranks", self.similar),)
        if self.kind is TrackKind.HOST and self.key.detail:
            return Fold("thread", self.key.rank, self.key.position), rank, *ranks
        if self.kind is TrackKind.GPU and self.key.detail != ALL:
            return Fold("device", self.key.rank, self.key.position), rank, *ranks
        return ranks if self.kind is TrackKind.GPU and self.key.position in (ALL, SIMILAR) else (rank, *ranks)

    @property
    def is_curve(self) -> bool:
        return self.kind == TrackKind.MEMORY

    def lane(self, side: int) -> Lane | None:
        track = self.tracks[side]
        return track.lane if track is not None and isinstance(track.lane, Lane) else None


@dataclass(frozen=True)
class Scene:
    names: tuple[str, ...]
    traces: tuple[Trace, ...]
    rows: tuple[SceneRow, ...]
    comparison: Comparison | None = None
    outline: Outline | None = None
    counterparts: Counterparts | None = None
    differences: tuple[Difference, ...] = ()
    _axes: dict[Alignment, Axis] = field(default_factory=dict, compare=False)
    _tracks: tuple[Tracks, ...] = field(default=(), compare=False)
    _whole: tuple[Trace, ...] = field(default=(), compare=False)
    _ranks: RankGroups = field(default=RankGroups(), compare=False)
    _sums: dict[int, tuple[Sums, Sums]] = field(default_factory=dict, compare=False)
    _compared: tuple[Column, Column] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, *named: tuple[str, Trace], omits_similar_ranks: bool = False) -> Scene:
        """Make the timeline's rows without host events. If `omits_similar_ranks` is true, show only one rank of each group of
        similar ranks."""
        names, whole = zip(*named, strict=True)
        ranks, traces = without_similar_ranks(whole) if omits_similar_ranks else (rank_groups(*whole), whole)
        tracks = tuple(map(quick_tracks, traces))
        rows = _paired(tracks, _same_numbers(tuple(traces)), ranks)
        return cls(names, tuple(traces), rows, _tracks=tracks, _ranks=ranks, _whole=whole)

    def with_host(self) -> Scene:
        tracks = tuple(
            with_similar_ranks({**quick, **host_tracks(trace), **folded_tracks(trace, quick)}, self._ranks.similar)
            for quick, trace in zip(self._tracks, self.traces, strict=True)
        )
        return replace(self, rows=_paired(tracks, _same_numbers(self.traces), self._ranks), _tracks=tracks, _sums={})

    def with_counterparts(self) -> Scene:
        if len(self.traces) < 2:
            return self
        first, second = self.traces
        found = counterparts(first, second, self.step_pairs)
        axes = {**self._axes, Alignment.COUNTERPART: alignment.by_counterpart(first, second, found)}
        scene = replace(self, counterparts=found, _axes=axes, _sums={}, _compared=kernel_differences(first, second, found))
        for number, row in enumerate(scene.rows):  # this runs in the loading thread, so that the first frame is fast
            if row.similar is None or row.key.position == SIMILAR:
                scene.sums(number)
        return scene

    def sums(self, row: int) -> tuple[Sums, Sums] | None:
        lanes = self.rows[row].lane(0), self.rows[row].lane(1)
        of_devices = all(track is not None and track.table == "device" for track in self.rows[row].tracks)
        if self._compared is None or not of_devices or lanes[0] is None or lanes[1] is None:
            return None
        if row not in self._sums:
            self._sums[row] = Sums(lanes[0], self._compared[0]), Sums(lanes[1], self._compared[1])
        return self._sums[row]

    @property
    def has_figures(self) -> bool:
        return self.comparison is not None or self.outline is not None

    def with_figures(self) -> Scene:
        if len(self.traces) == 2:
            return replace(self, comparison=compare(*self.traces, top=TABLE_ROWS))
        return replace(self, outline=outline(self.traces[0], self._whole[0]))

    @cached_property
    def summary(self) -> Summary:
        return summarize(self.traces[0], details=False)

    @cached_property
    def analyses(self) -> tuple[Analyses, ...]:
        if self.comparison is not None:
            both = self.comparison.analyses
            return both.recorded, both.replayed
        return (analyse(self.traces[0]),)

    def axis(self, by: Alignment) -> Axis:
        if by is Alignment.COUNTERPART and by not in self._axes:
            return self.axis(Alignment.STEP)
        if by not in self._axes:
            of_two = alignment.by_step if by is Alignment.STEP else alignment.by_wall
            self._axes[by] = of_two(*self.traces) if len(self.traces) == 2 else alignment.axis_of_trace(self.traces[0])
        return self._axes[by]

    def limit_bytes(self, row: int) -> int | None:
        key = self.rows[row].key
        devices = [of for trace in self.traces for of in trace.devices if (of.rank, of.index) == (key.rank, key.position)]
        return min((of.total_memory_bytes for of in devices if of.total_memory_bytes > 0), default=None)

    def top_bytes(self, row: int) -> int:
        peak = max(track.lane.peak for track in self.rows[row].tracks if track is not None and isinstance(track.lane, Curve))
        limit = self.limit_bytes(row)
        return limit if limit is not None and limit / 2 <= peak <= limit else peak

    def unrecorded_bytes(self, row: int) -> int:
        curves = [track.lane for track in self.rows[row].tracks if track is not None and isinstance(track.lane, Curve)]
        pairs = [pair for pair in self.step_pairs if NONE not in pair]
        if not pairs or all(curve.has_total for curve in curves):
            return 0
        held = []
        for curve, trace, steps in zip(curves, self.traces, zip(*pairs, strict=True), strict=True):
            starts_ns = trace.steps.start_ns[list(steps)]
            held.append(curve.highest(starts_ns, starts_ns))
        return int(np.median(held[1] - held[0]))

    @cached_property
    def step_pairs(self) -> StepPairs:
        if len(self.traces) == 2:
            return paired_steps(*self.traces)
        return [(row, NONE) for row in steps_in_order(self.traces[0]).tolist()]

    @cached_property
    def begins_ns(self) -> tuple[int, ...]:
        return tuple(extent_ns(trace)[0] for trace in self.traces)

    @cached_property
    def idle(self) -> tuple[IdleSpans, ...]:
        return tuple(map(idle_spans, self.traces))

    @cached_property
    def rates(self) -> tuple[dict[tuple[str, str], OpRates], ...]:
        return tuple({(row.op, row.shapes): row for row in achieved(trace, by_shape=True)} for trace in self.traces)

    @property
    def words(self) -> tuple[str, ...]:
        if len(self.traces) == 1:
            return ("",)
        return ("recorded", "replayed") if self.is_replay else ("A", "B")

    @property
    def is_replay(self) -> bool:
        return len(self.traces) == 2 and self.traces[1].is_replay_of(self.traces[0])

    def span_name(self, side: int, track: Track, row: int) -> str:
        names = self._short_names[side]
        table = track.table
        if table == "batches":
            return track.label
        name = int(getattr(self.traces[side], table).name[row])
        if name not in names:
            names[name] = short_name(self.traces[side].strings[name])
        return names[name]

    @cached_property
    def _short_names(self) -> tuple[dict[int, str], ...]:
        return tuple({} for _ in self.traces)


def _same_numbers(traces: tuple[Trace, ...]) -> bool:
    return len(traces) == 1 or have_same_stream_numbers(*traces)


def _paired(tracks: tuple[Tracks, ...], same_numbers: bool, ranks: RankGroups) -> tuple[SceneRow, ...]:
    place = {rank: number for number, rank in enumerate(ranks.first)}
    similar = {rank: group[0] for group in ranks.similar for rank in group}

    def position(key: TrackKey) -> tuple[int, ...]:
        of_similar = key.position == SIMILAR
        return place.get(key.rank, len(place)), key.rank, not of_similar, key.kind, key.position, key.detail

    first, second = (*tracks, Tracks())[:2]
    renamed = _renamed_streams(first, second, same_numbers) if second else {}
    seconds = {renamed.get(key, key): track for key, track in second.items()}
    rows = []
    for key in sorted(first.keys() | seconds.keys(), key=position):
        pair = (first.get(key), seconds.get(key))[: len(tracks)]
        labels = [track.label for track in pair if track is not None]
        label = labels[0]
        if len(set(labels)) == 2 and key.kind == TrackKind.GPU and key.detail != ALL:
            label = f"{labels[0]}/{labels[1].rpartition(' ')[2]}"
        rows.append(SceneRow(key, one_column_each(label), pair, similar.get(key.rank)))
    return tuple(rows)


def _renamed_streams(first: Tracks, second: Tracks, same_numbers: bool) -> dict[TrackKey, TrackKey]:
    renamed = {}
    devices = {key[:3] for tracks in (first, second) for key in tracks if key.kind == TrackKind.GPU and key.detail != ALL}
    for device in devices:
        busy = [
            {key.detail: _busy_ns(track) for key, track in tracks.items() if key[:3] == device and key.detail != ALL}
            for tracks in (first, second)
        ]
        for ours, theirs in pair_streams(*busy, same_numbers=same_numbers):
            if ours is not None and theirs is not None:
                renamed[TrackKey(*device, theirs)] = TrackKey(*device, ours)
    return renamed


def _busy_ns(track: Track) -> float:
    lane = track.lane
    return float((lane.end_ns - lane.start_ns).sum()) if isinstance(lane, Lane) else 0.0
