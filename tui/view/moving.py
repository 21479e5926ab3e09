"""Keys that move the cursor and the window, and step from event to event."""

from __future__ import annotations

from tui.view.base import ViewBase
from tui.view.spans import neighbour, under

_ZOOM = 0.5
_PAN = 0.25  # of the window


class Moving(ViewBase):
    def action_zoom_in(self) -> None:
        self._stay()
        self._with_window(lambda window: window.zoom(_ZOOM))

    def action_zoom_out(self) -> None:
        self._stay()
        self._with_window(lambda window: window.zoom(1 / _ZOOM))

    def action_pan(self, by: int) -> None:
        self._stay()
        self._with_window(lambda window: window.pan(by * max(int(_PAN * window.columns), 1)))

    def action_move(self, by: int) -> None:
        self.selected = None
        self._with_window(lambda window: window.move(by))

    def action_line(self, by: int) -> None:
        self.selected = None
        self._with_window(lambda window: window.move_line(by))

    def action_page(self, by: int) -> None:
        self.selected = None
        self._with_window(lambda window: window.move_line(by * window.height))

    def action_first(self) -> None:
        self._to_step(0)

    def action_last(self) -> None:
        self._to_step(-1)

    def _to_step(self, place: int) -> None:
        marks = self.timeline.marks
        if not marks:
            self.tell("no steps in this trace")
        else:
            self._go(marks[place][0])

    def action_fit(self) -> None:
        window = self.window
        if window is None:
            return
        span, before = self.selected, (window.start_ns, window.ns_per_column)
        if span is not None:
            side = window.axis.sides[span.side]
            lane = window.scene.rows[span.row].lane(span.side)
            assert lane is not None
            begin = side.place(int(lane.start_ns[span.place]), window.cursor_ns)
            if begin is not None:
                window.fit(begin, begin + int(lane.end_ns[span.place] - lane.start_ns[span.place]))
        if span is None or before == (window.start_ns, window.ns_per_column):
            if window.at_home:
                window.everything()
            else:
                cursor_ns = window.cursor_ns
                window.home()
                window.cursor_ns = cursor_ns
        self.tell()

    def action_neighbour(self, by: int) -> None:
        window = self.window
        if window is None:
            return
        span = neighbour(window, self.selected or under(window), by)
        if span is None:
            self.tell("no event that way on this row")
            return
        self._select(span)
