"""Spans of one track made to nest strictly, as Chrome's trace format wants them.

    nested_ends((track,), start_ns, end_ns)   # 0..10 and 5..30 cross: 0..5 and 5..30, where less is lost

Note [Strict nesting]
Perfetto drops a slice that crosses another on its track. Crossing spans are therefore clipped: on a host thread the one
that loses less, on a stream always the earlier, which leaves the stream's busy time as it was. A range that a profiler
projected onto a stream and let begin within the kernel before it begins after that kernel. Synchronisations, which some
profilers put among a stream's kernels, get a track beside the stream's.
"""

from __future__ import annotations

import numpy as np

from traces.model.trace import Column


def after_work(tracks: tuple[Column, ...], start_ns: Column, end_ns: Column, ranges: Column) -> Column:
    """The starts of the spans, those of the `ranges` (a mask) moved out of the work that began before them."""
    starts = start_ns.copy()
    for key in sorted(set(zip(*(track[ranges].tolist() for track in tracks), strict=True))):
        track = np.logical_and.reduce([column == part for column, part in zip(tracks, key, strict=True)])
        moved, work = np.flatnonzero(track & ranges), np.flatnonzero(track & ~ranges)
        work = work[np.argsort(start_ns[work], kind="stable")]
        last_end_ns = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end_ns[work]))
        while True:  # a later start may lie within more work, where spans of a stream overlap
            before = np.searchsorted(start_ns[work], starts[moved], side="left")
            later = np.clip(last_end_ns[before], starts[moved], end_ns[moved])
            if np.array_equal(later, starts[moved]):
                break
            starts[moved] = later
    return np.asarray(starts)


def nested_ends(
    tracks: tuple[Column, ...], start_ns: Column, end_ns: Column, *, keep_later: bool = False, uncut: Column | None = None
) -> Column:
    """The ends of the spans, clipped so that on each track any two are apart or one is within the other.

    See Note [Strict nesting]. `keep_later`: of two that cross always the earlier is clipped, where the later starts. Of a span
    in the mask `uncut` and another that crosses it, the other is clipped.
    """
    whole: list[bool] = uncut.tolist() if uncut is not None else [False] * len(start_ns)
    ends: list[int] = end_ns.tolist()
    order = np.lexsort((-end_ns, start_ns, *tracks))
    starts = start_ns.tolist()
    keys = list(zip(*(track.tolist() for track in tracks), strict=True))
    open_spans: list[int] = []  # of the track, the outermost first
    track = None
    for row in order.tolist():
        if keys[row] != track:
            track = keys[row]
            open_spans.clear()
        start = starts[row]
        while open_spans and ends[open_spans[-1]] <= start:
            open_spans.pop()
        if open_spans and ends[open_spans[-1]] < ends[row]:
            inner_end = ends[open_spans[-1]]
            clips_row = not keep_later and ends[row] - inner_end <= inner_end - start
            if whole[row] != whole[open_spans[-1]]:
                clips_row = whole[open_spans[-1]]
            if clips_row:
                ends[row] = inner_end
            else:
                while open_spans and ends[open_spans[-1]] < ends[row]:
                    ends[open_spans.pop()] = start
        open_spans.append(row)
    return np.asarray(ends, dtype=np.int64)
