"""Names the phases of each step, so that steps with and without the profiler can be compared phase by phase.

    labels = PhaseLabels(trace, {("backward", 3)})
    labels.texts[labels.of[row]]    # "backward#2/3": row is the second of the three phases "backward" of its step

Note [Several phases with one name]
    A step may have several phases with one name, for example two backward passes in a GAN, and their host times differ. If most
    steps have the same number of these phases, each one has its own correction factor. For example, "backward#2/3" is the
    second of three backward passes, and "backward" stands for all others. Waits for data are not numbered, because their
    lengths vary at random.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np

from traces.comparison.thresholds import MOST_NUMBERED_PHASES
from traces.model.row_order import differs
from traces.model.trace import Column, Trace

LOADER = "loader"  # time in this phase is either CPU work or waiting for a batch

NameAndCount = tuple[str, int]  # of the phases of one step


class PhaseLabels:
    def __init__(self, trace: Trace, numbered: Collection[NameAndCount] = ()) -> None:
        phases, (place, count) = trace.phases, _occurrences(trace)
        is_numbered = np.zeros(len(phases), dtype=bool)
        for name, usual in numbered:
            is_numbered |= (phases.name == trace.strings.find(name)) & (count == usual)
        place, count = place * is_numbered, count * is_numbered
        _, firsts, self.of = np.unique(np.stack((phases.name, place, count)), axis=1, return_index=True, return_inverse=True)
        self.of = self.of.reshape(-1)
        self.names = [trace.strings[name] for name in phases.name[firsts].tolist()]
        numbers = zip(self.names, place[firsts].tolist(), count[firsts].tolist(), strict=True)
        self.texts = [f"{name}#{own}/{among}" if own else name for name, own, among in numbers]
        self.ids = {text: row for row, text in enumerate(self.texts)}


def common_counts(trace: Trace, profiled: Column, clean: Column) -> set[NameAndCount]:
    """Return the usual number of times that a step runs each phase, for example ("backward", 3)."""
    phases, (place, count) = trace.phases, _occurrences(trace)
    found = set()
    for name in np.unique(phases.name).tolist():
        firsts = (phases.name == name) & (place == 1)
        counts = [_usual_count(count[firsts & np.isin(phases.step, of)].tolist(), len(of)) for of in (profiled, clean)]
        if counts[0] == counts[1] and 1 <= counts[0] <= MOST_NUMBERED_PHASES and trace.strings[name] != LOADER:
            found.add((trace.strings[name], counts[0]))
    return found


def counts_in(keys: Iterable[str]) -> set[NameAndCount]:
    """Return each repeated phase with its number of repetitions. For example, the label "backward#2/3" (the second of three
    backward phases) gives ("backward", 3)."""
    found = (re.fullmatch(r"(.+)#[0-9]+/([0-9]+)", key) for key in keys)
    return {(key[1], int(key[2])) for key in found if key}


def _occurrences(trace: Trace) -> tuple[Column, Column]:
    phases = trace.phases
    order = np.lexsort((phases.start_ns, phases.name, phases.step))
    is_first = differs(phases.step[order], phases.name[order])
    group, firsts = np.cumsum(is_first) - 1, np.flatnonzero(is_first)
    place, count = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    place[order] = np.arange(len(order)) - firsts[group] + 1
    count[order] = np.bincount(group, minlength=1)[group]
    return place, count


def _usual_count(counts: list[int], steps: int) -> int:
    count, times = Counter(counts).most_common(1)[0] if counts else (0, 0)
    return count if 2 * times > steps else 0
