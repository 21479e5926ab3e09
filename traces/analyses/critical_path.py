"""What a step's length consists of: the chain of waits and work that, walked back from the step's end, leads to its begin.

    path = critical_path(trace, step=3)
    path.sums.by_kind               # {"kernel": 81_000_000, "host": 12_000_000, "data": 9_000_000, ...}
    path.segments[0]                # PathSegment(start_ns, end_ns, kind="data", name="loader")

Note [Where a path begins and ends]
    A step ends when both its host span and the work launched in it have ended: at the later of its host end and its completion
    on the slowest device (`traces.figures.pace`). Its path begins where the step before it ended; without a predecessor, where
    the step begins on the host. So the paths of consecutive steps follow each other without gaps, at the pace. If the host
    runs ahead of the GPU, a path leads from completion to completion, along the device.

Note [The walk]
    From the step's last moment backwards. If that was a completion, the path begins with that work, else on the host. Where the
    host waited for the device (`traces.analyses.waits`), the path goes on with the work that it waited for. Work on the device
    began because of what ended last before it: the work before it on its stream, work on another stream of its rank, or its
    launch (`traces.analyses.launches.launched_ns`). From a launch the path goes on at the host, and there back to the last
    wait for the device. So every nanosecond belongs to exactly one segment, of one of the kinds

    kernel, copy, communication     the device worked
    launch                          between a launch and the work's begin, with nothing before it on the device
    data                            the host waited for a batch
    host                            the host was busy, by phase; also within a call that launches

Holistic Trace Analysis makes a graph of all events with weights and takes its longest path; ours is the path of this run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.analyses.communication import communication_kernels
from traces.analyses.idle import data_waits
from traces.analyses.launches import launched_ns
from traces.analyses.waits import host_waits
from traces.figures.measure import launch_steps, profiled_steps
from traces.figures.pace import step_times
from traces.model.time_windows import TimeWindows
from traces.model.trace import NONE, Column, DeviceKind, Trace


@dataclass(frozen=True, slots=True)
class PathSegment:
    """A stretch of the path on the host or on a GPU."""

    start_ns: int
    end_ns: int
    kind: str
    name: str  # of the kernel, of the phase; "" of a launch
    row: int  # of `trace.device`, or NONE on the host


@dataclass(frozen=True, slots=True)
class PathSums:
    """Of one step, by its number: the path's time by kind, and by kernel or copy up to ten names; most first.

    `duration_ns` is the path's length. See Note [Where a path begins and ends].
    """

    step: int
    duration_ns: int
    by_kind: dict[str, int]
    by_name: dict[str, int]


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Segments in order of time, without gaps."""

    sums: PathSums
    segments: tuple[PathSegment, ...]


@dataclass(frozen=True, slots=True)
class PathBounds:
    """Where the paths of all steps begin and end, by row of `trace.steps`; see Note [Where a path begins and ends]."""

    start_ns: Column
    end_ns: Column
    completion_ns: Column  # on the slowest device; NONE if the step's rank did no work so far


def path_bounds(trace: Trace) -> PathBounds:
    """Of all steps."""
    times, steps = step_times(trace), trace.steps
    completion_ns = np.full(len(steps), NONE, dtype=np.int64)
    for device, done_ns in times.completion_ns.items():
        mine = times.launches[device] & (steps.rank == times.device_ranks[device])
        completion_ns = np.where(mine, np.maximum(completion_ns, done_ns), completion_ns)
    end_ns = np.maximum(steps.end_ns, completion_ns)
    order = np.lexsort((steps.start_ns, steps.rank))
    start_ns = steps.start_ns.copy()
    start_ns[order[1:]] = np.where(times.follows[order[1:]], end_ns[order[:-1]], start_ns[order[1:]])
    return PathBounds(np.minimum(start_ns, end_ns), end_ns, completion_ns)


def median_step(trace: Trace, bounds: PathBounds) -> int:
    """The row of the step whose path is of median length, of those whose kernels count; NONE without steps."""
    rows = profiled_steps(trace)
    lasted_ns = bounds.end_ns - bounds.start_ns
    return int(rows[np.argsort(lasted_ns[rows], kind="stable")[len(rows) // 2]]) if len(rows) else NONE


def critical_path(trace: Trace, step: int | None = None) -> CriticalPath | None:
    """Of one step (a row of `trace.steps`), else of the median one; None where there is no step or no device work."""
    if not len(trace.steps) or not trace.device.is_work.any():
        return None
    bounds = path_bounds(trace)
    step = median_step(trace, bounds) if step is None else step
    if step == NONE:
        return None
    walk = _Walk(trace, step, bounds)
    walk.run()
    segments = tuple(reversed(walk.segments))
    by_kind: dict[str, int] = {}
    by_name: dict[str, int] = {}
    for segment in segments:
        lasted_ns = segment.end_ns - segment.start_ns
        by_kind[segment.kind] = by_kind.get(segment.kind, 0) + lasted_ns
        if segment.row != NONE:
            by_name[segment.name] = by_name.get(segment.name, 0) + lasted_ns
    number, duration_ns = int(trace.steps.number[step]), int(bounds.end_ns[step] - bounds.start_ns[step])
    return CriticalPath(PathSums(number, duration_ns, _most_first(by_kind), _most_first(by_name)), segments)


def _most_first(sums: dict[str, int]) -> dict[str, int]:
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:10])


class _Walk:
    """One walk from a step's end to its begin. See Note [The walk]."""

    def __init__(self, trace: Trace, step: int, bounds: PathBounds) -> None:
        self.trace = trace
        self.segments: list[PathSegment] = []
        self.visited: set[int] = set()  # rows of work: one that took no time (recordings of whole µs) ends where it starts
        rank = int(trace.steps.rank[step])
        self.begin_ns, self.at_ns = int(bounds.start_ns[step]), int(bounds.end_ns[step])
        devices = [row for row, device in enumerate(trace.devices) if device.rank == rank]
        table = trace.device
        near = (table.end_ns > self.begin_ns) & (table.start_ns < self.at_ns)
        work = np.flatnonzero(table.is_work & np.isin(table.device, devices) & near)
        self.work = work[np.argsort(table.end_ns[work], kind="stable")]
        self.ends_ns = table.end_ns[self.work]
        self.before_on_stream = self._stream_predecessors()
        self.launched_ns = dict(zip(self.work.tolist(), launched_ns(trace, self.work).tolist(), strict=True))
        self.is_communication = communication_kernels(trace)
        self.data = data_waits(trace, rank)
        self.waits = host_waits(trace, rank)
        # The path may reach back into the step before.
        phases = trace.phases.take((trace.phases.step >= 0) & (trace.steps.rank[trace.phases.step] == rank))
        self.phases, self.phase_names = TimeWindows(phases.start_ns, phases.end_ns), phases.name
        self.last = self._completing(step) if bounds.completion_ns[step] == self.at_ns else NONE

    def _completing(self, step: int) -> int:
        """The work of the step whose end is its completion."""
        own = self.work[(launch_steps(self.trace)[self.work] == step) & (self.ends_ns == self.at_ns)]
        return int(own[0]) if len(own) else NONE

    def run(self) -> None:
        """Alternate between host and device until the path's begin."""
        row = self.last
        while self.at_ns > self.begin_ns:
            while row != NONE and self.at_ns > self.begin_ns:
                row = self._device_back(row)
            row = self._host_back_to_a_wait()

    def _host_back_to_a_wait(self) -> int:
        """Back along the host to the last wait for the device; the work that it waited for, or NONE at the step's begin."""
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
        """One piece of work; returns the work before it on the device, or NONE where its launch comes before: on the host."""
        table = self.trace.device
        self.visited.add(row)
        start_ns = int(table.start_ns[row])
        kind = "copy" if table.kind[row] != DeviceKind.KERNEL else "communication" if self.is_communication[row] else "kernel"
        self._add(max(start_ns, self.begin_ns), kind, self.trace.strings[int(table.name[row])], row)
        if start_ns <= self.begin_ns:
            return NONE
        called_ns = self.launched_ns[row]
        before = self.before_on_stream.get(row, NONE)
        before = NONE if before in self.visited else before
        last = int(np.searchsorted(self.ends_ns, start_ns, side="right")) - 1
        while last >= 0 and int(self.work[last]) in self.visited:
            last -= 1
        if last >= 0:
            other = int(self.work[last])
            if before == NONE or int(table.end_ns[other]) > int(table.end_ns[before]):
                before = other
        ended_ns = int(table.end_ns[before]) if before != NONE else NONE
        if before != NONE and (called_ns == NONE or ended_ns >= called_ns):
            self._add(max(ended_ns, self.begin_ns), "launch", "", NONE)
            return before
        if called_ns == NONE:
            self._host(self.begin_ns)
            return NONE
        self._add(max(min(called_ns, start_ns), self.begin_ns), "launch", "", NONE)
        return NONE

    def _host(self, until_ns: int) -> None:
        """The host from `until_ns` to here: by phase, waits for data apart."""
        until_ns = max(until_ns, self.begin_ns)
        if until_ns >= self.at_ns:
            return
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
        """For each row of work that before it on its stream, where both lie in the step."""
        table = self.trace.device
        order = self.work[np.lexsort((table.start_ns[self.work], table.stream[self.work], table.device[self.work]))]
        same = (table.stream[order][1:] == table.stream[order][:-1]) & (table.device[order][1:] == table.device[order][:-1])
        return dict(zip(order[1:][same].tolist(), order[:-1][same].tolist(), strict=True))
