"""Makes the tables of the timeline app, such as the tables of kernels and steps.

    table = table_of(scene, "kernels")
    table.columns[1], table.rows[0].values     # Head("change", Unit.CHANGE), ("volta_sgemm_nn", 1200, ...): values, not texts

With two traces, each time is a mean per step, excluding warm-up steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from traces.analyses.idle import REASONS
from traces.comparison.changed_ops import step_weights
from traces.figures.pace import pace_intervals
from traces.model.trace import NONE, Column, Trace
from tui.formatting import Head, Unit, Value, side_by_side
from tui.text.analyses import PHASE_TIMES
from tui.view.differences import compared_pairs
from tui.view.range_sums import range_sums
from tui.view.scene.axis import Axis
from tui.view.scene.difference import Difference
from tui.view.scene.scene import Scene
from tui.view.scene.short_names import short_name
from tui.view.scene.totals import Totals, kernel_totals, op_totals
from tui.view.scene.tracks import rows_by_key
from tui.view.tables.analysis_rows import TABS_OF_ANALYSES, table_of_analysis
from tui.view.tables.parts import TableRow, TabTable
from tui.view.timeline.ruler import step_name

TABS = ("differences", "kernels", "ops", "phases", "steps", "collectives", *TABS_OF_ANALYSES, "range")


def table_of(
    scene: Scene,
    tab: str,
    found: Sequence[Difference] = (),
    axis: Axis | None = None,
    range_ns: tuple[int, int] | None = None,
) -> TabTable:
    if not scene.has_figures:
        return TabTable([Head("")], [], "computing the figures ...")
    if tab == "range":
        if axis is None or range_ns is None:
            return TabTable([Head("")], [], "no range selected: press v to begin one, the arrows to extend it, v to end it")
        return _stretch(scene, axis, *sorted(range_ns))
    if tab in TABS_OF_ANALYSES:
        return table_of_analysis(scene, tab)
    if tab == "differences":
        return _differences(scene, found)
    table = _MADE[tab](scene)
    return table._replace(note="" if table.rows else f"no {tab} are recorded")


def _differences(scene: Scene, found: Sequence[Difference]) -> TabTable:
    heads = [Head("#", Unit.COUNT), Head("what"), Head("change", Unit.CHANGE), Head("name"), Head("op"), Head("phase")]
    heads += [Head("times", Unit.COUNT), Head("steps", Unit.COUNT)]
    if len(scene.traces) < 2:
        return TabTable(heads, [], "one trace has no differences")
    rows = [
        TableRow(
            (n, one.what, one.total_ns, short_name(one.name), short_name(one.op), one.phase, one.count, one.steps),
            difference=one,
        )
        for n, one in enumerate(found, 1)
    ]
    return TabTable(heads, rows, "" if rows else "no differences; waits for data and warm-up are excluded (W includes them)")


def compared_totals(scene: Scene, of: Callable[[Trace, Column], dict[str, Totals]]) -> list[dict[str, Totals]]:
    pairs, two = compared_pairs(scene), len(scene.traces) == 2
    steps = [[scene.step_pairs[n][side] for n in pairs] if two and scene.step_pairs else [] for side in range(2)]
    weights = [step_weights(trace, np.array(own, np.int64)) for trace, own in zip(scene.traces, steps, strict=False)]
    return [of(trace, weight) for trace, weight in zip(scene.traces, weights, strict=True)]


def _work(scene: Scene, of: Callable[..., dict[str, Totals]], what: str, table: str) -> TabTable:
    found = compared_totals(scene, of)
    whole = sum(total.total_ns for total in found[0].values()) or 1
    times = [Head(word, Unit.TIME) for word in ("mean", "min", "max")]
    figures = [Head("GPU time", Unit.TIME), Head("calls", Unit.COUNT), *times]
    sides: list[dict[str, tuple[Value, ...]]] = [
        {key: (one.total_ns or None, one.calls, one.mean_ns, one.least_ns, one.most_ns) for key, one in own.items()}
        for own in found
    ]
    shown = side_by_side("", what, figures, sides, scene.words)
    share = 2 if len(found) == 1 else 4  # column of the percentage of GPU time
    rows = []
    for key, *values in shown.rows:
        both = [own.get(str(key)) for own in found]
        side, one = next((side, one) for side, one in enumerate(both) if one is not None)
        time_ns = next((one.total_ns for one in both if one is not None and one.total_ns), 0.0)
        values.insert(share - 1, time_ns / whole)
        rows.append((time_ns, TableRow((short_name(one.name), *values), one.name, table, side)))
    rows.sort(key=lambda row: -row[0])
    heads = [*shown.heads[:share], Head("%", Unit.SHARE), *shown.heads[share:]]
    return TabTable(heads, [row for _, row in rows])


def _phases(scene: Scene) -> TabTable:
    if scene.comparison is None:
        heads = [Head("phase"), *(Head(word, Unit.TIME) for word in PHASE_TIMES.values())]
        own = scene.summary.phases.items()
        rows = [TableRow((name, *(getattr(of, f"{key}median_ns") for key in PHASE_TIMES)), name, "phases") for name, of in own]
        return TabTable(heads, rows)
    heads = [Head("phase")]
    for word in PHASE_TIMES.values():
        heads += [Head(word, Unit.TIME), Head("→", Unit.TIME), Head("change", Unit.CHANGE)]
    rows = []
    for name, error in scene.comparison.phases.items():
        values: list[Value] = [name]
        for key in PHASE_TIMES:
            ours, theirs = (getattr(error, f"{key}{side}_median_ns") for side in ("recorded", "replayed"))
            values += [ours, theirs, None if None in (ours, theirs) else theirs - ours]
        rows.append(TableRow(tuple(values), name, "phases", 0 if error.recorded_median_ns else 1))
    return TabTable(heads, rows)


def _steps(scene: Scene) -> TabTable:
    kinds = ("", "warm-up", "evaluation", "profiled", "incomplete", "after a profile")
    rows = []
    intervals = [pace_intervals(trace) for trace in scene.traces]
    for number, pair in enumerate(scene.step_pairs):
        both = list(zip(scene.traces, pair, strict=False))
        times: list[Value] = [int(of[row]) if row != NONE else None for of, row in zip(intervals, pair, strict=False)]
        own = [kinds[int(trace.steps.kind[row])] for trace, row in both if row != NONE]
        kind = " ".join(dict.fromkeys(filter(None, own)))
        if len(times) == 2:
            a, b = times
            times.append(b - a if isinstance(a, int) and isinstance(b, int) else None)
        rows.append(TableRow((step_name(scene, number), *times, kind), step=number))
    heads = [Head("lasts", Unit.TIME)]
    if len(scene.traces) == 2:
        heads = [*(Head(word, Unit.TIME) for word in scene.words), Head("change", Unit.CHANGE)]
    return TabTable([Head("step"), *heads, Head("kind")], rows)


def _collectives(scene: Scene) -> TabTable:
    rows = []
    for side, trace in enumerate(scene.traces):
        spans = trace.collectives
        every = np.arange(len(spans))
        for (name, size, ranks), same in rows_by_key(every, spans.name, spans.bytes, spans.group_size):
            own = spans.duration_ns[same]
            figures = int(own.sum()), len(own), float(own.mean()), int(own.min()), int(own.max())
            known = (None if size == NONE else size), (None if ranks == NONE else ranks)
            text = trace.strings[name]
            rows.append(TableRow((text, scene.words[side], *known, *figures), text, "collectives", side))
    heads = [Head("collective"), Head("trace"), Head("bytes", Unit.BYTES), Head("ranks", Unit.COUNT), Head("total", Unit.TIME)]
    heads += [Head("calls", Unit.COUNT), *(Head(word, Unit.TIME) for word in ("mean", "min", "max"))]
    rows.sort(key=lambda row: -float(row.values[4] or 0))
    return TabTable(heads, rows)


def _stretch(scene: Scene, axis: Axis, begin_ns: int, end_ns: int) -> TabTable:
    sides = range_sums(scene, axis, begin_ns, end_ns)
    two = len(sides) == 2
    rows = []

    of_devices = [of.length_ns * of.devices for of in sides]

    def add(
        what: str, name: str, times: Sequence[float | None], counts: Sequence[float | None], table: str = "",
        lengths: Sequence[int] = of_devices,
    ) -> None:  # fmt: skip
        values: list[Value] = [what, short_name(name), *times]
        if two:
            values.append((times[1] or 0) - (times[0] or 0))
        shares = [t / whole if t is not None and whole else None for t, whole in zip(times, lengths, strict=True)]
        side = next((n for n, time_ns in enumerate(times) if time_ns is not None), 0)
        rows.append(TableRow((*values, *shares, *counts), name, table, side))

    nothing = [None] * len(sides)
    if any(of_devices):
        add("", "GPU busy", [of.busy_ns for of in sides], nothing)
        add("", "GPU idle", [of.idle_ns for of in sides], nothing)
    for reason, label in REASONS.items():
        times = [of.idle_by_reason[reason] for of in sides]
        if any(times):
            add("idle", label, times, nothing)
    of_ranks = [of.length_ns * len(trace.ranks) for of, trace in zip(sides, scene.traces, strict=True)]
    for what, table, found, lengths in (
        ("phase", "phases", [of.phases for of in sides], of_ranks),
        ("kind", "", [of.kinds for of in sides], of_devices),
        ("kernel", "device", [of.kernels for of in sides], of_devices),
        ("op", "", [of.ops for of in sides], of_devices),
    ):
        for name in dict.fromkeys(name for of in found for name in of):
            both = [of.get(name) for of in found]
            took, calls = ([getattr(one, figure, None) for one in both] for figure in ("total_ns", "calls"))
            add(what, name, took, calls, table, lengths)
    words = scene.words if two else ("time",)
    heads = [Head("what"), Head("name"), *(Head(word, Unit.TIME) for word in words)]
    heads += [Head("change", Unit.CHANGE)] if two else []
    heads += [Head("%" if n == 0 else "→", Unit.SHARE) for n in range(len(sides))]
    heads += [Head("calls" if n == 0 else "→", Unit.COUNT) for n in range(len(sides))]
    return TabTable(heads, rows)


_MADE: dict[str, Callable[[Scene], TabTable]] = {
    "kernels": lambda scene: _work(scene, kernel_totals, "kernel", "device"),
    "ops": lambda scene: _work(scene, op_totals, "op", "host"),
    "phases": _phases,
    "steps": _steps,
    "collectives": _collectives,
}
