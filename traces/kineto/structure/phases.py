"""Divides the steps of an imported profile into phases such as "forward". The rules are in `traces.script.phase_rule`.

    phases = read_phases(steps, step_events(tables, strings), tables, strings)
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from traces.kineto.spans.spans import RankTables
from traces.kineto.structure.boundary_markers import Markers
from traces.kineto.structure.step_events import StepEvent
from traces.model.trace import Phases, Steps, Strings
from traces.script.phase_rule import ASIDE, FORWARD, LOSS, PLAIN, PhaseSplitter, Segment


def read_phases(steps: Steps, events: list[StepEvent], tables: RankTables, strings: Strings) -> Phases:
    if not len(steps) or not len(tables.host):
        return Phases.empty()
    events = _without_overlaps(events)
    starts_ns = np.array([event.start_ns for event in events], np.int64)
    markers = Markers(tables.host, tables.device)
    splitter = PhaseSplitter()
    parts = []
    trains = any(event.name == "optimizer" for event in events)
    for row, (begin, end) in enumerate(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)):
        first, last = np.searchsorted(starts_ns, [begin, end])
        own = _with_ops_after_optimizer(events[first:last], trains and (first == 0 or events[first - 1].name == "optimizer"))
        segments = _cut(splitter, own, begin, end) or [Segment("other", begin, end)]
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


def _with_ops_after_optimizer(events: list[StepEvent], is_after: bool) -> list[StepEvent]:
    # see Note [Ops before the batch] in phase_rule.py
    """Assign ops after an optimizer's step to "other". `is_after` is True if the step itself begins after an optimizer's
    step."""
    shows_modules = any(event.in_module for event in events)
    is_op = [event.kind == PLAIN and not event.name for event in events]
    last_op = max((place for place, plain in enumerate(is_op) if plain), default=0)
    has_phases = False
    waiting, aside = list[int](), set[int]()
    for place, event in enumerate(events):
        is_batch = (event.name == "h2d" and shows_modules) or (event.name == "loader" and place < last_op)
        if is_batch or (event.in_module and not has_phases):
            aside.update(waiting)
        if is_batch or event.in_module or event.kind == LOSS or event.seeds or event.name in ("backward", "engine"):
            is_after, waiting = False, []
        elif event.name == "optimizer":
            is_after, waiting = True, waiting if shows_modules else []
        elif is_after and is_op[place]:
            waiting.append(place)
        has_phases |= bool(event.name)
    if any(event.name == "optimizer" for event in events):
        aside.update(waiting)
    return [event._replace(kind=ASIDE, is_recorded=False) if place in aside else event for place, event in enumerate(events)]


def _cut(splitter: PhaseSplitter, events: list[StepEvent], begin_ns: int, end_ns: int) -> list[Segment]:
    """Divide a step into phases.

    Note [The engine's run]
        If the main thread does nothing in between, a backward pass lasts from the first to the last event of the autograd
        engine. The op that creates the first gradient (ones_like of one number) just before the engine starts also belongs to
        the backward pass. Compiled autograd creates empty tensors between this op and the compiled backward pass. If the engine
        runs on the main thread, ops that autograd does not record, such as a sum of gradients, also belong to it. If the engine
        runs inside another phase, such as the optimizer, its events belong to that phase.
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

    def flush() -> None:
        if any(event.name for event in run):
            feed(StepEvent(run[0].start_ns, max(event.end_ns for event in run), "backward", 0, False, False))
        else:
            held[:0] = run
        for event in held:
            feed(event)
        run.clear()
        held.clear()

    for event in events:
        if event.name == "engine":
            if not run:
                flush()
            if event.start_ns < within_ns:
                continue
            run += [*held, event]
            held.clear()
        elif run and event.quiet and not event.seeds and (run[-1].name or event.kind == ASIDE) and run[-1].on_main:
            held.append(event)
        else:
            flush()
            (run if event.seeds else held).append(event)
    flush()
    return [s for s in splitter.close(end_ns) if s.end_ns > s.start_ns]
