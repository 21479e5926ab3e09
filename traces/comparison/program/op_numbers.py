"""Compares how often two traces call ops.

    similarity(["mm", "relu"], ["mm", "mm", "relu", "relu"], steps=(1, 2))      # 1.0: equally often per step
    other_numbers(ours, theirs, (3, 3))         # "the same ops, called a different number of times: e.g. mm 32x64, ..."
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from typing import TypeVar

import numpy as np

from traces.comparison.program.device_ops import DeviceOp, shape_text
from traces.comparison.thresholds import SAME_NUMBERS
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
    comparable = [[call for call in calls if call.shape or not shaped] for calls in (ours, theirs)]
    a, b = (
        _times_a_step(calls, [(call.canonical, call.shape if shaped else None) for call in calls], number)
        for calls, number in zip(comparable, steps, strict=True)
    )
    each = {key: (a[key], b[key]) for key in a if key in b}
    apart = {key: abs(here - there) for key, (here, there) in each.items()}
    if lone := _lone_ops(ours, theirs, steps):
        return lone
    if sum(apart.values()) <= SAME_NUMBERS * sum(map(max, each.values())):
        return ""
    (name, shape), _ = max(apart.items(), key=lambda item: item[1])
    here, there = each[name, shape]
    called = " ".join(filter(None, (name, shape_text(shape or ()))))
    numbers = f"{called}, per step {_times(here)} in the first trace and {_times(there)} in the second"
    return f"the same ops, called a different number of times: e.g. {numbers}"


def _times_a_step(calls: list[DeviceOp], keys: list[_Counted], steps: int) -> dict[_Counted, float]:
    by_step: dict[int, Counter[_Counted]] = defaultdict(Counter)
    for call, key in zip(calls, keys, strict=True):
        by_step[call.step][key] += 1
    if len(by_step) > 1:
        first = by_step.pop(min(by_step))
        by_step[NONE] = Counter({key: min(count, max(of[key] for of in by_step.values())) for key, count in first.items()})
    whole: Counter[_Counted] = sum(by_step.values(), Counter())
    return {key: count / steps for key, count in whole.items() if count}


def _lone_ops(ours: list[DeviceOp], theirs: list[DeviceOp], steps: tuple[int, int]) -> str:
    a, b = (_times_a_step(calls, [call.canonical for call in calls], n) for calls, n in zip((ours, theirs), steps, strict=True))
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
