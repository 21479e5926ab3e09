"""The timeline app: what its keys do besides moving and finding.

ViewApp(stages(["v100.msgpack", "replay.msgpack"])).run()
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.text import Text
from textual.binding import Binding
from textual.widgets import Static

from tui.outputs import write_text
from tui.view.alignment import Alignment
from tui.view.base import WIDE_ENOUGH
from tui.view.details import details
from tui.view.finding import Finding
from tui.view.keys import KEYS
from tui.view.moving import Moving
from tui.view.screens import PromptScreen, TextScreen, export_hint, help_text
from tui.view.spans import under
from tui.view.tables import Tables


class ViewApp(Moving, Finding):
    """See ViewBase. Keys, their words and their actions are those of keys.KEYS."""

    BINDINGS = [Binding(key.keys, key.action, key.hint or key.help, show=bool(key.hint), key_display=key.shown) for key in KEYS]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Before there is anything to see, only quitting and help do something; of one trace there are no differences."""
        if action in _ALWAYS or action not in _ACTIONS:
            return True
        if self.window is None:
            return False
        if action in _LIVE:
            return self._live is not None
        return len(self.window.scene.traces) == 2 or action not in _FOR_TWO

    def action_details(self) -> None:
        window = self.window
        if window is None:
            return
        span = self.selected or under(window)
        if span is None:
            self.tell("no event here; , and . go to the previous and next one")
            return
        lines = details(window.scene, span, window.alignment, window.cursor_ns)
        text = Text.assemble((lines[0] + "\n", "bold"), "\n".join(lines[1:]))
        self.push_screen(TextScreen("event", text))

    # --- how it looks ---

    def action_align(self) -> None:
        window = self.window
        if window is not None:
            order = list(Alignment)
            window.align(order[(order.index(window.alignment) + 1) % len(order)])
            self.selected = None
            self.tell(f"aligned by {window.alignment.value}")

    def action_swap(self) -> None:
        self._with_window(lambda window: window.toggle("swapped"))

    def action_mirror(self) -> None:
        self._with_window(lambda window: window.toggle("mirrored"))

    def action_memory(self) -> None:
        self._with_window(lambda window: window.toggle("memory"))

    def action_host(self) -> None:
        self._with_window(lambda window: window.toggle("host"))

    def action_help(self) -> None:
        self.push_screen(TextScreen("keys", help_text()))

    def action_tables(self) -> None:
        tables = self.query_one(Tables)
        if not tables.toggle(below=self.size.width < WIDE_ENOUGH):
            self.timeline.focus()

    # --- live ---

    def action_follow(self) -> None:
        self.following = not self.following
        self._follow()
        self.tell("following the replay" if self.following else "staying here; l follows again")

    def action_output(self) -> None:
        self.screen_stack[0].query_one("#output", Static).toggle_class("open")
        self._output_bytes = 0
        self._say_output()

    # --- export ---

    def action_export(self) -> None:
        if self.window is None:
            return
        svg = self.export_screenshot(title="trace view")
        self.push_screen(PromptScreen("export to", export_hint(Path("view.svg"))), partial(self._export, svg))

    def _export(self, svg: str, name: str | None) -> None:
        window = self.window
        if name is None or window is None:
            return
        from tui.view.export import write_range  # not at the top: it takes a tenth of the time to the first picture

        path = Path(name).expanduser()
        try:
            if path.suffix == ".svg":
                write_text(path, svg)
                written = [path]
            elif ".json" in path.name:
                written = write_range(window, path)
            else:
                self.tell(f"{name}: give it the ending .svg, .json or .json.gz")
                return
        except OSError as error:
            self.tell(f"{name}: {error.strerror or error}")
            return
        self.tell("wrote " + ", ".join(map(str, written)) if written else "nothing in sight to write")


_ACTIONS = {key.action.partition("(")[0] for key in KEYS}
_ALWAYS = {"help", "quit"}
_LIVE = {"follow", "output"}
_FOR_TWO = {"difference", "align", "swap", "mirror"}
