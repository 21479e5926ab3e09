"""The line below the lanes: what the cursor points at."""

from __future__ import annotations

from tui.figures import share_text, size_text, time_text
from tui.view.cells import curve_values
from tui.view.drawing import Drawing
from tui.view.lanes import Curve
from tui.view.scene import short_name
from tui.view.spans import Span, name_of
from tui.view.window import Window


def status(window: Window, drawing: Drawing, marks: list[tuple[int, str, int]], span: Span | None) -> str:
    """Row, step and time; the selected span, else how busy the cursor's column is."""
    line = window.cursor_line
    if line is None:
        return "nothing to show"
    scene, row = window.scene, window.scene.rows[line.row]
    parts = [row.label, _when(window, marks)]
    if span is not None:
        trace = scene.traces[span.side]
        duration_ns = int(getattr(trace, span.table).duration_ns[span.number])
        parts.append(f"{short_name(name_of(scene, span))} {time_text(duration_ns)}")
    column = window.cursor_column
    if 0 <= column < window.columns:
        parts.append(_column(window, drawing, line.row, column))
    return " · ".join(part for part in parts if part)


def _when(window: Window, marks: list[tuple[int, str, int]]) -> str:
    """Steps follow each other on the axis: the last that begins before the cursor."""
    before = [mark for mark in marks if mark[0] <= window.cursor_ns]
    if not before:
        return f"{time_text(window.cursor_ns - window.steps_begin_ns, signed=True)} from the first step"
    return f"step {before[-1][1]} +{time_text(window.cursor_ns - before[-1][0])}"


def _column(window: Window, drawing: Drawing, row: int, column: int) -> str:
    scene, edges = window.scene, window.edges_ns
    found = []
    for side, word in enumerate(scene.words):
        track = scene.rows[row].tracks[side]
        if track is None:
            continue
        if isinstance(track.lane, Curve):
            value = curve_values(track.lane, window.axis.sides[side], edges[column : column + 2])
            figure = size_text(int(value[0]))
        else:
            busy = drawing.busy(window, row, side)
            figure = share_text(busy.total_ns[column] / max(int(edges[column + 1] - edges[column]), 1)) if busy else ""
        found.append(f"{word} {figure}".strip())
    words = "holds" if scene.rows[row].is_curve else "busy"
    return f"{words} {', '.join(found)}" if found else ""


