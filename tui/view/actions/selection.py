"""Holds the selected event, and highlights related events."""

from __future__ import annotations

from tui.view.actions.context import ViewContext
from tui.view.timeline.related import launched_rows, launcher
from tui.view.timeline.spans import Span, counterpart, duration_of, find_span, position_of, span_at_cursor
from tui.view.timeline.status import status
from tui.view.timeline.window import Window

_MOST_HIGHLIGHTED = 400  # maximum number of highlighted kernels per op


class Selection:
    def __init__(self, context: ViewContext) -> None:
        self._context = context
        self.span: Span | None = None
        self.range_from_ns: int | None = None

    def current(self) -> Span | None:
        span = self.span or span_at_cursor(self._context.window)
        if span is None:
            self._context.tell("no event here; press , or . to go to the previous or next event")
        return span

    def go(self, at_ns: int) -> None:
        self._context.following = False
        self.span = None
        self._context.change_window(lambda window: window.go(at_ns))

    def select(self, span: Span, at_ns: int | None = None, note: str = "") -> None:
        context = self._context
        context.following = False
        window = context.window
        if at_ns is None:
            at_ns = position_of(window, span)
        if at_ns is None:
            context.tell(f"hidden when aligned by {window.alignment.value}: this event is outside the aligned steps")
            return
        window.go(at_ns, span.row, span.side)
        self.span = span
        if note:
            timeline = context.timeline
            note += " · " + status(window, timeline.drawing, timeline.marks, span, self.highlight(window))
        context.tell(note)

    def select_named(self, found: tuple[Span, int, int, int] | None, missing: str) -> None:
        if found is None:
            self._context.tell(missing)
        else:
            span, position, number, count = found
            self.select(span, position, f"{number} of {count}")

    def go_to_pair(self, pair: int) -> None:
        position = next((position for position, _, number in self._context.timeline.marks if number == pair), None)
        if position is None:
            self._context.tell("this step is not shown")
        else:
            self.go(position)

    def highlight(self, window: Window) -> Span | None:
        window.lit = []
        span = self.span
        if span is None:
            return None
        partner = counterpart(window.scene, span, window.alignment, window.cursor_ns)
        lit = [of for of in (span, partner, launcher(window.scene, span)) if of is not None]
        if span.table == "host":
            rows = launched_rows(window.scene.traces[span.side], span.number)[:_MOST_HIGHLIGHTED]
            lit += [of for row in rows.tolist() if (of := find_span(window.scene, span.side, "device", row)) is not None]
        for of in lit:
            position = position_of(window, of)
            if position is not None:
                window.lit.append((of.row, of.side, position, position + duration_of(window.scene, of)))
        return partner

    def extend_range(self, window: Window) -> None:
        if self.range_from_ns is not None:
            ends = self.range_from_ns, window.cursor_ns
            window.range_ns = min(ends), max(ends) + int(window.ns_per_column)
