"""Divides the steps of an imported profile into phases such as "forward". The rules are in `traces.script.phase_rule`.

    phases = read_phases(steps, step_events(tables, strings), tables, strings)
"""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import pairwise

import numpy as np

from traces.kineto.spans.spans import RankTables
from traces.kineto.structure.boundary_markers import Markers
from traces.kineto.structure.step_events import StepEvent
from traces.model.trace import HostKind, Phases, Steps, Strings
from traces.script.phase_rule import FORWARD, PhaseSplitter, Segment
from traces.script.step_rule import RECORDERS_MARK

_ASKS_IF_CAPTURING = re.compile(r"(?:cuda|hip)StreamIsCapturing$")


def read_phases(steps: Steps, events: list[StepEvent], tables: RankTables, strings: Strings) -> Phases:
    if not len(steps) or not len(tables.host):
        return Phases.empty()
    events = _without_overlaps(events)
    starts_ns = np.array([event.start_ns for event in events], np.int64)
    markers = Markers(tables.host, tables.device)
    returns_ns = _returns_ns(tables, strings)
    splitter = PhaseSplitter()
    parts = []
    for row, (begin, end) in enumerate(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)):
        first, last = np.searchsorted(starts_ns, [begin, end])
        segments = _cut(splitter, events[first:last], begin, end, returns_ns) or [Segment("other", begin, end)]
        edges = np.array([s.start_ns for s in segments] + [end])
        device_ns = markers.at(edges)
        parts.append(
            Phases.of(
                step=np.full(len(segments), row),
                name=[strings.add(s.name) for s in segments],
                start_ns=edges[:-1],
                duration_ns=np.diff(edges),
                device=np.full(len(segments), markers.device),
                device_start_ns=device_ns[:-1],
                device_end_ns=device_ns[1:],
            )
        )
    return Phases.concatenated(parts)


def _without_overlaps(events: list[StepEvent]) -> list[StepEvent]:
    """Remove overlaps: in a file with rounded times, an event of the main thread may end just after the next event begins."""
    found = list(events)
    for place, (event, following) in enumerate(pairwise(events)):
        if event.on_main and following.on_main and event.start_ns < following.start_ns < event.end_ns < following.end_ns:
            found[place] = event._replace(end_ns=following.start_ns)
    return found


def _returns_ns(tables: RankTables, strings: Strings) -> list[int]:
    """Return the times at which a phase of the recorder may have ended. At the end of a phase, the recorder asks CUDA whether
    the stream is being captured. The list is empty if the recorder did not make the profile."""
    host = tables.host
    if not strings.matching(host.name, lambda name: name.endswith(RECORDERS_MARK)).any():
        return []
    asks = (host.thread == 0) & (host.kind == HostKind.RUNTIME) & strings.matching(host.name, _ASKS_IF_CAPTURING.match)
    return sorted(host.start_ns[asks].tolist())


def _cut(
    splitter: PhaseSplitter, events: list[StepEvent], begin_ns: int, end_ns: int, returns_ns: list[int]
) -> list[Segment]:
    """Divide a step into phases.

    Note [The engine's run]
        If the main thread does nothing in between, a backward pass lasts from the first to the last event of the autograd
        engine. The op that creates the first gradient (ones_like of one number) just before the engine starts also belongs to
        the backward pass. If the engine runs on the main thread, ops that autograd does not record, such as a sum of gradients,
        also belong to it. If the engine runs inside another phase, such as the optimizer, its events belong to that phase.

        In a profile of the recorder, the backward pass lasts until `backward` returns, as in steps without the profiler. On a
        busy machine, `backward` returns milliseconds after the engine's last event.
    """
    last_backward_ns = max((event.start_ns for event in events if event.name == "engine"), default=begin_ns)
    within_ns = begin_ns  # end of the latest phase that the main thread entered
    now = splitter.begin_ns = begin_ns
    run: list[StepEvent] = []
    held: list[StepEvent] = []  # ops of the engine that belong to the backward pass only if the engine continues after them

    def clamped(time_ns: int) -> int:
        nonlocal now
        now = min(max(now, time_ns), end_ns)
        return now

    def feed(event: StepEvent) -> None:
        nonlocal within_ns
        if event.name not in ("", "backward", "other"):
            within_ns = max(within_ns, event.end_ns)
        if event.name:
            splitter.enter(event.name, clamped(event.start_ns))
            splitter.leave(event.name, clamped(event.end_ns), open_ended=event.name == "other")
        else:
            goes_forward = event.goes_forward or (event.is_recorded and event.start_ns < last_backward_ns)
            splitter.op(FORWARD if goes_forward else event.kind, clamped(event.start_ns))

    def flush(until_ns: int) -> None:
        if any(event.name for event in run):
            ended_ns = max(event.end_ns for event in run)
            returned_ns = next(iter(returns_ns[bisect_left(returns_ns, ended_ns) :][:1]), until_ns)
            if returned_ns < min([until_ns, *(event.start_ns for event in held)]):
                ended_ns = returned_ns
            feed(StepEvent(run[0].start_ns, ended_ns, "backward", 0, False, False))
        else:
            held[:0] = run
        for event in held:
            feed(event)
        run.clear()
        held.clear()

    for event in events:
        if event.name == "engine":
            if not run:
                flush(event.start_ns)
            if event.start_ns < within_ns:
                continue
            run += [*held, event]
            held.clear()
        elif run and event.quiet and not event.seeds and run[-1].name and run[-1].on_main:
            held.append(event)
        else:
            flush(event.start_ns)
            (run if event.seeds else held).append(event)
    flush(end_ns)
    return [s for s in splitter.close(end_ns) if s.end_ns > s.start_ns]
