"""Draws the figures of `trace plot` with matplotlib, as SVG, PNG or PDF files.

    draw("memory", [NamedTrace("v100.msgpack", recorded), NamedTrace("replay.msgpack", replayed)], Path("memory.pdf"))
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from traces.comparison.compare import compare
from traces.format.atomic_write import atomic_write
from traces.model.trace import NONE, TraceError
from tui.formatting import fit, size_text
from tui.report.charts import PLAIN
from tui.report.page import FADED, IDLE_COLOURS, NamedTrace, highest_memory, phase_times, step_axis, step_times_ms
from tui.text.analyses import REASONS
from tui.view.scene.scene import Scene
from tui.view.scene.short_names import short_name
from tui.view.scene.totals import kernel_totals
from tui.view.tables.rows import compared_totals

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer

_COLOURS = (PLAIN["a"], PLAIN["b"])
_KERNELS = 12
SUFFIXES = (".svg", ".png", ".pdf")


def draw(what: str, sides: Sequence[NamedTrace], path: Path) -> None:
    """Write a figure to a file. Raise TraceError if matplotlib or the necessary data is missing."""
    try:
        import matplotlib
    except ImportError:
        raise TraceError("trace plot needs matplotlib; install it: pip install 'trace-replay[plots]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    draws = {"steps": _steps, "phases": _phases, "idle": _idle, "memory": _memory, "kernels": _kernels}
    # text stays text; no dates and random ids, so the same traces give the same file
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trace", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
        try:
            if not draws[what](axes, sides):
                raise TraceError(f"{' and '.join(side.name for side in sides)}: no data to draw {what}")
            if len(sides) > 1 and what != "idle":
                figure.legend(frameon=False, ncols=2, loc="outside upper center")
            axes.spines[["top", "right"]].set_visible(False)
            metadata = {"Date": None} if path.suffix == ".svg" else None
            with atomic_write(path) as file:
                figure.savefig(file, format=path.suffix[1:] or None, dpi=200, metadata=metadata)
        finally:
            plt.close(figure)


def _steps(axes: Axes, sides: Sequence[NamedTrace]) -> bool:
    from matplotlib.ticker import MaxNLocator

    own, numbers, x_label = step_axis(sides)
    for side, steps, number, colour in zip(sides, own, numbers, _COLOURS, strict=False):
        if not len(steps):
            continue
        time_ms = step_times_ms(side)
        axes.plot(number, time_ms, color=colour, linewidth=1, label=side.name)
        hollow = np.isin(steps.kind, FADED)
        axes.scatter(number[~hollow], time_ms[~hollow], color=colour, s=10)
        axes.scatter(number[hollow], time_ms[hollow], facecolors="none", edgecolors=colour, s=10)
        if side is sides[0] and (~hollow).sum() >= 4:
            axes.axhspan(*np.percentile(time_ms[~hollow], (25, 75)), color=colour, alpha=0.12, linewidth=0)
    axes.set(xlabel=x_label, ylabel="ms", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return bool(axes.lines)


def _phases(axes: Axes, sides: Sequence[NamedTrace]) -> bool:
    comparison = compare(sides[0].trace, sides[1].trace) if len(sides) > 1 else None
    times = phase_times([side.summary for side in sides], comparison)
    names = list(times)
    for bars in _bars(axes, sides, [[(of[place] or 0) / 1e6 for of in times.values()] for place in range(len(sides))]):
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=7)
    axes.set_yticks(axes.get_yticks(), names)
    axes.set_xlabel("ms on the host, median per step")
    return bool(names)


def _bars(axes: Axes, sides: Sequence[NamedTrace], times_ms: Sequence[Sequence[float]]) -> list[BarContainer]:
    height, rows = 0.8 / len(sides), np.arange(len(times_ms[0]))
    bars = [
        axes.barh(rows + place * height, of, height, color=colour, label=side.name)
        for place, (side, of, colour) in enumerate(zip(sides, times_ms, _COLOURS, strict=False))
    ]
    axes.set_yticks(rows + 0.4 - height / 2)
    axes.invert_yaxis()
    return bars


def _idle(axes: Axes, sides: Sequence[NamedTrace]) -> bool:
    rows = [(side.name, device, of) for side in sides for device, of in side.summary.analyses.idle.items()]
    left = np.zeros(len(rows))
    for kind, label in {"busy": "GPU busy", **REASONS}.items():
        times_ms = [(of.busy_ns if kind == "busy" else of.by_reason[kind]) / max(of.steps, 1) / 1e6 for _, _, of in rows]
        if any(times_ms):
            axes.barh(range(len(rows)), times_ms, left=left, color=PLAIN[IDLE_COLOURS[kind]], label=label)
            left = left + times_ms
    axes.set_yticks(range(len(rows)), [f"{fit(name, 24)}\n{device}" for name, device, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("ms per step")
    axes.figure.legend(frameon=False, fontsize=7, ncols=4, loc="outside lower center")
    return bool(rows)


def _memory(axes: Axes, sides: Sequence[NamedTrace]) -> bool:
    highest = 0.0
    for side, colour in zip(sides, _COLOURS, strict=False):
        if (most := highest_memory(side.trace)) is None:
            continue
        row, curve = most
        held = curve.allocated_bytes / 2**30
        axes.step((curve.time_ns - curve.time_ns[0]) / 1e6, held, where="post", color=colour, linewidth=0.9, label=side.name)
        highest = max(highest, float(held.max()))
        limit_bytes = side.trace.devices[row].total_memory_bytes
        if limit_bytes != NONE and limit_bytes / 2**30 < 4 * highest:
            axes.axhline(limit_bytes / 2**30, color="#c02626", linestyle="--", linewidth=0.9)
            axes.annotate(f"device memory: {size_text(limit_bytes)}", (0, limit_bytes / 2**30), fontsize=7, va="bottom")
    axes.set(xlabel="ms since the first event", ylabel="GiB allocated", ylim=(0, None))
    return highest > 0


def _kernels(axes: Axes, sides: Sequence[NamedTrace]) -> bool:
    scene = Scene.of(*((side.name, side.trace) for side in sides))
    tables = [{name: of.total_ns / 1e6 for name, of in totals.items()} for totals in compared_totals(scene, kernel_totals)]
    names = sorted({name for of in tables for name in of}, key=lambda name: -max(of.get(name, 0) for of in tables))[:_KERNELS]
    _bars(axes, sides, [[of.get(name, 0) for name in names] for of in tables])
    labels = [fit(short_name(name), 48).replace("$", r"\$") for name in names]
    axes.set_yticks(axes.get_yticks(), labels, fontsize=6)
    axes.set_xlabel("ms of GPU time per step" if len(sides) > 1 and scene.step_pairs else "ms of GPU time in total")
    return bool(names)
