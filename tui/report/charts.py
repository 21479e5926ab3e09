"""Draws line charts and bar charts as SVG. `trace report` puts the charts into a page, and `trace plot` writes a chart to a
file.

    chart = line_chart("Steps", [ChartLine("recorded", xs, ys, "a")], x_label="step", y_label="ms")
    page += chart.html()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10

from traces.drawing.safe_text import escape
from traces.model.trace import Column

_WIDTH, _HEIGHT = 860, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 34
_BAR = 16
_LABEL = 150
_LETTER = 6.6  # approximate width of a letter in the small font
# colours for programs that ignore CSS in SVG, such as mail readers
PLAIN = {
    "a": "#0b6bcb", "b": "#d9730d", "busy": "#3f8f6b", "r0": "#e69f00", "r1": "#d55e00", "r2": "#cc79a7", "r3": "#56b4e9",
    "r4": "#0072b2", "r5": "#f0e442", "r6": "#9aa5b1", "r7": "#6b7280",
}  # fmt: skip

_STYLE_OF_FILE = (
    "text{font:12px sans-serif}.tick{font-size:11px;fill:#5b6570}.line{stroke-width:1.6}.limit{stroke-dasharray:5 4}"
    ".faded{opacity:.35}"
)


@dataclass(frozen=True)
class Chart:
    title: str
    height: float
    shapes: Sequence[str]  # SVG elements in an area of _WIDTH by `height`
    legend: Sequence[tuple[str, str]] = ()  # names and colours
    note: str = ""

    def html(self) -> str:
        """Return the chart as HTML without the title. The page's style defines the colours."""
        svg = f'<svg viewBox="0 0 {_WIDTH} {self.height:.0f}" role="img">{"".join(self.shapes)}</svg>'
        keys = "".join(f'<span><i class="key {colour}"></i>{escape(name)}</span>' for name, colour in self.legend)
        note = f"<p class=note>{escape(self.note)}</p>" if self.note else ""
        return f"<figure>{svg}{f'<figcaption>{keys}</figcaption>' if keys else ''}</figure>{note}"

    def svg_file(self) -> str:
        parts, x, top = [_label(2, 14, self.title)], 2.0, 24
        for name, colour in self.legend:
            width = 30 + _LETTER * len(name)
            if x + width > _WIDTH:
                x, top = 2.0, top + 18
            parts.append(f'<rect fill="{PLAIN[colour]}" x="{x:.1f}" y="{top}" width="11" height="11"/>')
            parts.append(_label(x + 16, top + 10, name))
            x += width
        top += 22 if self.legend else 0
        parts += [f'<g transform="translate(0 {top})">', *self.shapes, "</g>"]
        bottom = top + self.height
        if self.note:
            bottom += 20
            parts.append(_label(2, bottom - 6, self.note))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{bottom:.0f}"><style>{_STYLE_OF_FILE}</style>'
            f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
        )


@dataclass(frozen=True)
class ChartLine:
    name: str
    x: Column
    y: Column
    side: str  # "a" for the first trace, "b" for the second trace
    is_stepped: bool = False
    has_dots: bool = False
    faded: frozenset[float] = frozenset()  # x values whose points are drawn in a paler colour


def line_chart(
    title: str,
    lines: Sequence[ChartLine],
    *,
    x_label: str,
    y_label: str,
    band: tuple[float, float] | None = None,
    limit: tuple[str, float] | None = None,
    has_whole_x: bool = False,
    note: str = "",
) -> Chart | None:
    """Return a line chart, or None if there are no points. In the chart, the background is shaded between the two y values of
    `band`."""
    lines = [line for line in lines if len(line.x)]
    if not lines:
        return None
    x_low, x_high = (float(end(end(line.x) for line in lines)) for end in (min, max))
    x_low = x_low if has_whole_x else min(x_low, 0.0)
    y_high = max(float(line.y.max()) for line in lines)
    if limit is not None and limit[1] < 4 * y_high:  # draw only a near limit, because a distant limit would flatten the curve
        y_high = max(y_high, limit[1])
    y_high = (y_high or 1.0) * 1.08

    def at_x(value: float) -> float:
        return _LEFT + (value - x_low) / ((x_high - x_low) or 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def at_y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / y_high * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    if band is not None:
        top, bottom = at_y(band[1]), at_y(max(band[0], 0))
        parts.append(f'<rect class="band" fill="#dde8f6" x="{_LEFT}" y="{top:.1f}" width="{_WIDTH - _LEFT - _RIGHT}" '
                     f'height="{bottom - top:.1f}"/>')  # fmt: skip
    for value in _ticks(y_high):
        y = at_y(value)
        parts.append(f'<line class="grid" stroke="#d8dee4" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    for value in _ticks(x_high - x_low, 1.0 if has_whole_x else 0.0):
        x = at_x(x_low + value)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - 18}" text-anchor="middle">{_number(x_low + value)}</text>')
    if limit is not None and limit[1] <= y_high:
        y = at_y(limit[1])
        parts.append(f'<line class="limit" stroke="#c02626" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_WIDTH - _RIGHT}" y="{y - 4:.1f}" text-anchor="end">{escape(limit[0])}</text>')
    for line in lines:
        points = list(zip(map(at_x, line.x.tolist()), map(at_y, line.y.tolist()), strict=True))
        style = f'class="line {line.side}" fill="none" stroke="{PLAIN[line.side]}"'
        parts.append(f'<path {style} d="{_path(points, line.is_stepped)}"/>')
        if line.has_dots and len(points) <= 400:
            for value, (x, y) in zip(line.x.tolist(), points, strict=True):
                faded = " faded" if value in line.faded else ""
                style = f'class="dot {line.side}{faded}" fill="{PLAIN[line.side]}"'
                parts.append(f'<circle {style} cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>')
    parts.append(_label((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 3, x_label, "middle"))
    parts.append(_label(2, _TOP, y_label))
    names = [(line.name, line.side) for line in lines]
    return Chart(title, _HEIGHT, parts, names if len(names) > 1 else [], note)


def paired_bars(
    title: str, rows: Sequence[tuple[str, Sequence[float | None], Sequence[str]]], names: Sequence[str], note: str = ""
) -> Chart | None:
    if not rows:
        return None
    high = max((value for _, values, _ in rows for value in values if value), default=0.0) or 1.0
    left = _left_of_bars(label for label, _, _ in rows)
    room = _LETTER * max(len(text) for _, _, texts in rows for text in texts) + 10
    parts, y = [], 4.0
    for label, values, texts in rows:
        parts.append(_label(left - 8, y + _BAR * len(values) / 2 + 4, label, "end"))
        for side, value, text in zip("ab", values, texts, strict=False):
            width = (value or 0.0) / high * max(_WIDTH - left - room, 100)
            place = f'x="{left:g}" y="{y:.1f}" width="{width:.1f}" height="{_BAR - 3}"'
            parts.append(f'<rect class="bar {side}" fill="{PLAIN[side]}" {place}/>')
            parts.append(f'<text class="tick" x="{left + width + 5:.1f}" y="{y + _BAR - 5:.1f}">{escape(text)}</text>')
            y += _BAR
        y += 7
    return Chart(title, y, parts, list(zip(names, "ab", strict=False)) if len(names) > 1 else [], note)


def stacked_bars(
    title: str, rows: Sequence[tuple[str, Mapping[str, float]]], kinds: Mapping[str, tuple[str, str]]
) -> Chart | None:
    """Return a chart with one bar per row. `kinds` contains the name and colour of each part of a bar."""
    if not rows:
        return None
    high = max(sum(parts.values()) for _, parts in rows) or 1.0
    left = _left_of_bars(label for label, _ in rows)
    shapes, y = [], 4.0
    for label, values in rows:
        shapes.append(_label(left - 8, y + 15, label, "end"))
        x = left
        for kind, (name, colour) in kinds.items():
            width = values.get(kind, 0.0) / high * (_WIDTH - left - 10)
            if width > 0:
                place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="22"'
                text = f"<title>{escape(name)}: {values[kind]:.3f} ms</title>"
                shapes.append(f'<rect class="{colour}" fill="{PLAIN[colour]}" {place}>{text}</rect>')
                x += width
        y += 30
    return Chart(title, y, shapes, [key for kind, key in kinds.items() if any(values.get(kind) for _, values in rows)])


def _left_of_bars(labels: Iterable[str]) -> float:
    return max(_LABEL, *(8 + _LETTER * len(label) for label in labels))


def _label(x: float, y: float, text: str, anchor: str = "") -> str:
    end = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="label" x="{x:g}" y="{y:g}"{end}>{escape(text)}</text>'


def _path(points: Sequence[tuple[float, float]], is_stepped: bool) -> str:
    steps = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    steps += [f"H{x:.1f}V{y:.1f}" if is_stepped else f"L{x:.1f} {y:.1f}" for x, y in points[1:]]
    return "".join(steps)


def _ticks(high: float, least: float = 0.0) -> list[float]:
    if high <= 0:
        return [0.0]
    step = 10 ** floor(log10(high))
    step = max(next(part for part in (step / 5, step / 2, step, step * 2) if high / part <= 6), least)
    return [number * step for number in range(int(high / step) + 1)]


def _number(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e5 else f"{value:,.0f}"
