"""Computes new start times of all recorded events after a change of kernel durations.

    trace = Retiming(recorded).retimed(durations_ns)     # durations_ns: for each row of recorded.device

Kernels keep their recorded order (Note [Start times of kernels] in recording/indexer.py).

Note [Data loading at another batch size]
    Loading a batch takes time in proportion to its samples. Without workers, the phase "loader" is this time. With workers, the
    phase contains only the extra time: loading takes this much longer than the rest of the step. If the GPU limits the rest of
    the step, both times grow with the batch size. The extra time then grows, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from replayer.cost_model.constants import WAIT_CAME_BACK_NS, WAIT_FOLLOWED_NS
from replayer.recording.indexer import RecordingIndexer
from replayer.recording.match_keys import RecordedKeys
from traces.figures.measure import device_ranks, host_ranks, launch_steps, window_ns
from traces.model.intervals import Intervals
from traces.model.trace import NONE, Column, Trace

_MARK = -2  # this mark in place of the awaited kernel means that the host does not wait


class _HostTime:
    def __init__(self) -> None:
        self._old: list[int] = []
        self._new: list[int] = []

    def add(self, old_ns: int, new_ns: int) -> None:
        if not self._old or old_ns > self._old[-1]:
            self._old.append(old_ns)
            self._new.append(max(new_ns, self._new[-1] if self._new else new_ns))
        else:
            self._new[-1] = max(self._new[-1], new_ns)

    def of(self, times_ns: Column) -> Column:
        if not self._old:
            return times_ns
        old, shift = np.array(self._old), np.array(self._new) - np.array(self._old)
        moved = times_ns + np.round(np.interp(times_ns, old, shift, left=0)).astype(np.int64)
        return np.asarray(np.where(times_ns == NONE, NONE, moved))


class Retiming:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        keys = RecordedKeys(trace)
        self._indexes = {rank: RecordingIndexer(trace, rank, keys) for rank in trace.ranks}

    def retimed(
        self, durations_ns: Column, host_speed: float = 1.0, origins: Column | None = None, *, loading: float = 1.0
    ) -> Trace:
        """Return the trace with other times. `loading` is the new time for loading a batch, divided by the recorded time."""
        trace, hosts = self._trace, {}
        start_ns = trace.device.start_ns.copy()
        placed = np.zeros(len(start_ns), dtype=bool)
        for rank, index in self._indexes.items():
            hosts[rank] = _play(trace, index, durations_ns, start_ns, host_speed, loading)
            placed[index.work] = True
        ranks = device_ranks(trace)
        for rank, host in hosts.items():  # the times of marks and of operations between ranks change with the host times
            rest = ~placed & (ranks == rank)
            start_ns[rest] = host.of(trace.device.start_ns[rest])
        device = replace(trace.device, start_ns=start_ns, duration_ns=durations_ns.copy())
        if origins is not None:
            device = replace(device, origin=origins)
        order = np.lexsort((device.start_ns, device.stream, device.device))
        return _with_host_times(replace(trace, device=device.take(order)), trace, hosts)


def _play(
    trace: Trace, index: RecordingIndexer, durations_ns: Column, start_ns: Column, host_speed: float, loading: float
) -> _HostTime:
    work = index.work
    loads = _loads(trace, index.rank)
    host = _HostTime()
    first_ns, last_ns = window_ns(trace)
    zero_ns = int(index.active_ns(np.array([first_ns]))[0])

    def active(times_ns: Column) -> Column:
        own_ns = index.active_ns(times_ns) - zero_ns
        if loading != 1:
            own_ns = own_ns + np.round((loading - 1) * loads.before(times_ns)).astype(np.int64)
        return first_ns + (own_ns if host_speed == 1 else np.round(own_ns / host_speed).astype(np.int64))

    host.add(first_ns, first_ns)
    launched = active(index.launched_ns).tolist()
    recorded_end = trace.device.end_ns[work]
    new_end = np.zeros(len(work), dtype=np.int64)
    of_waits = index.wait_start, index.wait_end, index.awaited, index.waits_for_device
    waits = sorted({*zip(*(column.tolist() for column in of_waits), strict=True)})
    if loading != 1:
        waits = sorted([*waits, *((time, time, _MARK, False) for time in (*loads.start_ns.tolist(), *loads.end_ns.tolist()))])
    wait_active = active(np.array([start for start, *_ in waits], dtype=np.int64)).tolist()
    waited, at = 0, 0
    ready: dict[tuple[int, int], int] = {}
    queues: dict[tuple[int, int], list[int]] = {}
    depth = index.launch_queue_depth
    columns = zip(
        launched, index.launched_ns.tolist(), (index.in_call_ns + index.latency).tolist(), index.gap.tolist(),
        index.edge.tolist(), index.edge_gap.tolist(), index.ordinals.tolist(), index.stream.tolist(),
        durations_ns[work].tolist(), strict=True,
    )  # fmt: skip
    for i, (active_ns, launch_ns, latency_ns, gap_ns, edge, edge_gap_ns, ordinal, stream, duration_ns) in enumerate(columns):
        while at < len(waits) and waits[at][1] <= launch_ns and waits[at][0] < launch_ns:
            waited = _wait(host, waits[at], wait_active[at], waited, recorded_end[:i], new_end[:i], index.ordinals)
            at += 1
        track = ordinal, stream
        queue = queues.setdefault(track, [])
        begun_ns = active_ns + waited
        if len(queue) >= depth and queue[-depth] > begun_ns:  # a launch makes the host wait if the launch queue is full
            host.add(launch_ns, begun_ns)
            waited += queue[-depth] - begun_ns
            begun_ns = queue[-depth]
            call = int(index.launch_row[i])
            host.add(max(int(trace.host.end_ns[call]), launch_ns + 1) if call != NONE else launch_ns + 1, begun_ns)
        starts_ns = begun_ns + latency_ns
        if track in ready:
            starts_ns = max(starts_ns, ready[track] + gap_ns)
        if edge != NONE:
            starts_ns = max(starts_ns, int(new_end[edge]) + edge_gap_ns)
        start_ns[work[i]] = starts_ns
        new_end[i] = ready[track] = starts_ns + duration_ns
        queue.append(starts_ns + duration_ns)
    for rest in range(at, len(waits)):
        waited = _wait(host, waits[rest], wait_active[rest], waited, recorded_end, new_end, index.ordinals)
    host.add(last_ns, int(active(np.array([last_ns]))[0]) + waited)
    return host


def _loads(trace: Trace, rank: int) -> Intervals:
    # see Note [Data loading at another batch size]
    phases = trace.phases
    if not len(trace.steps):
        return Intervals([], [])
    loads = (phases.name == trace.strings.find("loader")) & (trace.steps.rank[phases.step] == rank)
    return Intervals(phases.start_ns[loads], phases.end_ns[loads])


def _wait(
    host: _HostTime, wait: tuple[int, int, int, bool], active_ns: int, waited_ns: int,
    recorded_end: Column, new_end: Column, devices: Column,
) -> int:  # fmt: skip
    start_ns, end_ns, awaited, waits_for_device = wait
    begun_ns = active_ns + waited_ns
    ended_ns = begun_ns
    if awaited == _MARK:
        host.add(start_ns, begun_ns)
        return waited_ns
    done = np.flatnonzero(recorded_end <= end_ns + WAIT_CAME_BACK_NS)
    if awaited != NONE and awaited < len(recorded_end):
        # A copy may end after the CUDA call has returned.
        ended_ns = max(begun_ns, int(new_end[awaited]) + end_ns - int(recorded_end[awaited]))
        if waits_for_device:
            # Another kernel or copy of the GPU may end last now.
            ended_ns = max(ended_ns, int(new_end[done[devices[done] == devices[awaited]]].max(initial=0)))
    elif len(done):
        last = done[recorded_end[done].argmax()]
        after_ns = end_ns - int(recorded_end[last])
        if end_ns == start_ns:  # the device had finished its work before the host began to wait
            ended_ns = max(begun_ns, int(new_end[last]))
        elif after_ns <= WAIT_FOLLOWED_NS:
            ended_ns = max(begun_ns, int(new_end[last]) + max(after_ns, 0))
        else:
            ended_ns = begun_ns + end_ns - start_ns
    host.add(start_ns, begun_ns)
    host.add(end_ns, ended_ns)
    return waited_ns + ended_ns - begun_ns


def _with_host_times(trace: Trace, recorded: Trace, hosts: dict[int, _HostTime]) -> Trace:
    steps = recorded.steps.rank
    phase_ranks = steps[recorded.phases.step] if len(steps) else np.zeros(len(recorded.phases), dtype=np.int64)
    part_ranks = phase_ranks[recorded.parts.phase] if len(phase_ranks) else np.zeros(len(recorded.parts), dtype=np.int64)
    first = next(iter(hosts.values()))

    def moved(table: Any, ranks: Column) -> Any:
        start, end = table.start_ns.copy(), table.end_ns.copy()
        for rank, host in hosts.items():
            own = ranks == rank
            start[own], end[own] = host.of(table.start_ns[own]), host.of(table.end_ns[own])
        return replace(table, start_ns=start, duration_ns=np.maximum(end - start, 0))

    memory = recorded.memory
    return replace(
        trace,
        host=moved(recorded.host, host_ranks(recorded)),
        steps=moved(recorded.steps, steps),
        phases=_marked(moved(recorded.phases, phase_ranks), trace, recorded),
        parts=moved(recorded.parts, part_ranks),
        batches=moved(recorded.batches, recorded.batches.rank),
        collectives=moved(recorded.collectives, recorded.collectives.rank),
        memory=replace(memory, time_ns=first.of(memory.time_ns)),
    )


def _marked(phases: Any, trace: Trace, recorded: Trace) -> Any:
    """Move the device times of phases to the ends of kernels. In steps without recorded kernels, each phase keeps the
    recorded delay between host and device."""
    device, before = trace.device, recorded.phases
    work = np.flatnonzero(device.is_work & (device.launch != NONE))
    if not len(work) or not (phases.device_end_ns != NONE).any():
        return phases
    launched = trace.host.start_ns[device.launch[work]]
    order = np.argsort(launched, kind="stable")
    ends = np.concatenate(([0], np.maximum.accumulate(device.end_ns[work][order])))
    known, has_kernels = phases.device_end_ns != NONE, np.isin(phases.step, launch_steps(recorded)[recorded.device.is_work])

    def mark(times_ns: Column, delay_ns: Column) -> Column:
        done = ends[np.searchsorted(launched[order], times_ns)]
        return np.where(known, np.where(has_kernels, np.maximum(done, times_ns), times_ns + delay_ns), NONE)

    start_ns = mark(phases.start_ns, before.device_start_ns - before.start_ns)
    return replace(phases, device_start_ns=start_ns, device_end_ns=mark(phases.end_ns, before.device_end_ns - before.end_ns))
