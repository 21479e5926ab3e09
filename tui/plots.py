"""`trace plot`: one figure about a trace, or about two, by matplotlib: for a paper or a slide, as SVG, PNG or PDF.

    draw("memory", [NamedTrace("v100.msgpack", recorded), NamedTrace("replay.msgpack", replayed)], Path("memory.pdf"))

matplotlib is the extra [plots]; without it a line says how to get it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from traces.comparison import compare
from traces.model import NONE, StepKind, TraceError
from tui.figures import fit, size_text
from tui.html_report import NamedTrace, highest_memory, phase_times, step_axis
from tui.print_analyses import REASONS
from tui.view.aggregates import kernel_totals
from tui.view.scene import Scene, short_name
from tui.view.table_rows import compared_totals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#0b6bcb", "#d9730d")  # as the report's
_REASON_COLOURS = ("#e69f00", "#d55e00", "#cc79a7", "#56b4e9", "#0072b2", "#9aa5b1", "#6b7280")
_BUSY_COLOUR = "#3f8f6b"
_KERNELS = 12
SUFFIXES = (".svg", ".png", ".pdf")


def draw(what: str, sides: Sequence[NamedTrace], path: Path) -> None:
    """Write the figure. Raises TraceError where matplotlib is missing or the traces have nothing of the kind."""
    try:
        import matplotlib
    except ImportError:
        raise TraceError("trace plot draws with matplotlib; install it: pip install 'trace-replay[plots]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    draws = {"steps": _steps, "phases": _phases, "idle": _idle, "memory": _memory, "kernels": _kernels}
    # Text stays text; neither date nor random ids: the same traces give the same file.
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trace", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
        try:
            if not draws[what](axes, sides):
                raise TraceError(f"{' and '.join(side.name for side in sides)}: nothing to draw of {what}")
            if len(sides) > 1 and what != "idle":
                figure.legend(frameon=False, ncols=2, loc="outside upper center")
            axes.spines[["top", "right"]].set_visible(False)
            figure.savefig(path, dpi=200, metadata={"Date": None} if path.suffix == ".svg" else None)
        finally:
            plt.close(figure)


def _steps(axes: Axes, sides: Sequence[NamedTrace]) -> bool:
    """Each step's time; steps that count less are hollow, and the first trace's quartiles are shaded."""
    from matplotlib.ticker import MaxNLocator

    own, numbers, x_label = step_axis(sides)
    for side, steps, number, colour in zip(sides, own, numbers, _COLOURS, strict=False):
        if not len(steps):
            continue
        time_ms = steps.duration_ns / 1e6
        axes.plot(number, time_ms, color=colour, linewidth=1, label=side.name)
        hollow = np.isin(steps.kind, (StepKind.WARMUP, StepKind.EVALUATION, StepKind.INCOMPLETE))
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
    height = 0.8 / len(sides)
    for place, (side, colour) in enumerate(zip(sides, _COLOURS, strict=False)):
        times_ms = [(of[place] or 0) / 1e6 for of in times.values()]
        bars = axes.barh(np.arange(len(names)) + place * height, times_ms, height, color=colour, label=side.name)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=7)
    axes.set_yticks(np.arange(len(names)) + 0.4 - height / 2, names)
    axes.invert_yaxis()
    axes.set_xlabel("ms on the host, median per step")
    return bool(names)


def _idle(axes: Axes, sides: Sequence[NamedTrace]) -> bool:
    rows = [(side.name, device, of) for side in sides for device, of in side.summary.analyses.idle.items()]
    left = np.zeros(len(rows))
    kinds = {"busy": ("GPU busy", _BUSY_COLOUR)}
    kinds |= {reason: (label, colour) for (reason, label), colour in zip(REASONS.items(), _REASON_COLOURS, strict=True)}
    for kind, (label, colour) in kinds.items():
        times_ms = [(of.busy_ns if kind == "busy" else of.by_reason[kind]) / max(of.steps, 1) / 1e6 for _, _, of in rows]
        if any(times_ms):
            axes.barh(range(len(rows)), times_ms, left=left, color=colour, label=label)
            left = left + times_ms
    axes.set_yticks(range(len(rows)), [f"{fit(name, 24)}\n{device}" for name, device, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("ms per step")
    axes.figure.legend(frameon=False, fontsize=7, ncols=4, loc="outside lower center")
    return bool(rows)


def _memory(axes: Axes, sides: Sequence[NamedTrace]) -> bool:
    """Of the device that holds the most on each side, from its first event on; the limit where it is in sight."""
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
            axes.annotate(f"the device's {size_text(limit_bytes)}", (0, limit_bytes / 2**30), fontsize=7, va="bottom")
    axes.set(xlabel="ms since the first event", ylabel="GiB allocated", ylim=(0, None))
    return highest > 0


def _kernels(axes: Axes, sides: Sequence[NamedTrace]) -> bool:
    """Those with the most GPU time in any of the traces."""
    scene = Scene.of(*((side.name, side.trace) for side in sides))
    tables = [{name: of.total_ns / 1e6 for name, of in totals.items()} for totals in compared_totals(scene, kernel_totals)]
    names = sorted({name for of in tables for name in of}, key=lambda name: -max(of.get(name, 0) for of in tables))[:_KERNELS]
    height = 0.8 / len(sides)
    for place, (side, of, colour) in enumerate(zip(sides, tables, _COLOURS, strict=False)):
        times_ms = [of.get(name, 0) for name in names]
        axes.barh(np.arange(len(names)) + place * height, times_ms, height, color=colour, label=side.name)
    labels = [fit(short_name(name), 48).replace("$", r"\$") for name in names]
    axes.set_yticks(np.arange(len(names)) + 0.4 - height / 2, labels, fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("ms of GPU time per step" if len(sides) > 1 and scene.step_pairs else "ms of GPU time in all")
    return bool(names)
