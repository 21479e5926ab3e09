"""What a step's length consists of: the chain of waits and work that, walked back from the step's end, leads to its begin.

    path = critical_path(trace, step=3)
    path.sums.by_kind               # {"kernel": 81_000_000, "host": 12_000_000, "data": 9_000_000, ...}
    path.segments[0]                # PathSegment(start_ns, end_ns, kind="data", name="loader")

From the step's last moment backwards: where the host waits for the device (a synchronizing call) the path goes on with the
device's work that it waited for. Work on the device began because of what ended last before it: the work before it on its
stream, work on another stream at most 10 us earlier, or its launch; from a launch the path goes on at the host. On the host it
goes back to the last wait for the device. So every nanosecond of the step belongs to exactly one segment, of one of the kinds

    kernel, copy, communication     the device worked
    launch                          between a launch's call and the work's begin, with nothing before it on the device
    data                            the host waited for a batch
    host                            the host was busy, by phase

A script that never waits for the device within a step has a path on the host alone: it runs ahead, and the device's time
shows where the launch queue is full. Holistic Trace Analysis makes a graph of all events with weights and takes its longest
path; ours is the path that this run took.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.communication import communication_kernels
from traces.idle import EDGE_NS, data_waits
from traces.measure import profiled_steps, runtime_calls
from traces.model import NONE, Column, DeviceKind, Trace
from traces.time_windows import TimeWindows

_WAITS = ("Synchronize", "cudaMemcpy", "hipMemcpy")


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
    """Of one step, by its number: the path's time by kind, and by kernel or copy up to ten names; most first."""

    step: int
    duration_ns: int
    by_kind: dict[str, int]
    by_name: dict[str, int]


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Segments in order of time tile the step."""

    sums: PathSums
    segments: tuple[PathSegment, ...]


def median_step(trace: Trace) -> int:
    """The row of the step whose length is in the middle of those whose kernels count; NONE without steps."""
    rows = profiled_steps(trace)
    return int(rows[np.argsort(trace.steps.duration_ns[rows], kind="stable")[len(rows) // 2]]) if len(rows) else NONE


def critical_path(trace: Trace, step: int | None = None) -> CriticalPath | None:
    """Of one step (a row of `trace.steps`), else of the median one; None where there is no step or no device work."""
    step = median_step(trace) if step is None else step
    if step == NONE or not trace.device.is_work.any():
        return None
    walk = _Walk(trace, step)
    walk.run()
    segments = tuple(reversed(walk.segments))
    by_kind: dict[str, int] = {}
    by_name: dict[str, int] = {}
    for segment in segments:
        lasted_ns = segment.end_ns - segment.start_ns
        by_kind[segment.kind] = by_kind.get(segment.kind, 0) + lasted_ns
        if segment.row != NONE:
            by_name[segment.name] = by_name.get(segment.name, 0) + lasted_ns
    number, duration_ns = int(trace.steps.number[step]), int(trace.steps.duration_ns[step])
    return CriticalPath(PathSums(number, duration_ns, _most_first(by_kind), _most_first(by_name)), segments)


def _most_first(sums: dict[str, int]) -> dict[str, int]:
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:10])


class _Walk:
    """One walk from a step's end to its begin."""

    def __init__(self, trace: Trace, step: int) -> None:
        self.trace = trace
        self.segments: list[PathSegment] = []
        self.visited: set[int] = set()  # rows of work: one that took no time (recordings of whole µs) ends where it starts
        rank = int(trace.steps.rank[step])
        self.begin_ns, self.at_ns = int(trace.steps.start_ns[step]), int(trace.steps.end_ns[step])
        devices = [row for row, device in enumerate(trace.devices) if device.rank == rank]
        table = trace.device
        near = (table.end_ns > self.begin_ns) & (table.start_ns < self.at_ns)
        work = np.flatnonzero(table.is_work & np.isin(table.device, devices) & near)
        self.work = work[np.argsort(table.end_ns[work], kind="stable")]
        self.ends_ns = table.end_ns[self.work]
        self.before_on_stream = self._stream_predecessors()
        self.is_communication = communication_kernels(trace)
        self.data = data_waits(trace, rank)
        self.waits = self._device_waits(rank)
        phases = trace.phases.take(trace.phases.step == step)
        self.phases, self.phase_names = TimeWindows(phases.start_ns, phases.end_ns), phases.name

    def run(self) -> None:
        """Alternate between host and device until the step's begin."""
        while self.at_ns > self.begin_ns:
            row = self._host_back_to_a_wait()
            while row != NONE and self.at_ns > self.begin_ns:
                row = self._device_back(row)

    def _host_back_to_a_wait(self) -> int:
        """Back along the host to the last wait for the device; the work that it waited for, or NONE at the step's begin."""
        starts, ends = self.waits
        place = int(np.searchsorted(ends, self.at_ns, side="right")) - 1
        while place >= 0:
            end_ns = int(ends[place])
            last = int(np.searchsorted(self.ends_ns, end_ns, side="right")) - 1
            # It waited if work ended while it was in the call; else the device was done before and it cost only the call.
            waited = last >= 0 and int(self.ends_ns[last]) > int(starts[place]) and end_ns > self.begin_ns
            if waited and int(self.work[last]) not in self.visited:
                self._host(int(self.ends_ns[last]))
                return int(self.work[last])
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
        launch = int(table.launch[row])
        called_ns = int(self.trace.host.start_ns[launch]) if 0 <= launch < len(self.trace.host) else NONE
        before = self.before_on_stream.get(row, NONE)
        before = NONE if before in self.visited else before
        last = int(np.searchsorted(self.ends_ns, start_ns, side="right")) - 1
        while last >= 0 and int(self.work[last]) in self.visited:
            last -= 1
        if last >= 0 and start_ns - int(self.ends_ns[last]) <= EDGE_NS:
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

    def _device_waits(self, rank: int) -> tuple[Column, Column]:
        """Begins and ends of calls in which the rank's host may wait for the device, by end."""
        calls = self.trace.host.take(runtime_calls(self.trace, rank, _may_wait))
        calls = calls.take(np.argsort(calls.end_ns, kind="stable"))
        return calls.start_ns, calls.end_ns


def _may_wait(call: str) -> bool:
    return any(mark in call for mark in _WAITS) and "Async" not in call
