"""Finds the critical path of a training step: the chain of work and waits that determines how long the step takes.

    path = critical_path(trace, step=3)
    path.sums.by_kind               # {"kernel": 81_000_000, "host": 12_000_000, "data": 9_000_000, ...}
    path.segments[0]                # PathSegment(start_ns, end_ns, kind="data", name="loader")

Note [Where a path begins and ends]
    A path runs from the start to the end of its step (Note [A step's time] in `traces.figures.pace`). Consecutive steps join
    without gaps, so the length of a path is the step time. If the host runs ahead of the GPU, a path begins and ends where the
    GPU finishes a step.

Note [The walk]
    The path is found backwards from the end of the step. Before a wait of the host, the path continues with the GPU work that
    the host waited for. Before a kernel, the path continues with the event that allowed the kernel to start: the end of an
    earlier kernel, or the launch. If the GPU limits the step time (Note [What limits the pace] in `traces.figures.pace`), the
    launch counts only if the GPU was idle. Every nanosecond belongs to exactly one segment of one of these kinds:

    kernel, copy, communication     the device worked
    launch                          between a launch and the work's start, with no earlier work on the device to wait for
    data                            the host waited for a batch
    host                            the host was busy (by phase), including time inside launching calls
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from traces.analyses.communication import communication_kernels
from traces.analyses.idle import data_waits
from traces.analyses.launches import launched_ns
from traces.analyses.waits import host_waits
from traces.figures.measure import device_ranks, launch_steps, profiled_steps, ran_under_profiler, steady_steps
from traces.figures.pace import DEVICE, StepTimes, pace_of, pace_series, step_times
from traces.model.intervals import TimeWindows
from traces.model.json_facts import OMITTED_IF_EMPTY
from traces.model.trace import NONE, DeviceKind, Trace


@dataclass(frozen=True, slots=True)
class PathSegment:
    start_ns: int
    end_ns: int
    kind: str
    name: str  # name of the kernel or phase; "" for a launch
    row: int


# see Note [Where a path begins and ends]
@dataclass(frozen=True, slots=True)
class PathSums:
    """Sums up the time on a step's critical path by kind, such as "kernel" or "data"."""

    step: int  # number of the step
    rank: int  # rank that ran the step
    duration_ns: int  # length of the critical path
    by_kind: dict[str, int]  # duration by kind, such as "kernel" or "host"
    by_name: dict[str, int]  # duration by name of the kernel, op or phase
    # True if the profiler was on in this step but not in all steps; the profiler slows steps
    is_slowed: bool = field(default=False, metadata=OMITTED_IF_EMPTY)


@dataclass(frozen=True, slots=True)
class CriticalPath:
    sums: PathSums
    segments: tuple[PathSegment, ...]


def median_step(trace: Trace, times: StepTimes) -> int:
    decides = pace_series(times, profiled_steps(trace))
    if decides is None:
        return NONE
    rows = np.unique(decides.rows)
    rows = rows[times.follows[rows]] if times.follows[rows].any() else rows
    lasted_ns = times.end_ns - times.begin_ns
    return int(rows[np.argsort(lasted_ns[rows], kind="stable")[len(rows) // 2]]) if len(rows) else NONE


def critical_path(trace: Trace, step: int | None = None) -> CriticalPath | None:
    """Return the critical path of one step (default: the step with the median duration)."""
    if not len(trace.steps) or (trace.device.launch[trace.device.is_work] == NONE).all():  # what the host does is unknown
        return None
    times = step_times(trace)
    step = median_step(trace, times) if step is None else step
    if step == NONE:
        return None
    walk = _Walk(trace, step, times)
    walk.run()
    segments = tuple(reversed(walk.segments))
    by_kind: dict[str, int] = {}
    by_name: dict[str, int] = {}
    for segment in segments:
        lasted_ns = segment.end_ns - segment.start_ns
        by_kind[segment.kind] = by_kind.get(segment.kind, 0) + lasted_ns
        if segment.row != NONE:
            by_name[segment.name] = by_name.get(segment.name, 0) + lasted_ns
    number, rank = int(trace.steps.number[step]), int(trace.steps.rank[step])
    duration_ns = int(times.end_ns[step] - times.begin_ns[step])
    is_slowed = bool(ran_under_profiler(trace)[step]) and not ran_under_profiler(trace)[steady_steps(trace)].all()
    return CriticalPath(PathSums(number, rank, duration_ns, _most_first(by_kind), _most_first(by_name), is_slowed), segments)


def _most_first(sums: dict[str, int]) -> dict[str, int]:
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:10])


class _Walk:
    # see Note [The walk]
    def __init__(self, trace: Trace, step: int, times: StepTimes) -> None:
        self.trace = trace
        self.segments: list[PathSegment] = []
        self.visited: set[int] = set()  # visited rows, because work with equal rounded start and end could be visited twice
        rank = int(trace.steps.rank[step])
        self.begin_ns, self.at_ns = int(times.begin_ns[step]), int(times.end_ns[step])
        table = trace.device
        self.end_ns = table.end_ns  # stored here, because the property `end_ns` adds two columns in each call
        near = (self.end_ns > self.begin_ns) & (table.start_ns < self.at_ns)
        work = np.flatnonzero(table.is_work & (device_ranks(trace) == rank) & near)
        self.work = work[np.argsort(self.end_ns[work], kind="stable")]
        self.ends_ns = self.end_ns[self.work]
        self.before_on_stream = self._stream_predecessors()
        self.launched_ns = dict(zip(self.work.tolist(), launched_ns(trace, self.work).tolist(), strict=True))
        self.is_communication = communication_kernels(trace)
        self.data = data_waits(trace, rank)
        self.waits = host_waits(trace, rank)
        phases = trace.phases.take(trace.steps.rank[trace.phases.step] == rank)
        self.phases, self.phase_names = TimeWindows(phases.start_ns, phases.end_ns), phases.name
        own = self.work[(launch_steps(self.trace)[self.work] == step) & (self.ends_ns == self.at_ns)]
        self.last = int(own[0]) if len(own) else NONE
        found = pace_of(times, profiled_steps(trace), profiled_steps(trace))
        self.device_limits = found is not None and found.limit == DEVICE

    def run(self) -> None:
        row = self.last
        while self.at_ns > self.begin_ns:
            while row != NONE and self.at_ns > self.begin_ns:
                row = self._device_back(row)
            row = self._host_back_to_a_wait()

    def _host_back_to_a_wait(self) -> int:
        waits = self.waits
        place = int(np.searchsorted(waits.end_ns, self.at_ns, side="right")) - 1
        while place >= 0 and int(waits.end_ns[place]) > self.begin_ns:
            row = int(waits.work[place])
            if row not in self.visited:
                self._host(int(waits.end_ns[place]))
                return row
            place -= 1
        self._host(self.begin_ns)
        return NONE

    def _device_back(self, row: int) -> int:
        table = self.trace.device
        self.visited.add(row)
        start_ns = int(table.start_ns[row])
        kind = "copy" if table.kind[row] != DeviceKind.KERNEL else "communication" if self.is_communication[row] else "kernel"
        self._add(max(start_ns, self.begin_ns), kind, self.trace.strings[int(table.name[row])], row)
        called_ns = self.launched_ns[row]
        before = self.before_on_stream.get(row, NONE)
        before = NONE if before in self.visited else before
        last = int(np.searchsorted(self.ends_ns, start_ns, side="right")) - 1
        while last >= 0 and int(self.work[last]) in self.visited:
            last -= 1
        if last >= 0:
            other = int(self.work[last])
            if before == NONE or int(self.end_ns[other]) > int(self.end_ns[before]):
                before = other
        ended_ns = int(self.end_ns[before]) if before != NONE else NONE
        if before != NONE and (called_ns == NONE or ended_ns >= called_ns):
            self._add(max(ended_ns, self.begin_ns), "launch", "", NONE)
            return before
        if called_ns == NONE:
            self._host(self.begin_ns)
            return NONE
        if self.device_limits and (running := self._running_at(start_ns, int(table.device[row]))) != NONE:
            return running
        self._add(max(min(called_ns, start_ns), self.begin_ns), "launch", "", NONE)
        return NONE

    def _running_at(self, time_ns: int, device: int) -> int:
        table, rows = self.trace.device, self.work
        runs = (table.device[rows] == device) & (table.start_ns[rows] < time_ns) & (self.ends_ns > time_ns)
        rows = rows[runs & ~self.is_communication[rows]]
        return int(rows[table.start_ns[rows].argmin()]) if len(rows) else NONE

    def _host(self, until_ns: int) -> None:
        until_ns = max(until_ns, self.begin_ns)
        phases = self.trace.phases
        starts = np.concatenate([phases.start_ns, phases.end_ns, self.data.start_ns, self.data.end_ns])
        cuts = np.unique(starts[(starts > until_ns) & (starts < self.at_ns)])
        for cut in [*reversed(cuts.tolist()), until_ns]:
            middle = np.array([(cut + self.at_ns) // 2])
            phase = int(self.phases.holding(middle)[0])
            name = self.trace.strings[int(self.phase_names[phase])] if phase != NONE else ""
            self._add(cut, "data" if self.data.holds(middle)[0] else "host", name, NONE)

    def _add(self, start_ns: int, kind: str, name: str, row: int) -> None:
        if start_ns < self.at_ns:
            self.segments.append(PathSegment(start_ns, self.at_ns, kind, name, row))
            self.at_ns = start_ns

    def _stream_predecessors(self) -> dict[int, int]:
        table = self.trace.device
        order = self.work[np.lexsort((table.start_ns[self.work], table.stream[self.work], table.device[self.work]))]
        same = (table.stream[order][1:] == table.stream[order][:-1]) & (table.device[order][1:] == table.device[order][:-1])
        return dict(zip(order[1:][same].tolist(), order[:-1][same].tolist(), strict=True))
