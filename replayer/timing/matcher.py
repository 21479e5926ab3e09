"""Finds a recorded call for each op of the script.

An EXACT match is a recorded call of the same op with the same shapes and dtype. An EQUIVALENT match is a recorded op with
another name, but the same computation and the same shapes. A SCALED match is a recorded call of the same op with different
shapes.

    matcher = StepMatcher(recording.choice.training(0), recording.keys, histories={})
    segment = matcher.segment("forward")
    origin, instance = segment.match(signature)      # Origin.EXACT, Instance(...); None without a match

Note [Repeated training steps]
    A training script makes the same calls in every step, so matches from the last step are reused. At the first different call,
    matching continues call by call.

Note [Another program]
    At the end of the forward pass, the matcher decides whether the script is the recorded program. Recorded kernels that match
    no op are added to the replay only for the recorded program.

    * SAME_PROGRAM: recorded calls with the same shapes exist for at least `SAME_SHARE` of the ops and of the recorded time. The
      script must not call ops more or less often than recorded for more than `DIFFERENT_COUNT_SHARE` of the time.
    * OTHER_SHAPES: the script runs the same ops with different shapes, such as another batch size.
    * OTHER_PROGRAM: all other scripts. Each op takes the median host time of the recorded ops with its name.

Note [Kernels without an op]
    Profilers of 2020 and 2021 recorded some kernels without the op that launched them. If the script is the recorded program,
    an op without a match may take the time of such a kernel nearby. This requires that the op has launched the same kernel
    elsewhere.

Note [Phases missing from the first step]
    The first step of a script can lack a phase, such as a GAN's update of the generator. If the current phase has no recorded
    call with the op's shapes, another phase with the same name provides the time.

Note [Recorded phases without GPU work]
    In traces that earlier versions imported, an op on the CPU could begin a phase. The replay sees only ops on the GPU. Its
    phases would therefore be paired with the wrong recorded phases. A recorded phase without GPU work is therefore skipped. The
    script's phase is paired with the next recorded phase of the same name that calls the first op of the script's phase.

Note [Loops of varying length]
    A script may repeat ops or phases more often than the recorded step, for example in reinforcement learning. Then all
    recorded calls with the op's shapes may be used up. If the phase also has no other unused kernels, the op takes the time of
    the last such call. An op in an additional phase takes the time of a call in a recorded phase with the same name. Such ops
    do not count as matches when the matcher decides whether the script is the recorded program.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from itertools import islice, takewhile
from math import inf
from typing import NamedTuple

from replayer.cost_model.constants import AGAIN_SHARE, BORROWED_AHEAD, DIFFERENT_COUNT_SHARE, RENAMED_CALLS, SAME_SHARE
from replayer.op_signature import OpSignature
from replayer.recording.recorded_step import LEADING, Instance, MatchKeys, RecordedSegment, RecordedStep
from replayer.timing.host_threads import HostThread
from traces.model.trace import Origin
from traces.model.workload import Sameness
from traces.script.phase_rule import PLAIN, op_class

_FREE, _BORROWED, _MATCHED = 0, 1, 2
_BEFORE_BATCH = {"other", "zero_grad", "optimizer"}

# maximum number of remembered calls per phase; a script that never ends a step stays in one phase
_REMEMBERED = 100_000

Match = tuple[Origin, Instance]


class RememberedMatch(NamedTuple):
    signature: OpSignature
    match: Match | None
    unmatched_ns: int  # recorded GPU time of the phase that no replayed op has taken


class MatchHistory(NamedTuple):
    calls: list[RememberedMatch]
    unmatched: list[int]
    sameness: Sameness | None


Histories = dict[RecordedSegment, MatchHistory]


class StepMatcher:
    def __init__(self, step: RecordedStep, keys: Mapping[OpSignature, MatchKeys], histories: Histories) -> None:
        self.step = step
        self.keys = keys
        self.histories = histories
        self.state = bytearray(len(step.kernels))
        self.of_same_program = False  # True if all forward passes so far match, see Note [Kernels without an op]
        self.ended_ns = [0] * len(step.kernels)  # end time of each played kernel on the virtual timeline
        self.visited: dict[str, int] = {}
        # rows of the recorded steps with the most similar shapes, or None if not yet needed
        self.nearest: list[int] | None = None

    def segment(self, name: str, *, same_workload: bool = True) -> SegmentMatcher:
        count, recorded = self.next(name)
        self.visited[name] = count + 1
        if recorded is not None and recorded.phase_grained and not same_workload:
            recorded = None
        return SegmentMatcher(self, name, count, recorded)

    def next(self, name: str) -> tuple[int, RecordedSegment | None]:
        count = self.visited.get(name, 0) if self.visited or name != "other" else LEADING
        return count, self.step.segments.get((name, count))

    def take_over(self, other: StepMatcher, under_way: SegmentMatcher | None) -> SegmentMatcher | None:
        self.visited = dict(other.visited)
        if under_way is None:
            return None
        self.visited[under_way.name] = under_way.count
        segment = self.segment(under_way.name)
        segment.take_over(under_way)
        return segment

    def find_in_another_phase(self, here: RecordedSegment | None, exact: str, name: str | None = None) -> Instance | None:
        # see Note [Phases missing from the first step]
        for segment in self.step.segments.values():
            if segment is not here and name in (None, segment.name) and (found := segment.exact.get(exact)):
                return found[0]._replace(of_other_phase=True)
        return None

    def pass_over(self, under_way: SegmentMatcher, exact: str) -> None:
        # see Note [Recorded phases without GPU work]
        for (name, count), segment in self.step.segments.items():
            if name == under_way.name and count > under_way.count and exact in segment.exact:
                under_way.count, self.visited[name] = count, count + 1
                under_way.pair_with(segment)
                return

    def following(self) -> list[str]:
        first = 0 if self.visited else LEADING
        return [
            name
            for (name, count), segment in self.step.segments.items()
            if count >= self.visited.get(name, first) and not segment.is_empty
        ]

    def is_before_batch(self, other: SegmentMatcher | None) -> bool:
        """Return True if the recorded step ran ops before its first batch, such as metrics. `other` is the current segment if
        its name is "other"."""
        # see Note [Ops before the batch] in phase_rule.py
        if not self.visited.keys() <= _BEFORE_BATCH:
            return False
        recorded = None if other is None else other.recorded
        if other is None and self.following()[:1] == ["other"]:
            _, recorded = self.next("other")
        segments = [] if recorded is None else [recorded]
        if ("optimizer", 0) in self.step.segments:  # if marks end the recorded steps, these ops are at the end of a step
            at_end = takewhile(lambda of: of.name != "optimizer", reversed(self.step.segments.values()))
            segments += [of for of in at_end if of.name == "other"]
        return any(op_class(key.partition("|")[0]) == PLAIN for of in segments for key in of.exact)

    def unvisited(self) -> list[tuple[RecordedSegment, bool]]:
        return [
            (segment, self.visited.get(name, 0) > 0)  # True if the script has entered a phase with this name
            for (name, count), segment in self.step.segments.items()
            if count >= self.visited.get(name, LEADING)
        ]


class SegmentMatcher:
    def __init__(self, step: StepMatcher, name: str, count: int, recorded: RecordedSegment | None) -> None:
        self.step = step
        self.name = name
        self.count = count
        self.pair_with(recorded)
        self.position_ns = 0  # latest recorded host time (without waits) that a thread has reached

        # ops without a recorded call, with their rows in the timeline; at the end of a phase, they get the unused recorded
        # kernels
        self.deferred: list[tuple[OpSignature, int]] = []
        self.ops = 0
        self.ops_on = Counter[int]()  # number of ops for each device
        self.lanes: dict[int, SegmentMatcher] = {}
        self.thread: HostThread | None = None
        self.sameness: Sameness | None = None
        self.charged_before_ns = 0
        self._charged_early: list[int] = []  # unmatched kernels that were added to the timeline before the segment's end
        self._cursors: dict[str, int] = {}
        self._reached_ns = 0  # host time (without waits) of the latest matched call in the recorded segment
        self._launches_ns: list[int] | None = None
        self.followed = 0
        self._call_log: list[RememberedMatch] = []
        self._log_is_whole = True

    def pair_with(self, recorded: RecordedSegment | None) -> None:
        self.recorded = recorded
        self.may_pass_over = recorded is not None and recorded.is_host_only
        # GPU time of recorded kernels that no op of the script has used
        self.unmatched_ns = recorded.work_ns if recorded else 0
        self.may_defer = max(RENAMED_CALLS, 2 * len(recorded.kernels)) if recorded else 0
        self.history = self.step.histories.get(recorded) if recorded else None

    @property
    def calls(self) -> int:
        return self.followed + len(self._call_log)

    @property
    def mostly_unmatched(self) -> bool:
        recorded = self.recorded
        return recorded is not None and recorded.predicted and 2 * self.unmatched_ns > recorded.work_ns

    def has_as_much_left(self, calls: int) -> bool | None:
        made = self._call_log[calls:] if self.history is None else self.history.calls[calls : self.followed]
        alike = sum(_is_same_shape(call.match) for call in made)
        if self.recorded is None or not made or alike < SAME_SHARE * len(made):
            return None
        used = Counter(self.step.keys[call.signature].named for call in made if call.match is not None)
        needed = AGAIN_SHARE * used.total()
        if self.history is not None:
            return self._follows_as_much(self.history.calls, used, needed)
        state = self.step.state
        left = {key: sum(state[one.kernels[0]] == _FREE for one in self.recorded.named.get(key, ())) for key in used}
        return sum(min(left[key], count) for key, count in used.items()) >= needed

    def _follows_as_much(self, calls: list[RememberedMatch], used: Counter[str], needed: float) -> bool:
        for call in islice(calls, self.followed, None):
            key = self.step.keys[call.signature].named
            if call.match is not None and not call.match[1].of_other_phase and used[key] > 0:
                used[key] -= 1
                needed -= 1
                if needed <= 0:
                    return True
        return False

    def is_same_so_far(self) -> bool:
        made = self._calls_so_far
        return sum(_is_same_shape(call.match) for call in made) >= SAME_SHARE * len(made)

    def lane(self, ordinal: int) -> SegmentMatcher:
        lane = self.lanes.get(ordinal)
        if lane is None:
            recorded = self.recorded.lanes.get(ordinal) if self.recorded is not None else None
            if recorded is None:
                return self
            lane = self.lanes[ordinal] = SegmentMatcher(self.step, self.name, self.count, recorded)
            lane.position_ns = self.position_ns
        return lane

    def advance(self, thread: HostThread, position_ns: int) -> None:
        thread.host_ns += max(position_ns - thread.position_in(self, self.position_ns), 0)
        self.mark_reached(thread, position_ns)

    def mark_reached(self, thread: HostThread, position_ns: int) -> None:
        if position_ns > thread.position_ns:
            thread.position_ns = position_ns
        if position_ns > self.position_ns:
            self.position_ns = position_ns

    def match(self, signature: OpSignature) -> Match | None:
        if self.may_pass_over and not self.calls:
            self.step.pass_over(self, self.step.keys[signature].exact)
        # see Note [Repeated training steps]
        if self.history is not None:
            calls = self.history.calls
            if self.followed < len(calls) and calls[self.followed].signature is signature:
                remembered = calls[self.followed]
                self.followed += 1
                self.unmatched_ns = remembered.unmatched_ns
                return remembered.match
            self._forget()
        if self.recorded is None or self.recorded.phase_grained:
            return None
        match = self._match(signature, self.recorded)
        if len(self._call_log) < _REMEMBERED:
            self._call_log.append(RememberedMatch(signature, match, self.unmatched_ns))
        else:
            self._log_is_whole = False
        return match

    def has_call(self, signature: OpSignature) -> bool:
        if self.recorded is None:
            return False
        if self.history is not None:
            calls = self.history.calls
            if self.followed < len(calls) and calls[self.followed].signature is signature:
                return calls[self.followed].match is not None
            self._forget()
        free = self.recorded.exact.get(self.step.keys[signature].exact, ())
        return any(self.step.state[one.kernels[0]] == _FREE for one in free)

    @property
    def has_rest(self) -> bool:
        return self.unmatched_ns > 0 and len(self.deferred) < self.may_defer

    def used_call(self, signature: OpSignature) -> Instance | None:
        # see Note [Loops of varying length]
        exact, recorded = self.step.keys[signature].exact, self.recorded
        if recorded is not None and recorded.phase_grained:
            return None
        if recorded is not None and (used := recorded.exact.get(exact)):
            return used[-1]._replace(of_other_phase=True)
        return self.step.find_in_another_phase(recorded, exact, self.name)

    def follow(self, end: int) -> None:
        assert self.history is not None
        self.ops += end - self.followed
        self.followed = end
        self.unmatched_ns = self.history.calls[end - 1].unmatched_ns

    @property
    def _calls_so_far(self) -> list[RememberedMatch]:
        return self._call_log if self.history is None else self.history.calls[: self.followed]

    @property
    def latest_match(self) -> Match | None:
        return self._calls_so_far[-1].match

    @property
    def reached_before_latest_ns(self) -> int:
        earlier = (call.match[1] for call in self._calls_so_far[:-1] if call.match is not None)
        return max((one.end_ns for one in earlier if not one.of_other_phase), default=0)

    def fits(self, recorded: RecordedSegment) -> bool:
        keys = (self.step.keys[call.signature] for call in self._calls_so_far if _is_same_shape(call.match))
        return all(key.exact in recorded.exact or key.equivalent in recorded.equivalent for key in keys)

    def take_over(self, other: SegmentMatcher) -> None:
        for remembered in other._calls_so_far:
            self.match(remembered.signature)
        self.position_ns, self.deferred, self.ops, self.ops_on = other.position_ns, other.deferred, other.ops, other.ops_on

    def _forget(self) -> None:
        recorded, history, self.history = self.recorded, self.history, None
        assert recorded is not None and history is not None
        self.unmatched_ns = recorded.work_ns
        for signature, _, _ in history.calls[: self.followed]:
            self._call_log.append(RememberedMatch(signature, self._match(signature, recorded), self.unmatched_ns))

    def _match(self, signature: OpSignature, recorded: RecordedSegment) -> Match | None:
        exact, equivalent, named = self.step.keys[signature]
        instance = self._next(recorded.exact.get(exact), exact, _MATCHED)
        if instance is not None:
            return Origin.EXACT, instance
        instance = self._next(recorded.equivalent.get(equivalent), equivalent, _MATCHED)
        if instance is not None:
            return Origin.EQUIVALENT, instance
        near_ns = self._near_ns(recorded)
        instance = self._without_op(recorded, recorded.named.get(named, []), near_ns)
        if instance is not None:
            return Origin.EQUIVALENT, instance
        instance = self._next(recorded.named.get(named), named, _BORROWED, near_ns)
        same = self.step.find_in_another_phase(recorded, exact, recorded.name)
        if same is not None:
            return Origin.EXACT, same
        return None if instance is None else (Origin.SCALED, instance)

    def _without_op(self, recorded: RecordedSegment, alike: list[Instance], near_ns: float) -> Instance | None:
        # see Note [Kernels without an op]
        if not self.step.of_same_program or not alike or len(recorded.below_ops) == len(recorded.kernels):
            return None
        kernels, state = self.step.step.kernels, self.step.state
        names = {kernels[one.kernels[0]].name for one in alike if len(one.kernels) == 1}
        for k in recorded.kernels:
            kernel = kernels[k]
            if kernel.launch_ns > near_ns:
                return None
            if state[k] == _FREE and kernel.name in names and k not in recorded.below_ops:
                state[k] = _MATCHED
                self.unmatched_ns -= kernel.duration_ns
                self._reached_ns = max(self._reached_ns, kernel.launch_ns)
                return Instance(kernel.launch_ns, kernel.launch_ns, (k,), (), "")
        return None

    def _near_ns(self, recorded: RecordedSegment) -> float:
        if self._launches_ns is None:
            kernels = self.step.step.kernels
            self._launches_ns = sorted(kernels[k].launch_ns for k in recorded.below_ops)
        ahead = bisect_right(self._launches_ns, self._reached_ns) + BORROWED_AHEAD
        return self._launches_ns[ahead] if ahead < len(self._launches_ns) else inf

    def _next(self, instances: list[Instance] | None, key: str, mark: int, near_ns: float = inf) -> Instance | None:
        if instances is None:
            return None
        state = self.step.state
        for i in range(self._cursors.get(key, 0), len(instances)):
            instance = instances[i]
            if instance.start_ns > near_ns:
                return None
            of = instance.kernels
            if state[of[0]] < mark:
                self._cursors[key] = i + 1
                self._reached_ns = max(self._reached_ns, instance.end_ns)
                kernels = self.step.step.kernels
                fresh = [k for k in of if state[k] < mark]
                for k in fresh:
                    if state[k] == _FREE:
                        self.unmatched_ns -= kernels[k].duration_ns
                    state[k] = mark
                return instance if len(fresh) == len(of) else instance._replace(kernels=tuple(fresh))
        self._cursors[key] = len(instances)
        return None

    def unmatched(self) -> list[int]:
        if self.recorded is None:
            return []
        if self.history is not None:
            if self.followed == len(self.history.calls):
                self.unmatched_ns = 0
                self.sameness = self.history.sameness
                return self.history.unmatched
            self._forget()
        if self.name == "forward" and self.recorded.below_ops:
            self.sameness = self._forward_sameness(self.recorded)
        unmatched = self._take(None)
        if self._log_is_whole:
            self.step.histories[self.recorded] = MatchHistory(self._call_log, unmatched, self.sameness)
        return unmatched

    def unmatched_until(self, launched_ns: int) -> list[int]:
        if self.recorded is None or not self.unmatched_ns:
            return []
        if self.history is not None:
            self._forget()
        self._log_is_whole = False
        taken = self._take(launched_ns)
        self._charged_early += taken
        return taken

    def _forward_sameness(self, recorded: RecordedSegment) -> Sameness:
        # see Note [Another program]
        state, work_ns = self.step.state, self.step.step.work_ns
        below_ops = recorded.below_ops.difference(self._charged_early)
        least_ns = SAME_SHARE * work_ns(recorded.below_ops)
        calls = len(self._call_log)
        least_calls = max(calls - max((1 - SAME_SHARE) * calls, 1), 1)
        matched = [call.match[0] for call in self._call_log if call.match is not None]
        if len(matched) < least_calls or work_ns(k for k in below_ops if state[k] != _FREE) < least_ns:
            return Sameness.OTHER_PROGRAM
        alike = sum(origin is not Origin.SCALED for origin in matched)
        if alike < least_calls or work_ns(k for k in below_ops if state[k] == _MATCHED) < least_ns:
            return Sameness.OTHER_SHAPES
        return Sameness.OTHER_SHAPES if self._has_other_counts(recorded) else Sameness.SAME_PROGRAM

    def _has_other_counts(self, recorded: RecordedSegment) -> bool:
        # see Note [Another program]
        state, work_ns = self.step.state, self.step.step.work_ns
        alike: set[str] = set()
        more = renamed = 0
        for call in self._call_log:
            key = self.step.keys[call.signature].equivalent
            if call.match is not None and call.match[0] is not Origin.SCALED:
                alike.add(key)
            elif key in recorded.equivalent:
                more += 1
            else:
                renamed += 1
        left = {k for key in alike for one in recorded.equivalent.get(key, ()) for k in one.kernels if state[k] == _FREE}
        less = len(left) > renamed and work_ns(left) > DIFFERENT_COUNT_SHARE * work_ns(recorded.below_ops)
        return less or more > max(DIFFERENT_COUNT_SHARE * len(self._call_log), 1)

    def _take(self, until_ns: int | None) -> list[int]:
        assert self.recorded is not None
        state, kernels = self.step.state, self.step.step.kernels
        taken = []
        for k in self.recorded.kernels:
            if state[k] == _FREE and (until_ns is None or kernels[k].launch_ns <= until_ns):
                state[k] = _MATCHED
                self.unmatched_ns -= kernels[k].duration_ns
                taken.append(k)
        return taken


def _is_same_shape(match: Match | None) -> bool:
    return match is not None and match[0] is not Origin.SCALED
