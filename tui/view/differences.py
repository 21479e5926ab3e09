"""Where two traces differ most: what `n` and `N` walk through and the table of differences lists, the largest first.

    found = differences(scene)
    found[0].what, found[0].total_ns        # "longer", 4_100_000: in all steps together, of the second trace's time
    found[0].rows                           # the occurrence that differs most: rows of the two device tables

The same difference in several steps is one: kernels of one name, op and phase that are longer, shorter, gone, new or run as
another kernel; kernels before which the device is idle for longer; phases that take the host longer. Waits for data, warm-up
and incomplete steps are left out unless asked for: of these no replay is like its recording.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.counterparts import SAME_SHARE, Counterparts, KernelChange, same_order
from traces.intervals import Intervals
from traces.measure import launch_phases, op_of, work_rows
from traces.model import NONE, Column, StepKind, Trace
from tui.figures import counted, time_text
from tui.view.alignment import ANCHOR_NS
from tui.view.scene import TABLE_ROWS, Scene, short_name

_WORDS = {
    KernelChange.LONGER: "longer",
    KernelChange.SHORTER: "shorter",
    KernelChange.OTHER_KERNEL: "another kernel",
    KernelChange.GONE: "gone",
    KernelChange.NEW: "new",
}
_LEAST_PHASE_NS = 20_000  # a phase of the host that differs by less is noise


@dataclass(frozen=True)
class Difference:
    """`pair` and `rows` are of the occurrence that differs most: its pair of steps, and the rows of both traces' tables, NONE
    where one has none. `times_ns` are the two times that it compares, idle times where `what` is a wait."""

    what: str
    table: str  # "device" or "phases"
    name: str
    other_name: str  # of another kernel; else ""
    op: str
    phase: str
    count: int
    steps: int
    total_ns: int
    pair: int
    rows: tuple[int, int]
    times_ns: tuple[int, int]

    @property
    def sentence(self) -> str:
        """First how much, for a narrow line cuts the rest: "+6.0 µs, 2 times in 2 steps: sgemm (mm) is longer: ..." """
        at = ", ".join(part for part in (short_name(self.op) if self.op else "", self.phase) if part)
        name = short_name(self.name) + (f" ({at})" if at else "")
        a, b = map(time_text, self.times_ns)
        said = {
            "gone": f"{name} is gone: {a}",
            "new": f"{name} is new: {b}",
            "another kernel": f"{name} became {short_name(self.other_name)}: {a} → {b}",
            "waits longer": f"the GPU is idle for longer before {name}: {a} → {b}",
            "waits less": f"the GPU is idle for less before {name}: {a} → {b}",
            "phase longer": f"{self.name} takes the host longer: {a} → {b}",
            "phase shorter": f"{self.name} takes the host less: {a} → {b}",
        }.get(self.what, f"{name} is {self.what}: {a} → {b}")
        often = f", {counted(self.count, 'time')} in {counted(self.steps, 'step')}" if self.count > 1 else ""
        return f"{time_text(self.total_ns, signed=True)}{often}: {said}"


def differences(scene: Scene, *, everything: bool = False) -> tuple[Difference, ...]:
    """All that differs, the largest first, at most TABLE_ROWS; empty until counterparts are known. `everything`: waits for data
    and warm-up as well."""
    found = scene.counterparts
    if found is None:
        return ()
    chosen = np.zeros(len(scene.step_pairs) or 1, dtype=bool)
    chosen[compared_pairs(scene, everything=everything)] = True
    all_of_them = [
        *_of_kernels(scene, found, chosen, everything),
        *_of_waits(scene, found, chosen, everything),
        *_of_phases(scene, chosen, everything),
    ]
    return tuple(sorted(all_of_them, key=lambda one: (-abs(one.total_ns), one.name))[:TABLE_ROWS])


def compared_pairs(scene: Scene, *, everything: bool = False) -> list[int]:
    """The pairs of steps that both traces have; without warm-up and incomplete ones, unless there are no others or they are
    asked for. Of traces without steps the one pair of everything."""
    if not scene.step_pairs:
        return [0]
    odd = (StepKind.WARMUP, StepKind.INCOMPLETE)
    both = [n for n, pair in enumerate(scene.step_pairs) if NONE not in pair]
    clean = [
        n
        for n in both
        if not any(int(trace.steps.kind[row]) in odd for trace, row in zip(scene.traces, scene.step_pairs[n], strict=True))
    ]
    return both if everything or not clean else clean


def _of_kernels(scene: Scene, found: Counterparts, chosen: Column, everything: bool) -> list[Difference]:
    places = np.flatnonzero((found.change != KernelChange.SAME) & chosen[found.step])
    facts = [_Launchers(trace) for trace in scene.traces]
    own = np.where(found.first[places] != NONE, 0, 1)  # whose kernel it is called after
    rows = np.where(own == 0, found.first[places], found.second[places])
    keys = [of(rows * (own == side)) for side in (0, 1) for of in (facts[side].phase, facts[side].op, facts[side].name)]
    phase, op, name = (np.where(own == 0, ours, theirs) for ours, theirs in zip(keys[:3], keys[3:], strict=True))
    is_other = found.change[places] == KernelChange.OTHER_KERNEL
    became = np.where(is_other, facts[1].name(np.maximum(found.second[places], 0)), NONE)
    made = []
    for group in _groups(found.change[places], own, phase, op, name, became):
        of = places[group]
        largest = of[np.argmax(np.abs(found.change_ns[of]))]
        side, row = int(own[group[0]]), int(rows[group[0]])
        trace = scene.traces[side]
        phase_name = facts[side].phase_text(row)
        if phase_name == "loader" and not everything:
            continue
        pair = int(found.first[largest]), int(found.second[largest])
        times = [int(t.device.duration_ns[r]) if r != NONE else 0 for t, r in zip(scene.traces, pair, strict=True)]
        made.append(
            Difference(
                what=_WORDS[KernelChange(int(found.change[largest]))],
                table="device",
                name=trace.strings[int(trace.device.name[row])],
                other_name=scene.traces[1].strings[int(became[group[0]])],
                op=facts[side].op_text(row),
                phase=phase_name,
                count=len(of),
                steps=len(np.unique(found.step[of])),
                total_ns=int(found.change_ns[of].sum()),
                pair=int(found.step[largest]),
                rows=pair,
                times_ns=(times[0], times[1]),
            )
        )
    return made


def _of_waits(scene: Scene, found: Counterparts, chosen: Column, everything: bool) -> list[Difference]:
    """Kernels before which the devices of the first rank are idle for longer or shorter than before their counterparts."""
    order = same_order(found, *scene.traces)
    order = order[chosen[found.step[order]]]
    idle = [
        _idle_before(trace, rows[order], found.step[order], [pair[side] for pair in scene.step_pairs], everything)
        for side, (trace, rows) in enumerate(zip(scene.traces, (found.first, found.second), strict=True))
    ]
    change_ns = idle[1] - idle[0]
    places = np.flatnonzero(np.abs(change_ns) > ANCHOR_NS)
    facts = _Launchers(scene.traces[0])
    rows = found.first[order[places]]
    made = []
    for group in _groups(change_ns[places] > 0, facts.phase(rows), facts.op(rows), facts.name(rows)):
        of = places[group]
        largest = of[np.argmax(np.abs(change_ns[of]))]
        at, row = order[largest], int(rows[group[0]])
        made.append(
            Difference(
                what="waits longer" if change_ns[largest] > 0 else "waits less",
                table="device",
                name=scene.traces[0].strings[int(scene.traces[0].device.name[row])],
                other_name="",
                op=facts.op_text(row),
                phase=facts.phase_text(row),
                count=len(of),
                steps=len(np.unique(found.step[order[of]])),
                total_ns=int(change_ns[of].sum()),
                pair=int(found.step[at]),
                rows=(int(found.first[at]), int(found.second[at])),
                times_ns=(int(idle[0][largest]), int(idle[1][largest])),
            )
        )
    return made


def _idle_before(trace: Trace, rows: Column, pair: Column, steps: list[int], everything: bool) -> Column:
    """How long the devices of the first rank did nothing between the kernel before, at first the beginning of the step, and
    each of these, which are in order; without the time in which the script waited for data, unless `everything`."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    spans = trace.device
    work = work_rows(trace)
    ranks = np.array([device.rank for device in trace.devices])
    work = work[ranks[spans.device[work]] == ranks[spans.device[rows[0]]]]
    taken = [Intervals(spans.start_ns[work], spans.end_ns[work])]
    if not everything:
        loader = np.flatnonzero(trace.phases.name == trace.strings.find("loader"))
        taken = [
            Intervals(
                np.concatenate([taken[0].start_ns, trace.phases.start_ns[loader]]),
                np.concatenate([taken[0].end_ns, trace.phases.end_ns[loader]]),
            )
        ]
    begin = spans.start_ns[rows]
    before = np.concatenate([begin[:1], spans.end_ns[rows[:-1]]])
    first = np.ones(len(rows), dtype=bool)
    first[1:] = pair[1:] != pair[:-1]
    if steps:
        before[first] = trace.steps.start_ns[np.array(steps)[pair[first]]]
    before = np.minimum(before, begin)
    return np.asarray(begin - before - taken[0].within(before, begin))


def _of_phases(scene: Scene, chosen: Column, everything: bool) -> list[Difference]:
    """Phases by name that take the host longer or shorter, of traces whose host times compare."""
    first, second = scene.traces
    if first.phase_timing is not second.phase_timing or not scene.step_pairs:
        return []
    segments = [_segments(trace) for trace in scene.traces]
    of_name: dict[str, list[tuple[int, int, int]]] = {}
    for pair in np.flatnonzero(chosen).tolist():
        ours, theirs = (segments[side].get(scene.step_pairs[pair][side], {}) for side in (0, 1))
        for key in ours.keys() & theirs.keys():
            of_name.setdefault(key[0], []).append((pair, ours[key], theirs[key]))
    made = []
    for name, rows in of_name.items():
        numbers, a, b = (np.array(column) for column in zip(*rows, strict=True))
        times = first.phases.duration_ns[a], second.phases.duration_ns[b]
        change_ns = times[1] - times[0]
        unlike = np.flatnonzero(np.abs(change_ns) > np.maximum(SAME_SHARE * times[0], _LEAST_PHASE_NS))
        if not len(unlike) or (name == "loader" and not everything):
            continue
        largest = unlike[np.argmax(np.abs(change_ns[unlike]))]
        made.append(
            Difference(
                what="phase longer" if change_ns[unlike].sum() > 0 else "phase shorter",
                table="phases",
                name=name,
                other_name="",
                op="",
                phase=name,
                count=len(unlike),
                steps=len(np.unique(numbers[unlike])),
                total_ns=int(change_ns[unlike].sum()),
                pair=int(numbers[largest]),
                rows=(int(a[largest]), int(b[largest])),
                times_ns=(int(times[0][largest]), int(times[1][largest])),
            )
        )
    return made


def _segments(trace: Trace) -> dict[int, dict[tuple[str, int], int]]:
    """The rows of each step's phases, by name and the 0-based index among its segments of that name."""
    found: dict[int, dict[tuple[str, int], int]] = {}
    for row, (step, name) in enumerate(zip(trace.phases.step.tolist(), trace.phases.name.tolist(), strict=True)):
        own = found.setdefault(step, {})
        text = trace.strings[name]
        own[text, sum(key[0] == text for key in own)] = row
    return found


class _Launchers:
    """What launched the device spans of a trace; names are numbers of its strings."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._phase, self._op = launch_phases(trace), op_of(trace)

    def phase(self, rows: Column) -> Column:
        return _named(self._trace.phases.name, self._phase, rows)

    def op(self, rows: Column) -> Column:
        return _named(self._trace.host.name, self._op, rows)

    def name(self, rows: Column) -> Column:
        return np.asarray(self._trace.device.name[rows]) if len(self._trace.device) else np.full(len(rows), NONE)

    def phase_text(self, row: int) -> str:
        return self._trace.strings[int(self.phase(np.array([row]))[0])]

    def op_text(self, row: int) -> str:
        return self._trace.strings[int(self.op(np.array([row]))[0])]


def _named(names: Column, launched_in: Column, rows: Column) -> Column:
    if not len(names) or not len(launched_in):
        return np.full(len(rows), NONE)
    found = launched_in[rows]
    return np.where(found >= 0, names[found], NONE)


def _groups(*keys: Column) -> list[Column]:
    """The places of equal combinations of keys."""
    if not len(keys[0]):
        return []
    order = np.lexsort(keys)
    fresh = np.zeros(len(order), dtype=bool)
    for key in keys:
        fresh[1:] |= key[order][1:] != key[order][:-1]
    return np.split(order, np.flatnonzero(fresh))
