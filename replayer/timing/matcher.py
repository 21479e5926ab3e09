"""Which recorded time belongs to which op of the running script.

A `SegmentMatcher` follows one phase segment of the script through the same segment of the recorded step. Each op matches the
next free recorded instance under its keys, through three nets of growing width (exact, equivalent, another shape); what is
left unmatched when the segment ends is the phase's unmatched remainder.

    matches = StepMatcher(score.step(0))
    segment = matches.segment("forward")
    origin, instance = segment.match(signature)      # Origin.EXACT, Instance(...); None if nothing is left

Note [The last time]
    A training script does the same in every step, so a segment remembers with its recorded what each of its calls was given
    when this recorded step was played before. As long as the calls are the same ones, so are the answers, for claiming
    depends on nothing else; at the first other call what was claimed so far is marked, and claiming goes on.

Note [Another program]
    A recording drives other programs too: their ops are scaled from recorded ones of the same names. But then what is left of
    a phase is not theirs under other names, and is not charged, nor is what the recorded host did beside those ops. The forward
    pass tells. Either it calls the same ops fewer times, so that of those names more than a fifth of the recorded work is
    left; or more often, so that there are a fifth more calls of them than were recorded. Another release of the same program
    has other names, but not other numbers of the same ones.

An instance found at another shape is only *lent*: an op that later asks for it exactly still gets it, but it no longer counts
as left over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replayer.op_signature import OpSignature
from replayer.recording.recorded_step import Instance, Match, MatchHistory, RecordedSegment, RecordedStep, RememberedMatch
from traces.model import Origin

if TYPE_CHECKING:
    from replayer.timing.scheduler import HostThread

_FREE, _BORROWED, _MATCHED = 0, 1, 2

# Calls by which one phase of another release may differ at least, however few kernels it has.
_OTHER_NAMES = 64

# Calls of a segment that are remembered; a script that never ends a step stays in one segment for ever.
_REMEMBERED = 100_000


class StepMatcher:
    """What of one recorded step has been played in the replayed step that it drives."""

    def __init__(self, step: RecordedStep) -> None:
        self.step = step
        self.state = bytearray(len(step.kernels))  # per kernel
        self.ended_ns = [0] * len(step.kernels)  # when a played kernel ends on the virtual timeline, for edges
        self.visited: dict[str, int] = {}  # phase -> segments entered so far

    def segment(self, name: str) -> SegmentMatcher:
        """The script enters its next segment of this phase."""
        count = self.visited.get(name, 0)
        self.visited[name] = count + 1
        return SegmentMatcher(self, name, count, self.step.segments.get((name, count)))

    def instead_of(self, other: StepMatcher, under_way: SegmentMatcher | None) -> SegmentMatcher | None:
        """Another step was claimed on so far: the script is where it was in that one. Returns the segment under way."""
        self.visited = dict(other.visited)
        if under_way is None:
            return None
        self.visited[under_way.name] = under_way.count
        segment = self.segment(under_way.name)
        segment.instead_of(under_way)
        return segment

    def unvisited(self) -> list[tuple[RecordedSegment, bool]]:
        """Recorded segments that the script did not enter, and whether it entered others of that phase."""
        return [
            (segment, name in self.visited)
            for (name, count), segment in self.step.segments.items()
            if count >= self.visited.get(name, 0)
        ]


class SegmentMatcher:
    """One segment of the script against its recorded counterpart; `score` is None where the recording has none."""

    def __init__(self, step: StepMatcher, name: str, count: int, recorded: RecordedSegment | None) -> None:
        self.step = step
        self.name = name
        self.count = count  # its how-manieth segment of this name in the step
        self.recorded = recorded
        self.position_ns = 0  # active host time of the recorded segment up to which the script has come
        self.open_ns = recorded.work_ns if recorded else 0  # recorded work that is neither claimed nor lent
        self.deferred: list[OpSignature] = []  # ops without a counterpart, to be covered by the phase's rest
        # More calls than that are not the phase's own kernels under other names: a loop that never ends a step, say.
        self.may_defer = max(_OTHER_NAMES, 2 * len(recorded.kernels)) if recorded else 0
        self.ops = 0
        self.ops_on: dict[int, int] = {}  # by device, where only the phase's time is known
        self.lanes: dict[int, SegmentMatcher] = {}  # on other devices, by ordinal
        self.thread: HostThread | None = None  # of a lane: autograd's, which has a thread per device
        self.other = False  # once the segment is over: it is of another program; see Note [Another program]
        self._settled: list[int] = []  # kernels that were charged before the segment's end without being claimed
        self._cursors: dict[str, int] = {}
        self.memory = recorded.memory if recorded else None  # None: as found out by claiming
        self.followed = 0  # calls of the memory that came again so far
        self._trail: list[RememberedMatch] = []  # calls so far, where there is no memory
        self._whole = True  # the trail holds all that this segment was asked

    @property
    def untouched(self) -> bool:
        """Whether the script has gone through less than half of what was predicted for it, as it does in no replica."""
        recorded = self.recorded
        return recorded is not None and recorded.predicted and 2 * self.open_ns > recorded.work_ns

    def lane(self, ordinal: int) -> SegmentMatcher:
        """The matches of a device: the segment's own where nothing was recorded for that one alone."""
        lane = self.lanes.get(ordinal)
        if lane is None:
            recorded = self.recorded.lanes.get(ordinal) if self.recorded is not None else None
            if recorded is None:
                return self
            lane = self.lanes[ordinal] = SegmentMatcher(self.step, self.name, self.count, recorded)
            lane.position_ns = self.position_ns
        return lane

    def match(self, signature: OpSignature) -> Match | None:
        """Give the op the next instance under its keys (`RecordedRun.keys` has filled them), or None.

        The kernels are marked, not yet played. See Note [The last time].
        """
        if self.memory is not None:
            calls = self.memory.calls
            if self.followed < len(calls) and calls[self.followed].signature is signature:
                remembered = calls[self.followed]
                self.followed += 1
                self.open_ns = remembered.open_ns
                return remembered.match
            self._forget()
        if self.recorded is None or self.recorded.phase_grained:
            return None
        match = self._match(signature, self.recorded)
        if len(self._trail) < _REMEMBERED:
            self._trail.append(RememberedMatch(signature, match, self.open_ns))
        else:
            self._whole = False
        return match

    def follow(self, end: int) -> None:
        """The calls of the memory up to `end` came again."""
        assert self.memory is not None
        self.ops += end - self.followed
        self.followed = end
        self.open_ns = self.memory.calls[end - 1].open_ns

    def instead_of(self, other: SegmentMatcher) -> None:
        """The same calls match here what they claimed there; what they were played as stays."""
        calls = other._trail if other.memory is None else other.memory.calls[: other.followed]
        for remembered in calls:
            self.match(remembered.signature)
        self.position_ns, self.deferred, self.ops, self.ops_on = other.position_ns, other.deferred, other.ops, other.ops_on

    def _forget(self) -> None:
        """The script has left the way it took the last time: mark what it has claimed so far."""
        recorded, memory, self.memory = self.recorded, self.memory, None
        assert recorded is not None and memory is not None
        self.open_ns = recorded.work_ns
        for signature, _, _ in memory.calls[: self.followed]:
            self._trail.append(RememberedMatch(signature, self._match(signature, recorded), self.open_ns))

    def _match(self, signature: OpSignature, recorded: RecordedSegment) -> Match | None:
        assert signature.keys is not None
        exact, equivalent, named = signature.keys
        instance = self._next(recorded.exact.get(exact), exact, _MATCHED)
        if instance is not None:
            return Origin.EXACT, instance
        instance = self._next(recorded.equivalent.get(equivalent), equivalent, _MATCHED)
        if instance is not None:
            return Origin.EQUIVALENT, instance
        instance = self._next(recorded.named.get(named), named, _BORROWED)
        if instance is not None:
            return Origin.SCALED, instance
        return None

    def _next(self, instances: list[Instance] | None, key: str, mark: int) -> Instance | None:
        if instances is None:
            return None
        state = self.step.state
        for i in range(self._cursors.get(key, 0), len(instances)):
            instance = instances[i]
            of = instance.kernels
            if state[of[0]] < mark:
                self._cursors[key] = i + 1
                kernels = self.step.step.kernels
                fresh = [k for k in of if state[k] < mark]
                for k in fresh:
                    if state[k] == _FREE:
                        self.open_ns -= kernels[k].duration_ns
                    state[k] = mark
                return instance if len(fresh) == len(of) else instance._replace(kernels=tuple(fresh))
        self._cursors[key] = len(instances)
        return None

    def unmatched(self) -> list[int]:
        """Take what no op has claimed, in launch order. The segment is over then."""
        if self.recorded is None:
            return []
        if self.memory is not None:
            if self.followed == len(self.memory.calls):
                self.open_ns = 0
                self.other = self.memory.other
                return self.memory.rest
            self._forget()
        self.other = (self.name, self.count) == ("forward", 0) and self._is_other(self.recorded)
        rest = self._take(None)
        if self._whole:
            self.recorded.memory, self.recorded.schedule = MatchHistory(self._trail, rest, self.other), None
        return rest

    def unmatched_until(self, launched_ns: int) -> list[int]:
        """Take what no op has claimed of what the recorded host had launched by then."""
        if self.recorded is None or not self.open_ns:
            return []
        if self.memory is not None:
            self._forget()
        self._whole = False
        taken = self._take(launched_ns)
        self._settled += taken
        return taken

    def _is_other(self, recorded: RecordedSegment) -> bool:
        """See Note [Another program]."""
        answered, beyond = 0, 0
        names = set()
        for signature, match, _ in self._trail:
            if signature.keys is not None and signature.keys.named in recorded.named:
                names.add(signature.keys.named)
                answered += match is not None
                beyond += match is None
        of_names = {kernel for name in names for instance in recorded.named[name] for kernel in instance.kernels}
        state, kernels = self.step.state, self.step.step.kernels
        left = {kernel for kernel in of_names if state[kernel] == _FREE}.union(of_names.intersection(self._settled))
        return 5 * sum(kernels[kernel].duration_ns for kernel in left) > recorded.work_ns or 5 * beyond > answered > 0

    def _take(self, until_ns: int | None) -> list[int]:
        assert self.recorded is not None
        state, kernels = self.step.state, self.step.step.kernels
        taken = []
        for k in self.recorded.kernels:
            if state[k] == _FREE and (until_ns is None or kernels[k].launch_ns <= until_ns):
                state[k] = _MATCHED
                self.open_ns -= kernels[k].duration_ns
                taken.append(k)
        return taken
