"""Removes sizes that depend on the data from the shapes of ops. For example, a script pads texts to the longest text of a
batch.

    ours, theirs = without_varying_sizes(ours, theirs)      # eq of (8, 40) and eq of (8, 34): both become eq of (8, -1)

Note [Sizes that vary]
    The n-th call of an op in a step is compared with the n-th call of this op in all other steps of both traces. A size depends
    on the data if the size varies among the steps of each trace, and the traces differ only by chance (`op_numbers.apart`). If
    half of the steps of one trace have the same size, such as the batch size, the other trace must have this size, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from traces.comparison.program.device_ops import DeviceOp
from traces.comparison.program.op_numbers import NumbersPerStep, apart
from traces.model.trace import NONE


def without_varying_sizes(ours: Sequence[DeviceOp], theirs: Sequence[DeviceOp]) -> tuple[list[DeviceOp], list[DeviceOp]]:
    # see Note [Sizes that vary]
    found = list(ours), list(theirs)
    rows_of = [_calls_of_each_step(calls) for calls in found]
    for call in rows_of[0].keys() & rows_of[1].keys():
        rows = [of[call] for of in rows_of]
        here, there = ([calls[row] for row in nth] for calls, nth in zip(found, rows, strict=True))
        if len({tuple(map(len, one.shapes)) for one in here + there}) > 1:
            continue
        sizes = (zip(*(chain(*one.shapes) for one in of), strict=True) for of in (here, there))
        vary = [_varies_by_chance(*both) for both in zip(*sizes, strict=True)]
        if not any(vary):
            continue
        largest = here[0].shapes.index(here[0].shape) if here[0].shape in here[0].shapes else 0
        for calls, nth in zip(found, rows, strict=True):
            for row in nth:
                varies = iter(vary)
                shapes = tuple(tuple(NONE if next(varies) else size for size in shape) for shape in calls[row].shapes)
                calls[row] = replace(calls[row], shapes=shapes, shape=shapes[largest])
    return found


def _calls_of_each_step(calls: Sequence[DeviceOp]) -> dict[tuple[str, int], list[int]]:
    """For each op and each n, return the row of the op's n-th call in each step. If the steps do not all call an op equally
    often, the op is left out."""
    steps = {call.step for call in calls}
    rows: dict[str, dict[int, list[int]]] = defaultdict(lambda: {step: [] for step in steps})
    for row, call in enumerate(calls):
        if call.shapes:
            rows[call.canonical][call.step].append(row)
    alike = {op: by_step.values() for op, by_step in rows.items() if len({len(of) for of in by_step.values()}) == 1}
    return {(op, n): list(nth) for op, of in alike.items() for n, nth in enumerate(zip(*of, strict=True))}


def _varies_by_chance(ours: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    here, there = (NumbersPerStep.of(sizes, len(sizes)) for sizes in (ours, theirs))
    if not (here.variance and there.variance) or apart(here, there):
        return False
    usual = [{size for size, count in Counter(sizes).items() if 2 * count >= len(sizes)} for sizes in (ours, theirs)]
    return usual[0] <= there.numbers and usual[1] <= here.numbers
