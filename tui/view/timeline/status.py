"""Makes the lines below the timeline. The status lines describe the selected event and explain the colours."""

from __future__ import annotations

from rich.text import Text

from traces.model.trace import NONE
from tui.formatting import share_text, size_text, time_text
from tui.view.range_sums import range_sums
from tui.view.scene.categories import Category
from tui.view.scene.character_rows import SIGN_WORDS, SIGNS, Sign, curve_values
from tui.view.scene.lanes import Curve
from tui.view.scene.scene import Scene
from tui.view.scene.short_names import short_name
from tui.view.timeline.drawing import Drawing
from tui.view.timeline.palette import Palette
from tui.view.timeline.ruler import Marks, pair_at, time_in_step
from tui.view.timeline.spans import Span, duration_of, name_of, start_of, step_of
from tui.view.timeline.window import Window

_LEGEND_COLUMNS = (140, 200)  # maximum total columns of a legend for one trace and for two traces


def status(window: Window, drawing: Drawing, marks: Marks, span: Span | None, partner: Span | None = None) -> str:
    line = window.cursor_line
    if line is None:
        return f"no row has {window.rows.wanted} in its name; Esc shows all" if window.rows.wanted else "nothing to show"
    scene, row = window.scene, window.scene.rows[line.row]
    if span is not None:
        parts = [f"{short_name(name_of(scene, span))} {_span_text(scene, span)}"]
        if partner is not None:
            other = short_name(name_of(scene, partner))
            parts.append((other + " " if other != short_name(name_of(scene, span)) else "") + _span_text(scene, partner))
        elif len(scene.traces) == 2 and span.table == "device" and scene.counterparts is not None:
            parts.append(f"no counterpart {scene.words[1 - span.side]}")
        return " · ".join([*parts, row.label])
    parts = [row.label, *_times(window, marks)]
    column = window.cursor_column
    if 0 <= column < window.columns:
        parts.append(_column(window, drawing, line.row, column))
    return " · ".join(part for part in parts if part)


def _span_text(scene: Scene, span: Span) -> str:
    at = time_in_step(scene, span.side, start_of(scene, span), step_of(scene, span))
    return f"{time_text(duration_of(scene, span))} {scene.words[span.side]} at {at}".replace("  ", " ")


def _times(window: Window, marks: Marks) -> list[str]:
    scene, found = window.scene, []
    pair = pair_at(marks, window.cursor_ns)
    for side, word in enumerate(scene.words):
        view = window.axis.sides[side]
        if view.shown([window.cursor_ns])[0]:
            step = scene.step_pairs[pair][side] if pair != NONE else NONE
            found.append(f"{word} {time_in_step(scene, side, int(view.times([window.cursor_ns])[0]), step)}".strip())
    return found


def _column(window: Window, drawing: Drawing, row: int, column: int) -> str:
    scene, edges = window.scene, window.edges_ns
    found = []
    for side, word in enumerate(scene.words):
        track = scene.rows[row].tracks[side]
        if track is None:
            continue
        if isinstance(track.lane, Curve):
            value = curve_values(track.lane, window.axis.sides[side], edges[column : column + 2])
            figure = size_text(int(value[0]))
        else:
            busy = drawing.busy(window, row, side)
            figure = share_text(busy.total_ns[column] / max(int(edges[column + 1] - edges[column]), 1)) if busy else ""
        found.append(f"{word} {figure}".strip())
    words = "holds" if scene.rows[row].is_curve else "busy"
    return f"{words} {', '.join(found)}" if found else ""


def range_text(window: Window) -> str:
    if window.range_ns is None:
        return ""
    begin, end = sorted(window.range_ns)
    found = []
    for word, sums in zip(window.scene.words, range_sums(window.scene, window.axis, begin, end), strict=True):
        of = max(sums.length_ns * sums.devices, 1)
        if not sums.devices:
            phases = ", ".join(f"{name} {time_text(of_phase.total_ns)}" for name, of_phase in sums.phases.items())
            found.append(f"{word} {time_text(sums.length_ns)}, {phases or 'no GPU work is recorded'}".strip())
            continue
        kernels = sum(of_kernel.calls for of_kernel in sums.kernels.values())
        text = f"{word} {time_text(sums.length_ns)}, GPU busy {share_text(sums.busy_ns / of)}, idle {time_text(sums.idle_ns)}"
        found.append(f"{text}, {kernels} kernels".strip())
    return "range: " + " · ".join(found)


def legend(window: Window, drawing: Drawing, palette: Palette, width: int) -> Text:
    seen: set[int] = set()
    for number in window.visible:
        line = window.rows.lines[number]
        busy = drawing.busy(window, line.row, line.part.value) if line.part.value < len(window.scene.traces) else None
        if busy is not None:
            seen |= {kind for kind, ns in busy.by_category.items() if ns.any()}
    two = len(window.scene.traces) == 2
    parts = [("█", palette.colours[Category(kind)], category_text(Category(kind))) for kind in sorted(seen)]
    if two:
        parts += [(SIGNS[sign], palette.signs[sign] if sign is not Sign.ALIKE else "", of) for sign, of in SIGN_WORDS.items()]
    lines = [Text()]
    for mark, style, words in parts:
        if lines[-1].cell_len + len(words) + 2 > width:
            lines.append(Text())
        lines[-1].append(f"{mark} ", style)  # the space is at the end, because some SVG viewers drop spaces at the start
        lines[-1].append(f"{words}  ")
    most = -(-_LEGEND_COLUMNS[two] // max(width, 1))
    return Text("\n").join([*lines, *[Text()] * (most - len(lines))][:most])


def category_text(category: Category) -> str:
    return category.name.lower().replace("_", " ")
