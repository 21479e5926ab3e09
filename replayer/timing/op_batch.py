"""A stretch of a segment that is played as it was played the last time: all its calls at once.

A script that comes through a recorded step again calls the same ops in the same order (Note [The last time], matcher.py), and
then all that differs is when. So what a segment's calls come to is laid out once, in columns, and a batch of calls takes some
thirty numpy operations instead of a dozen function calls each.

    schedule = OpBatchSchedule.of(calls, matches, scheduler)
    end = schedule.reach(begin, signatures)           # these calls are what it holds from `begin` on, up to there
    ends_ns = schedule.play(begin, end, thread, stream, called_ns, scheduler)

Note [Running maxima]
    Call by call (`Simulator.play`, `StreamScheduler.put`) the host comes to call i at h[i-1] + advance[i], or when the script
    calls it, or when the launch queue has room, whichever is last; and h[i] is host[i] after that. With c the sum of advances
    and host times, h[i] - c[i] is the greater of h[i-1] - c[i-1] and of what call i alone would give: a running maximum. So are
    the ends of kernels, less the running sum of gaps and durations.

Calls of another program (Note [Another program], matcher.py) that have no recorded counterpart are a kernel of estimated
duration each, launched when they are called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from replayer.cost_model.roofline import FLOOR_NS
from replayer.op_signature import OpSignature
from replayer.recording.recorded_step import Kernel, KernelColumns, RememberedMatch
from replayer.timing.matcher import StepMatcher
from replayer.timing.stream import LAUNCH_QUEUE_DEPTH, VirtualStream
from replayer.timing.timeline_writer import HOST_COLUMNS, WORK_COLUMNS, DeferredRows
from traces.model import NONE, Column, Origin

if TYPE_CHECKING:
    from replayer.timing.scheduler import HostThread, StreamScheduler

LEAST_CALLS = 8  # fewer are played faster one by one

_HOST = {name: i for i, name in enumerate(HOST_COLUMNS)}
_WORK = {name: i for i, name in enumerate(WORK_COLUMNS)}


@dataclass(slots=True, eq=False)
class OpBatchSchedule:
    """The calls of a segment as columns, and under them the kernels that they launch."""

    signatures: list[OpSignature]
    classes: bytes  # of phase, per call
    stops: list[int]  # per call: the next one that must be played by itself
    position_ns: list[int]  # per call, and once more: active host time up to which the script has come before it
    advance_ns: Column  # per call: from there to its own begin
    host_ns: Column  # per call: its own
    host_sums_ns: Column  # of both, this call included
    host_rows: Column  # of the timeline, but for thread and start
    first: Column  # per call, and once more: its first kernel
    call: Column  # per kernel
    after_ns: Column  # per kernel: from its call's begin to its end, if nothing is before it on the stream
    duration_ns: Column
    queue_sums_ns: Column  # of gaps and durations, this kernel included
    work_rows: Column  # of the timeline, but for device, stream, start and launch
    charged_ns: dict[Origin, Column]  # per kernel, and once more: durations so far
    matched: Column  # per call: 1 if it has a recorded counterpart, else 0
    other: bool = False  # the script is another program, and what the recorded host did between calls is not its own

    @classmethod
    def of(
        cls, calls: Sequence[RememberedMatch], matches: StepMatcher, scheduler: StreamScheduler, other: bool = False
    ) -> OpBatchSchedule:
        """Lay out what calls of a step were given whose kernels all lie on one stream (`RecordedStep.one_stream`)."""
        signatures = [call.signature for call in calls]
        begins_ns: list[int] = []
        host_ns: list[int] = []
        position_ns, first = [0], [0]
        chosen: list[int] = []  # kernels of the step
        scales: list[float] = []  # of each
        origins: list[int] = []  # of each
        columns, estimated = matches.step.columns, list[Kernel]()
        for signature, match, _ in calls:
            reached_ns = position_ns[-1]
            begins_ns.append(reached_ns if match is None else match[1].start_ns)
            host_ns.append(0 if match is None else match[1].end_ns - match[1].start_ns)
            position_ns.append(reached_ns if match is None else max(reached_ns, match[1].end_ns))
            if match is not None:
                origin, instance = match
                chosen += instance.kernels
                scales += [scheduler.scale(signature, instance) if origin is Origin.SCALED else 1.0] * len(instance.kernels)
                origins += [int(origin)] * len(instance.kernels)
            elif other:
                kernel, origin = scheduler.estimated(signature, reached_ns)
                chosen.append(len(columns.kind) + len(estimated))
                scales.append(1.0)
                origins.append(int(origin))
                estimated.append(kernel)
            first.append(len(chosen))
        begin_ns, hosts_ns, at = np.array(begins_ns, np.int64), np.array(host_ns, np.int64), np.array(chosen, np.int64)
        advance_ns = np.maximum(begin_ns - position_ns[:-1], 0) if not other else np.zeros_like(begin_ns)
        call = np.repeat(np.arange(len(calls)), np.diff(first))
        if estimated:
            columns = columns.and_(KernelColumns.of(estimated))
        scale, origin_of = np.array(scales), np.array(origins, np.int64)
        duration_ns = columns.duration_ns[at]
        scaled_ns = np.maximum((duration_ns * scale).astype(np.int64), FLOOR_NS)
        duration_ns = np.where(scale == 1.0, duration_ns, scaled_ns)
        host_rows = scheduler.timeline.host_rows_of(signatures).copy(order="F")  # of which whole columns are written again
        host_rows[:, _HOST["duration_ns"]] = hosts_ns
        work_rows = np.full((len(at), len(WORK_COLUMNS)), NONE, order="F")  # of which whole columns are written again
        known = {"kind": columns.kind, "name": columns.name, "bytes": columns.size_bytes}
        for name, values in known.items():
            work_rows[:, _WORK[name]] = values[at]
        work_rows[:, _WORK["duration_ns"]], work_rows[:, _WORK["origin"]] = duration_ns, origin_of
        return cls(
            signatures=signatures,
            classes=bytes([signature.phase_class for signature in signatures]),
            stops=[len(calls)] * len(calls) if other else _stops(calls),
            position_ns=position_ns,
            advance_ns=advance_ns,
            host_ns=hosts_ns,
            host_sums_ns=np.cumsum(advance_ns + hosts_ns),
            host_rows=host_rows,
            first=np.array(first),
            call=call,
            after_ns=columns.launch_ns[at] - begin_ns[call] + columns.latency_ns[at] + duration_ns,
            duration_ns=duration_ns,
            queue_sums_ns=np.cumsum(columns.gap_ns[at] + duration_ns),
            work_rows=work_rows,
            charged_ns={
                Origin(origin): np.append(0, np.cumsum(np.where(origin_of == origin, duration_ns, 0)))
                for origin in np.unique(origin_of)
            },
            matched=np.array([match is not None for _, match, _ in calls], np.int64),
            other=other,
        )

    def reach(self, begin: int, signatures: list[OpSignature]) -> int:
        """Up to which call, from `begin` on, `signatures` are its own and can be played at once; `begin` itself if none."""
        if begin >= len(self.signatures):
            return begin
        end = min(self.stops[begin], begin + len(signatures))
        if self.signatures[begin:end] != signatures[: end - begin]:
            return begin
        return end if self.first[end] - self.first[begin] < LAUNCH_QUEUE_DEPTH else begin

    def play(
        self, begin: int, end: int, thread: HostThread, stream: VirtualStream, called_ns: Column, scheduler: StreamScheduler
    ) -> Column:
        """Play the calls from `begin` to `end`, called at these times by the wall clock; returns when the host leaves each.

        As `Simulator.play` does one after another; see Note [Running maxima].
        """
        host_ns, sums_ns = self.host_ns[begin:end], self.host_sums_ns[begin:end]
        room_at_ns = self._room_at_ns(begin, end, stream)
        floor_ns = host_ns + (called_ns if room_at_ns is None else np.maximum(called_ns, room_at_ns))
        before_ns = thread.host_ns - (int(self.host_sums_ns[begin - 1]) if begin else 0)
        ends_ns: Column = np.maximum(np.maximum.accumulate(floor_ns - sums_ns), before_ns) + sums_ns
        starts_ns = ends_ns - host_ns
        lags_ns = called_ns - self.advance_ns[begin:end]
        lags_ns[0] -= thread.host_ns
        lags_ns[1:] -= ends_ns[:-1]
        if self.other:
            matched = self.matched[begin:end]
            lags_ns *= matched
            for call in np.flatnonzero(matched == 0).tolist():
                signature = self.signatures[begin + call]
                scheduler.stats.miss(signature.op, signature.shapes)
        scheduler.stats.lag_ns += int(np.maximum(lags_ns, 0).sum())
        scheduler.stats.ops += end - begin
        thread.host_ns = int(ends_ns[-1])
        rows = DeferredRows.of(self.host_rows[begin:end], {_HOST["thread"]: thread.row, _HOST["start_ns"]: starts_ns})
        self._put(begin, end, starts_ns, scheduler.timeline.op_rows(rows), stream, scheduler)
        return ends_ns

    def _room_at_ns(self, begin: int, end: int, stream: VirtualStream) -> Column | None:
        """When each call finds room in the launch queue, which holds only kernels from before: there are few enough here.
        None if there is room all the time."""
        before = int(self.first[begin]) + LAUNCH_QUEUE_DEPTH - len(stream.pending)
        if self.first[end - 1] < before:
            return None
        oldest = self.first[begin:end] - before
        ends_ns = np.fromiter(islice(stream.pending, int(oldest[-1]) + 1), np.int64)
        return np.where(oldest >= 0, ends_ns[np.maximum(oldest, 0)], 0)

    def _put(
        self, begin: int, end: int, starts_ns: Column, row: int, stream: VirtualStream, scheduler: StreamScheduler
    ) -> None:
        """Put the calls' kernels on the stream; `row` is the first call's."""
        first, last = int(self.first[begin]), int(self.first[end])
        if first == last:
            return
        call, sums_ns = self.call[first:last] - begin, self.queue_sums_ns[first:last]
        before_ns = stream.ready_ns - (int(self.queue_sums_ns[first - 1]) if first else 0)
        alone_ns = starts_ns[call] + self.after_ns[first:last]
        ends_ns = np.maximum(np.maximum.accumulate(alone_ns - sums_ns), before_ns) + sums_ns
        stream.push_all(ends_ns.tolist())
        written: dict[int, Column | int] = {_WORK["device"]: stream.device, _WORK["stream"]: stream.number}
        written |= {_WORK["start_ns"]: ends_ns - self.duration_ns[first:last], _WORK["launch"]: row + call}
        scheduler.timeline.work_rows(DeferredRows.of(self.work_rows[first:last], written))
        for origin, charged_ns in self.charged_ns.items():
            scheduler.stats.charged_ns[origin] += int(charged_ns[last] - charged_ns[first])


def _stops(calls: Sequence[RememberedMatch]) -> list[int]:
    stops, stop = [], len(calls)
    for i in range(len(calls) - 1, -1, -1):
        if calls[i].match is None:
            stop = i
        stops.append(stop)
    return stops[::-1]
