"""Tests what the app shows of recordings with many equal times. The golden files are in tests/tui/golden."""

from __future__ import annotations

import pytest

from tests.traces.crowded import GRID, crowded, mixed, without
from tests.tui.goldens import assert_golden
from tests.tui.view.scenes import text_of, whole
from traces.combining.merge import merge_ranks
from tui.view.differences import differences
from tui.view.scene.alignment import Alignment
from tui.view.scene.categories import Category
from tui.view.scene.character_rows import BEHIND, HANGING, LIT, NAMED, Sign
from tui.view.scene.scene import Scene
from tui.view.tables.parts import csv_text
from tui.view.tables.rows import TABS, table_of
from tui.view.timeline.details import details
from tui.view.timeline.drawing import Drawing, label_of
from tui.view.timeline.palette import palette_of
from tui.view.timeline.related import backward, launched, launcher, position_among
from tui.view.timeline.ruler import step_positions, time_words
from tui.view.timeline.spans import (
    Span,
    counterpart,
    duration_of,
    name_of,
    neighbour,
    position_of,
    span_at_cursor,
    start_of,
    step_of,
)
from tui.view.timeline.status import legend, range_text, status
from tui.view.timeline.timeline import strip_of
from tui.view.timeline.window import Window

SCENES = {
    "alone": whole(("recorded", crowded(seed=1))),
    "slower": whole(("A", crowded(seed=1)), ("B", crowded(seed=1, grid_ns=11_000))),
    "other": whole(("A", crowded(seed=1)), ("B", crowded(seed=2))),
    "mixed": whole(("A", mixed(1, "WSESPS")), ("B", mixed(3, "SSPESSS"))),
    "ranks": whole(("A", merge_ranks([crowded(1), crowded(2)])), ("B", merge_ranks([crowded(2), crowded(1, grid_ns=11_000)]))),
    "without_steps": whole(("A", without(crowded(seed=1), "steps"))),
}
LETTERS = {of: chr(ord("a") + number) for number, of in enumerate(Category)} | {
    Sign.BLANK: " ", Sign.MORE: "+", Sign.LESS: "-", Sign.ALIKE: "=", Sign.OTHER_WORK: "~", Sign.LATER: ">", Sign.EARLIER: "<",
}  # fmt: skip
# Each window has a number of columns and of lines, and the times of its start and end in units of 10 us.
WINDOWS = ((40, 12, 0, 0), (80, 45, 20, 60), (60, 30, 53, 83), (45, 20, 107, 130))


def windows(scene: Scene) -> list[Window]:
    """Return windows whose columns begin at times of events, between such times, and after the last event."""
    found = []
    for number, (columns, height, begin, end) in enumerate(WINDOWS):
        window = Window(scene, columns, height)
        if len(scene.traces) == 2:
            window.align(list(Alignment)[number % len(Alignment)])
        if end:
            window.fit(begin * GRID, end * GRID)
            window.range_ns = (end * GRID - 3 * GRID, begin * GRID + 2 * GRID)
            window.go((begin + 4) * GRID)
        window.move_line(number)
        found.append(window)
    return found


def paints(window: Window, drawing: Drawing) -> str:
    """Return one letter for the category or sign of each column. Letters inside a name are capitals.

    Additional lines contain letters for the background and for highlights.
    """
    lines = []
    for _, cells in drawing.frame(window):
        of = cells.paints.tolist()
        letters = [LETTERS[paint & 31].upper() if paint & NAMED else LETTERS[paint & 31] for paint in of]
        marks = [LETTERS[(paint >> BEHIND) - 1] if paint >> BEHIND else "^" if paint & HANGING else " " for paint in of]
        lines += ["".join(letters).rstrip(), *(["".join(marks).rstrip()] if set(marks) != {" "} else [])]
    return "\n".join(lines) + "\n"


def strips(window: Window) -> str:
    """Return the style of each character: "." is normal, "r" is highlighted, and "c" is any other style."""
    drawing, palette, lines = Drawing(), palette_of(True), []
    for number, (line, cells) in zip(window.visible, drawing.frame(window), strict=True):
        strip = strip_of(window, line, cells, 12, number == window.line, palette)
        assert strip.text == f"{label_of(window, line, 12)} {cells.text()}"
        usual, lit = ({palette.styles[paint | flag] for paint in cells.paints.tolist()} for flag in (0, LIT))
        of = ["r" if part.style in lit else "." if part.style in usual else "c" for part in strip]
        lines.append("".join(mark * len(part.text) for mark, part in zip(of, strip, strict=True)))
    return "\n".join(lines) + "\n"


def events(window: Window) -> list[Span]:
    """Return events of each row: the event at the cursor, and the next one in both directions."""
    found: dict[Span, None] = {}
    for number, line in enumerate(window.rows.lines):
        window.line = number
        if not line.level and line.part.value < len(window.scene.traces):
            for by in (1, -1):
                span = span_at_cursor(window)
                for _ in range(2):
                    found |= {} if span is None else {span: None}
                    span = neighbour(window, span, by)
    return list(found)


def event_text(window: Window, span: Span) -> str:
    scene, alignment, at_ns = window.scene, window.alignment, window.cursor_ns
    marks = step_positions(scene, alignment)
    related = [launcher(scene, span), launched(scene, span), backward(scene, span), counterpart(scene, span, alignment, at_ns)]
    numbers = [None if of is None else (of.side, of.row, of.number) for of in related]
    others = [of and (of[0].number, *of[1:]) for of in (position_among(window, span, by) for by in (1, -1))]
    lines = [
        f"--- {span}: {name_of(scene, span)} {start_of(scene, span)} {duration_of(scene, span)} step {step_of(scene, span)}",
        f"at {position_of(window, span)}, related {numbers}, same name {others}",
        f"status: {status(window, Drawing(), marks, span, related[3])}",
        *details(scene, span, alignment, at_ns),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


@pytest.mark.parametrize("name", SCENES)
def test_timelines_equal_their_golden_files(name: str) -> None:
    text, drawing = [], Drawing()
    for number, window in enumerate(windows(SCENES[name])):
        marks = step_positions(window.scene, window.alignment)
        if number % 2:
            window.change_rows(lambda rows: rows.toggle("mirrored"))
        heading = f"--- {WINDOWS[number]} {window.alignment.value} {time_words(window, marks, 18)}"
        text += [heading, text_of(window), paints(window, drawing)]
        if window.range_ns is not None:
            row = window.rows.lines[0].row
            window.lit = [(row, 0, 25 * GRID, 31 * GRID), (row, 1, 60 * GRID, 60 * GRID)]
            text += [strips(window), range_text(window)]
        text.append(legend(window, drawing, palette_of(True), window.columns).plain)
        for line in range(0, len(window.rows.lines), 3):
            window.line = line
            text.append(status(window, drawing, marks, None))
    assert_golden(f"view_crowded_{name}", "\n".join(text) + "\n")


@pytest.mark.parametrize("name", list(SCENES)[:-1])
def test_tables_and_differences_equal_their_golden_files(name: str) -> None:
    scene = SCENES[name]
    text = []
    for tab in TABS:
        table = table_of(scene, tab, scene.differences, scene.axis(Alignment.STEP), (170 * GRID, 61 * GRID))
        text.append(f"--- {tab} {table.note}\n{csv_text(table)}")
    if len(scene.traces) == 2:
        text += [f"{one.sentence} {one.rows} {one.times_ns}\n" for one in differences(scene, everything=True)]
    assert_golden(f"view_crowded_{name}_tables", "".join(text))


@pytest.mark.parametrize("name", ["alone", "slower", "mixed", "ranks"])
def test_descriptions_of_events_equal_their_golden_files(name: str) -> None:
    window = windows(SCENES[name])[2 if name == "mixed" else 1]
    assert_golden(f"view_crowded_{name}_events", "".join(event_text(window, span) for span in events(window)))
