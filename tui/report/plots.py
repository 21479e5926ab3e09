"""Makes the charts of step times, phases, idle time, memory and kernels, for `trace report` and `trace plot`.

    chart = PLOTS["memory"]([NamedTrace("v100.msgpack", recorded)], ["v100.msgpack"], None)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np

from traces.analyses.idle import REASONS
from traces.comparison.compare import compare
from traces.comparison.comparison_figures import Both, Comparison
from traces.figures.measure import memory_curves
from traces.figures.summary import Summary, summarize
from traces.model.trace import NONE, Column, StepKind, Trace
from tui.formatting import fit, size_text, time_text
from tui.report.charts import Chart, ChartLine, line_chart, paired_bars, stacked_bars
from tui.view.scene.scene import Scene
from tui.view.scene.short_names import short_name
from tui.view.scene.totals import kernel_totals
from tui.view.tables.rows import compared_totals

_POINTS = 800  # maximum points of a curve
# kinds of steps that are drawn in a pale colour, because medians do not include them
_FADED = (StepKind.WARMUP, StepKind.EVALUATION, StepKind.INCOMPLETE, StepKind.AFTER_PROFILE)
_MOST_SINGLE_STEPS = 2_000  # curves of more steps show only some of the points
_MOST_KERNELS = 12
IDLE_COLOURS = {"busy": "busy"} | {reason: f"r{number}" for number, reason in enumerate(REASONS)}


@dataclass
class NamedTrace:
    name: str
    trace: Trace
    summary: Summary = field(init=False)

    def __post_init__(self) -> None:
        self.summary = summarize(self.trace)


def compared(sides: Sequence[NamedTrace], tolerance: float = 0.05) -> Comparison | None:
    """Compare two traces. Return None for a single trace."""
    if len(sides) < 2:
        return None
    analyses = Both(sides[0].summary.analyses, sides[1].summary.analyses)
    return compare(sides[0].trace, sides[1].trace, tolerance, analyses=analyses)


def _steps(sides: Sequence[NamedTrace], labels: Sequence[str], comparison: Comparison | None) -> Chart | None:
    lines, own = [], []
    for label, letter, side in zip(labels, "ab", sides, strict=False):
        steps = side.trace.steps
        steps = steps.take(steps.rank == (steps.rank.min() if len(steps) else 0))
        number = steps.number.astype(np.int64) if len(sides) == 1 else np.arange(len(steps))
        rank = min((step.rank for step in side.summary.steps), default=0)
        time_ms = np.array([step.interval_ns / 1e6 for step in side.summary.steps if step.rank == rank])
        faded = frozenset(number[np.isin(steps.kind, _FADED)].astype(float).tolist())
        if len(steps) > _MOST_SINGLE_STEPS:
            number, time_ms = _thinned(number, time_ms)
        own.append(steps)
        lines.append(ChartLine(label, number, time_ms, letter, has_dots=True, faded=faded))
    band = None
    if comparison is not None and comparison.steps.noise_floor and comparison.steps.recorded_ns:
        middle = comparison.steps.recorded_ns / 1e6
        band = middle * (1 - comparison.steps.noise_floor), middle * (1 + comparison.steps.noise_floor)
    x_label = "step" if len(sides) == 1 else "step, counted from 0 in each trace"
    after = ", and steps after a profile" if any((steps.kind == StepKind.AFTER_PROFILE).any() for steps in own) else ""
    note = f"Faded: warm-up, evaluation and incomplete steps{after}." + (" Shaded: noise of the recording." if band else "")
    return line_chart("Steps", lines, x_label=x_label, y_label="ms", band=band, has_whole_x=True, note=note)


def _phases(sides: Sequence[NamedTrace], labels: Sequence[str], comparison: Comparison | None) -> Chart | None:
    times_ns: dict[str, list[int | None]] = {name: [of.median_ns] for name, of in sides[0].summary.phases.items()}
    if comparison is not None:
        times_ns = {name: [of.recorded_median_ns, of.replayed_median_ns] for name, of in comparison.phases.items()}
    rows = [(name, of, [time_text(time_ns) for time_ns in of]) for name, of in times_ns.items()]
    return paired_bars("Phases on the host, median per step", rows, labels)


def _idle(sides: Sequence[NamedTrace], labels: Sequence[str], comparison: Comparison | None) -> Chart | None:
    rows = []
    for label, side in zip(labels, sides, strict=True):
        for device, of in list(side.summary.analyses.idle.items())[:8]:
            per_step = {"busy": of.busy_ns, **of.by_reason}
            parts_ms = {kind: time_ns / max(of.steps, 1) / 1e6 for kind, time_ns in per_step.items()}
            rows.append((f"{label} {device}" if len(sides) > 1 else device, parts_ms))
    kinds = {kind: ("GPU busy" if kind == "busy" else REASONS[kind], colour) for kind, colour in IDLE_COLOURS.items()}
    return stacked_bars("GPU busy and idle, per step", rows, kinds)


def _memory(sides: Sequence[NamedTrace], labels: Sequence[str], comparison: Comparison | None) -> Chart | None:
    lines, limit = [], None
    for label, letter, side in zip(labels, "ab", sides, strict=False):
        curves = memory_curves(side.trace)
        if not curves:
            continue
        row, curve = max(curves.items(), key=lambda pair: int(pair[1].allocated_bytes.max()))
        time_ms, held = _thinned((curve.time_ns - curve.time_ns[0]) / 1e6, curve.allocated_bytes / 2**30)
        lines.append(ChartLine(f"{label} {side.trace.device_label(row)}", time_ms, held, letter, is_stepped=True))
        size = side.trace.devices[row].total_memory_bytes
        if size != NONE and limit is None:
            limit = (f"device memory: {size_text(size)}", size / 2**30)
    note = f"Limit: {limit[0]}." if limit else ""
    return line_chart("Memory allocated", lines, x_label="ms since the first event", y_label="GiB", limit=limit, note=note)


def _kernels(sides: Sequence[NamedTrace], labels: Sequence[str], comparison: Comparison | None) -> Chart | None:
    scene = Scene.of(*((side.name, side.trace) for side in sides))
    tables = [{name: of.total_ns for name, of in totals.items()} for totals in compared_totals(scene, kernel_totals)]
    names = sorted(dict.fromkeys(chain(*tables)), key=lambda name: -max(of.get(name, 0) for of in tables))
    rows = []
    for name in names[:_MOST_KERNELS]:
        times_ns = [of.get(name, 0) for of in tables]
        rows.append((fit(short_name(name), 48), times_ns, [time_text(time_ns) for time_ns in times_ns]))
    per_step = len(sides) > 1 and scene.step_pairs
    return paired_bars(f"GPU time of kernels, {'per step' if per_step else 'in total'}", rows, labels)


PLOTS: dict[str, Callable[[Sequence[NamedTrace], Sequence[str], Comparison | None], Chart | None]] = {
    "steps": _steps, "phases": _phases, "idle": _idle, "memory": _memory, "kernels": _kernels,
}  # fmt: skip


def _thinned(x: Column, y: Column) -> tuple[Column, Column]:
    """Return at most _POINTS points of a curve: the highest point of each section."""
    if len(x) <= _POINTS:
        return x, y
    bounds = np.linspace(0, len(x), _POINTS + 1).astype(np.int64)
    rows = [int(first + y[first:last].argmax()) for first, last in pairwise(bounds.tolist())]
    return x[rows], y[rows]
