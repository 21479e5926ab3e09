"""Keys that go somewhere: to differences, to a step, to what was searched for, to what a table's row stands for."""

from __future__ import annotations

from functools import partial

from tui.figures import time_text
from tui.view.alignment import Alignment
from tui.view.base import ViewBase
from tui.view.differences import Difference, Differences
from tui.view.scene import Scene
from tui.view.screens import PromptScreen, SearchScreen
from tui.view.search import Hit, next_place, search
from tui.view.tables import TableRow, Tables


class Finding(ViewBase):
    _hit: Hit | None = None
    _searched = ""
    _differences: tuple[Scene, Alignment, Differences] | None = None

    def action_difference(self, by: int) -> None:
        window = self.window
        if window is None or self.scene is None:
            return
        known = self._differences
        if known is None or known[0] is not self.scene or known[1] is not window.alignment:
            found = Differences.of(self.scene, window.alignment, window.steps_begin_ns)
            self._differences = known = self.scene, window.alignment, found
        place = known[2].after(window.cursor_ns) if by > 0 else known[2].before(window.cursor_ns)
        if place is None:
            self.tell("no differences worth going to")
            return
        self._stay()
        window.go(place.at_ns, place.row, 1)
        self.selected = None
        self.tell(self._told(place, known[2]))

    def _told(self, place: Difference, all_of_them: Differences) -> str:
        assert self.scene is not None
        number = all_of_them.places.index(place) + 1
        more = f"{self.scene.words[1]} busy {time_text(place.more_ns, signed=True)}" if place.more_ns else "as busy, other work"
        return (
            f"difference {number} of {len(all_of_them.places)}: {self.scene.rows[place.row].label},"
            f" {time_text(place.differs_ns)} differ within {time_text(place.width_ns)}, {more}"
        )

    def action_goto(self) -> None:
        if self.scene is not None:
            names = [name for _, name, _ in self.timeline.marks]
            hint = f"{names[0]} to {names[-1]}" if names else "no steps in this trace"
            self.push_screen(PromptScreen("go to step", hint), self._goto)

    def _goto(self, text: str | None) -> None:
        if text is None:
            return
        wanted = text.removeprefix("step").strip()
        for place, name, _ in self.timeline.marks:
            if wanted in (name, *name.split("/")):
                self._go(place)
                return
        self.tell(f"no step {wanted}")

    def action_search(self) -> None:
        if self.scene is None:
            return
        screen = SearchScreen(partial(self._search, self.scene), self.scene.words, self._searched)

        def chosen(hit: Hit | None) -> None:
            if hit is not None:
                self._hit = hit
                self._next_match(1)

        self.push_screen(screen, chosen)

    def _search(self, scene: Scene, text: str) -> list[Hit]:
        self._searched = text
        steps = [
            Hit("step", f"step {name}", 0, 0, "steps", number)
            for _, name, number in self.timeline.marks
            if text.strip() and f"step {name}".startswith(text.casefold().strip())
        ]
        return steps + search(scene, text)

    def action_match(self, by: int) -> None:
        if self._hit is None:
            self.tell("nothing searched for yet: / searches")
        else:
            self._next_match(by)

    def _next_match(self, by: int) -> None:
        window, hit = self.window, self._hit
        if window is None or hit is None:
            return
        if hit.table == "steps":
            self._to_pair(hit.string)
            return
        found = next_place(window, hit, by)
        if found is None:
            self.tell(f"{hit.name} lies outside what is aligned by {window.alignment.value}")
        else:
            self._select(*found)

    def _to_pair(self, number: int) -> None:
        place = next((place for place, _, pair in self.timeline.marks if pair == number), None)
        if place is None:
            self.tell("that step is not on the axis")
        else:
            self._go(place)

    def on_tables_chosen(self, event: Tables.Chosen) -> None:
        self._go_to_row(event.tab, event.row)

    def _go_to_row(self, tab: str, row: TableRow) -> None:
        scene = self.scene
        if scene is None or self.window is None:
            return
        if tab == "steps":
            self._to_pair(row.step)
            return
        table = {"kernels": "device", "ops": "host", "phases": "phases"}[tab]
        for side in (row.side, len(scene.traces) - 1 - row.side):
            string = scene.traces[side].strings.find(row.name)
            hit = Hit(tab, row.name, 0, side, table, string)
            found = next_place(self.window, hit, 1) if string >= 0 else None
            if found is not None:
                self._hit = hit
                self._select(*found)
                return
        self.tell(f"{row.name} lies outside what is aligned by {self.window.alignment.value}")
