"""The script's course through phases and steps, beside the recording's.

A segment of the script that ends is brought up to its recorded counterpart: what no op has claimed of the recorded device
time is charged, in launch order, and the host's clock moves on by what is left of the recorded host time.

    course.enter(thread, "backward")
    course.leave(thread, "backward")
    course.end_step(thread)
"""

from __future__ import annotations

from replayer.errors import NotExact
from replayer.matching import SegmentClaims, StepClaims
from replayer.score import Score
from replayer.tracks import HostThread, Tracks
from traces.model import NONE, DeviceKind, Origin, StepKind
from traces.phases import ASIDE, LOSS, PLAIN, PhaseCut


class Course:
    """Where the script is: `step` holds the claims on the recorded step that drives it, `segment` those on its phase."""

    def __init__(self, score: Score, tracks: Tracks, *, strict: bool, pad_loader: bool) -> None:
        self._score = score
        self._tracks = tracks
        self._strict = strict
        self._pad_loader = pad_loader
        self._cut = PhaseCut()
        self.step = StepClaims(score.step(0))
        self.segment: SegmentClaims | None = None
        self.turns = (True, True, True)  # by class of op: whether such an op would begin another segment
        self._number = 0
        self._step_start_ns = NONE
        self._done: list[tuple[str, int, int, int, int, int]] = []  # the step's ended segments
        self._begun_ns = self._begun_device_ns = 0
        self._wall_ns = tracks.clock.now_ns()  # when the step's own host work began
        self._loader_ns = 0
        self._ops_in: dict[tuple[str, int], int] = {}  # ops per segment, from the step before

    def op(self, thread: HostThread, phase_class: int, now_ns: int) -> SegmentClaims:
        """An op is called where `turns` says that it begins another segment: that segment.

        `now_ns` is when it was called, by the wall clock; it may be played later.
        """
        began = self._cut.op(phase_class, thread.host_ns)
        self._look()
        if began:
            self._turn(thread, now_ns)
        segment = self.segment
        if segment is None:  # the first op after a step that ended within a phase entered by name
            segment = self._begin(thread, self._cut.current or "other")
        return segment

    def _look(self) -> None:
        self.turns = self._cut.turns(PLAIN), self._cut.turns(LOSS), self._cut.turns(ASIDE)

    def enter(self, thread: HostThread, name: str) -> None:
        """The script enters a phase by name."""
        began = self._cut.enter(name, thread.host_ns)
        self._look()
        if not began:
            return
        if name == "loader" and not self._number and not any(done[0] == "backward" for done in self._done):
            self._restart(thread)  # what came before the first batch was set-up, not part of the first step
        self._turn(thread, self._tracks.clock.now_ns())

    def leave(self, thread: HostThread, name: str) -> None:
        """The script leaves a phase by name; without effect unless it is the one under way."""
        if not (self._cut.inside and self._cut.current == name):
            return
        if name == "loader":
            self._leave_loader(thread)
        self._cut.leave(name, thread.host_ns)
        self._look()

    def _leave_loader(self, thread: HostThread) -> None:
        """Waiting for data is real, so none of the recorded wait is charged; with `pad_loader` the shorter is made up for."""
        segment, ended_ns = self.segment, self._tracks.clock.now_ns()
        self._loader_ns += ended_ns - self._begun_ns
        if segment is not None and segment.score is not None:
            segment.position_ns = segment.score.host_ns
            due_ns = self._begun_ns + segment.score.host_ns
            if self._pad_loader and due_ns > ended_ns:
                self._tracks.wait(due_ns)
                ended_ns = due_ns
        thread.host_ns = max(thread.host_ns, ended_ns)

    def _turn(self, thread: HostThread, now_ns: int) -> None:
        """One segment ends and another begins."""
        self._finish(thread, now_ns)
        self._begin(thread, self._cut.current)

    def _begin(self, thread: HostThread, name: str) -> SegmentClaims:
        if name == "loader":  # from here on the script's own time is real
            self._tracks.wait(thread.host_ns)
        self.segment = self.step.segment(name)
        self._begun_ns = thread.host_ns
        self._begun_device_ns = self._tracks.mark(thread.host_ns)
        if self._step_start_ns == NONE and name != "other":
            self._step_start_ns = thread.host_ns
            self._tracks.tally.restart()
            self._done.clear()
        return self.segment

    def _restart(self, thread: HostThread) -> None:
        self._finish(thread, self._tracks.clock.now_ns())
        self.step = StepClaims(self._score.step(0))
        self._tracks.tally.restart()
        self._step_start_ns = NONE
        self._done.clear()

    def _finish(self, thread: HostThread, now_ns: int) -> None:
        """The segment under way ends: charge what is left of it, on the device and on the host."""
        segment, self.segment = self.segment, None
        if segment is None:
            return
        tracks, score = self._tracks, segment.score
        due_ns = thread.host_ns
        if score is not None:
            self._charge_rest(thread, segment)
            if score.phase_grained:  # its host time includes waiting for the device
                due_ns = max(due_ns, self._begun_ns + score.host_ns)
            else:
                due_ns += max(score.host_ns - segment.position_ns, 0)
        if now_ns > due_ns and score is not None:
            tracks.tally.lag_ns += now_ns - due_ns
        thread.host_ns = max(due_ns, now_ns)
        self._ops_in[segment.name, segment.count] = segment.ops
        mark_ns = tracks.mark(thread.host_ns)
        origin = Origin.PHASE if score is not None and score.phase_grained else Origin.EXACT
        self._done.append((segment.name, self._begun_ns, thread.host_ns, self._begun_device_ns, mark_ns, int(origin)))

    def _charge_rest(self, thread: HostThread, segment: SegmentClaims) -> None:
        """What no op claimed of a segment's recorded device time, in launch order; the ops it stands for cost nothing more."""
        score = segment.score
        assert score is not None
        if score.phase_grained:
            self._top_up(segment, 1.0)
            return
        rest = segment.rest()
        if rest:
            self._play_rest(thread, segment, rest)
        else:
            for site in segment.deferred:
                self._tracks.estimate(self._tracks.stream(0, 0), site, thread.host_ns, NONE)
        segment.deferred = []

    def _play_rest(self, thread: HostThread, segment: SegmentClaims, rest: list[int]) -> None:
        if self._strict:
            raise NotExact(f"the rest of phase {segment.name}", (), "recorded but not called")
        began_ns = thread.host_ns - segment.position_ns
        self._tracks.put_rest(self.step, rest, self._tracks.stream(0, 0), began_ns)

    def _top_up(self, segment: SegmentClaims, share: float) -> None:
        """Bring a phase-grained segment's device time up to `share` of the recorded duration."""
        score = segment.score
        if score is None:
            return
        stream = self._tracks.stream(0, 0)
        start_ns = max(stream.ready_ns, self._begun_device_ns)
        duration_ns = self._begun_device_ns + int(score.device_ns * share) - start_ns
        if duration_ns > 0:
            end_ns = stream.push(start_ns, 0, 0, duration_ns)
            name = self._tracks.timeline.strings.add(score.name)
            self._tracks.log(stream, DeviceKind.KERNEL, name, end_ns, duration_ns, NONE, NONE, Origin.PHASE)

    def settle(self, thread: HostThread) -> None:
        """Before the host looks at the device in the midst of a phase: charge what the recorded host had launched by now.

        In a phase-grained recording that is the share of ops so far among those of the step before.
        """
        segment = self.segment
        if segment is None or segment.score is None:
            return
        if not segment.score.phase_grained:
            rest = segment.rest_until(segment.position_ns)
            if rest:
                self._play_rest(thread, segment, rest)
            return
        expected = self._ops_in.get((segment.name, segment.count), 0)
        self._top_up(segment, min(segment.ops / expected, 1.0) if expected else 1.0)

    def end_step(self, thread: HostThread) -> None:
        """The first optimizer's step has returned: the step ends here."""
        tracks = self._tracks
        self._finish(thread, tracks.clock.now_ns())
        self._cut.close(thread.host_ns)
        self._look()
        self._charge_unvisited(thread)
        tracks.wait(thread.host_ns)
        first_ns = self._done[0][1] if self._done else thread.host_ns
        for done in self._done:
            tracks.timeline.phase(*done)
        self._done.clear()
        # The first one learns plans, as a GPU's first one tunes and loads kernels.
        kind = StepKind.WARMUP if self._number == 0 else StepKind.STEADY
        start_ns = self._step_start_ns if self._step_start_ns != NONE else first_ns
        tracks.timeline.step(self._number, start_ns, thread.host_ns, kind, self.step.step.row)
        self._step_start_ns = thread.host_ns
        self._count()
        self._number += 1
        self.step = StepClaims(self._score.step(self._number))

    def _charge_unvisited(self, thread: HostThread) -> None:
        """Recorded segments that the script did not enter: more of a phase it has are charged, other phases are not."""
        for score, name_visited in self.step.unvisited():
            if name_visited:
                self._begin(thread, score.name)
                self._finish(thread, self._tracks.clock.now_ns())
            else:
                self._tracks.tally.uncharged_ns += score.work_ns or score.device_ns

    def _count(self) -> None:
        tally, now_ns = self._tracks.tally, self._tracks.clock.now_ns()
        tally.end_step(now_ns - self._wall_ns - tally.waited_ns - self._loader_ns, keep=self._number > 0)
        self._wall_ns = now_ns
        self._loader_ns = 0

    def stop(self, thread: HostThread) -> None:
        """The script ends: a step under way is dropped, and the host waits for the device as a process does at exit."""
        if self.segment is not None or self._number:
            self._tracks.block(thread, self._tracks.mark(thread.host_ns))
        self.segment = None
