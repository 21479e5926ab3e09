"""Compares how often two traces call ops.

    similarity(["mm", "relu"], ["mm", "mm", "relu", "relu"], steps=(1, 2))      # 1.0: equally often per step
    other_numbers(ours, theirs, (3, 3))         # "the same ops, called a different number of times: e.g. mm 32x64, ..."
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from math import sqrt
from typing import NamedTuple, TypeVar

import numpy as np

from traces.comparison.program.device_ops import DeviceOp, shape_text
from traces.comparison.thresholds import SAME_NUMBERS
from traces.model.row_order import lists_by_key
from traces.model.trace import NONE, Column

_Counted = TypeVar("_Counted", bound=Hashable)


def step_counts(recorded_steps: Column, other_steps: Column) -> tuple[int, int]:
    return max(len(np.unique(recorded_steps)), 1), max(len(np.unique(other_steps)), 1)  # a replay may repeat a step


def similarity(ours: Iterable[Hashable], theirs: Iterable[Hashable], steps: tuple[int, int]) -> float:
    a, b = Counter(ours), Counter(theirs)
    common = sum(min(a[key] / steps[0], b[key] / steps[1]) for key in a)
    whole = a.total() / steps[0] + b.total() / steps[1]
    return 2 * common / whole if whole else 0.0


def other_numbers(ours: list[DeviceOp], theirs: list[DeviceOp], steps: tuple[int, int]) -> str:
    shaped = all(any(call.shape for call in calls) for calls in (ours, theirs))
    comparable = ([call for call in calls if call.shape or not shaped] for calls in (ours, theirs))
    keys = (((call.step, (call.canonical, call.shape if shaped else None)) for call in calls) for calls in comparable)
    if lone := _lone_ops(ours, theirs, steps):
        return lone
    a, b = map(_calls_by_step, keys)
    if (differs := numbers_apart(a, b, steps)) is None:
        return ""
    (name, shape), times = differs
    called = " ".join(filter(None, (name, shape_text(shape or ()))))
    return f"the same ops, called a different number of times: e.g. {called}, {times}"


def numbers_apart(
    ours: dict[int, Counter[_Counted]], theirs: dict[int, Counter[_Counted]], steps: tuple[int, int]
) -> tuple[_Counted, str] | None:
    """Compare how often two traces call each op. The arguments map each step to the number of calls. If the numbers differ too
    much, return the op that differs most, and a text with both numbers."""
    a, b = (_times_a_step(calls, number) for calls, number in zip((ours, theirs), steps, strict=True))
    differences = {key: apart(a[key], b[key]) for key in a if key in b}
    if sum(differences.values()) <= SAME_NUMBERS * sum(max(a[key].mean, b[key].mean) for key in differences):
        return None
    key = max(differences, key=lambda of: differences[of])
    return key, f"per step {_times(a[key].mean)} in the first trace and {_times(b[key].mean)} in the second"


class NumbersPerStep(NamedTuple):
    """Describes a number that each step of a trace has, such as how often the step calls an op, or the size of a tensor."""

    mean: float
    variance: float  # variance of the numbers, divided by the number of steps
    numbers: frozenset[int]

    @classmethod
    def of(cls, numbers: Sequence[int], steps: int) -> NumbersPerStep:
        """`numbers` may leave out zeros. `steps` is the number of steps."""
        mean = sum(numbers) / steps
        variance = sum(number * number for number in numbers) / steps - mean * mean
        return cls(mean, max(variance, 0.0) / steps, frozenset(numbers))


def apart(here: NumbersPerStep, there: NumbersPerStep) -> float:
    """Return the difference between the means, or 0 if the means may differ by chance. The numbers may depend on the data, so
    the means of two short traces may differ by chance. If a number occurs in both traces, the difference is therefore reduced
    by two standard errors, but not below 0."""
    chance = 2 * sqrt(here.variance + there.variance) if here.variance and there.variance else 0.0
    difference = abs(here.mean - there.mean)
    return max(difference - chance, 0.0) if here.numbers & there.numbers else difference


def _calls_by_step(calls: Iterable[tuple[int, _Counted]]) -> dict[int, Counter[_Counted]]:
    by_step: dict[int, Counter[_Counted]] = defaultdict(Counter)
    for step, key in calls:
        by_step[step][key] += 1
    return by_step


def _times_a_step(by_step: dict[int, Counter[_Counted]], steps: int) -> dict[_Counted, NumbersPerStep]:
    by_step = dict(by_step)
    if len(by_step) > 1:
        first = by_step.pop(min(by_step))
        by_step[NONE] = Counter({key: min(count, max(of[key] for of in by_step.values())) for key, count in first.items()})
    numbers = lists_by_key((key, count) for of in by_step.values() for key, count in of.items() if count)
    return {key: NumbersPerStep.of(counts, steps) for key, counts in numbers.items()}


def _lone_ops(ours: list[DeviceOp], theirs: list[DeviceOp], steps: tuple[int, int]) -> str:
    by_step = (_calls_by_step((call.step, call.canonical) for call in calls) for calls in (ours, theirs))
    a, b = (
        {name: of.mean for name, of in _times_a_step(calls, number).items()}
        for calls, number in zip(by_step, steps, strict=True)
    )
    # A short trace may not contain the ops that the script rarely calls.
    sides = (a, b, steps[1]), (b, a, steps[0])
    lone = [{name: count for name, count in x.items() if name not in y and count * n >= 1} for x, y, n in sides]
    here, there = (sum(counts.values()) for counts in lone)
    if abs(here - there) <= SAME_NUMBERS * max(sum(a.values()), sum(b.values())):
        return ""
    counts, where = (lone[0], "first") if here > there else (lone[1], "second")
    name = max(counts, key=lambda of: counts[of])
    return f"nearly the same ops, but {name} only in the {where} trace, {_times(counts[name])} per step"


def _times(count: float) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count:.3g} times"
