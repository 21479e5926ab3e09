"""What no op matches of a phase's recorded kernels: charged when the phase ends, or before the host looks at a device.

A phase goes on several devices at once where a script has replicas: each has a lane with matches of its own (matcher.py).

    rests = PhaseRemainder(scheduler, strict=False)
    segment, thread = rests.lane(segment, thread, device=1)     # for an op on cuda:1
    rests.charge(segment, thread)                               # the phase ends
"""

from __future__ import annotations

from replayer.errors import NotExact
from replayer.timing.matcher import SegmentMatcher
from replayer.timing.scheduler import HostThread, StreamScheduler
from replayer.timing.stream import VirtualStream
from traces.model import NONE


class PhaseRemainder:
    """Charges rests in launch order, on the devices that they were recorded on."""

    def __init__(self, scheduler: StreamScheduler, *, strict: bool) -> None:
        self._scheduler = scheduler
        self._strict = strict
        self.other = False  # by the script's last forward pass; see Note [Another program] in matcher.py

    def lane(self, segment: SegmentMatcher, thread: HostThread, device: int) -> tuple[SegmentMatcher, HostThread]:
        """The matches and the host thread of an op on another device than the first.

        In backward that is a thread of its own: autograd has one per device, though under replay they run one after another.
        """
        lane = segment.lane(self._scheduler.ordinal(device))
        if lane is segment or segment.name != "backward":
            return lane, thread
        if lane.thread is None:
            lane.thread = HostThread(self._scheduler.row_of(f"backward {device}"), thread.host_ns)
        return lane, lane.thread

    def charge(self, segment: SegmentMatcher, thread: HostThread) -> None:
        """The phase ends: charge all that is left; the ops for which it stands cost nothing more."""
        for ordinal, lane in {0: segment, **segment.lanes}.items():
            stream, untouched = self._stream(ordinal), lane.untouched
            rest = lane.unmatched()
            if lane is segment and (segment.name, segment.count) == ("forward", 0):
                self.other = segment.other
            if rest and not untouched and not self.other:
                self._play(lane, thread, rest, stream)
            else:
                for signature in lane.deferred:
                    self._scheduler.estimate(stream, signature, thread.host_ns, NONE)
            lane.deferred = []
        recorded = segment.recorded.lanes if segment.recorded is not None else {}
        unvisited = (lane for ordinal, lane in recorded.items() if ordinal not in segment.lanes and not lane.predicted)
        self._scheduler.stats.uncharged_ns += sum(lane.work_ns for lane in unvisited)

    def settle(self, segment: SegmentMatcher, thread: HostThread) -> None:
        """In the midst of a phase: charge what the recorded host had launched by now."""
        if self.other:
            return
        for ordinal, lane in {0: segment, **segment.lanes}.items():
            rest = [] if lane.untouched else lane.unmatched_until(lane.position_ns)
            if rest:
                self._play(lane, thread, rest, self._stream(ordinal))

    def _stream(self, ordinal: int) -> VirtualStream:
        return self._scheduler.stream(self._scheduler.placed(ordinal), 0)

    def _play(self, segment: SegmentMatcher, thread: HostThread, rest: list[int], stream: VirtualStream) -> None:
        if self._strict:
            raise NotExact(f"the rest of phase {segment.name}", (), "recorded but not called")
        self._scheduler.put_remainder(segment.step, rest, stream, thread.host_ns - segment.position_ns)
