"""Plays the script's ops on the virtual timeline: the heart of a replay, from an op to the times of its kernels.

One op, told in a few lines (`play`): which segment of the course is the script in; which recorded instance is this op; move the
host's clock by the recorded time since the last one, or to now if the script is slower than that; put the instance's
kernels on the stream; move on by the op's own recorded time.

Nothing sleeps per kernel. The host is held back only when its virtual present runs too far ahead of the wall clock, and
waits where CUDA waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replayer.clock import Clock
from replayer.course import Course
from replayer.errors import NotExact
from replayer.matching import SegmentClaims
from replayer.score import Score
from replayer.sites import Site
from replayer.streams import VirtualStream
from replayer.tally import Tally
from replayer.tracks import HostThread, Tracks
from traces.model import Origin

if TYPE_CHECKING:
    from replayer.timeline import Timeline

# How far the host's virtual present may run ahead of the wall clock before it is held back, and to what distance. Between two
# points where the host really waits (for the device, for data, at a step's end) nobody can tell, but for a script that
# reads its own clock without synchronising. The distance is what absorbs hiccups of this machine.
_AHEAD_NS = 20_000_000
_HELD_AT_NS = 15_000_000


class Player:
    """Plays one process's ops against a score."""

    def __init__(self, score: Score, clock: Clock, timeline: Timeline, *, strict: bool, pad_loader: bool) -> None:
        self.score = score
        self.clock = clock
        self.timeline = timeline
        self.tally = Tally()
        self.tracks = Tracks(score, clock, timeline, self.tally)
        self.course = Course(score, self.tracks, strict=strict, pad_loader=pad_loader)
        self._strict = strict

    def play(
        self, thread: HostThread, stream: VirtualStream, site: Site, now_ns: int, copy: tuple[int, Origin] | None = None
    ) -> int:
        """Play one op; returns when its work ends on the stream.

        Args:
            now_ns: by the wall clock, when the script called it.
            copy: the estimated duration and its origin, for a copy: used if the recording does not hold it.
        """
        course = self.course
        segment = course.segment
        if segment is None or course.turns[site.phase_class]:
            segment = course.op(thread, site.phase_class, now_ns)
        segment.ops += 1
        tally = self.tally
        tally.ops += 1
        claim = segment.claim(site.keys or self.score.keys(site))
        if claim is None:
            return self._unmatched(thread, stream, site, segment, now_ns, copy)
        origin, instance = claim
        if self._strict and origin is not Origin.EXACT:
            raise NotExact(site.op, site.shapes, origin.name.lower())
        from_ns, to_ns, kernels, _, _ = instance
        start_ns = thread.host_ns
        if from_ns > segment.position_ns:
            start_ns += from_ns - segment.position_ns
        if now_ns > start_ns:
            tally.lag_ns += now_ns - start_ns
            start_ns = now_ns
        room_ns = stream.room_at_ns()
        if room_ns > start_ns:
            start_ns = room_ns
        end_ns = thread.host_ns = start_ns + to_ns - from_ns
        if to_ns > segment.position_ns:
            segment.position_ns = to_ns
        timeline = self.timeline
        row = timeline.op(thread.row, site.strings or timeline.strings_of(site), start_ns, end_ns)
        scale = self.tracks.scale(site, instance) if origin is Origin.SCALED else 1.0
        if end_ns - now_ns > _AHEAD_NS:
            self.tracks.wait(end_ns - _HELD_AT_NS)
        return self.tracks.put(segment.step, kernels, stream, start_ns - from_ns, scale, row, origin)

    def _unmatched(
        self,
        thread: HostThread,
        stream: VirtualStream,
        site: Site,
        segment: SegmentClaims,
        now_ns: int,
        copy: tuple[int, Origin] | None,
    ) -> int:
        """An op without a recorded counterpart: covered by its phase's rest if there is one, else estimated at once."""
        if self._strict:
            raise NotExact(site.op, site.shapes, "nothing recorded")
        score = segment.score
        if score is None:
            thread.host_ns = max(thread.host_ns, now_ns)
        row = self.timeline.op(thread.row, self.timeline.strings_of(site), thread.host_ns, thread.host_ns)
        if score is not None and score.phase_grained:
            return stream.ready_ns  # phase-grained: the phase's device time stands for all its ops
        self.tally.miss(site.op, site.shapes)
        if segment.open_ns > 0 and copy is None and len(segment.deferred) < segment.may_defer:
            segment.deferred.append(site)
            return stream.ready_ns
        thread.host_ns = max(thread.host_ns, stream.room_at_ns())
        return self.tracks.estimate(stream, site, thread.host_ns, row, copy)
