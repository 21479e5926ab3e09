"""Training steps, and their phases by the shared rule of `traces.phases`.

    steps, phases, source = read_steps(tables, strings)
    source  # "profiler" (ProfilerStep marks), "optimizer" (each ends one), or "none"

What the rule is fed: the main thread's outermost ops and known annotations, and the runs of the autograd engine,
wherever it ran. See Note [The profiler's own ops] and Note [The engine's run].
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from traces.kineto.roles import BACKWARD_NODE, OPTIMIZER_STEP, STEP_MARK
from traces.kineto.spans import Tables
from traces.kineto.tables import matching
from traces.model import NONE, Column, DeviceKind, DeviceSpans, HostKind, HostSpans, Phases, Steps, Strings
from traces.phases import PhaseCut, Segment, op_class

_EXPLICIT = (
    ("loader", re.compile(r"enumerate\(DataLoader\)#")),
    ("zero_grad", re.compile(r"Optimizer\.zero_grad#")),
    ("optimizer", OPTIMIZER_STEP),
)
_COPY_OPS = re.compile(r"aten::(?:to|_to_copy|copy_|_copy_from)$")
_HOST_TO_DEVICE = re.compile(r"Memcpy HtoD")
_SEED_OPS = re.compile(r"aten::ones_like$")
_PROFILER_OPS = re.compile(r"aten::(?:empty|zeros|zero_)$")


class _Event(NamedTuple):
    """What happens at the top level of a step: an op, or a named range ("engine": a piece of the engine's run)."""

    start_ns: int
    end_ns: int
    name: str  # "" for an op
    kind: int  # the op's class, as traces.phases has it
    seeds: bool  # an op that makes the first gradient, if a backward follows at once
    quiet: bool  # an op that autograd did not record: within the engine's run it is the engine's


def read_steps(tables: Tables, strings: Strings) -> tuple[Steps, Phases, str]:
    steps, source = _find_steps(tables.host, strings)
    return steps, _read_phases(steps, tables, strings), source


def _find_steps(host: HostSpans, strings: Strings) -> tuple[Steps, str]:
    on_main = np.flatnonzero((host.thread == 0) & (host.kind == HostKind.ANNOTATION))
    marks = on_main[matching(host.name[on_main], STEP_MARK, strings)]
    if len(marks):
        numbers = [int(match[1]) if (match := STEP_MARK.match(strings[i])) else NONE for i in host.name[marks].tolist()]
        starts, ends, source = host.start_ns[marks], host.end_ns[marks], "profiler"
    else:
        ends = _optimizer_ends(host, on_main[matching(host.name[on_main], OPTIMIZER_STEP, strings)])
        if not len(ends):
            return Steps.empty(), "none"
        first = host.start_ns[(host.thread == 0) & (host.kind != HostKind.PYTHON)].min()
        starts, numbers, source = np.r_[first, ends[:-1]], list(range(len(ends))), "optimizer"
    return Steps.of(number=numbers, start_ns=starts, duration_ns=ends - starts), source


def _optimizer_ends(host: HostSpans, rows: Column) -> Column:
    """When each step of the optimizer that stepped first ended. A range may be recorded twice, one within the other."""
    if not len(rows):
        return np.empty(0, "i8")
    rows = rows[host.name[rows] == host.name[rows[0]]]
    ends = host.end_ns[rows]
    return np.asarray(ends[np.r_[True, host.start_ns[rows[1:]] >= np.maximum.accumulate(ends)[:-1]]])


def _read_phases(steps: Steps, tables: Tables, strings: Strings) -> Phases:
    if not len(steps):
        return Phases.empty()
    events = _top_events(tables, strings)
    starts = [event.start_ns for event in events]
    markers = Markers(tables.host, tables.device)
    cut = PhaseCut()
    parts = []
    for row, (begin, end) in enumerate(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)):
        first, last = np.searchsorted(starts, [begin, end])
        segments = _cut(cut, events[first:last], begin, end)
        edges = np.array([s.start_ns for s in segments] + [end])
        told = markers.at(edges)
        parts.append(
            Phases.of(
                step=np.full(len(segments), row),
                name=[strings.add(s.name) for s in segments],
                start_ns=edges[:-1],
                duration_ns=np.diff(edges),
                device=np.full(len(segments), markers.device),
                device_start_ns=told[:-1],
                device_end_ns=told[1:],
            )
        )
    return Phases.concatenated(parts)


def _cut(cut: PhaseCut, events: list[_Event], begin_ns: int, end_ns: int) -> list[Segment]:
    """One step's segments: they tile it from its very start to its very end.

    Note [The engine's run]
        A backward pass is the time from the first to the last of the engine's spans with nothing of the main thread
        between, but for the seed gradient (ones_like) made right before, and, where the engine runs on the main thread
        itself, for what it does between two nodes (sums of gradients: ops that autograd does not record).
    """
    now = begin_ns
    run: list[_Event] = []
    held: list[_Event] = []  # ops that are the engine's if its run goes on after them

    def clamped(time_ns: int) -> int:
        nonlocal now
        now = min(max(now, time_ns), end_ns)
        return now

    def feed(event: _Event) -> None:
        if event.name:
            cut.enter(event.name, clamped(event.start_ns))
            cut.leave(event.name, clamped(event.end_ns))
        else:
            cut.op(event.kind, clamped(event.start_ns))

    def flush() -> None:
        if any(event.name for event in run):
            feed(_Event(run[0].start_ns, max(event.end_ns for event in run), "backward", 0, False, False))
        else:
            held[:0] = run
        for event in held:
            feed(event)
        run.clear()
        held.clear()

    for event in events:
        if event.name == "engine":
            run += [*held, event]
            held.clear()
        elif run and event.quiet and not event.seeds and run[-1].name:
            held.append(event)
        else:
            flush()
            (run if event.seeds else held).append(event)
    flush()
    segments = [s for s in cut.close(end_ns) if s.end_ns > s.start_ns] or [Segment("other", begin_ns, end_ns)]
    segments[0] = segments[0]._replace(start_ns=begin_ns)
    return segments


def _top_events(tables: Tables, strings: Strings) -> list[_Event]:
    """The main thread's outermost ops and known ranges and the engine's spans, by time."""
    host = tables.host
    engine_threads = [row for row, thread in enumerate(tables.threads) if thread.role == "backward"]
    is_range = host.kind == HostKind.ANNOTATION
    names: dict[int, str] = {}
    for index in np.unique(host.name[is_range]).tolist():
        for phase, pattern in _EXPLICIT:
            if pattern.match(strings[index]):
                names[index] = phase
    known = is_range & np.isin(host.name, list(names))
    see_through = (host.kind == HostKind.PYTHON) | (host.kind == HostKind.OTHER) | (is_range & ~known)
    on_main = host.thread == 0
    visible = (on_main | np.isin(host.thread, engine_threads)) & (known | (host.kind == HostKind.OP))
    tops = _outermost(np.flatnonzero(visible), host.parent, see_through)
    on_engine = ~on_main[tops] | matching(host.name[tops], BACKWARD_NODE, strings)
    copies = _copying_tops(tables, tops, strings)
    own = _profilers_own(host, tops[on_main[tops]], np.flatnonzero(is_range & on_main), strings)
    seeds = matching(host.name[tops], _SEED_OPS, strings)
    quiet = (host.kind[tops] == HostKind.OP) & (host.sequence[tops] == NONE) & on_main[tops]
    starts, ends = host.start_ns[tops].tolist(), (host.start_ns[tops] + host.duration_ns[tops]).tolist()
    events = []
    for place in np.argsort(host.start_ns[tops], kind="stable").tolist():
        row = int(tops[place])
        if row in own:
            continue
        name_id = int(host.name[row])
        if on_engine[place]:
            name = "engine"
        elif row in copies:
            name = "h2d"
        else:
            name = names[name_id] if known[row] else ""
        kind = 0 if name else op_class(strings[name_id])
        seed = bool(seeds[place]) and not name
        events.append(_Event(starts[place], ends[place], name, kind, seed, bool(quiet[place])))
    return events


def _outermost(rows: Column, parent: Column, see_through: Column) -> Column:
    """Those rows that have only see-through spans above them."""
    above = parent[rows]
    found = [rows[above == NONE]]
    while len(rows):
        open_ = above != NONE
        open_[open_] = see_through[above[open_]]
        rows, above = rows[open_], parent[above[open_]]
        found.append(rows[above == NONE])
    return np.sort(np.concatenate(found))


def _copying_tops(tables: Tables, tops: Column, strings: Strings) -> set[int]:
    """The rows of `tops` that are copying ops and launched a copy from host to device."""
    device = tables.device
    is_copy = (device.kind == DeviceKind.MEMCPY) & (device.launch != NONE)
    rows = np.unique(device.launch[is_copy & matching(device.name, _HOST_TO_DEVICE, strings)])
    copying = set(tops[matching(tables.host.name[tops], _COPY_OPS, strings)].tolist())
    found: set[int] = set()
    while len(rows):
        found |= copying & set(rows.tolist())
        rows = tables.host.parent[rows]
        rows = np.unique(rows[rows != NONE])
    return found


def _profilers_own(host: HostSpans, tops: Column, ranges: Column, strings: Strings) -> set[int]:
    """Note [The profiler's own ops]: until torch 1.12, entering a record_function range made a tensor (aten::zeros,
    seen as such or as its parts) right before it. They are no part of the script."""
    rows = np.union1d(tops, ranges)
    cheap = matching(host.name[rows], _PROFILER_OPS, strings) & (host.kind[rows] == HostKind.OP)
    own: set[int] = set()
    before_range = False
    for row, is_range, is_cheap in zip(
        rows[::-1].tolist(), (host.kind[rows] == HostKind.ANNOTATION)[::-1].tolist(), cheap[::-1].tolist(), strict=True
    ):
        before_range = is_range or (before_range and is_cheap)
        if before_range and is_cheap:
            own.add(row)
    return own


class Markers:
    """What CUDA events would read on one device, the busiest if none is named: `at(t)` is when all work launched before
    host time t had ended, or t itself if that was earlier."""

    def __init__(self, host: HostSpans, device: DeviceSpans, number: int = NONE) -> None:
        work = np.flatnonzero(device.is_work)
        if number != NONE:
            work = work[device.device[work] == number]
        self.device = NONE
        if not len(work):
            return
        numbers, which = np.unique(device.device[work], return_inverse=True)
        busiest = int(np.argmax(np.bincount(which, weights=device.duration_ns[work])))
        self.device = int(numbers[busiest])
        work = work[which == busiest]
        launch = device.launch[work]
        # Work whose launch was not recorded counts from its own start: it was launched no later.
        launched_ns = np.where(launch == NONE, device.start_ns[work], host.start_ns[launch])
        order = np.argsort(launched_ns, kind="stable")
        self._launched_ns = launched_ns[order]
        self._ended_ns = np.maximum.accumulate(device.end_ns[work][order])

    def at(self, times_ns: Column) -> Column:
        if self.device == NONE:
            return np.full(len(times_ns), NONE)
        before = np.searchsorted(self._launched_ns, times_ns)
        ended_ns = np.where(before > 0, self._ended_ns[np.maximum(before, 1) - 1], 0)
        return np.asarray(np.maximum(times_ns, ended_ns))
