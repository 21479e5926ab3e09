"""The two lines above the lanes: where steps begin, and how long a stretch is.

    steps_line(window)   # "│step 5              │step 6        "
    times_line(window)   # "0 ms      ╷50 ms     ╷100 ms        "
"""

from __future__ import annotations

import numpy as np

from traces.model import NONE
from tui.view.alignment import Alignment
from tui.view.scene import Scene
from tui.view.window import Window

_TICK_COLUMNS = 14  # at least, between two labels
_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))


def step_places(scene: Scene, by: Alignment) -> list[tuple[int, str, int]]:
    """Where each step begins on the axis, what it is called, and its place among `scene.step_pairs`.

    By wall time the two traces' steps lie anywhere, so only those of the first trace are marked.
    """
    sides, steps = scene.axis(by).sides, [trace.steps for trace in scene.traces]
    found: list[tuple[int, str, int]] = []
    last_ns = 0
    for number, pair in enumerate(scene.step_pairs):
        order = (0,) if by is Alignment.WALL or len(sides) == 1 else (1, 0)
        side = next((side for side in order if pair[side] != NONE), None)
        if side is None:
            continue
        place = sides[side].place(int(steps[side].start_ns[pair[side]]), last_ns)
        if place is not None and (not found or place > last_ns):
            found.append((place, step_name(scene, number, by), number))
            last_ns = place
    return found


def step_name(scene: Scene, number: int, by: Alignment = Alignment.STEP) -> str:
    """ "5", or "5/0" where the script counted a pair of steps differently."""
    pair = scene.step_pairs[number]
    numbers = [str(trace.steps.number[row]) for trace, row in zip(scene.traces, pair, strict=False) if row != NONE]
    if by is Alignment.WALL:
        return numbers[0]
    return "/".join(dict.fromkeys(numbers))


def steps_line(window: Window, marks: list[tuple[int, str, int]]) -> str:
    """A mark at each step that begins in sight, with its number where there is room."""
    text = [" "] * window.columns
    edges = window.edges_ns
    free = 0
    places = np.array([place for place, _, _ in marks], dtype=np.int64)
    columns = np.searchsorted(edges, places, side="right") - 1
    behind = [*columns.tolist(), window.columns][1:]
    for column, until, (_, name, _) in zip(columns.tolist(), behind, marks, strict=True):
        if not 0 <= column < window.columns:
            continue
        text[column] = "│"
        for label in (f"step {name}", name):
            if free <= column and column + 1 + len(label) < until and column + 1 + len(label) <= window.columns:
                text[column + 1 : column + 1 + len(label)] = list(label)
                free = column + 2 + len(label)
                break
    return "".join(text)


def times_line(window: Window) -> str:
    """Ticks at round times since the first step (or the beginning)."""
    origin_ns = window.steps_begin_ns
    every_ns = round_ns(window.ns_per_column * _TICK_COLUMNS)
    text = [" "] * window.columns
    tick = int(np.ceil((window.start_ns - origin_ns) / every_ns))
    while True:
        at_ns = tick * every_ns
        column = int((at_ns + origin_ns - window.start_ns) / window.ns_per_column)
        if column >= window.columns:
            return "".join(text)
        label = "╷" + tick_text(at_ns, every_ns)
        if column >= 0 and column + len(label) <= window.columns:
            text[column : column + len(label)] = list(label)
        tick += 1


def round_ns(least_ns: float) -> int:
    """The smallest of 1, 2, 5, 10, 20... that is not smaller."""
    decade = 1
    while True:
        for times in (1, 2, 5):
            if times * decade >= least_ns:
                return times * decade
        decade *= 10


def tick_text(at_ns: int, every_ns: int) -> str:
    """A time in the unit that its distance to the next tick asks for: "150 ms", "1.02 s"."""
    unit_ns, unit = next((u for u in _UNITS if max(abs(at_ns), every_ns) >= u[0]), _UNITS[-1])
    decimals = 0
    while every_ns * 10**decimals < unit_ns:
        decimals += 1
    return f"{at_ns / unit_ns:.{decimals}f} {unit}"
