"""Shortens events that overlap on one timeline track, because Chrome's trace format requires strict nesting.

    nested_ends((track,), start_ns, end_ns)   # 0..10 and 5..30 overlap and become 0..5 and 5..30

Note [Strict nesting]
    Perfetto does not show an event that partially overlaps another event on its track, so such events are shortened. If two
    events of a CPU thread overlap partially, the one that loses less time is shortened. On a stream, the earlier event is
    always shortened, which keeps the stream's busy time unchanged.
"""

from __future__ import annotations

import numpy as np

from traces.model.trace import Column


def after_work(tracks: tuple[Column, ...], start_ns: Column, end_ns: Column, ranges: Column) -> Column:
    """Return the start time of each event. If a profiler range starts during a kernel, the start of the range is moved to the
    end of the kernel."""
    starts = start_ns.copy()
    for key in sorted(set(zip(*(track[ranges].tolist() for track in tracks), strict=True))):
        track = np.logical_and.reduce([column == part for column, part in zip(tracks, key, strict=True)])
        moved, work = np.flatnonzero(track & ranges), np.flatnonzero(track & ~ranges)
        work = work[np.argsort(start_ns[work], kind="stable")]
        last_end_ns = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end_ns[work]))
        while True:  # repeat, because a moved start may be inside other work if spans of a stream overlap
            before = np.searchsorted(start_ns[work], starts[moved], side="left")
            later = np.clip(last_end_ns[before], starts[moved], end_ns[moved])
            if np.array_equal(later, starts[moved]):
                break
            starts[moved] = later
    return np.asarray(starts)


def nested_ends(
    tracks: tuple[Column, ...], start_ns: Column, end_ns: Column, *, keep_later: bool = False, uncut: Column | None = None
) -> Column:
    """If events partially overlap, shorten one of them, and return the new end times. With `keep_later`, the earlier of two
    overlapping events is always shortened. The mask `uncut` selects events that must not be shortened."""
    # see Note [Strict nesting]
    whole: list[bool] = uncut.tolist() if uncut is not None else [False] * len(start_ns)
    ends: list[int] = end_ns.tolist()
    order = np.lexsort((-end_ns, start_ns, *tracks))
    starts = start_ns.tolist()
    keys = list(zip(*(track.tolist() for track in tracks), strict=True))
    open_spans: list[int] = []  # open spans of the current track, outermost first
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
