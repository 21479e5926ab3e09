"""Implements the keys that search for events, move to related events, or show details."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rich.text import Text

from tui.view.actions.context import ViewContext
from tui.view.actions.difference_walk import DifferenceWalk
from tui.view.actions.selection import Selection
from tui.view.scene.scene import Scene
from tui.view.screens import PromptScreen, SearchScreen, TextScreen
from tui.view.search import Hit, search
from tui.view.tables.parts import TableRow
from tui.view.timeline.details import details
from tui.view.timeline.related import backward, launched, launcher, next_named, position_among
from tui.view.timeline.spans import Span, counterpart, neighbour, span_at_cursor


class RelatedEvents:
    def __init__(self, context: ViewContext, selection: Selection) -> None:
        self._context, self._selection = context, selection

    def neighbour(self, by: int) -> None:
        window = self._context.window
        span = neighbour(window, self._selection.span or span_at_cursor(window), by)
        if span is None:
            self._context.tell("no more events on this row in this direction")
        else:
            self._selection.select(span)

    def same_name(self, by: int) -> None:
        span = self._selection.current()
        if span is not None:
            found = position_among(self._context.window, span, by)
            self._selection.select_named(found, "no other event of this name")

    def counterpart(self) -> None:
        window = self._context.window
        other = self._context.scene.words[1 - window.cursor_side]
        self._to_related(
            lambda scene, span: counterpart(scene, span, window.alignment, window.cursor_ns), f"no counterpart, {other}"
        )

    def launcher(self) -> None:
        self._to_related(launcher, "no enclosing op and no recorded launch")

    def launched(self) -> None:
        self._to_related(launched, "this event launched no GPU work")

    def backward(self) -> None:
        self._to_related(backward, "no matching forward or backward op was recorded")

    def details(self) -> None:
        span = self._selection.current()
        if span is not None:
            window = self._context.window
            lines = details(window.scene, span, window.alignment, window.cursor_ns)
            self._context.open(TextScreen("event", Text.assemble((lines[0] + "\n", "bold"), "\n".join(lines[1:]))))

    def _to_related(self, find: Callable[[Scene, Span], Span | None], missing: str) -> None:
        span = self._selection.current()
        if span is None:
            return
        found = find(self._context.scene, span)
        if found is None:
            self._selection.span = span
            self._context.tell(missing)
        else:
            self._selection.select(found)


class Finding:
    def __init__(self, context: ViewContext, selection: Selection, walk: DifferenceWalk) -> None:
        self._context, self._selection, self._walk = context, selection, walk
        self._hit: Hit | None = None  # the last search result
        self._searched = ""

    def goto(self) -> None:
        names = [name for _, name, _ in self._context.timeline.marks]
        hint = f"{names[0]} to {names[-1]}" if names else "no steps in this trace"
        self._context.open(PromptScreen("go to step", hint), self._to_step)

    def search(self) -> None:
        def chosen(hit: Hit | None) -> None:
            if hit is not None:
                self._hit = hit
                self._next_match(1)

        scene = self._context.scene
        self._context.open(SearchScreen(partial(self._search, scene), scene.words, self._searched), chosen)

    def match(self, by: int) -> None:
        if self._hit is None:
            self._context.tell("no search yet; press / to search")
        else:
            self._next_match(by)

    def go_to_row(self, row: TableRow) -> None:
        window, scene = self._context.window, self._context.scene
        if row.difference is not None:
            self._walk.go_to(row.difference)
            return
        if row.step >= 0:
            self._selection.go_to_pair(row.step)
            return
        if not row.table:
            self._context.tell(f"{row.full_name}: this row is a sum of several events")
            return
        for side in (row.side, len(scene.traces) - 1 - row.side):
            string = scene.traces[side].strings.find(row.name)
            found = next_named(window, side, row.table, string, 1) if string >= 0 else None
            if found is not None:
                self._hit = Hit(row.table, row.name, 0, side, row.table, string)
                break
        self._selection.select_named(found, f"{row.name} is hidden when aligned by {window.alignment.value}")

    def _to_step(self, text: str | None) -> None:
        if text is None:
            return
        wanted = text.removeprefix("step").strip()
        for position, name, _ in self._context.timeline.marks:
            if wanted in (name, *name.split("/")):
                self._selection.go(position)
                return
        self._context.tell(f"no step {wanted}")

    def _search(self, scene: Scene, text: str) -> list[Hit]:
        self._searched = text
        steps = [
            Hit("step", f"step {name}", 0, 0, "steps", number)
            for _, name, number in self._context.timeline.marks
            if text.strip() and f"step {name}".startswith(text.casefold().strip())
        ]
        return steps + search(scene, text)

    def _next_match(self, by: int) -> None:
        hit, window = self._hit, self._context.window
        if hit is None:
            return
        if hit.table == "steps":
            self._selection.go_to_pair(hit.string)
            return
        missing = f"{hit.name} is hidden when aligned by {window.alignment.value}"
        self._selection.select_named(next_named(window, hit.side, hit.table, hit.string, by), missing)
