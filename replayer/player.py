"""Plays the script's ops on the virtual timeline: the heart of a replay, from an op to the times of its kernels.

One op, told in a few lines (`play`): which segment of the course is the script in; which recorded instance is this op; move the
host's clock by the recorded time since the last one, or to now if the script is slower than that; put the instance's
kernels on the stream; move on by the op's own recorded time.

Nothing sleeps per kernel. The host is held back only when its virtual present runs too far ahead of the wall clock, and
waits where CUDA waits.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from replayer.clock import Clock
from replayer.course import Course
from replayer.covered import Covered
from replayer.errors import NotExact
from replayer.matching import SegmentClaims
from replayer.passages import LEAST_CALLS, Passage
from replayer.score import Score
from replayer.sites import Site
from replayer.streams import VirtualStream
from replayer.tally import Tally
from replayer.tracks import Caller, HostThread, Tracks
from replayer.transfers import Copy
from traces.model import Column, Origin

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

    def play(self, thread: HostThread, stream: VirtualStream, site: Site, now_ns: int, copy: Copy | None = None) -> int:
        """Play one op; returns when its work ends on the stream.

        Args:
            now_ns: by the wall clock, when the script called it.
            copy: of a copy that involves the host or two devices, what it is and how long it takes by estimate.
        """
        course = self.course
        segment = course.segment
        if segment is None or course.turns[site.phase_class]:
            segment = course.op(thread, site.phase_class, now_ns)
        segment.ops += 1
        if stream.device != self.tracks.home:
            segment, thread = course.rests.lane(segment, thread, stream.device)
        tally = self.tally
        tally.ops += 1
        if site.keys is None:
            self.score.keys(site)
        claim = segment.claim(site)
        if claim is None:
            return self._unmatched(thread, stream, site, segment, now_ns, copy)
        origin, instance = claim
        if self._strict and origin is not Origin.EXACT:
            raise NotExact(site.op, site.shapes, origin.name.lower())
        from_ns, to_ns, kernels, _, _ = instance
        start_ns = thread.host_ns
        if from_ns > segment.position_ns and not course.rests.other:
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
        if copy is not None:
            return self.tracks.put_copy(segment.step, kernels, stream, start_ns - from_ns, scale, row, origin, copy)
        return self.tracks.put(segment.step, kernels, stream, start_ns - from_ns, scale, row, origin)

    def play_all(self, callers: list[Caller], sites: list[Site], called_ns: list[int]) -> None:
        """Play ops in the order in which they were called; those that come as they came the last time, at once.

        The arguments are those of `play`, one entry per op.

        Ops of replicas come mixed. What orders two devices is played by itself (copies, events), so between two turns of the
        course the order on each stream is all that matters.
        """
        turns = self.course.turns
        if callers.count(callers[0]) == len(callers) or any(turns[site.phase_class] for site in sites):
            self._play_in_order(callers, sites, called_ns)
            return
        streams = [caller.stream for caller in callers]
        for stream in dict.fromkeys(streams):
            on = [other is stream for other in streams]
            self._play_in_order(list(compress(callers, on)), list(compress(sites, on)), list(compress(called_ns, on)))

    def _play_in_order(self, callers: list[Caller], sites: list[Site], called_ns: list[int]) -> None:
        at, count = 0, len(sites)
        alike = not self._strict and callers.count(callers[0]) == count
        while at < count:
            played = 0
            if alike and count - at >= LEAST_CALLS:
                played = self._play_again(callers[0], sites, called_ns, at)
            if not played:
                played = 1
                self.play(callers[at].thread, callers[at].stream, sites[at], called_ns[at])
            at += played

    def _play_again(self, caller: Caller, sites: list[Site], called_ns: list[int], at: int) -> int:
        """Play as many ops from `at` on as can be at once; returns how many.

        They are what the segment under way holds next (passages.py), or those of a segment of which only the whole is known.
        """
        course = self.course
        segment = course.segment
        thread, stream = caller.thread, caller.stream
        if segment is not None and stream.device != self.tracks.home:
            segment, thread = course.rests.lane(segment, thread, stream.device)
        if segment is None or segment.score is None:
            return 0
        if segment.score.phase_grained:
            return self._play_covered(thread, stream, segment, sites, called_ns, at)
        if segment.memory is None or not segment.step.step.one_stream:
            return 0
        begin = segment.followed
        if begin >= len(segment.memory.calls):
            return 0
        passage = segment.score.passage
        if passage is None or passage.other != course.rests.other:
            passage = Passage.of(segment.memory.calls, segment.step, self.tracks, course.rests.other)
            segment.score.passage = passage
        if passage.stops[begin] - begin < LEAST_CALLS:
            return 0
        end = passage.reach(begin, sites[at:])
        if end - begin < LEAST_CALLS or segment.position_ns != passage.position_ns[begin]:
            return 0
        if any(turn and passage.classes.find(phase_class, begin, end) >= 0 for phase_class, turn in enumerate(course.turns)):
            return 0
        segment.follow(end)
        segment.position_ns = passage.position_ns[end]
        called = np.fromiter(called_ns[at : at + end - begin], np.int64, end - begin)
        ends_ns = passage.play(begin, end, thread, stream, called, self.tracks)
        ahead_ns = ends_ns[ends_ns - called > _AHEAD_NS]
        if len(ahead_ns):
            self.tracks.wait(int(ahead_ns[-1]) - _HELD_AT_NS)
        return end - begin

    def _play_covered(
        self,
        thread: HostThread,
        stream: VirtualStream,
        segment: SegmentClaims,
        sites: list[Site],
        called_ns: list[int],
        at: int,
    ) -> int:
        """Play the ops from `at` on for which their phase's time stands, at once; returns how many, up to the course's turn."""
        course = self.course
        covered = Covered.next(segment, sites[at:], course.turns, self.timeline)
        count = covered.count
        if not count:
            return 0
        starts_ns: Column | int = thread.host_ns
        if course.rests.other:
            called = np.fromiter(called_ns[at : at + count], np.int64, count)
            starts_ns = np.maximum.accumulate(np.maximum(called, thread.host_ns))
            thread.host_ns = int(starts_ns[-1])
        self.timeline.op_rows(covered.rows(thread.row, starts_ns))
        segment.ops += count
        segment.ops_on[stream.device] = segment.ops_on.get(stream.device, 0) + count
        self.tally.ops += count
        return count

    def _unmatched(
        self,
        thread: HostThread,
        stream: VirtualStream,
        site: Site,
        segment: SegmentClaims,
        now_ns: int,
        copy: Copy | None,
    ) -> int:
        """An op without a recorded counterpart: covered by its phase's rest if there is one, else estimated at once."""
        if self._strict:
            raise NotExact(site.op, site.shapes, "nothing recorded")
        score = segment.score
        if score is None or self.course.rests.other:
            thread.host_ns = max(thread.host_ns, now_ns)
        row = self.timeline.op(thread.row, self.timeline.strings_of(site), thread.host_ns, thread.host_ns)
        if score is not None and score.phase_grained:
            segment.ops_on[stream.device] = segment.ops_on.get(stream.device, 0) + 1
            return stream.ready_ns  # phase-grained: the phase's device time stands for all its ops
        self.tally.miss(site.op, site.shapes)
        of_rest = segment.open_ns > 0 and not self.course.rests.other
        if of_rest and copy is None and len(segment.deferred) < segment.may_defer:
            segment.deferred.append(site)
            return stream.ready_ns
        thread.host_ns = max(thread.host_ns, stream.room_at_ns())
        if thread.host_ns - now_ns > _AHEAD_NS:
            self.tracks.wait(thread.host_ns - _HELD_AT_NS)
        return self.tracks.estimate(stream, site, thread.host_ns, row, copy)
