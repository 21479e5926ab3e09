"""Names the phases of each step, so that steps with and without the profiler can be compared phase by phase.

    labels = PhaseLabels(trace, {("backward", 3)})
    labels.texts[labels.of[row]]    # "backward#2/3": row is the second of the three phases "backward" of its step

Note [Several phases with one name]
    A step may have several phases with one name, for example two backward passes in a GAN, and their host times differ. If most
    steps have the same number of these phases, each one has its own correction factor. For example, "backward#2/3" is the
    second of three backward passes, and "backward" stands for all others. Waits for data are not numbered, because their
    lengths vary at random. Phases of evaluation steps have other host times than phases of training steps, so their labels
    begin with "evaluation". Note [Backward passes in a row] in measure.py explains when several phases count as one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np

from traces.comparison.thresholds import MOST_NUMBERED_PHASES
from traces.figures.measure import joined_phases
from traces.model.row_order import differs
from traces.model.trace import Column, StepKind, Trace

LOADER = "loader"  # time in this phase is either CPU work or waiting for a batch
OF_EVALUATION = "evaluation "  # prefix of labels for phases of evaluation steps, if the script also trains
LOADERS = LOADER, OF_EVALUATION + LOADER

NameAndCount = tuple[str, int]  # the name of a phase, and how often a step runs this phase


class PhaseLabels:
    def __init__(self, trace: Trace, numbered: Collection[NameAndCount] = ()) -> None:
        (names, _), (place, count), evaluates = joined_phases(trace), _occurrences(trace), _of_evaluation(trace)
        is_numbered = np.zeros(len(names), dtype=bool)
        for name, usual in numbered:
            is_named = names == trace.strings.find(name.removeprefix(OF_EVALUATION))
            is_numbered |= is_named & (evaluates == name.startswith(OF_EVALUATION)) & (count == usual)
        columns = np.stack((names, evaluates, place * is_numbered, count * is_numbered))
        found, self.of = np.unique(columns, axis=1, return_inverse=True)
        self.of = self.of.reshape(-1)
        named, of_evaluation, places, counts = found.tolist()
        self.phases = [trace.strings[name] for name in named]
        self.names = [OF_EVALUATION * own + name for own, name in zip(of_evaluation, self.phases, strict=True)]
        numbers = zip(self.names, places, counts, strict=True)
        self.texts = [f"{name}#{own}/{among}" if own else name for name, own, among in numbers]
        self.ids = {text: row for row, text in enumerate(self.texts)}


def common_counts(trace: Trace, profiled: Column, clean: Column) -> set[NameAndCount]:
    """Return the usual number of times that a step runs each phase, for example ("backward", 3)."""
    phases, (names, begins), (place, count) = trace.phases, joined_phases(trace), _occurrences(trace)
    evaluates, found = bool(_of_evaluation(trace)[np.isin(phases.step, profiled)].any()), set()
    for name in np.unique(names).tolist():
        firsts = begins & (names == name) & (place == 1)
        counts = [_usual_count(count[firsts & np.isin(phases.step, of)].tolist(), len(of)) for of in (profiled, clean)]
        if counts[0] == counts[1] and 1 <= counts[0] <= MOST_NUMBERED_PHASES and trace.strings[name] != LOADER:
            found.add((OF_EVALUATION * evaluates + trace.strings[name], counts[0]))
    return found


def counts_in(keys: Iterable[str]) -> set[NameAndCount]:
    """Return each repeated phase with its number of repetitions. For example, the label "backward#2/3" (the second of three
    backward phases) gives ("backward", 3)."""
    found = (re.fullmatch(r"(.+)#[0-9]+/([0-9]+)", key) for key in keys)
    return {(key[1], int(key[2])) for key in found if key}


def _occurrences(trace: Trace) -> tuple[Column, Column]:
    phases, (names, begins) = trace.phases, joined_phases(trace)
    order = np.lexsort((phases.start_ns, names, phases.step))
    is_first = differs(phases.step[order], names[order])
    group, firsts = np.cumsum(is_first) - 1, np.flatnonzero(is_first)
    begun = np.cumsum(begins[order])
    place, count = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    place[order] = begun - begun[firsts][group] + 1
    count[order] = np.bincount(group, begins[order], 1).astype(np.int64)[group]
    return place, count


def _of_evaluation(trace: Trace) -> Column:
    evaluates = trace.steps.kind == StepKind.EVALUATION
    return np.append(evaluates & ~evaluates.all(), False)[trace.phases.step]


def _usual_count(counts: list[int], steps: int) -> int:
    count, times = Counter(counts).most_common(1)[0] if counts else (0, 0)
    return count if 2 * times > steps else 0
