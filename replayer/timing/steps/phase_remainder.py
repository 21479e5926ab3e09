"""If a script skips ops of a recorded phase (for example the backward pass), the replay still runs the kernels of these ops
when the phase ends.

    remainder = PhaseRemainder(scheduler, strict=False)
    segment, thread = remainder.lane(segment, thread, device=1)     # for an op on cuda:1
    remainder.add_gpu_work(segment, thread)                               # the phase ends

Note [When the remainder is charged]
    The remaining kernels are added if the script is the recorded program (Note [Another program] in matcher.py), in four cases:

    * The kernels were launched without an op.
    * The script has enough unmatched ops that probably launched the kernels under other names.
    * The remaining kernels take at most a fifth of the phase.
    * The script entered the phase but launched nothing (`zero_grad` of old PyTorch releases filled the gradients with zeros).

Note [Limit for remaining kernels]
    Profilers of 2020 recorded some kernels without their op. Remaining kernels are therefore added only until the phase reaches
    its recorded total time.
"""

from __future__ import annotations

from collections.abc import Sequence

from replayer.cost_model.constants import KERNELS_PER_TENSOR, LITTLE_REMAINDER, OVER_ESTIMATE
from replayer.errors import NotExact
from replayer.recording.recorded_step import Kernel
from replayer.timing.host_threads import HostThread
from replayer.timing.matcher import SegmentMatcher
from replayer.timing.scheduler import StreamScheduler
from replayer.timing.stream import VirtualStream
from traces.model.trace import Origin
from traces.model.workload import Sameness


class PhaseRemainder:
    def __init__(self, scheduler: StreamScheduler, *, strict: bool) -> None:
        self._scheduler = scheduler
        self._strict = strict
        self.sameness: Sameness | None = None

    @property
    def is_other_program(self) -> bool:
        # see Note [Another program] in matcher.py
        return self.sameness is Sameness.OTHER_PROGRAM

    def forget(self) -> None:
        self.sameness = None
        self._scheduler.set_other_program(False)

    def lane(self, segment: SegmentMatcher, thread: HostThread, device: int) -> tuple[SegmentMatcher, HostThread]:
        """In the backward pass, each GPU has its own CPU thread."""
        lane = segment.lane(self._scheduler.recorded_device(device))
        if lane is segment or segment.name != "backward":
            return lane, thread
        if lane.thread is None:
            thread.position_in(segment, segment.position_ns)
            lane.thread = HostThread(self._scheduler.row_of(f"backward {device}"), thread.host_ns)
            lane.thread.start_from(thread)
        return lane, lane.thread

    def add_gpu_work(self, segment: SegmentMatcher, thread: HostThread) -> None:
        """At the end of a phase, add the recorded kernels that have not run to the timeline. Also add the estimates for
        unrecorded ops."""
        for ordinal, lane in {0: segment, **segment.lanes}.items():
            stream, mostly_unmatched = self._stream(ordinal), lane.mostly_unmatched
            beyond_ns = self._beyond_ns(lane) if lane is segment else 0
            unmatched = lane.unmatched()
            if lane is segment and segment.sameness is not None:
                self.sameness = segment.sameness
                self._scheduler.set_other_program(self.is_other_program)
            is_same = self.sameness is Sameness.SAME_PROGRAM and not mostly_unmatched
            if unmatched and is_same and self._is_justified(lane, unmatched):
                unmatched = _within(lane.step.step.kernels, unmatched, beyond_ns)
                if unmatched:
                    self._play(lane, thread, unmatched, stream)
                lane.deferred = []
            self._estimate_deferred(lane, thread, stream)
        recorded = segment.recorded.lanes if segment.recorded is not None else {}
        unvisited = (lane for ordinal, lane in recorded.items() if ordinal not in segment.lanes and not lane.predicted)
        self._scheduler.stats.uncharged_ns += sum(lane.work_ns for lane in unvisited)

    def add_gpu_work_so_far(self, segment: SegmentMatcher, thread: HostThread) -> None:
        """Called before the script waits for the GPU. Add GPU work to the timeline for the script's ops that match no recorded
        op."""
        thread.position_in(segment, segment.position_ns)
        for ordinal, lane in {0: segment, **segment.lanes}.items():
            if self.sameness is not Sameness.SAME_PROGRAM:
                if self.sameness is None and lane.is_same_so_far():
                    continue  # at the end of the phase, the remaining recorded kernels may still match these ops
                self._estimate_deferred(lane, thread, self._stream(ordinal))
                continue
            if lane.mostly_unmatched or not lane.deferred:
                continue
            unmatched = lane.unmatched_until(lane.position_ns)
            if unmatched:
                self._play(lane, thread, unmatched, self._stream(ordinal))
                lane.deferred = []

    def _estimate_deferred(self, lane: SegmentMatcher, thread: HostThread, stream: VirtualStream) -> None:
        for signature, row in lane.deferred:
            used = None if self.is_other_program else lane.used_call(signature)
            if used is None:
                self._scheduler.estimate(stream, signature, thread.host_ns, row)
            else:
                began_ns = thread.host_ns - lane.step.step.kernels[used.kernels[0]].launch_ns
                self._scheduler.schedule(lane.step, used.kernels, stream, began_ns, 1.0, row, Origin.EQUIVALENT)
        lane.deferred = []

    def _stream(self, ordinal: int) -> VirtualStream:
        return self._scheduler.stream(self._scheduler.script_device(ordinal), 0)

    def _is_justified(self, segment: SegmentMatcher, unmatched: list[int]) -> bool:
        # see Note [When the remainder is charged]
        assert segment.recorded is not None
        below_ops = segment.recorded.below_ops.intersection(unmatched)
        of_ops_ns = segment.step.step.work_ns(below_ops)
        if not segment.calls or of_ops_ns <= LITTLE_REMAINDER * segment.recorded.work_ns:
            return True
        if of_ops_ns <= OVER_ESTIMATE * sum(self._scheduler.costs[op][0] for op, _ in segment.deferred):
            return True
        return len(below_ops) <= KERNELS_PER_TENSOR * sum(max(len(op.shapes), 1) for op, _ in segment.deferred)

    def _beyond_ns(self, segment: SegmentMatcher) -> int:
        if segment.recorded is None or segment.lanes:
            return 0
        charged_ns = sum(self._scheduler.stats.charged_ns.values()) - segment.charged_before_ns
        return max(charged_ns - (segment.recorded.work_ns - segment.unmatched_ns), 0)

    def _play(self, segment: SegmentMatcher, thread: HostThread, unmatched: list[int], stream: VirtualStream) -> None:
        if self._strict:
            raise NotExact(f"what is left of phase {segment.name}", (), "recorded but not called")
        self._scheduler.put_remainder(segment.step, unmatched, stream, thread.host_ns - thread.position_ns)


def _within(kernels: Sequence[Kernel], unmatched: list[int], beyond_ns: int) -> list[int]:
    # see Note [Limit for remaining kernels]
    kept = []
    for k in unmatched:
        if kernels[k].duration_ns <= beyond_ns:
            beyond_ns -= kernels[k].duration_ns
        else:
            kept.append(k)
    return kept
