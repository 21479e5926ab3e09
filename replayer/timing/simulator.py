"""Computes the start and end times of ops and kernels on the virtual GPU. The module `matcher` finds the recorded kernels of
each op, and `scheduler` adds the kernels to a virtual CUDA stream. The script waits for the virtual GPU wherever it would wait
for a real GPU."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from replayer.cost_model.constants import SIMILAR_GRAPHS
from replayer.cost_model.copy_costs import Copy
from replayer.errors import NotExact
from replayer.op_signature import OpSignature
from replayer.recording.recorded_run import RecordedRun
from replayer.recording.recorded_step import Instance, RecordedSegment
from replayer.timing.clock import Clock
from replayer.timing.cuda_graph import SEED_OR_OFFSET, CapturedGraph
from replayer.timing.host_threads import Caller, HostThread
from replayer.timing.matcher import Match, MatchHistory, SegmentMatcher
from replayer.timing.op_batch import LEAST_CALLS, OpBatchSchedule, PhaseGrainBatch
from replayer.timing.scheduler import StreamScheduler
from replayer.timing.steps.step_tracker import StepTracker, switch_to_step_with
from replayer.timing.stream import VirtualStream
from replayer.timing.timeline.stats import ReplayStats
from replayer.timing.timeline.timeline_writer import TimelineWriter
from replayer.timing.timing_rules import call_start, host_times
from traces.model.trace import NONE, Column, DeviceKind, Origin
from traces.names.device_names import GRAPH_LAUNCHES
from traces.script.configuration import ReplayConfig
from traces.script.patching import temporarily_set
from traces.script.phase_rule import LOSS, PLAIN
from traces.script.step_rule import Optimizers

# The simulation may run ahead of the clock. Short delays of this machine therefore do not slow down the replay. If the
# simulation is more than 20 ms ahead of the clock, the script waits until the difference is 15 ms.
_MOST_AHEAD_NS = 20_000_000
_AHEAD_AFTER_WAIT_NS = 15_000_000

# maximum number of stored batches per phase; a limit is needed, because ops may differ in every step
_BATCHES_KEPT = 64


class Simulator:
    def __init__(
        self, recording: RecordedRun, clock: Clock, timeline: TimelineWriter, optimizers: Optimizers, config: ReplayConfig
    ) -> None:
        self.recording = recording
        self.clock = clock
        self.timeline = timeline
        self.stats = ReplayStats()
        self.scheduler = StreamScheduler(recording, clock, timeline, self.stats)
        self.tracker = StepTracker(self.scheduler, optimizers, config)
        self.strict = config.strict
        names = (name for name in sorted(GRAPH_LAUNCHES) if recording.trace.strings.find(name) != NONE)
        name, works = next(names, "cudaGraphLaunch"), recording.match_keys.works_of_graphs
        self._recorded_graphs = [(OpSignature(name, (), (), direction=str(of)), count) for of, count in enumerate(works)]
        self._unrecorded_graph = OpSignature(name, (), ())
        # see Note [Recorded graphs] in cuda_graph.py
        self._launches = WeakKeyDictionary[CapturedGraph, list[OpSignature]]()
        self._launched_in: dict[str, WeakKeyDictionary[CapturedGraph, OpSignature | None]] = {}  # keys: phases
        self._schedules: dict[RecordedSegment, tuple[MatchHistory, OpBatchSchedule]] = {}
        self._batches: dict[RecordedSegment, dict[int, PhaseGrainBatch]] = {}

    def play(
        self, thread: HostThread, stream: VirtualStream, signature: OpSignature, now_ns: int, copy: Copy | None = None
    ) -> int:
        """Simulate an op: find its recorded call, let the host take the call's time, and put its kernels on the stream. Return
        the end time of its last kernel."""
        tracker, stats = self.tracker, self.stats
        whole = tracker.segment
        if whole is None or tracker.begins_segment[signature.phase_class]:
            whole = tracker.op(thread, signature.phase_class, now_ns)
        whole.ops += 1
        stats.ops += 1
        segment = whole
        if stream.device != self.scheduler.home:
            segment, thread = tracker.remainder.lane(whole, thread, stream.device)
        match, found_in = self._find(thread, segment, whole, signature)
        if found_in is not segment:  # the replay has just switched to another recorded step
            segment = whole = found_in
        position_ns = thread.position_in(whole, whole.position_ns)
        if match is None or (copy is None and not self.scheduler.may_stand_for(signature, match[1])):
            return self._unmatched(thread, stream, signature, segment, now_ns, copy)
        origin, instance = match
        if self.strict and origin is not Origin.EXACT:
            raise NotExact(signature.op, signature.shapes, origin.name.lower())
        start_ns, began_ns = self._take_host_time(thread, stream, segment, signature, instance, position_ns, now_ns)
        row = self.timeline.op(thread.row, self.timeline.strings_of[signature], start_ns, thread.host_ns)
        scale = self.scheduler.scale(signature, instance.shapes, instance.dtype) if origin is Origin.SCALED else 1.0
        if thread.host_ns - now_ns > _MOST_AHEAD_NS:
            self.scheduler.wait(thread.host_ns - _AHEAD_AFTER_WAIT_NS)
        if copy is None:
            return self.scheduler.schedule(segment.step, instance.kernels, stream, began_ns, scale, row, origin, start_ns)
        if not instance.shapes and any(signature.shapes) and self._is_other_size(segment, instance.kernels, copy):
            origin = Origin.SCALED
        return self.scheduler.put_copy(segment.step, instance.kernels, stream, began_ns, scale, row, origin, copy, start_ns)

    def _find(
        self, thread: HostThread, segment: SegmentMatcher, whole: SegmentMatcher, signature: OpSignature
    ) -> tuple[Match | None, SegmentMatcher]:
        """Return the recorded call of an op, and the segment that has it. `segment` is the part of `whole` on the op's GPU."""
        tracker = self.tracker
        match = segment.match(signature)
        if match is None or match[0] is Origin.SCALED:
            if thread.is_beside(tracker.script.thread):
                found = segment.step.find_in_another_phase(segment.recorded, segment.step.keys[signature].exact)
                match = match if found is None else (Origin.EXACT, found)
            elif segment is whole and (other := switch_to_step_with(tracker, signature)) is not None:
                segment, match = other, other.latest_match
        if match is None and not (segment.has_rest or self.strict or tracker.remainder.is_other_program):
            used = segment.used_call(signature)
            match = None if used is None else (Origin.EQUIVALENT, used)
        return match, segment

    def _take_host_time(
        self,
        thread: HostThread,
        stream: VirtualStream,
        segment: SegmentMatcher,
        signature: OpSignature,
        instance: Instance,
        position_ns: int,
        now_ns: int,
    ) -> tuple[int, int]:
        """Advance the time of the thread to the end of the op. Return the start of the op, and the time of the replay at which
        the recorded segment would have begun."""
        from_ns, to_ns, thread.after_wait_ns = instance.start_ns, instance.end_ns, instance.after_wait_ns
        is_beside = thread.is_beside(self.tracker.script.thread)
        is_of_other_phase = instance.of_other_phase or is_beside
        begin_ns, too_long_ns = from_ns, 0
        if self.tracker.remainder.is_other_program:
            advance_ns, own_ns = 0, self.scheduler.usual_host_ns(signature)
            too_long_ns = max(to_ns - from_ns - own_ns, 0)
        elif is_of_other_phase:
            advance_ns, own_ns = 0, to_ns - from_ns
        else:
            advance_ns, own_ns = host_times(position_ns, from_ns, to_ns)
            begin_ns = max(from_ns, position_ns)
        if not is_beside:  # the lag of a thread beside the script does not count, because such a thread may wait for the script
            self.stats.lag_ns += max(now_ns - thread.host_ns - advance_ns, 0)
        start_ns = call_start(thread.host_ns, advance_ns, now_ns, stream.room_at_ns())
        thread.host_ns = start_ns + own_ns
        if not is_of_other_phase:
            segment.mark_reached(thread, to_ns)
        return start_ns, start_ns - begin_ns - too_long_ns

    def _is_other_size(self, segment: SegmentMatcher, kernels: Iterable[int], copy: Copy) -> bool:
        of_step = segment.step.step.kernels
        sizes = {of_step[k].size_bytes for k in kernels if of_step[k].kind == DeviceKind.MEMCPY}
        return bool(sizes - {NONE, copy.size_bytes})

    def play_node(
        self, thread: HostThread, stream: VirtualStream, signature: OpSignature, launch_ns: int, row: int, copy: Copy | None
    ) -> None:
        """Simulate one op of a launched CUDA graph. Only the launch of the whole graph takes CPU time."""
        tracker, stats = self.tracker, self.stats
        segment = tracker.segment
        if segment is None or tracker.begins_segment[signature.phase_class]:
            segment = tracker.op(thread, signature.phase_class, launch_ns)
        segment.ops += 1
        stats.ops += 1
        match = segment.match(signature)
        if match is not None and (copy is not None or self.scheduler.may_stand_for(signature, match[1])):
            origin, instance = match
            if self.strict and origin is not Origin.EXACT:
                raise NotExact(signature.op, signature.shapes, origin.name.lower())
            if not instance.of_other_phase:
                thread.position_in(segment, segment.position_ns)
                segment.mark_reached(thread, instance.end_ns)
            scale = self.scheduler.scale(signature, instance.shapes, instance.dtype) if origin is Origin.SCALED else 1.0
            chosen, matches = instance.kernels, segment.step
            began_ns = launch_ns - matches.step.kernels[chosen[0]].launch_ns if chosen else launch_ns
            if copy is None:
                self.scheduler.schedule(matches, chosen, stream, began_ns, scale, row, origin)
            else:
                self.scheduler.put_copy(matches, chosen, stream, began_ns, scale, row, origin, copy)
            return
        if self.strict:
            raise NotExact(signature.op, signature.shapes, "nothing recorded")
        if not self._is_covered(segment, stream, signature, row, copy):
            self.scheduler.estimate(stream, signature, launch_ns, row, copy)

    def play_graph(self, thread: HostThread, stream: VirtualStream, graph: CapturedGraph, now_ns: int) -> None:
        if self.tracker.segment is None:
            self.tracker.op(thread, PLAIN, now_ns)
        add, queue = self.timeline.strings.add, list(stream.pending)
        start_ns, row, is_recorded = NONE, NONE, False
        launches = self._launches.get(graph) or self._launches_like(graph)

        def here(arg: Any) -> Any:
            return stream if arg is graph.origin else arg

        for branch in graph.others:
            branch.wait(stream.ready_ns)
        # All ops of a CUDA graph belong to the phase (such as the forward pass) that launches the graph.
        is_within_phase, is_in_module = bool(self.tracker.script.entered), self.tracker.script.is_in_module
        for call, args in graph.calls:
            if call != self.play_node:
                if not (is_within_phase and call in (self.tracker.enter, self.tracker.leave)):
                    with temporarily_set(self.tracker, launches_graph=launches[0]):
                        call(thread, *map(here, args))
                continue
            if start_ns == NONE:
                # In the timeline, the launch of a CUDA graph comes just before the graph's first op.
                segment, phase_class = self.tracker.segment, launches[0].phase_class
                if segment is None or self.tracker.begins_segment[phase_class]:
                    segment = self.tracker.op(thread, phase_class, now_ns)
                for _ in range(2 * graph.generators):
                    self.play(thread, stream, SEED_OR_OFFSET, now_ns)
                launch = self._launch_in(segment, graph, launches)
                is_recorded = launch is not None
                start_ns = thread.host_ns = max(thread.host_ns, now_ns, stream.room_at_ns())
                if launch is not None:
                    launches[:] = [launch, *(one for one in launches if one is not launch)]
                    self.play(thread, stream, launch, now_ns)
                else:
                    row = self.timeline.op(thread.row, (add("cudaGraphLaunch"), add(""), add(""), NONE), start_ns, start_ns)
            if not is_recorded:
                self.play_node(thread, here(args[0]), args[1], start_ns, row, args[2])
            elif args[1].phase_class == LOSS:
                self.tracker.loss_called(thread)  # the recorder saw this call during the capture of the graph
        for branch in graph.others:
            stream.wait(branch.ready_ns)
        stream.pending.clear()  # the whole graph occupies only one place in the launch queue
        stream.pending.extend([*queue, stream.ready_ns])
        if not is_in_module:
            self.tracker.script.module_returned()  # the modules that were captured in the graph

    def _launch_in(self, segment: SegmentMatcher, graph: CapturedGraph, launches: list[OpSignature]) -> OpSignature | None:
        # see Note [Recorded graphs] in cuda_graph.py
        launched = self._launched_in.setdefault(segment.name, WeakKeyDictionary())
        known = launched.setdefault(graph, None)
        if known is not None and segment.has_call(known):
            return known
        recorded = [one for one in self._recorded_graphs if segment.has_call(one[0])]
        if len(recorded) != len(launched):
            return next(filter(segment.has_call, launches), None)
        place = sorted(launched, key=self._works_of).index(graph)
        launched[graph], _ = sorted(recorded, key=itemgetter(1))[place]
        return launched[graph]

    def _works_of(self, graph: CapturedGraph) -> int:
        return max(sum(call == self.play_node for call, _ in graph.calls), 1)

    def _launches_like(self, graph: CapturedGraph) -> list[OpSignature]:
        # see Note [Recorded graphs] in cuda_graph.py
        works = self._works_of(graph)
        taken = {id(launches[0]) for launches in self._launches.values()}
        ranked = [(max(works / count, count / works), launch) for launch, count in self._recorded_graphs]
        near = [one for one in ranked if one[0] <= SIMILAR_GRAPHS] or sorted(ranked, key=itemgetter(0))[:1]
        near.sort(key=lambda one: (id(one[1]) in taken, one[0]))
        self._launches[graph] = [launch for _, launch in near] or [self._unrecorded_graph]
        return self._launches[graph]

    def play_all(self, callers: list[Caller], signatures: list[OpSignature], called_ns: list[int]) -> None:
        """Simulate ops in call order. Each list has one entry per op."""
        begins_segment = self.tracker.begins_segment
        on_one_stream = callers.count(callers[0]) == len(callers) or len({caller.stream for caller in callers}) == 1
        if on_one_stream or any(begins_segment[signature.phase_class] for signature in signatures):
            self._play_in_order(callers, signatures, called_ns)
            return
        streams = [caller.stream for caller in callers]
        first = [streams.index(stream) for stream in streams]
        self.timeline.ranges.reordered(self.timeline.host_rows, sorted(range(len(streams)), key=first.__getitem__))
        for stream in dict.fromkeys(streams):
            on = [other is stream for other in streams]
            self._play_in_order(list(compress(callers, on)), list(compress(signatures, on)), list(compress(called_ns, on)))

    def _play_in_order(self, callers: list[Caller], signatures: list[OpSignature], called_ns: list[int]) -> None:
        at, count = 0, len(signatures)
        alike = not self.strict and callers.count(callers[0]) == count
        while at < count:
            played = 0
            if alike and count - at >= LEAST_CALLS:
                played = self._play_again(callers[0], signatures, called_ns, at)
            if not played:
                played = 1
                self.play(callers[at].thread, callers[at].stream, signatures[at], called_ns[at])
            at += played

    def _play_again(self, caller: Caller, signatures: list[OpSignature], called_ns: list[int], at: int) -> int:
        tracker = self.tracker
        whole, thread, stream = tracker.segment, caller.thread, caller.stream
        if whole is None or thread.is_beside(tracker.script.thread):
            return 0
        segment = whole
        if stream.device != self.scheduler.home:
            segment, thread = tracker.remainder.lane(segment, thread, stream.device)
        if segment.recorded is None:
            return 0
        if segment.recorded.phase_grained:
            return self._play_phase_grained(thread, stream, segment, signatures, called_ns, at)
        if segment.history is None or not segment.step.step.one_stream:
            return 0
        begin = segment.followed
        if begin >= len(segment.history.calls):
            return 0
        of, schedule = self._schedules.get(segment.recorded, (None, None))
        if schedule is None or of is not segment.history or schedule.is_other_program != tracker.remainder.is_other_program:
            schedule = OpBatchSchedule.of(
                segment.history.calls, segment.step, self.scheduler, tracker.remainder.is_other_program
            )
            self._schedules[segment.recorded] = segment.history, schedule
        end = schedule.executable_until(begin, signatures, at, stream.depth)
        position_ns = thread.position_in(whole, whole.position_ns)
        if end - begin < LEAST_CALLS or not schedule.may_begin(begin, position_ns):
            return 0
        if any(
            turn and schedule.classes.find(phase_class, begin, end) >= 0
            for phase_class, turn in enumerate(tracker.begins_segment)
        ):
            return 0
        segment.follow(end)
        segment.mark_reached(thread, schedule.position_ns[end])
        called = np.fromiter(called_ns[at : at + end - begin], np.int64, end - begin)
        ends_ns = schedule.play(begin, end, thread, position_ns, stream, called, self.scheduler)
        ahead_ns = ends_ns[ends_ns - called > _MOST_AHEAD_NS]
        if len(ahead_ns):
            self.scheduler.wait(int(ahead_ns[-1]) - _AHEAD_AFTER_WAIT_NS)
        return end - begin

    def _play_phase_grained(
        self,
        thread: HostThread,
        stream: VirtualStream,
        segment: SegmentMatcher,
        signatures: list[OpSignature],
        called_ns: list[int],
        at: int,
    ) -> int:
        tracker = self.tracker
        batch = self._phase_grain_batch(segment, signatures[at:])
        count = batch.count
        if not count:
            return 0
        starts_ns: Column | int = thread.host_ns
        if tracker.remainder.is_other_program:
            called = np.fromiter(called_ns[at : at + count], np.int64, count)
            starts_ns = np.maximum.accumulate(np.maximum(called, thread.host_ns))
            thread.host_ns = int(starts_ns[-1])
        self.timeline.op_rows(batch.rows(thread.row, starts_ns))
        segment.ops += count
        segment.ops_on[stream.device] += count
        self.stats.ops += count
        return count

    def _phase_grain_batch(self, segment: SegmentMatcher, signatures: list[OpSignature]) -> PhaseGrainBatch:
        assert segment.recorded is not None
        kept = self._batches.setdefault(segment.recorded, {})
        batch, begins_segment = kept.get(segment.ops), self.tracker.begins_segment
        if batch is None or batch.begins_segment != begins_segment or batch.signatures != signatures:
            if len(kept) >= _BATCHES_KEPT:
                kept.clear()
            batch = kept[segment.ops] = PhaseGrainBatch.of(signatures, begins_segment, self.timeline)
        return batch

    def _unmatched(
        self,
        thread: HostThread,
        stream: VirtualStream,
        signature: OpSignature,
        segment: SegmentMatcher,
        now_ns: int,
        copy: Copy | None,
    ) -> int:
        if self.strict:
            raise NotExact(signature.op, signature.shapes, "nothing recorded")
        recorded = segment.recorded
        start_ns = thread.host_ns
        if recorded is None or self.tracker.remainder.is_other_program:
            usual_ns = self.scheduler.usual_host_ns(signature)
            own_ns = usual_ns if self.tracker.remainder.is_other_program else 0
            if not self.scheduler.clock.flows:
                own_ns = max(own_ns, 1)  # if the clock stands still, this keeps the order of ops, phases and waits
            self.stats.lag_ns += max(now_ns - thread.host_ns - (usual_ns - own_ns), 0)
            start_ns = max(thread.host_ns, now_ns)
            thread.host_ns = start_ns + own_ns
        row = self.timeline.op(thread.row, self.timeline.strings_of[signature], start_ns, thread.host_ns)
        thread.after_wait_ns = 0
        if self._is_covered(segment, stream, signature, row, copy):
            return stream.ready_ns
        thread.host_ns = max(thread.host_ns, stream.room_at_ns())
        if thread.host_ns - now_ns > _MOST_AHEAD_NS:
            self.scheduler.wait(thread.host_ns - _AHEAD_AFTER_WAIT_NS)
        return self.scheduler.estimate(stream, signature, thread.host_ns, row, copy)

    def _is_covered(
        self, segment: SegmentMatcher, stream: VirtualStream, signature: OpSignature, row: int, copy: Copy | None
    ) -> bool:
        if segment.recorded is not None and segment.recorded.phase_grained:
            segment.ops_on[stream.device] += 1
            return True
        self.stats.miss(signature.op, signature.shapes)
        if segment.has_rest and copy is None and not self.tracker.remainder.is_other_program:
            segment.deferred.append((signature, row))
            return True
        return False
