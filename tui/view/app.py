"""Defines the timeline app with its widgets. A background thread loads the traces.

    ViewApp(stages(["v100.msgpack", "replay.msgpack"])).run()
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Horizontal
from textual.events import Key as KeyPress
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import Footer, ProgressBar, Static

from tui.formatting import fit, printable
from tui.view.actions.context import ViewContext
from tui.view.actions.difference_walk import DifferenceWalk
from tui.view.actions.finding import Finding, RelatedEvents
from tui.view.actions.movement import Movement
from tui.view.actions.panels import Panels
from tui.view.actions.row_layout import RowLayout
from tui.view.actions.saving import ViewSaving
from tui.view.actions.selection import Selection
from tui.view.keys import KEYS, Key
from tui.view.live import Live
from tui.view.loading import Stage
from tui.view.scene.scene import Scene
from tui.view.script_output import ScriptOutput
from tui.view.tables.panel import TablePanel
from tui.view.timeline.headline import LINES, headline
from tui.view.timeline.palette import Palette, palette_of
from tui.view.timeline.spans import span_at_cursor
from tui.view.timeline.status import legend, range_text, status
from tui.view.timeline.timeline import TimelineView
from tui.view.timeline.window import Window

WIDE_ENOUGH = 120  # in windows with at least this many columns, tables are beside the timeline; otherwise they are below
HIGH_ENOUGH = 30  # with at least this many lines, the legend is shown by default
_OUTPUT_LINES = 8
_OUTPUT_S = 0.25
_FOLLOWED_STEPS = 4
_DRAWN_S = 0.5  # maximum wait in seconds until a new scene is drawn
_KEYS = {key.keys: key for key in KEYS}


def _press(key: Key) -> str:
    return f"press({key.keys!r})"


def _theme(name: str, palette: Palette, surface: str, panel: str, accent: str) -> Theme:
    return Theme(
        name, primary=accent, accent=accent, background=palette.background, foreground=palette.text, surface=surface,
        panel=panel, dark=palette.dark,
    )  # fmt: skip


THEMES = {
    True: _theme("trace-dark", palette_of(True), "#1a2026", "#2c343c", "#3ab5a9"),
    False: _theme("trace-light", palette_of(False), "#ebeef0", "#d5dade", "#0f5c68"),
}


class Keys(Footer):
    def compose(self) -> ComposeResult:
        first = [_press(key) for key in KEYS if key.action in ("Panels.help", "ViewApp.exit")]
        yield from sorted(super().compose(), key=lambda key: getattr(key, "action", "") not in first)


class ViewApp(App[int]):
    """If loading fails, `failure` contains the exception."""

    TITLE = "trace view"
    CSS = f"""
    ModalScreen {{ background: $background 60%; }}
    #headline {{ height: auto; min-height: 1; max-height: {LINES}; }}
    #legend {{ height: auto; display: none; }}
    #legend.open {{ display: block; }}
    #below {{ height: 1; background: $surface; }}
    #status {{ width: 1fr; height: 1; }}
    #main {{ height: 1fr; }}
    #main.stacked {{ layout: vertical; }}
    #output {{ height: {_OUTPUT_LINES + 1}; display: none; border-top: solid $panel; text-wrap: nowrap; }}
    #output.open {{ display: block; }}
    #progress {{ width: 39; display: none; }}
    #progress.busy {{ display: block; }}
    """
    BINDINGS: ClassVar = [
        *(Binding(key.keys, _press(key), key.hint or key.help, show=bool(key.hint), key_display=key.shown) for key in KEYS),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    ]

    def __init__(self, stages: Iterable[Stage], live: Live | None = None, output: ScriptOutput | None = None) -> None:
        super().__init__()
        self._stages = stages
        self._live = live
        self._output = output
        self._output_bytes = 0
        self.failure: Exception | None = None
        self.loaded = False
        self.scene: Scene | None = None
        self._legend: bool | None = None  # None means: the terminal's height decides
        self._note = ""
        self._shut = False
        self._seen = threading.Event()
        self.context = ViewContext(self, self.tell)
        self.context.following = live is not None
        self.selection = Selection(self.context)
        self.walk = DifferenceWalk(self.context, self.selection)
        self._finding = Finding(self.context, self.selection, self.walk)
        self._panels = Panels(self.context, self.selection, self.walk)
        self._saving = ViewSaving(self.context, lambda: self.export_screenshot(title="trace view"))
        more = [kind(self.context, self.selection) for kind in (Movement, RelatedEvents, RowLayout)]
        named = {type(of).__name__: of for of in (*more, self.walk, self._finding, self._panels, self._saving)}
        self.targets: dict[str, object] = named | {"ViewApp": self}  # by class; keys.csv names the class and the method
        for theme in THEMES.values():
            self.register_theme(theme)
        if "TEXTUAL_THEME" not in os.environ:
            self.theme = THEMES[not _light_terminal()].name

    def export_screenshot(self, *, title: str | None = None, simplify: bool = False) -> str:
        return printable(super().export_screenshot(title=title, simplify=simplify), colour=False)

    def compose(self) -> ComposeResult:
        yield Static(id="headline")
        with Horizontal(id="main"):
            yield TimelineView()
            yield TablePanel()
        yield Static(id="output")
        yield Static(id="legend")
        with Horizontal(id="below"):
            yield Static(id="status")
            yield ProgressBar(total=100, show_eta=False, id="progress")
        yield Keys(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.context.tables.source = self._panels.table
        self.context.timeline.focus()
        self.theme_changed_signal.subscribe(self, lambda _: self._look_again())
        threading.Thread(target=self._go_through_stages, name="trace-stages").start()
        if self._output is not None:
            self.set_interval(_OUTPUT_S, self._say_output)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        for key in KEYS:
            if self.check_action("press", (key.keys,)):
                yield SystemCommand(key.help, f"key {key.shown}", partial(self.action_press, key.keys))
        yield from (command for command in super().get_system_commands(screen) if "theme" in command.title.lower())

    @property
    def window(self) -> Window | None:
        return self.context.timeline.window

    # --- keys ---

    def action_press(self, keys: str) -> None:
        key = _KEYS[keys]
        of_class, _, method = key.action.partition(".")
        act = getattr(self.targets[of_class], method)
        act() if key.argument is None else act(key.argument)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        needs = _KEYS[str(parameters[0])].needs if action == "press" else "nothing"
        if needs == "nothing":
            return True
        if self.window is None:
            return False
        if needs == "live replay":
            return self._live is not None
        if needs == "cursor":
            return self.context.timeline.has_focus or len(self.screen_stack) > 1
        return needs == "trace" or len(self.window.scene.traces) == 2

    def on_key(self, event: KeyPress) -> None:
        key = _KEYS.get(event.key)
        if key is not None and self.window is not None and len(self.screen_stack) == 1:
            if key.needs == "two traces" and len(self.window.scene.traces) == 1:
                self.tell(f"{key.shown} ({key.help}) is for two traces: trace view A B")
            elif key.needs == "live replay" and self._live is None:
                self.tell(f"{key.shown} ({key.help.removeprefix('live: ')}) is for a replay as it runs: trace replay --view")

    # --- loading ---

    @dataclass
    class Arrived(Message):
        stage: Stage

    def _go_through_stages(self) -> None:
        """Load the traces in a background thread, and let the app draw the screen after each stage."""
        try:
            for stage in self._stages:
                if self._shut:
                    return
                self._seen.clear()
                self.post_message(self.Arrived(stage))
                self._seen.wait(_DRAWN_S)  # otherwise loading the next stage would delay the drawing of this scene
        except Exception as error:
            self.failure = error  # the caller of `run` prints the error after the app has closed
            self.call_later(self.exit, 2)

    def on_unmount(self) -> None:
        self._shut = True
        self._seen.set()
        if self._live is not None:
            self._live.close()

    def on_view_app_arrived(self, event: Arrived) -> None:
        self._arrived(event.stage)
        self.call_after_refresh(self._seen.set)

    def _arrived(self, stage: Stage) -> None:
        base = self.screen_stack[0]
        progress = base.query_one(ProgressBar)
        progress.update(progress=100 * stage.share)
        progress.set_class(stage.share < 1 and self._live is None, "busy")
        self._note = f"{stage.doing} ..." if stage.doing else ""
        if stage.scene is not None:
            self.scene = stage.scene
            self.selection.span = None  # the selected event may be in another row now
            self.context.timeline.show(stage.scene)
            self._follow()
            self.context.tables.forget()
            self._say_headline()
            self.refresh_bindings()
        self.loaded = stage.share >= 1
        ended = self._live.returncode if self._live is not None else None
        if self.loaded and ended:
            base.query_one("#output", Static).add_class("open")  # the output panel shows why the run failed
        self.tell("" if not self.loaded or ended is None else f"the replay has ended with exit code {ended}; q closes the view")

    def _follow(self) -> None:
        marks = self.context.timeline.marks
        if self.context.following and marks and self.window is not None and len(self.window.scene.traces) == 2:
            begin_ns = marks[max(len(marks) - _FOLLOWED_STEPS, 0)][0]
            self.window.fit(begin_ns, self.window.axis.length_ns)
            self.window.cursor_ns = marks[-1][0]

    # --- notes and status line ---

    def on_resize(self, event: Resize) -> None:
        self._say_headline(event.size.width)
        stacked = event.size.width < WIDE_ENOUGH
        self.screen_stack[0].query_one("#main").set_class(stacked, "stacked")
        self.context.tables.set_class(stacked, "below")
        self._say_legend(event.size.height)

    def _look_again(self) -> None:
        self._say_headline()
        if self.window is not None:
            self.tell()

    def _say_headline(self, width: int | None = None) -> None:
        if self.scene is None:
            return
        text = Text()
        for line in headline(self.scene, width or self.size.width):
            text.append(("\n" if text else "") + line.text, self.context.timeline.palette.tones.get(line.tone, Style()))
        self.screen_stack[0].query_one("#headline", Static).update(text)

    def _say_legend(self, height: int | None = None) -> None:
        widget = self.screen_stack[0].query_one("#legend", Static)
        shown = (height or self.size.height) >= HIGH_ENOUGH if self._legend is None else self._legend
        widget.set_class(shown, "open")
        if shown and self.window is not None:
            widget.update(legend(self.window, self.context.timeline.drawing, self.context.timeline.palette, self.size.width))

    def _say_output(self) -> None:
        if self._output is None or not self.screen_stack:
            return
        for widget in self.screen_stack[0].query("#output.open").results(Static):
            if self._output.written_bytes != self._output_bytes:
                self._output_bytes = self._output.written_bytes
                widget.update(Text.from_ansi("\n".join(self._output.tail(_OUTPUT_LINES))))

    def tell(self, note: str = "") -> None:
        window = self.window
        text = note or self._note
        if window is not None:
            partner = self.selection.highlight(window)
            self.selection.extend_range(window)
            if not text and window.range_ns is not None and self.selection.range_from_ns is None:
                text = range_text(window) + "; t lists its events, Esc ends the range"
            elif not text:
                text = status(window, self.context.timeline.drawing, self.context.timeline.marks, self.selection.span, partner)
        self.screen_stack[0].query_one("#status", Static).update(Text(fit(text, self.size.width)))
        self._say_legend()
        self.context.timeline.redraw()

    def on_timeline_view_changed(self, event: TimelineView.Changed) -> None:
        self.context.following = False
        if event.selected and self.window is not None:
            self.selection.span = span_at_cursor(self.window)
            self.context.timeline.focus()
        self.tell()

    # --- requests of the table panel ---

    def on_table_panel_chosen(self, event: TablePanel.Chosen) -> None:
        self._finding.go_to_row(event.row)

    def on_table_panel_saving(self, event: TablePanel.Saving) -> None:
        self._saving.table(event.tab, event.text)

    # --- themes, and live replays ---

    def turn_legend(self) -> None:
        self._legend = not self.screen_stack[0].query_one("#legend").has_class("open")
        self._say_legend()

    def turn_dark(self) -> None:
        self.theme = THEMES[not self.current_theme.dark].name

    def turn_following(self) -> None:
        self.context.following = not self.context.following
        self._follow()
        self.tell("following the replay" if self.context.following else "staying here; press l to follow again")

    def turn_output(self) -> None:
        self.screen_stack[0].query_one("#output", Static).toggle_class("open")
        self._output_bytes = 0
        self._say_output()


def _light_terminal() -> bool:
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
