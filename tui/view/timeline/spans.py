"""Finds single events in the timeline, such as the event under the cursor.

    span = span_at_cursor(window)                      # Span(side=0, row=1, position=812, table="device", number=812)
    counterpart(scene, span, by, at_ns)       # the same call in the other trace, or None

Two traces are compared step by step, and CPU events are matched by name and order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.comparison.counterparts import Counterparts
from traces.figures.measure import launch_steps, step_windows
from traces.model.trace import NONE, Column, Trace
from traces.names.equivalent_ops import canonical_op
from tui.view.scene.alignment import Alignment
from tui.view.scene.lanes import Lane
from tui.view.scene.scene import Scene
from tui.view.timeline.window import Window


@dataclass(frozen=True)
class Span:
    side: int
    row: int
    position: int
    table: str
    number: int


def _cursor(window: Window) -> tuple[int, int, Lane] | None:
    line, side = window.cursor_line, window.cursor_side
    lane = window.scene.rows[line.row].lane(side) if line is not None else None
    return (side, line.row, lane) if line is not None and lane is not None and len(lane) else None


def span_at_cursor(window: Window) -> Span | None:
    if (at := _cursor(window)) is None:
        return None
    side, row, lane = at
    column = window.cursor_column
    if not 0 <= column < window.columns:
        return None
    edges = window.edges_ns[column : column + 2]
    view = window.axis.sides[side]
    middle = int(edges.sum()) // 2
    if not view.shown([edges[0], edges[1] - 1]).any():
        return None
    begin, end, time_ns = (int(view.times([at])[0]) for at in (edges[0], edges[1], middle))
    position = lane.nearest(time_ns)
    if int(lane.start_ns[position]) >= max(end, begin + 1) or int(lane.end_ns[position]) < begin:
        return None
    return _span(window.scene, side, row, position)


def neighbour(window: Window, span: Span | None, by: int) -> Span | None:
    if (at := _cursor(window)) is None:
        return None
    side, row, lane = at
    if span is not None and (span.row, span.side) == (row, side):
        position = span.position + by
    else:
        time_ns = int(window.axis.sides[side].times([window.cursor_ns])[0])
        behind = int(np.searchsorted(lane.start_ns, time_ns, side="right"))
        position = behind if by > 0 else behind - 1
    return _span(window.scene, side, row, position) if 0 <= position < len(lane) else None


def _span(scene: Scene, side: int, row: int, position: int) -> Span:
    track = scene.rows[row].tracks[side]
    assert track is not None and isinstance(track.lane, Lane)
    return Span(side, row, position, track.table, int(track.lane.row[position]))


def find_span(scene: Scene, side: int, table: str, number: int) -> Span | None:
    for row, of in enumerate(scene.rows):
        track = of.tracks[side]
        if of.stands_for is None and track is not None and track.table == table and isinstance(track.lane, Lane):
            position = track.lane.position_of(number)
            if position != NONE:
                return Span(side, row, position, table, number)
    return None


def name_of(scene: Scene, span: Span) -> str:
    if span.table == "batches":
        return scene.rows[span.row].label
    trace = scene.traces[span.side]
    return trace.strings[int(getattr(trace, span.table).name[span.number])]


def start_of(scene: Scene, span: Span) -> int:
    return int(getattr(scene.traces[span.side], span.table).start_ns[span.number])


def duration_of(scene: Scene, span: Span) -> int:
    return int(getattr(scene.traces[span.side], span.table).duration_ns[span.number])


def position_of(window: Window, span: Span, near_ns: int | None = None) -> int | None:
    near_ns = window.cursor_ns if near_ns is None else near_ns
    return window.axis.sides[span.side].position(start_of(window.scene, span), near_ns)


def step_of(scene: Scene, span: Span) -> int:
    """Return the index of the event's step. Kernels and copies belong to the step that launched them."""
    return int(_steps_of(scene.traces[span.side], span.table, np.array([span.number]))[0])


def counterpart(scene: Scene, span: Span, by: Alignment, near_ns: int) -> Span | None:
    if len(scene.traces) < 2:
        return None
    step, other = step_of(scene, span), 1 - span.side
    if span.table == "device" and scene.counterparts is not None:
        return _kernels_counterpart(scene, scene.counterparts, span, by, near_ns)
    over = [pair[other] for pair in scene.step_pairs if pair[span.side] == step and pair[other] != NONE]
    if step == NONE or not over:
        return None
    ours, theirs = scene.traces[span.side], scene.traces[other]
    if len(over) > 1:  # several replayed steps are possible, so the axis position selects one of them
        shown_ns = int(scene.axis(by).sides[other].times([near_ns])[0])
        begin, end = theirs.steps.start_ns, theirs.steps.end_ns
        over.sort(key=lambda row: max(int(begin[row]) - shown_ns, shown_ns - int(end[row]), 0))
    text = name_of(scene, span)
    mine = _rows_of_same_name(ours, span.table, step, text)
    same = _rows_of_same_name(theirs, span.table, over[0], text)
    position = np.flatnonzero(mine == _outermost_around(ours, span, mine))
    if not len(position) or int(position[0]) >= len(same):
        return None
    return find_span(scene, other, span.table, int(same[int(position[0])]))


def _kernels_counterpart(scene: Scene, found: Counterparts, span: Span, by: Alignment, near_ns: int) -> Span | None:
    other = 1 - span.side
    rows = (found.second if other else found.first)[found.of(span.side, span.number)]
    rows = rows[rows != NONE]
    if not len(rows):
        return None
    starts = scene.traces[other].device.start_ns[rows]
    positions = [scene.axis(by).sides[other].position(int(start_ns), near_ns) for start_ns in starts.tolist()]
    distances = [abs(position - near_ns) if position is not None else 2**62 for position in positions]
    return find_span(scene, other, "device", int(rows[distances.index(min(distances))]))


def _rows_of_same_name(trace: Trace, table: str, step: int, text: str) -> Column:
    spans = getattr(trace, table)
    if table == "batches":
        rows = np.arange(len(spans))
    elif table == "host":
        wanted = canonical_op(text)
        rows = np.flatnonzero(trace.strings.matching(spans.name, lambda other: canonical_op(other) == wanted))
    else:
        rows = np.flatnonzero(spans.name == trace.strings.find(text))
    rows = rows[_steps_of(trace, table, rows) == step]
    if table == "host":
        rows = _outermost(trace, rows)
    return np.asarray(rows[np.argsort(spans.start_ns[rows], kind="stable")])


def _outermost(trace: Trace, rows: Column) -> Column:
    thread, end_ns = trace.host.thread, trace.host.end_ns
    kept: list[int] = []
    for row in rows.tolist():
        if not (kept and thread[kept[-1]] == thread[row] and end_ns[kept[-1]] >= end_ns[row]):
            kept.append(row)
    return np.array(kept, dtype=np.int64)


def _outermost_around(trace: Trace, span: Span, among: Column) -> int:
    if span.table != "host":
        return span.number
    host, row = trace.host, span.number
    around = (host.thread[among] == host.thread[row]) & (host.start_ns[among] <= host.start_ns[row])
    around &= host.end_ns[among] >= host.end_ns[row]
    return int(among[around][0]) if around.any() else row


def _steps_of(trace: Trace, table: str, rows: Column) -> Column:
    if table == "phases":
        return np.asarray(trace.phases.step[rows])
    if table == "device":
        return np.asarray(launch_steps(trace)[rows])
    return step_windows(trace).holding(getattr(trace, table).start_ns[rows], np.full(len(rows), trace.ranks[0]))
