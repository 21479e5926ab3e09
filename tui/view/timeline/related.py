"""Finds events that are related to an event, such as the op that launched a kernel.

    launcher(scene, kernel)              # the op that launched it
    launched(scene, op)                  # the first kernel that it launched
    backward(scene, kernel)              # the first kernel of the backward op, if the kernel's op is a forward op
    position_among(window, span, 1)         # (next span with this name, its axis position, 5, 96): the 5th of 96 spans
"""

from __future__ import annotations

import numpy as np

from traces.analyses.modules import PREFIX
from traces.figures.measure import host_ranks, op_of
from traces.model.trace import NONE, Column, HostKind, Trace
from tui.view.scene.scene import Scene
from tui.view.timeline.spans import Span, find_span
from tui.view.timeline.window import Window


def launcher(scene: Scene, span: Span) -> Span | None:
    """Return the op or CUDA call that launched a kernel or copy. For a CPU event, return the enclosing event."""
    trace = scene.traces[span.side]
    if span.table == "host":
        row = int(trace.host.parent[span.number])
    elif span.table == "device":
        row = int(op_of(trace)[span.number])
        row = int(trace.device.launch[span.number]) if row == NONE else row
    else:
        return None
    return find_span(scene, span.side, "host", row) if row != NONE else None


def launched(scene: Scene, span: Span) -> Span | None:
    if span.table != "host":
        return None
    rows = launched_rows(scene.traces[span.side], span.number)
    return find_span(scene, span.side, "device", int(rows[0])) if len(rows) else None


def launched_rows(trace: Trace, number: int) -> Column:
    host = trace.host
    own = np.flatnonzero(host.thread == host.thread[number])  # rows are sorted by start time, so nested spans come later
    behind = own[0] + np.searchsorted(host.start_ns[own], int(host.end_ns[number]), side="left") if len(own) else number
    launch = trace.device.launch
    rows = np.flatnonzero((launch >= number) & (launch < max(int(behind), number + 1)))
    return np.asarray(rows[np.argsort(trace.device.start_ns[rows], kind="stable")])


def backward(scene: Scene, span: Span) -> Span | None:
    """Return the backward op of a forward op, or the forward op of a backward op."""
    trace = scene.traces[span.side]
    start = launcher(scene, span) if span.table == "device" else span
    if start is None or start.table != "host":
        return None
    host = trace.host
    row = next((of for of in host.outward(start.number) if host.sequence[of] != NONE), NONE)
    if row == NONE:
        return None
    is_backward = host.forward_thread != NONE
    same = (host.sequence == host.sequence[row]) & (host.kind == HostKind.OP)
    others = np.flatnonzero(same & (is_backward if not is_backward[row] else ~is_backward))
    ranks = host_ranks(trace)
    others = others[ranks[others] == ranks[row]]
    # Each step may use the same autograd sequence numbers, so take the op that is closest in time.
    ahead = host.start_ns[others] - host.start_ns[row] if not is_backward[row] else host.start_ns[row] - host.start_ns[others]
    others, ahead = others[ahead > 0], ahead[ahead > 0]
    if not len(others):
        return None
    partner = find_span(scene, span.side, "host", int(others[np.argmin(ahead)]))
    return (launched(scene, partner) or partner) if partner is not None and span.table == "device" else partner


def modules_and_stack(trace: Trace, number: int) -> tuple[list[str], list[str]]:
    """Return the nn.Modules that were running during a CPU event, outermost first. The second list is the event's Python stack,
    innermost first."""
    host, modules, frames = trace.host, list[str](), list[str]()
    stack = trace.strings[int(host.stack[number])]
    for row in host.outward(number):
        text = trace.strings[int(host.name[row])]
        if text.startswith(PREFIX) and host.kind[row] in (HostKind.PYTHON, HostKind.ANNOTATION):
            modules.insert(0, text.removeprefix(PREFIX))
        if host.kind[row] == HostKind.PYTHON:
            frames.append(text)
    return modules, stack.split(";") if stack else frames


def position_among(window: Window, span: Span, by: int) -> tuple[Span, int, int, int] | None:
    """Return the next (`by` = 1) or previous (`by` = -1) event with the same name."""
    spans = getattr(window.scene.traces[span.side], span.table)
    if span.table == "batches":
        return None
    return next_named(window, span.side, span.table, int(spans.name[span.number]), by, span.number)


def next_named(
    window: Window, side: int, table: str, name: int, by: int, after: int = NONE
) -> tuple[Span, int, int, int] | None:
    spans = getattr(window.scene.traces[side], table)
    rows = np.flatnonzero(spans.name == name)
    positions, which = window.axis.sides[side].every_position(spans.start_ns[rows])
    if not len(positions):
        return None
    here = int(np.argmin(np.abs(positions - window.cursor_ns)))
    if rows[which[here]] == after:
        at = (here + by) % len(positions)
    elif by > 0:
        at = int(np.searchsorted(positions, window.cursor_ns, side="right")) % len(positions)
    else:
        at = int(np.searchsorted(positions, window.cursor_ns, side="left")) - 1
    at %= len(positions)
    span = find_span(window.scene, side, table, int(rows[which[at]]))
    return None if span is None else (span, int(positions[at]), at + 1, len(positions))
