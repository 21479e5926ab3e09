"""Draws a timeline as an SVG image in HTML, for notebooks.

    timeline_html("Trace(...)", [BarLane("cuda:0 stream 0", "gpu", names, start_ns, duration_ns)])

The mouse wheel zooms, dragging moves the view, and a double click shows the whole timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from traces.drawing.safe_text import escape

_WIDTH = 1000
_LANE_HEIGHT = 18
_MOST_BARS = 3_000
_COLOURS = {
    "host": ("#8fb8de", "#f2c57c", "#a8d5ba", "#d7a9c9", "#c9c2b8"),
    "gpu": ("#3f8f6b", "#5aa9a0", "#2f6f8f", "#7a9e3f"),
}


@dataclass(frozen=True)
class BarLane:
    label: str
    kind: str  # ("host" or "gpu") gives the colours
    names: Sequence[str]
    start_ns: npt.NDArray[Any]
    duration_ns: npt.NDArray[Any]


def timeline_html(title: str, lanes: Sequence[BarLane]) -> str:
    """Return a timeline as HTML. If there are too many bars, only the longest ones are drawn."""
    lanes = [lane for lane in lanes if len(lane.names)]
    if not lanes:
        return f"<p>{escape(title)}</p>"
    begin_ns = min(int(lane.start_ns.min()) for lane in lanes)
    total_ns = max(int((lane.start_ns + lane.duration_ns).max()) for lane in lanes) - begin_ns
    scale = max(total_ns, 1) / _WIDTH
    durations = np.sort(np.concatenate([lane.duration_ns for lane in lanes]))[::-1]
    least_ns = int(durations[_MOST_BARS]) + 1 if len(durations) > _MOST_BARS else 0
    height = _LANE_HEIGHT * len(lanes)
    rows = "".join(_bars(row, lane, begin_ns, scale, least_ns) for row, lane in enumerate(lanes))
    style = f"height:{_LANE_HEIGHT}px;line-height:{_LANE_HEIGHT}px"
    labels = "".join(f'<div style="{style}">{escape(lane.label)}</div>' for lane in lanes)
    name = f"trace-{uuid4().hex[:12]}"
    values = {"ID": name, "TOTAL": str(total_ns), "SCALE": repr(scale), "HEIGHT": str(height)}
    script = Path(__file__).with_name("timeline.js").read_text(encoding="utf-8")
    for word, value in values.items():
        script = script.replace(word, value)
    left_out = int((durations < least_ns).sum())
    note = f" The {left_out} shortest bars are not drawn." if left_out else ""
    return (
        f'<div id="{name}" style="font:12px sans-serif"><p>{escape(title)}.{note} Shown: <output></output></p>'
        f'<div style="display:flex"><div style="flex:none;padding-right:8px;white-space:nowrap">{labels}</div>'
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none" '
        f'style="flex:1;height:{height}px;touch-action:none;cursor:grab" role="img">{rows}</svg></div></div>'
        f"<script>\n{script}</script>"
    )


def _bars(row: int, lane: BarLane, begin_ns: int, scale: float, least_ns: int) -> str:
    colours = _COLOURS[lane.kind]
    numbers: dict[str, int] = {}
    bars = []
    for name, start_ns, duration_ns in zip(lane.names, lane.start_ns.tolist(), lane.duration_ns.tolist(), strict=True):
        if duration_ns < least_ns:
            continue
        colour = colours[numbers.setdefault(name, len(numbers)) % len(colours)]
        x, width = (start_ns - begin_ns) / scale, duration_ns / scale
        bars.append(
            f'<rect x="{x:.6g}" y="{row * _LANE_HEIGHT + 1}" width="{width:.4g}" height="{_LANE_HEIGHT - 2}" fill="{colour}">'
            f"<title>{escape(name)}: {duration_ns / 1000:.1f} µs</title></rect>"
        )
    return "".join(bars)
