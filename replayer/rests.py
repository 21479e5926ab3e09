"""What no op claims of a phase's recorded kernels: charged when the phase ends, or before the host looks at a device.

A phase goes on several devices at once where a script has replicas: each has a lane with claims of its own (matching.py).

    rests = Rests(tracks, strict=False)
    segment, thread = rests.lane(segment, thread, device=1)     # for an op on cuda:1
    rests.charge(segment, thread)                               # the phase ends
"""

from __future__ import annotations

from replayer.errors import NotExact
from replayer.matching import SegmentClaims
from replayer.streams import VirtualStream
from replayer.tracks import HostThread, Tracks
from traces.model import NONE


class Rests:
    """Charges rests in launch order, on the devices that they were recorded on."""

    def __init__(self, tracks: Tracks, *, strict: bool) -> None:
        self._tracks = tracks
        self._strict = strict
        self.other = False  # by the script's last forward pass; see Note [Another program] in matching.py

    def lane(self, segment: SegmentClaims, thread: HostThread, device: int) -> tuple[SegmentClaims, HostThread]:
        """The claims and the host thread of an op on another device than the first.

        In backward that is a thread of its own: autograd has one per device, though under replay they run one after another.
        """
        lane = segment.lane(self._tracks.ordinal(device))
        if lane is segment or segment.name != "backward":
            return lane, thread
        if lane.thread is None:
            lane.thread = HostThread(self._tracks.row_of(f"backward {device}"), thread.host_ns)
        return lane, lane.thread

    def charge(self, segment: SegmentClaims, thread: HostThread) -> None:
        """The phase ends: charge all that is left; the ops for which it stands cost nothing more."""
        for ordinal, lane in {0: segment, **segment.lanes}.items():
            stream, untouched = self._stream(ordinal), lane.untouched
            rest = lane.rest()
            if lane is segment and (segment.name, segment.count) == ("forward", 0):
                self.other = segment.other
            if rest and not untouched and not self.other:
                self._play(lane, thread, rest, stream)
            else:
                for site in lane.deferred:
                    self._tracks.estimate(stream, site, thread.host_ns, NONE)
            lane.deferred = []
        recorded = segment.score.lanes if segment.score is not None else {}
        unvisited = (lane for ordinal, lane in recorded.items() if ordinal not in segment.lanes and not lane.predicted)
        self._tracks.tally.uncharged_ns += sum(lane.work_ns for lane in unvisited)

    def settle(self, segment: SegmentClaims, thread: HostThread) -> None:
        """In the midst of a phase: charge what the recorded host had launched by now."""
        if self.other:
            return
        for ordinal, lane in {0: segment, **segment.lanes}.items():
            rest = [] if lane.untouched else lane.rest_until(lane.position_ns)
            if rest:
                self._play(lane, thread, rest, self._stream(ordinal))

    def _stream(self, ordinal: int) -> VirtualStream:
        return self._tracks.stream(self._tracks.placed(ordinal), 0)

    def _play(self, segment: SegmentClaims, thread: HostThread, rest: list[int], stream: VirtualStream) -> None:
        if self._strict:
            raise NotExact(f"the rest of phase {segment.name}", (), "recorded but not called")
        self._tracks.put_rest(segment.step, rest, stream, thread.host_ns - segment.position_ns)
