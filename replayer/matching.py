"""Which recorded time belongs to which op of the running script.

A `SegmentClaims` follows one phase segment of the script through the same segment of the recorded step. Each op claims the next
unclaimed recorded instance under its keys, through three nets of growing width (exact, equivalent, another shape); what is
left unclaimed when the segment ends is the phase's own rest.

    claims = StepClaims(score.step(0))
    segment = claims.segment("forward")
    origin, instance = segment.claim(score.keys(site))      # Origin.EXACT, Instance(...); None if nothing is left

Note [The last time]
    A training script does the same in every step, so a segment remembers with its score what each of its calls was given
    when this recorded step was played before. As long as the calls are the same ones, so are the answers, for claiming
    depends on nothing else; at the first other call what was claimed so far is marked, and claiming goes on.

An instance found at another shape is only *lent*: an op that later asks for it exactly still gets it, but it no longer counts
as left over.
"""

from __future__ import annotations

from replayer.parts import Claim, Instance, Keys, Memory, Remembered, SegmentScore, StepScore
from replayer.sites import Site
from traces.model import Origin

_FREE, _LENT, _CLAIMED = 0, 1, 2

# Calls by which one phase of another release may differ at least, however few kernels it has.
_OTHER_NAMES = 64

# Calls of a segment that are remembered; a script that never ends a step stays in one segment for ever.
_REMEMBERED = 100_000



class StepClaims:
    """What of one recorded step has been played in the replayed step that it drives."""

    def __init__(self, step: StepScore) -> None:
        self.step = step
        self.state = bytearray(len(step.kernels))  # per kernel
        self.ended_ns = [0] * len(step.kernels)  # when a played kernel ends on the virtual timeline, for edges
        self.visited: dict[str, int] = {}  # phase -> segments entered so far

    def segment(self, name: str) -> SegmentClaims:
        """The script enters its next segment of this phase."""
        count = self.visited.get(name, 0)
        self.visited[name] = count + 1
        return SegmentClaims(self, name, count, self.step.segments.get((name, count)))

    def unvisited(self) -> list[tuple[SegmentScore, bool]]:
        """Recorded segments that the script did not enter, and whether it entered others of that phase."""
        return [
            (segment, name in self.visited)
            for (name, count), segment in self.step.segments.items()
            if count >= self.visited.get(name, 0)
        ]


class SegmentClaims:
    """One segment of the script against its recorded counterpart; `score` is None where the recording has none."""

    def __init__(self, step: StepClaims, name: str, count: int, score: SegmentScore | None) -> None:
        self.step = step
        self.name = name
        self.count = count  # its how-manieth segment of this name in the step
        self.score = score
        self.position_ns = 0  # active host time of the recorded segment up to which the script has come
        self.open_ns = score.work_ns if score else 0  # recorded work that is neither claimed nor lent
        self.deferred: list[Site] = []  # ops without a counterpart, to be covered by the phase's rest
        # More calls than that are not the phase's own kernels under other names: a loop that never ends a step, say.
        self.may_defer = max(_OTHER_NAMES, 2 * len(score.kernels)) if score else 0
        self.ops = 0
        self._cursors: dict[str, int] = {}
        self._memory = score.memory if score else None  # None: as found out by claiming
        self._trail: list[Remembered] = []
        self._whole = True  # the trail holds all that this segment was asked

    def claim(self, keys: Keys) -> Claim | None:
        """Give the op the next instance under its keys, or None. The kernels are marked, not yet played.

        See Note [The last time].
        """
        if self._memory is not None:
            i = len(self._trail)
            calls = self._memory.calls
            if i < len(calls) and calls[i].keys is keys:
                remembered = calls[i]
                self._trail.append(remembered)
                self.open_ns = remembered.open_ns
                return remembered.claim
            self._forget()
        if self.score is None:
            return None
        claim = self._claim(keys, self.score)
        if len(self._trail) < _REMEMBERED:
            self._trail.append(Remembered(keys, claim, self.open_ns))
        else:
            self._whole = False
        return claim

    def _forget(self) -> None:
        """The script has left the way it took the last time: mark what it has claimed so far."""
        self._memory = None
        score, trail, self._trail = self.score, self._trail, []
        assert score is not None
        self.open_ns = score.work_ns
        for keys, _, _ in trail:
            self._trail.append(Remembered(keys, self._claim(keys, score), self.open_ns))

    def _claim(self, keys: Keys, score: SegmentScore) -> Claim | None:
        exact, equivalent, named = keys
        instance = self._next(score.exact.get(exact), exact, _CLAIMED)
        if instance is not None:
            return Origin.EXACT, instance
        instance = self._next(score.equivalent.get(equivalent), equivalent, _CLAIMED)
        if instance is not None:
            return Origin.EQUIVALENT, instance
        instance = self._next(score.named.get(named), named, _LENT)
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

    def rest(self) -> list[int]:
        """Take what no op has claimed, in launch order. The segment is over then."""
        if self.score is None:
            return []
        if self._memory is not None:
            if len(self._trail) == len(self._memory.calls):
                self.open_ns = 0
                return self._memory.rest
            self._forget()
        rest = self._take(None)
        if self._whole:
            self.score.memory = Memory(self._trail, rest)
        return rest

    def rest_until(self, launched_ns: int) -> list[int]:
        """Take what no op has claimed of what the recorded host had launched by then."""
        if self.score is None or not self.open_ns:
            return []
        if self._memory is not None:
            self._forget()
        self._whole = False
        return self._take(launched_ns)

    def _take(self, until_ns: int | None) -> list[int]:
        assert self.score is not None
        state, kernels = self.step.state, self.step.step.kernels
        taken = []
        for k in self.score.kernels:
            if state[k] == _FREE and (until_ns is None or kernels[k].launch_ns <= until_ns):
                state[k] = _CLAIMED
                self.open_ns -= kernels[k].duration_ns
                taken.append(k)
        return taken
