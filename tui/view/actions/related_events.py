"""Implements the keys that move from an event to a related event, or show the details of an event."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from tui.view.actions.context import ViewContext
from tui.view.actions.selection import Selection
from tui.view.scene.scene import Scene
from tui.view.screens import TextScreen
from tui.view.timeline.details import details
from tui.view.timeline.related import backward, launched, launcher, position_among
from tui.view.timeline.spans import Span, counterpart, neighbour, under


class RelatedEvents:
    def __init__(self, context: ViewContext, selection: Selection) -> None:
        self._context, self._selection = context, selection

    def neighbour(self, by: int) -> None:
        window = self._context.window
        span = neighbour(window, self._selection.span or under(window), by)
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
