"""What can be shown: one or two traces, their rows laid side by side, and how the two are aligned. Immutable.

    scene = Scene.of(("v100.msgpack", recorded), ("replay.msgpack", replayed))
    scene.rows[1].label                      # "cuda:0 stream 7/0"
    scene.axis(Alignment.STEP).length_ns

Threads that load make scenes and post them to the app, each with more in it than the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from traces.comparison import Comparison, compare, pair_streams
from traces.model import NONE, Trace
from traces.summary import Summary, summarize
from tui.figures import kernel_text
from tui.view import alignment
from tui.view.alignment import Alignment, Pairs
from tui.view.axis import Axis
from tui.view.cells import plain
from tui.view.lanes import Lane
from tui.view.tracks import Kind, Track, TrackKey, Tracks, host_tracks, quick_tracks

TABLE_ROWS = 1000  # of a list of changes: more nobody reads, and a table widget would take long


@dataclass(frozen=True)
class Row:
    """One lane of the picture: the same row of both traces, None where one has none."""

    kind: Kind
    label: str
    tracks: tuple[Track | None, ...]
    rank: int

    @property
    def is_curve(self) -> bool:
        return self.kind == Kind.MEMORY

    def lane(self, side: int) -> Lane | None:
        """The spans of one side, None if it has none or this is a curve."""
        track = self.tracks[side] if side < len(self.tracks) else None
        return track.lane if track is not None and isinstance(track.lane, Lane) else None


_AXES: Mapping[Alignment, Callable[[Trace, Trace], Axis]] = {
    Alignment.STEP: alignment.by_step,
    Alignment.WALL: alignment.by_wall,
    Alignment.OP: alignment.by_op,
}


@dataclass(frozen=True)
class Scene:
    """See the module. `comparison` is of two traces, `summary` of one; both are None until known."""

    names: tuple[str, ...]
    traces: tuple[Trace, ...]
    rows: tuple[Row, ...]
    has_host: bool = False
    comparison: Comparison | None = None
    summary: Summary | None = None
    _axes: dict[Alignment, Axis] = field(default_factory=dict, compare=False)
    _tracks: tuple[Tracks, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, *named: tuple[str, Trace]) -> Scene:
        """Everything but the host's threads, and no figures: what is there at once."""
        tracks = tuple(quick_tracks(trace) for _, trace in named)
        traces = tuple(trace for _, trace in named)
        return cls(tuple(name for name, _ in named), traces, _paired(traces, tracks), _tracks=tracks)

    def with_host(self) -> Scene:
        """The same with a row for each host thread and depth of its stack."""
        tracks = tuple(
            {**quick, **host_tracks(trace)} for quick, trace in zip(self._tracks, self.traces, strict=True)
        )
        return replace(self, rows=_paired(self.traces, tracks), has_host=True, _tracks=tracks)

    @property
    def has_figures(self) -> bool:
        return self.comparison is not None or self.summary is not None

    def with_figures(self) -> Scene:
        """The same with the figures that `trace diff` (or `trace info`) prints."""
        if len(self.traces) == 2:
            return replace(self, comparison=compare(*self.traces, top=TABLE_ROWS))
        return replace(self, summary=summarize(self.traces[0]))

    def axis(self, by: Alignment) -> Axis:
        """The axis of an alignment, worked out at its first use."""
        if by not in self._axes:
            self._axes[by] = _AXES[by](*self.traces) if len(self.traces) == 2 else alignment.alone(self.traces[0])
        return self._axes[by]

    @cached_property
    def step_pairs(self) -> Pairs:
        """Which step lies over which; of one trace each step and NONE."""
        if len(self.traces) == 2:
            return alignment.paired_steps(*self.traces)
        return [(row, NONE) for row in alignment.steps_in_order(self.traces[0]).tolist()]

    @property
    def words(self) -> tuple[str, ...]:
        """What the sides are called."""
        if len(self.traces) == 1:
            return ("",)
        return ("recorded", "replayed") if self.is_replay else ("A", "B")

    @property
    def is_replay(self) -> bool:
        return len(self.traces) == 2 and (
            "replay" in self.traces[1].provenance or bool((self.traces[1].steps.recorded_step >= 0).any())
        )

    def span_name(self, side: int, track: Track, row: int) -> str:
        """The name of a row of the track's table, as short as it is clear."""
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


def short_name(text: str) -> str:
    """A kernel's or op's name without namespaces and template arguments: "vectorized_elementwise_kernel"."""
    name = kernel_text(text)
    if " " not in name.partition("<")[0]:
        name = name.partition("<")[0].rpartition("::")[2] or name
    return plain(name)


def _paired(traces: tuple[Trace, ...], tracks: tuple[Tracks, ...]) -> tuple[Row, ...]:
    """The rows of the picture: tracks of the same key together, streams as `trace diff` pairs them."""
    if len(tracks) == 1:
        return tuple(Row(key.kind, plain(tracks[0][key].label), (tracks[0][key],), key.rank) for key in sorted(tracks[0]))
    first, second = tracks
    renamed = _renamed_streams(first, second)
    seconds = {renamed.get(key, key): track for key, track in second.items()}
    rows = []
    for key in sorted(first.keys() | seconds.keys()):
        pair = first.get(key), seconds.get(key)
        labels = [track.label for track in pair if track is not None]
        label = labels[0]
        if len(set(labels)) == 2 and key.kind == Kind.GPU:
            label = f"{labels[0]}/{labels[1].rpartition(' ')[2]}"
        rows.append(Row(key.kind, plain(label), pair, key.rank))
    return tuple(rows)


def _renamed_streams(first: Tracks, second: Tracks) -> dict[TrackKey, TrackKey]:
    """For streams of the second trace whose numbers differ: the key of the first's stream that lies over it."""
    renamed = {}
    devices = {key[:3] for tracks in (first, second) for key in tracks if key.kind == Kind.GPU}
    for device in devices:
        busy = [
            {key.detail: _busy_ns(track) for key, track in tracks.items() if key[:3] == device} for tracks in (first, second)
        ]
        for ours, theirs in pair_streams(*busy):
            if ours is not None and theirs is not None:
                renamed[TrackKey(*device, theirs)] = TrackKey(*device, ours)
    return renamed


def _busy_ns(track: Track) -> float:
    lane = track.lane
    return float((lane.end_ns - lane.start_ns).sum()) if isinstance(lane, Lane) else 0.0
