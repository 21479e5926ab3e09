"""Chooses a recorded step for each step of a replay.

    choice = StepChoice(recorded_steps, trace.grain)
    choice.training(0)          # the recorded step for the first training step of a replay
    choice.evaluation(0)        # the recorded step for the first evaluation step
    choice.of_values(0, evaluation=False)       # the recorded step that provides the value of `loss.item()`

Note [Training steps of several kinds]
    Steps can differ: a GAN may train the critic in each step, and the generator in every fifth step. A replayed step takes its
    times from a recorded step with the same numbers of backward passes and optimizer steps. Several recorded steps may have
    these numbers. In this case, the replay uses the steps that are most similar to the recorded step with the same number. Two
    steps are similar if all phases that occur in only one of the steps are short. A step that starts the loader's processes,
    for example, has a long phase "other". If at least half of the similar steps have exactly the same phases, only these steps
    provide times. A step in which an epoch ends, for example, has an additional phase. If only a few profiled steps have the
    same phases as the steps without the profiler, they may be unusual: only the profiler sees a copy inside `aten::index`.

Note [Steps that resemble no profiled step]
    The recorder profiles few steps. A recorded step may have long phases that no profiled step has: for example, a script may
    save pictures in some training steps, or load all batches in its first evaluation step. The phases of such a step take the
    recorded host times.

Note [Windows of the profiler]
    If a script begins a new kind of step, for example with another network, the recorder profiles such steps after at least two
    of them (tracer/schedule.py). A replayed step therefore takes its times from the last profile that began at most
    `STEPS_BEFORE_WINDOW` steps after it, and from the steps of earlier profiles that call the same ops with the same shapes.

Note [Training steps of several shapes]
    The shapes of a step are not known before the step calls its first op. The chosen recorded step may lack an op that the
    script calls. If another recorded step has this op with the same shapes and dtypes in the same phase, the other step
    provides the times. This also applies if the chosen step lacks the phase. If no recorded step has these shapes, the step
    with the most similar shapes provides the times. This happens, for example, if a batch has another length.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from itertools import chain
from math import inf

from replayer.cost_model.constants import ALIKE_SHARE
from replayer.recording.recorded_regions import octaves_apart
from replayer.recording.recorded_step import RecordedStep
from traces.comparison.thresholds import STEPS_BEFORE_WINDOW
from traces.model.layouts import Shape
from traces.model.row_order import lists_by_key
from traces.model.trace import StepKind


class StepChoice:
    def __init__(self, steps: list[RecordedStep], grain: str) -> None:
        self._steps = steps
        self._alike: dict[tuple[object, ...], list[int]] = {}
        self._nearest: dict[tuple[object, ...], list[RecordedStep]] = {}
        self._slowed: dict[int, RecordedStep] = {}
        # see Note [Profiled and clean steps] in indexer.py
        works = [step.has_kernels for step in steps]
        all_profiled = any(works) and not any(step.kind == StepKind.PROFILED for step in steps)
        # a profiler's last window may contain no kernel launches
        kept = [i for i, step in enumerate(steps) if not all_profiled or works[i] or step.kind != StepKind.STEADY]
        kinds = lists_by_key((steps[i].kind, i) for i in kept)
        clean, profiled = kinds.get(StepKind.STEADY, []), kinds.get(StepKind.PROFILED, [])
        warmup, evaluations = kinds.get(StepKind.WARMUP, []), kinds.get(StepKind.EVALUATION, [])
        after = kinds.get(StepKind.AFTER_PROFILE, [])
        self._evaluated = evaluations  # all evaluation steps; the replay uses only the steps in `_evaluations`
        self._evaluations = [i for i in evaluations if self._steps[i].has_kernels] or evaluations
        trained = sorted([*clean, *profiled, *warmup, *after])
        self._trained = trained or self._evaluations or list(range(len(steps)))
        if profiled and grain == "kernel":
            steady = profiled
            for i in warmup:
                if not self._steps[i].has_kernels:
                    alike = self._steps_like(self._steps[i], profiled) or profiled
                    turn = _in_turn(alike, self._trained, self._trained.index(i))
                    self._steps[i] = self._steps[turn].as_slow_as(self._steps[i])
        else:
            steady = clean or after or profiled
        if profiled:
            warmup = [i for i in warmup if i < min(clean + profiled)]
        first = sorted([*warmup, *steady]) or self._trained
        self.cycle = steady or first  # the replay repeats these steps in rotation
        self._first = first[: -len(self.cycle)]  # the replay runs these steps once before `cycle`, in the recorded order
        self._turns: list[int] = []  # for each step in `_trained`, the number of earlier steps with the same passes
        seen = Counter[tuple[int, int]]()
        for i in self._trained:
            self._turns.append(seen[self._steps[i].passes])
            seen[self._steps[i].passes] += 1
        passes = [self._steps[i].passes for i in self._trained][len(self._trained) // 4 :]
        # number of training steps after which the kinds of steps repeat, or 0; see Note [Training steps of several kinds]
        self._period = next((n for n in range(1, len(passes) // 2 + 1) if passes[n:] == passes[:-n]), 0)

    def training(self, number: int) -> RecordedStep:
        chosen = self._similar(number)
        return self._with_long_phases(chosen, self._trained[number]) if number < len(self._trained) else chosen

    def _similar(self, number: int) -> RecordedStep:
        # see Note [Training steps of several kinds]
        last = len(self._trained)
        chosen = self._steps[self._at(self._first, number)]
        if number >= last and not self._period:
            return chosen
        place = number if number < last else last - self._period + (number - last) % self._period
        recorded = self._steps[self._trained[place]]
        passes, alike = recorded.passes, self._in_window(self._steps_like(recorded, self.cycle), place)
        if not alike or len(alike) == len(self.cycle) or (number < len(self._first) and chosen.passes == passes):
            return chosen
        if number < last and self._trained[number] in alike:
            return recorded
        turn = self._turns[place] - self._turns[self._trained.index(alike[0])]
        if number >= last:
            in_a_period = sum(self._steps[i].passes == passes for i in self._trained[-self._period :])
            turn += ((number - last) // self._period + 1) * in_a_period
        return self._steps[alike[turn % len(alike)]]

    def evaluation(self, number: int) -> RecordedStep:
        if not self._evaluations:
            return self._steps[self.cycle[number % len(self.cycle)]]
        i = self._evaluated[number % len(self._evaluated)]
        if i in self._slowed:
            return self._slowed[i]
        alike = self._steps_like(self._steps[i], self._evaluations) or self._evaluations
        return self._with_long_phases(self._steps[_in_turn(alike, self._evaluated, number)], i)

    def _with_long_phases(self, chosen: RecordedStep, i: int) -> RecordedStep:
        # see Note [Steps that resemble no profiled step]
        recorded = self._steps[i]
        is_similar = recorded.more_phases_ns(chosen) <= ALIKE_SHARE * recorded.lasts_ns
        if is_similar or recorded.kind == StepKind.WARMUP or recorded.passes != chosen.passes:
            return chosen
        if i not in self._slowed:
            self._slowed[i] = chosen.as_slow_as(recorded)
        return self._slowed[i]

    def _in_window(self, alike: list[int], place: int) -> list[int]:
        # see Note [Windows of the profiler]
        if not alike or self._steps[self.cycle[0]].kind != StepKind.PROFILED:
            return alike
        begins = self._window_begins
        last = ([i for i in alike if begins[i] <= place + STEPS_BEFORE_WINDOW] or alike[:1])[-1]
        return [i for i in alike if begins[i] == begins[last] or (i < last and self._ops[i] == self._ops[last])]

    @cached_property
    def _ops(self) -> dict[int, int]:
        """Number the profiled steps. Steps that call the same ops with the same shapes get the same number."""
        numbers = dict[frozenset[str], int]()
        called = {i: frozenset(chain.from_iterable(of.exact for of in self._steps[i].segments.values())) for i in self.cycle}
        return {i: numbers.setdefault(ops, len(numbers)) for i, ops in called.items()}

    @cached_property
    def _window_begins(self) -> dict[int, int]:
        profiled, begins = set(self.cycle), dict[int, int]()
        for place, i in enumerate(self._trained):
            if i in profiled:
                begins[i] = begins.get(self._trained[place - 1], place)
        return begins

    def _steps_like(self, step: RecordedStep, among: list[int]) -> list[int]:
        # see Note [Training steps of several kinds]
        key = among is self._evaluations, step.passes, tuple(step.segments)
        if key not in self._alike:
            differ_ns = {i: step.differs_by_ns(self._steps[i]) for i in among if self._steps[i].passes == step.passes}
            most_ns = min(differ_ns.values(), default=0) + ALIKE_SHARE * step.lasts_ns
            alike = [i for i, ns in differ_ns.items() if ns <= most_ns]
            same = [i for i in alike if not differ_ns[i]]
            self._alike[key] = same if 2 * len(same) >= len(alike) else alike
        return self._alike[key]

    def steps_with(self, step: RecordedStep, place: tuple[str, int], exact: str) -> list[RecordedStep]:
        found = [self._steps[i] for i in self._steps_by_call.get((place, exact), ())]
        return [one for one in found if one.kind == step.kind and one.passes == step.passes]

    @cached_property
    def _steps_by_call(self) -> dict[tuple[tuple[str, int], str], list[int]]:
        steps = sorted({*self.cycle, *self._evaluations})
        segments = ((i, *of) for i in steps for of in self._steps[i].segments.items())
        return lists_by_key(((phase, key), i) for i, phase, segment in segments for key in segment.exact)

    def nearest_steps(
        self, step: RecordedStep, place: tuple[str, int], named: str, shapes: tuple[Shape, ...]
    ) -> list[RecordedStep]:
        """Find the recorded steps in which the op's shapes are most similar to `shapes`."""
        key = step.kind, step.passes, place, named, shapes
        if key not in self._nearest:
            apart: dict[int, float] = {}
            for i in sorted({*self.cycle, *self._evaluations}):
                one = self._steps[i]
                if (one.kind, one.passes) == (step.kind, step.passes) and (segment := one.segments.get(place)):
                    recorded = {instance.shapes for instance in segment.named.get(named, ())}
                    apart[i] = min((octaves_apart(own, shapes) for own in recorded), default=inf)
            least = min(apart.values(), default=inf)
            self._nearest[key] = [self._steps[i] for i, octaves in apart.items() if octaves == least < inf]
        return self._nearest[key]

    def of_values(self, number: int, evaluation: bool) -> RecordedStep:
        """Return the recorded step whose values `loss.item()` and similar calls return in the current step of the replay."""
        return self.evaluation(number) if evaluation else self._steps[self._at(self._trained, number)]

    def _at(self, first: list[int], number: int) -> int:
        return first[number] if number < len(first) else _in_turn(self.cycle, self._trained, number)


def _in_turn(chosen: list[int], steps: list[int], number: int) -> int:
    if number < len(steps) and steps[number] in chosen:
        return steps[number]
    # Keep the recorded order of steps, because steps with short and long inputs may alternate.
    return chosen[(number - steps.index(chosen[0])) % len(chosen)]
