"""Draws the ruler with step numbers and times.

    steps_line(window, marks)   # "│step 5              │step 6        "
    times_line(window, marks)   # "╷0 ms     ╷50 ms     ╷0 ms     ╷50 ms"

Times start at 0 in every step.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right

import numpy as np

from traces.model.trace import NONE
from tui.formatting import time_text
from tui.view.scene.alignment import Alignment
from tui.view.scene.scene import Scene
from tui.view.timeline.window import Window

_TICK_COLUMNS = 14  # minimum number of columns between two labels
_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))
Marks = list[tuple[int, str, int]]


def step_positions(scene: Scene, by: Alignment) -> Marks:
    sides, steps = scene.axis(by).sides, [trace.steps for trace in scene.traces]
    found: Marks = []
    last_ns = 0
    for number, pair in enumerate(scene.step_pairs):
        order = (0,) if by is Alignment.WALL or len(sides) == 1 else (1, 0)
        side = next((side for side in order if pair[side] != NONE), None)
        if side is None:
            continue
        position = sides[side].position(int(steps[side].start_ns[pair[side]]), last_ns)
        if position is not None and (not found or position > last_ns):
            found.append((position, step_name(scene, number, by), number))
            last_ns = position
    return found


def step_name(scene: Scene, number: int, by: Alignment = Alignment.STEP) -> str:
    """Return the label of a step, such as "5". The label "5/0" means: step 5 of the first trace, step 0 of the second trace."""
    pair = scene.step_pairs[number]
    numbers = [str(trace.steps.number[row]) for trace, row in zip(scene.traces, pair, strict=False) if row != NONE]
    return numbers[0] if by is Alignment.WALL else "/".join(dict.fromkeys(numbers))


def time_in_step(scene: Scene, side: int, time_ns: int, step: int) -> str:
    """Return the time since the start of a step, such as "+94.8 ms in step 5"."""
    steps = scene.traces[side].steps
    first = next((pair[side] for pair in scene.step_pairs if pair[side] != NONE), NONE)
    if step != NONE:
        rank = int(steps.rank[step])
        of = f" of rank {rank}" if first != NONE and rank != int(steps.rank[first]) else ""
        return f"{_since(time_ns - int(steps.start_ns[step]))} in step {steps.number[step]}{of}"
    if first != NONE:
        return f"{_since(time_ns - int(steps.start_ns[first]))} from the first step"
    return f"{_since(time_ns - scene.begins_ns[side])} from the beginning"


def _since(time_ns: int) -> str:
    return time_text(time_ns, signed=True) if time_ns else "+0 ns"


def pair_at(marks: Marks, place_ns: int) -> int:
    before = bisect_right(marks, place_ns, key=lambda mark: mark[0])
    return marks[before - 1][2] if before else NONE


def steps_line(window: Window, marks: Marks) -> str:
    text = [" "] * window.columns
    positions = np.array([position for position, _, _ in marks], dtype=np.int64)
    columns = np.searchsorted(window.edges_ns, positions, side="right") - 1
    seen = np.flatnonzero((columns >= 0) & (columns < window.columns))
    if not len(seen):
        return "".join(text)
    widest = max(len(marks[n][1]) for n in (seen[0], seen[-1])) + 2
    apart = (int(columns[seen[-1]]) - int(columns[seen[0]])) / (len(seen) - 1) if len(seen) > 1 else window.columns
    every = max(int(np.ceil(widest / apart)), 1) if apart else len(marks)
    chosen = [n for n in seen.tolist() if n % every == 0] if every > 1 else seen.tolist()
    for n, until in zip(chosen, [*columns[chosen].tolist(), window.columns][1:], strict=True):
        column, name = int(columns[n]), marks[n][1]
        label = next((label for label in (f"step {name}", name) if column + 1 + len(label) < until), "")
        if label or every == 1:
            text[column : column + 1 + len(label)] = ["│", *label]
    return "".join(text)


def time_words(window: Window, marks: Marks, width: int) -> str:
    word = window.scene.words[_side(window, marks)]
    if not marks:
        return f"{word} time".strip()[:width]
    since = "in step" if _wide(window, marks) else f"since step {marks[0][1].partition('/')[0]}"
    text = f"{word} {since}".strip()
    return text if len(text) <= width else f"{word[:3]} {since}".strip()[:width]


def times_line(window: Window, marks: Marks) -> str:
    text = [" "] * window.columns
    every_ns = round_ns(window.ns_per_column * _TICK_COLUMNS)
    free = 0
    for position, label in _ticks(window, marks, every_ns):
        column = int((position - window.start_ns) // window.ns_per_column)
        if free <= column and column + len(label) + 1 <= window.columns:
            text[column : column + len(label) + 1] = ["╷", *label]
            free = column + len(label) + 2
    return "".join(text)


def _side(window: Window, marks: Marks) -> int:
    return 0 if not marks or window.scene.step_pairs[marks[0][2]][0] != NONE else 1


def _wide(window: Window, marks: Marks) -> bool:
    seen = [position for position, _, _ in marks if window.start_ns <= position < window.end_ns]
    return len(seen) * _TICK_COLUMNS <= window.columns


def _ticks(window: Window, marks: Marks, every_ns: int) -> list[tuple[int, str]]:
    scene, axis = window.scene, window.axis
    side = _side(window, marks)
    of, steps = axis.sides[side], scene.traces[side].steps
    begin, end = max(int(window.start_ns), 0), min(int(window.end_ns), axis.length_ns)
    known = [(position, int(steps.start_ns[row])) for position, _, n in marks if (row := scene.step_pairs[n][side]) != NONE]
    known = known or [(0, int(of.start_ns[0]))]  # without steps, times count from the start of the trace
    if not _wide(window, marks):
        first_ns = known[0][1]
        return [(position, tick_text(start_ns - first_ns, every_ns)) for position, start_ns in known if begin <= position < end]
    found: list[tuple[int, str]] = []
    bounds = [0, *(position for position, _ in known[1:]), axis.length_ns]
    for (low, high), (_, start_ns) in zip(itertools.pairwise(bounds), known, strict=True):
        if high <= begin or low >= end or high <= low:
            continue
        times = of.times([max(low, begin), min(high, end) - 1]) - start_ns
        for tick in range(-(-int(times[0]) // every_ns), int(times[1]) // every_ns + 1):
            position = of.position(start_ns + tick * every_ns, low + tick * every_ns)
            if position is not None and low <= position < high:
                found.append((position, tick_text(tick * every_ns, every_ns)))
    return found


def round_ns(least_ns: float) -> int:
    decade = 1
    while True:
        for times in (1, 2, 5):
            if times * decade >= least_ns:
                return times * decade
        decade *= 10


def tick_text(at_ns: int, every_ns: int) -> str:
    unit_ns, unit = next((u for u in _UNITS if max(abs(at_ns), every_ns) >= u[0]), _UNITS[-1])
    decimals = 0
    while every_ns * 10**decimals < unit_ns:
        decimals += 1
    return f"{at_ns / unit_ns:.{decimals}f} {unit}"
