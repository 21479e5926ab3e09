"""Implements the keys that move the cursor to the next or the previous difference between two traces."""

from __future__ import annotations

from tui.formatting import counted
from tui.view.actions.context import ViewContext
from tui.view.actions.selection import Selection
from tui.view.differences import differences
from tui.view.scene.difference import Difference
from tui.view.scene.scene import Scene
from tui.view.timeline.spans import duration_of, find_span, position_of

# margin on both sides of a shown difference, as a share of the difference's length; kernels get a wide margin, and phases a
# narrow one
_BESIDE = {"device": 6.0, "phases": 0.25}


class DifferenceWalk:
    def __init__(self, context: ViewContext, selection: Selection) -> None:
        self._context, self._selection = context, selection
        self.everything = False
        self._all: tuple[Scene, tuple[Difference, ...]] | None = None
        self._at: Difference | None = None

    def found(self) -> tuple[Difference, ...]:
        scene = self._context.scene
        if not self.everything:
            return scene.differences
        if self._all is None or self._all[0] is not scene:
            self._all = scene, differences(scene, everything=True)
        return self._all[1]

    def step(self, by: int) -> None:
        found = self.found()
        if self._context.scene.counterparts is None:
            self._context.tell("still looking for counterparts")
        elif not found:
            self._context.tell("no differences to go to")
        else:
            at = found.index(self._at) + by if self._at in found else min(by, 0)
            self.go_to(found[at % len(found)])

    def go_to(self, one: Difference) -> None:
        self._at = one
        window, found = self._context.window, self.found()
        side = 1 if one.rows[1] >= 0 else 0
        span = find_span(window.scene, side, one.table, one.rows[side])
        near = next((position for position, _, pair in self._context.timeline.marks if pair == one.pair), window.cursor_ns)
        position = None if span is None else position_of(window, span, near)
        if span is None or position is None:
            self._context.tell(f"{one.sentence}: hidden when aligned by {window.alignment.value}")
            return
        duration_ns = duration_of(window.scene, span)
        beside_ns = int(_BESIDE[one.table] * max(duration_ns, *one.times_ns, 1))
        window.fit(position - beside_ns, position + duration_ns + beside_ns)
        self._selection.select(span, position)
        number = found.index(one) + 1 if one in found else 0
        self._context.tell(f"{number} of {len(found)}: {one.sentence}")

    def toggle_everything(self) -> None:
        self.everything = not self.everything
        self._context.tables.forget("differences")
        words = "with waits for data and warm-up" if self.everything else "without waits for data and warm-up"
        self._context.tell(f"{counted(len(self.found()), 'difference')}, {words}")
