"""Simulates many ops at once with numpy, with the same results as `Simulator.play` for single ops.

    OpBatchSchedule     calls that all matched recorded kernels of one stream
    PhaseGrainBatch     calls of a phase for which only the total time was recorded
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from replayer.op_signature import OpSignature
from replayer.recording.recorded_step import Kernel, KernelColumns
from replayer.timing.host_threads import HostThread
from replayer.timing.matcher import RememberedMatch, StepMatcher
from replayer.timing.remainder_schedule import WORK, work_rows_of
from replayer.timing.scheduler import StreamScheduler
from replayer.timing.stream import VirtualStream
from replayer.timing.timeline.timeline_writer import HOST_COLUMNS, DeferredRows, TimelineWriter
from replayer.timing.timing_rules import host_times, queue_ends
from traces.model.trace import Column, Origin
from traces.script.script_splitter import BeginsSegment

LEAST_CALLS = 8  # for smaller batches, simulating one op at a time is faster

_HOST = {name: i for i, name in enumerate(HOST_COLUMNS)}


@dataclass(slots=True, eq=False)
class OpBatchSchedule:
    # see Note [Repeated training steps] in matcher.py

    signatures: list[OpSignature]
    classes: bytes
    stops: list[int]  # for each call, the next call that must be simulated separately
    position_ns: list[int]  # for each call, the host time without waits that the thread has reached before the call
    begins_ns: Column  # for each call, the recorded start, up to which the thread advances
    advance_ns: Column
    own_ns: Column
    host_rows: Column
    first: Column
    call: Column
    after_ns: Column  # for each kernel, the time from the start of the op call to the kernel's end on an idle stream
    gap_ns: Column
    duration_ns: Column
    work_rows: Column
    charged_ns: dict[Origin, Column]
    matched: Column
    # True if the script is a different program; the recorded host time between calls then does not apply
    is_other_program: bool = False

    @classmethod
    def of(
        cls, calls: Sequence[RememberedMatch], matcher: StepMatcher, scheduler: StreamScheduler, is_other_program: bool = False
    ) -> OpBatchSchedule:
        signatures = [call.signature for call in calls]
        begins_ns: list[int] = []
        advance_ns, own_ns = list[int](), list[int]()
        position_ns, first = [0], [0]
        chosen: list[int] = []
        scales: list[float] = []
        origins: list[int] = []
        matched, too_long_ns = list[int](), list[int]()
        columns, estimated = matcher.step.columns, list[Kernel]()
        for signature, match, _ in calls:
            reached_ns = position_ns[-1]
            advance, own, begin_ns, to_ns, excess = 0, 0, reached_ns, reached_ns, 0
            matched.append(match is not None and scheduler.may_stand_for(signature, match[1]))
            if match is not None and matched[-1]:
                origin, instance = match
                begin_ns, to_ns = instance.start_ns, instance.end_ns
                if is_other_program:
                    own = scheduler.usual_host_ns(signature)
                    excess = max(to_ns - begin_ns - own, 0)
                elif instance.of_other_phase:
                    own = to_ns - begin_ns
                else:
                    advance, own = host_times(reached_ns, begin_ns, to_ns)
                    begin_ns = max(begin_ns, reached_ns)
                chosen += instance.kernels
                is_scaled = origin is Origin.SCALED
                scale_of = scheduler.scale(signature, instance.shapes, instance.dtype) if is_scaled else 1.0
                scales += [scale_of] * len(instance.kernels)
                origins += [int(origin)] * len(instance.kernels)
            elif is_other_program:
                own = scheduler.usual_host_ns(signature)
                kernel, origin = scheduler.estimated(signature, reached_ns + own)
                chosen.append(len(columns.kind) + len(estimated))
                scales.append(1.0)
                origins.append(int(origin))
                estimated.append(kernel)
            begins_ns.append(begin_ns)
            advance_ns.append(advance)
            own_ns.append(own)
            too_long_ns.append(excess)
            is_here = match is None or not match[1].of_other_phase
            position_ns.append(max(reached_ns, to_ns) if is_here else reached_ns)
            first.append(len(chosen))
        at, call = np.array(chosen, np.int64), np.repeat(np.arange(len(calls)), np.diff(first))
        if estimated:
            columns = KernelColumns(*map(np.concatenate, zip(columns, KernelColumns.of(estimated), strict=True)))
        scale, origin_of = np.array(scales), np.array(origins, np.int64)
        duration_ns = columns.duration_ns[at]
        launch_ns = columns.launch_ns[at] - np.array(begins_ns, np.int64)[call]
        launch_ns = np.maximum(launch_ns - np.array(too_long_ns, np.int64)[call], 0)
        scaled_ns = np.maximum((duration_ns * scale).astype(np.int64), scheduler.recording.speed.floor_ns)
        duration_ns = np.where(scale == 1.0, duration_ns, scaled_ns)
        # stored by column, because whole columns are overwritten
        host_rows = scheduler.timeline.host_rows_of(signatures).copy(order="F")
        host_rows[:, _HOST["duration_ns"]] = own_ns
        work_rows = work_rows_of(columns, at, duration_ns)
        work_rows[:, WORK["origin"]] = origin_of
        return cls(
            signatures=signatures,
            classes=bytes([signature.phase_class for signature in signatures]),
            stops=[len(calls)] * len(calls) if is_other_program else _stops(calls),
            position_ns=position_ns,
            begins_ns=np.array(position_ns[:-1], np.int64) + np.array(advance_ns, np.int64),
            advance_ns=np.array(advance_ns, np.int64),
            own_ns=np.array(own_ns, np.int64),
            host_rows=host_rows,
            first=np.array(first),
            call=call,
            after_ns=launch_ns + columns.latency_ns[at] + duration_ns,
            gap_ns=columns.gap_ns[at],
            duration_ns=duration_ns,
            work_rows=work_rows,
            charged_ns={
                Origin(origin): np.append(0, np.cumsum(np.where(origin_of == origin, duration_ns, 0)))
                for origin in np.unique(origin_of)
            },
            matched=np.array(matched, np.int64),
            is_other_program=is_other_program,
        )

    def executable_until(self, begin: int, signatures: list[OpSignature], at: int, depth: int) -> int:
        if begin >= len(self.signatures):
            return begin
        end = min(self.stops[begin], begin + len(signatures) - at)
        if self.signatures[begin:end] != signatures[at : at + end - begin]:
            return begin
        return end if self.first[end] - self.first[begin] < depth else begin

    def may_begin(self, begin: int, position_ns: int) -> bool:
        stored_ns = self.position_ns[begin]
        return position_ns == stored_ns or stored_ns < self.begins_ns[begin] >= position_ns

    def play(
        self,
        begin: int,
        end: int,
        thread: HostThread,
        position_ns: int,
        stream: VirtualStream,
        called_ns: Column,
        scheduler: StreamScheduler,
    ) -> Column:
        advance_ns, own_ns = self.advance_ns[begin:end], self.own_ns[begin:end]
        if position_ns != self.position_ns[begin]:
            advance_ns = advance_ns.copy()
            advance_ns[0] = self.begins_ns[begin] - position_ns
        room_at_ns = self._room_at_ns(begin, end, stream)
        alone_ns = own_ns + (called_ns if room_at_ns is None else np.maximum(called_ns, room_at_ns))
        ends_ns = queue_ends(alone_ns, advance_ns + own_ns, thread.host_ns)
        starts_ns = ends_ns - own_ns
        lags_ns = called_ns - advance_ns
        lags_ns[0] -= thread.host_ns
        lags_ns[1:] -= ends_ns[:-1]
        if self.is_other_program:
            for call in np.flatnonzero(self.matched[begin:end] == 0).tolist():
                signature = self.signatures[begin + call]
                scheduler.stats.miss(signature.op, signature.shapes)
        scheduler.stats.lag_ns += int(np.maximum(lags_ns, 0).sum())
        scheduler.stats.ops += end - begin
        thread.host_ns = int(ends_ns[-1])
        rows = DeferredRows.of(self.host_rows[begin:end], {_HOST["thread"]: thread.row, _HOST["start_ns"]: starts_ns})
        self._put(begin, end, starts_ns, scheduler.timeline.op_rows(rows), stream, scheduler)
        return ends_ns

    def _room_at_ns(self, begin: int, end: int, stream: VirtualStream) -> Column | None:
        before = int(self.first[begin]) + stream.depth - len(stream.pending)
        if self.first[end - 1] < before:
            return None
        oldest = self.first[begin:end] - before
        ends_ns = np.fromiter(islice(stream.pending, int(oldest[-1]) + 1), np.int64)
        return np.where(oldest >= 0, ends_ns[np.maximum(oldest, 0)], 0)

    def _put(
        self, begin: int, end: int, starts_ns: Column, row: int, stream: VirtualStream, scheduler: StreamScheduler
    ) -> None:
        first, last = int(self.first[begin]), int(self.first[end])
        if first == last:
            return
        call, duration_ns = self.call[first:last] - begin, self.duration_ns[first:last]
        ends_ns = queue_ends(
            starts_ns[call] + self.after_ns[first:last], self.gap_ns[first:last] + duration_ns, stream.ready_ns
        )
        stream.push_all(ends_ns.tolist())
        written: dict[int, Column | int] = {WORK["device"]: stream.device, WORK["stream"]: stream.number}
        written |= {WORK["start_ns"]: ends_ns - duration_ns, WORK["launch"]: row + call}
        scheduler.timeline.work_rows(DeferredRows.of(self.work_rows[first:last], written))
        for origin, charged_ns in self.charged_ns.items():
            scheduler.stats.charged_ns[origin] += int(charged_ns[last] - charged_ns[first])


@dataclass(slots=True, eq=False)
class PhaseGrainBatch:
    """Simulates many ops at once. This class is used if the recording contains only total times of phases."""

    count: int
    signatures: list[OpSignature]
    begins_segment: BeginsSegment
    _rows: Column

    @classmethod
    def of(cls, signatures: list[OpSignature], begins_segment: BeginsSegment, timeline: TimelineWriter) -> PhaseGrainBatch:
        classes = bytes([signature.phase_class for signature in signatures])
        ends = [classes.find(phase_class) for phase_class, turn in enumerate(begins_segment) if turn]
        count = min((end for end in ends if end >= 0), default=len(signatures))
        return cls(count, signatures, begins_segment, timeline.host_rows_of(signatures[:count]))

    def rows(self, thread: int, starts_ns: Column | int) -> DeferredRows:
        return DeferredRows.of(self._rows, {_HOST["thread"]: thread, _HOST["start_ns"]: starts_ns})


def _stops(calls: Sequence[RememberedMatch]) -> list[int]:
    stops, stop = [], len(calls)
    for i in range(len(calls) - 1, -1, -1):
        if calls[i].match is None:
            stop = i
        stops.append(stop)
    return stops[::-1]
