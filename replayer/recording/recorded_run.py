"""Indexes a recorded run by step, phase and op.

    recording = RecordedRun.of(trace)
    step = recording.step(0)
    segment = step.segments["forward", 0]
    segment.exact[recording.keys[signature].exact]       # [Instance(start_ns, end_ns, kernels), ...]

Note [Training steps of several kinds]
    Steps can differ: a GAN may train the critic in each step, and the generator in every fifth step. A replayed step takes its
    times from a recorded step with the same numbers of backward passes and optimizer steps. If several steps have these
    numbers, the times come from the steps that are most similar to the recorded step with the same number. Two steps are
    similar if the phases that only one of them has are short. A step that starts the loader's processes, for example, has a
    long phase "other".

Note [Windows of the profiler]
    The recorder profiles further steps after a kind of step has occurred at least twice, for example when a script begins to
    train another network (tracer/schedule.py). A replayed step therefore takes its times from the last window that began at
    most `STEPS_BEFORE_WINDOW` steps after it.

Note [Training steps of several shapes]
    The shapes of a step are not known before the step calls its first op. If the chosen recorded step lacks an op that the
    script calls, and another recorded step has the op with the same shapes and dtypes, the other step provides the times. If no
    recorded step has these shapes, as in a batch of another length, the step with the most similar shapes provides the times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from statistics import median

from replayer.cost_model.constants import (
    ALIKE_SHARE,
    LAUNCH_QUEUE_DEPTH,
    SHORT_KERNEL_NS,
    STEPS_BEFORE_WINDOW,
    TYPICAL_LATENCY_NS,
)
from replayer.cost_model.device_speed import DeviceSpeed, data_sheet_speed, fitted_speed, shortest_kernel_ns
from replayer.cost_model.op_costs import OpCosts, Sample
from replayer.cost_model.op_work import ConvolutionOutputs
from replayer.op_signature import KeptBySignature
from replayer.recording.data_parallel_stages import copy_method_of
from replayer.recording.indexer import RecordingIndexer
from replayer.recording.library_pace import LibraryPace
from replayer.recording.match_keys import RecordedKeys
from replayer.recording.recorded_regions import RecordedRegions, octaves_apart
from replayer.recording.recorded_step import Instance, RecordedStep
from traces.model.layouts import Shape
from traces.model.trace import NONE, DeviceKind, StepKind, Trace
from traces.names.cards import card_of
from traces.rates.op_cost import flops, size_bytes


class RecordedRun:
    """Stores the recorded steps of one rank."""

    def __init__(self, trace: Trace, rank: int, slowdown: float = 1.0) -> None:
        self.trace = trace
        self.slowdown = slowdown
        self.devices = [device for device in trace.devices if device.rank == rank]
        self.steps: list[RecordedStep] = []
        self.first: list[int] = []  # replayed once, in the recorded order
        self.cycle: list[int] = []  # steady steps, replayed in rotation while the script runs
        self.evaluations: list[int] = []
        self._evaluated: list[int] = []
        self._trained: list[int] = []
        self._turns: list[int] = []
        self._alike: dict[tuple[object, ...], list[int]] = {}
        self._windows: list[tuple[int, set[int]]] = []  # index in `_trained` of the first step, and all steps of `cycle`
        self._period = 0  # in training steps, or 0; see Note [Training steps of several kinds]
        self.latency_ns = TYPICAL_LATENCY_NS
        self.copy_method = copy_method_of(trace)
        self.library_pace: LibraryPace | None = None
        self._nearest: dict[tuple[object, ...], list[RecordedStep]] = {}
        self._steps_by_call: dict[tuple[tuple[str, int], str], list[int]] | None = None  # by phase and exact key
        self.match_keys = RecordedKeys(trace)
        self.keys = KeptBySignature(self.match_keys.of_signature)
        self.regions = RecordedRegions.of(trace, rank, self.match_keys, self.keys)
        self.launch_queue_depth = LAUNCH_QUEUE_DEPTH
        self.host_ns: dict[str, int] = {}  # median of `_host_paces` by key of the op's name
        self.usual_host_ns = 0
        self.samples: dict[str, list[tuple[tuple[Shape, ...], str, int]]] = {}
        device_name, settings = self.devices[0].name if self.devices else "", trace.machine_of(rank).settings
        self.speed: DeviceSpeed = data_sheet_speed(device_name)
        self.costs = OpCosts(card_of(device_name), settings)
        self.convolution_outputs = ConvolutionOutputs(())

    @classmethod
    def of(cls, trace: Trace, rank: int = 0, slowdown: float = 1.0) -> RecordedRun:
        """Index the steps of one rank. `slowdown` multiplies the durations of all GPU work except communication."""
        recording = cls(trace, rank, slowdown)
        recording.costs.slowdown = slowdown
        indexer = RecordingIndexer(trace, rank, recording.match_keys, slowdown)
        recording.steps = indexer.recorded_steps()
        recording.latency_ns, recording.launch_queue_depth = indexer.latency_ns, indexer.launch_queue_depth
        recording._choose()
        recording._sample()
        return recording

    def _choose(self) -> None:
        # see Note [Profiled and clean steps] in indexer.py
        kinds: dict[int, list[int]] = {}
        works = [step.has_kernels for step in self.steps]
        all_profiled = any(works) and not any(step.kind == StepKind.PROFILED for step in self.steps)
        for i, step in enumerate(self.steps):
            if all_profiled and not works[i] and step.kind == StepKind.STEADY:
                continue  # the last window of a profiler may have no launches
            kinds.setdefault(step.kind, []).append(i)
        clean, profiled = kinds.get(StepKind.STEADY, []), kinds.get(StepKind.PROFILED, [])
        warmup, evaluations = kinds.get(StepKind.WARMUP, []), kinds.get(StepKind.EVALUATION, [])
        after = kinds.get(StepKind.AFTER_PROFILE, [])
        self._evaluated = evaluations
        self.evaluations = [i for i in evaluations if self.steps[i].has_kernels] or evaluations
        trained = sorted([*clean, *profiled, *warmup, *after])
        self._trained = trained or self.evaluations or list(range(len(self.steps)))
        if profiled and self.trace.grain == "kernel":
            steady = profiled
            for i in warmup:
                if not self.steps[i].has_kernels:
                    alike = self._steps_like(self.steps[i], profiled) or profiled
                    turn = _in_turn(alike, self._trained, self._trained.index(i))
                    self.steps[i] = self.steps[turn].as_slow_as(self.steps[i])
        else:
            steady = clean or after or profiled
        if profiled:
            warmup = [i for i in warmup if i < min(clean + profiled)]
        self.first = sorted([*warmup, *steady]) or self._trained
        self.cycle = steady or self.first
        seen = Counter[tuple[int, int]]()
        for i in self._trained:
            self._turns.append(seen[self.steps[i].passes])
            seen[self.steps[i].passes] += 1
        passes = [self.steps[i].passes for i in self._trained][len(self._trained) // 4 :]
        self._period = next((n for n in range(1, len(passes) // 2 + 1) if passes[n:] == passes[:-n]), 0)

    def step(self, number: int) -> RecordedStep:
        # see Note [Training steps of several kinds]
        first, last = self.first[: -len(self.cycle)], len(self._trained)
        chosen = self.steps[self._at(first, number)]
        if number >= last and not self._period:
            return chosen
        place = number if number < last else last - self._period + (number - last) % self._period
        recorded = self.steps[self._trained[place]]
        passes, alike = recorded.passes, self._in_window(self._steps_like(recorded, self.cycle), place)
        if not alike or len(alike) == len(self.cycle) or (number < len(first) and chosen.passes == passes):
            return chosen
        if number < last and self._trained[number] in alike:
            return recorded
        turn = self._turns[place] - self._turns[self._trained.index(alike[0])]
        if number >= last:
            in_a_period = sum(self.steps[i].passes == passes for i in self._trained[-self._period :])
            turn += ((number - last) // self._period + 1) * in_a_period
        return self.steps[alike[turn % len(alike)]]

    def evaluation(self, number: int) -> RecordedStep:
        """Return a recorded evaluation step, or a recorded training step if no evaluation step was recorded."""
        if not self.evaluations:
            return self.steps[self.cycle[number % len(self.cycle)]]
        recorded = self.steps[self._evaluated[number % len(self._evaluated)]]
        alike = self._steps_like(recorded, self.evaluations) or self.evaluations
        return self.steps[_in_turn(alike, self._evaluated, number)]

    def _in_window(self, alike: list[int], place: int) -> list[int]:
        # see Note [Windows of the profiler]
        if self.steps[self.cycle[0]].kind != StepKind.PROFILED:
            return alike
        if not self._windows:
            profiled = set(self.cycle)
            for i, row in enumerate(self._trained):
                if row in profiled and not (i and self._trained[i - 1] in profiled):
                    self._windows.append((i, set()))
                if row in profiled:
                    self._windows[-1][1].add(row)
        in_windows = [(begins, own) for begins, rows in self._windows if (own := [i for i in alike if i in rows])]
        begun = [own for begins, own in in_windows if begins <= place + STEPS_BEFORE_WINDOW]
        return begun[-1] if begun else in_windows[0][1] if in_windows else alike

    def _steps_like(self, step: RecordedStep, among: list[int]) -> list[int]:
        # see Note [Training steps of several kinds]
        key = among is self.evaluations, step.passes, frozenset(step.segments)
        if key not in self._alike:
            differ_ns = {i: step.differs_by_ns(self.steps[i]) for i in among if self.steps[i].passes == step.passes}
            most_ns = min(differ_ns.values(), default=0) + ALIKE_SHARE * sum(of.lasts_ns for of in step.segments.values())
            self._alike[key] = [i for i, ns in differ_ns.items() if ns <= most_ns]
        return self._alike[key]

    def steps_with(self, step: RecordedStep, place: tuple[str, int], exact: str) -> list[RecordedStep]:
        if self._steps_by_call is None:
            self._steps_by_call = {}
            for i in sorted({*self.cycle, *self.evaluations}):
                for phase, segment in self.steps[i].segments.items():
                    for key in segment.exact:
                        self._steps_by_call.setdefault((phase, key), []).append(i)
        found = [self.steps[i] for i in self._steps_by_call.get((place, exact), ())]
        return [one for one in found if one.kind == step.kind and one.passes == step.passes]

    def nearest_steps(
        self, step: RecordedStep, place: tuple[str, int], named: str, shapes: tuple[Shape, ...]
    ) -> list[RecordedStep]:
        """Return the recorded steps in which a call of an op has the most similar shapes, among steps of the same kind as
        `step`.

        Args:
            place: the phase's name and its number in the step
            named: the op's key in `RecordedSegment.named`
        """
        key = step.kind, step.passes, place, named, shapes
        if key not in self._nearest:
            apart: dict[int, float] = {}
            for i in sorted({*self.cycle, *self.evaluations}):
                one = self.steps[i]
                if (one.kind, one.passes) == (step.kind, step.passes) and (segment := one.segments.get(place)):
                    recorded = {instance.shapes for instance in segment.named.get(named, ())}
                    apart[i] = min((octaves_apart(own, shapes) for own in recorded), default=inf)
            least = min(apart.values(), default=inf)
            self._nearest[key] = [self.steps[i] for i, octaves in apart.items() if octaves == least < inf]
        return self._nearest[key]

    def number_of_kind(self, number: int, evaluation: bool) -> RecordedStep:
        """Return a recorded step by number. A longer replay repeats the recorded steps."""
        return self.evaluation(number) if evaluation else self.steps[self._at(self._trained, number)]

    def number_of(self, step: RecordedStep) -> int:
        return next((i for i, one in enumerate(self.steps) if one is step or one.row == step.row), NONE)

    def _at(self, first: list[int], number: int) -> int:
        return first[number] if number < len(first) else _in_turn(self.cycle, self._trained, number)

    def _sample(self) -> None:
        fit = []
        host_ns: dict[str, list[int]] = {}
        for index in self.cycle[:2]:
            step = self.steps[index]
            for segment in step.segments.values():
                for name, pace_ns in _host_paces(segment.named):
                    host_ns.setdefault(name, []).append(pace_ns)
                for name, instances in segment.named.items():
                    for one in instances:
                        ns = step.work_ns(one.kernels)
                        self.samples.setdefault(name, []).append((one.shapes, one.dtype, ns))
                        is_long = ns > SHORT_KERNEL_NS * len(one.kernels)
                        if is_long and not flops(name.partition("|")[0], one.shapes):
                            fit.append((size_bytes(one.shapes, one.dtype), ns))
        self.host_ns = {name: int(median(times_ns)) for name, times_ns in host_ns.items()}
        self.usual_host_ns = int(median(self.host_ns.values())) if self.host_ns else 0
        device = self.trace.device
        floor_ns = shortest_kernel_ns(device.duration_ns[device.kind == DeviceKind.KERNEL])
        self.speed = fitted_speed(fit, replace(self.speed, floor_ns=floor_ns))
        self.costs.floor_ns = floor_ns
        self.convolution_outputs = ConvolutionOutputs(
            shapes
            for name, samples in self.samples.items()
            if name.startswith("convolution_backward|")
            for shapes, _, _ in samples
        )
        self.costs.learn(self._op_samples())

    def _op_samples(self) -> Iterator[Sample]:
        for name, samples in self.samples.items():
            op, _, inputs = name.partition("|")
            if inputs.partition("|")[2]:
                continue
            for shapes, dtype, ns in samples:
                yield op, shapes, self.convolution_outputs.of(shapes) if op == "convolution" else (), dtype, ns


def _in_turn(chosen: list[int], steps: list[int], number: int) -> int:
    if number < len(steps) and steps[number] in chosen:
        return steps[number]
    # in rotation, so that steps that alternate between two shapes alternate in the replay too
    return chosen[(number - steps.index(chosen[0])) % len(chosen)]


def _host_paces(named: Mapping[str, Sequence[Instance]]) -> Iterator[tuple[str, int]]:
    calls = sorted((one.start_ns, -one.end_ns, name) for name, instances in named.items() for one in instances)
    within: list[list[int]] = [[]]
    open_calls: list[tuple[int, int]] = []
    for row, (start_ns, end_ns, _) in enumerate(calls, start=1):
        while open_calls and open_calls[-1][0] <= start_ns:
            open_calls.pop()
        within[open_calls[-1][1] if open_calls else 0].append(row)
        within.append([])
        open_calls.append((-end_ns, row))
    last_ns = [max(-end_ns - start_ns, 0) for start_ns, end_ns, _ in calls]
    # an op takes the host time until the next op starts; inner ops share the time in proportion to their durations
    paces = [0.0, *last_ns]
    for row, following in pairwise(within[0]):
        paces[row] = calls[following - 1][0] - calls[row - 1][0]
    for row, parts in enumerate(within[1:], start=1):
        total_ns = sum(last_ns[part - 1] for part in parts)
        for part in parts:
            paces[part] = paces[row] * last_ns[part - 1] / total_ns if total_ns else 0.0
    for row, (_, _, name) in enumerate(calls, start=1):
        yield name, int(paces[row])
