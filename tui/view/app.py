"""The timeline app: its widgets, what it loads, what its keys do, and what it says.

    ViewApp(stages(["v100.msgpack", "replay.msgpack"])).run()

It never reads a trace: a thread goes through the stages and posts each scene (loading.py, live.py). What keys do to the window
is in window.py, where they lead in related.py, differences.py and search.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Horizontal
from textual.events import Key, Resize
from textual.message import Message
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import Footer, ProgressBar, Static

from tui.figures import counted, fit
from tui.outputs import write_text
from tui.view.alignment import Alignment
from tui.view.details import details
from tui.view.differences import Difference, differences
from tui.view.headline import LINES, headline
from tui.view.keys import KEYS
from tui.view.live import Live
from tui.view.loading import Stage
from tui.view.output import ScriptOutput
from tui.view.palette import Palette, palette_of
from tui.view.related import backward, launched, launched_rows, launcher, next_named, place_among
from tui.view.scene import Scene
from tui.view.screens import HelpScreen, PromptScreen, SearchScreen, TextScreen
from tui.view.search import Hit, search
from tui.view.spans import Span, counterpart, duration_of, find_span, neighbour, place_of, under
from tui.view.status import legend, range_text, status
from tui.view.table_parts import TabTable
from tui.view.table_rows import TABS, table_of
from tui.view.tables import TablePanel
from tui.view.timeline import TimelineView
from tui.view.window import Window

WIDE_ENOUGH = 120  # columns from which on tables stand beside the lanes, not below
HIGH_ENOUGH = 30  # lines from which on there is a legend, unless it is turned off
_OUTPUT_LINES = 8
_OUTPUT_S = 0.25
_FOLLOWED_STEPS = 4
_DRAWN_S = 0.5  # at most, until what has come is drawn
_PAN = 0.25  # of the window
# How much is shown on either side of a difference, as a share of it: a kernel among others, most of a window for a phase.
_BESIDE = {"device": 6.0, "phases": 0.25}
_MOST_LIT = 400  # kernels of one op


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
    """What keys do, first the way to all of them and the way out, so that both are seen in the narrowest terminal."""

    def compose(self) -> ComposeResult:
        first = ("help", "quit")
        yield from sorted(super().compose(), key=lambda key: getattr(key, "action", "") not in first)


class ViewApp(App[int]):
    """`stages` is gone through in a thread of its own. `failure` is what it raised, once the app has returned."""

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
        *(Binding(key.keys, key.action, key.hint or key.help, show=bool(key.hint), key_display=key.shown) for key in KEYS),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    ]

    def __init__(self, stages: Iterable[Stage], live: Live | None = None, output: ScriptOutput | None = None) -> None:
        super().__init__()
        self._stages = stages
        self._live = live
        self._output = output
        self._output_bytes = 0
        self.following = live is not None
        self.failure: Exception | None = None
        self.loaded = False
        self.scene: Scene | None = None
        self.selected: Span | None = None
        self.everything = False  # of differences also waits for data and warm-up
        self._all_differences: tuple[Scene, tuple[Difference, ...]] | None = None
        self._at_difference: Difference | None = None
        self._hit: Hit | None = None
        self._searched = ""
        self._range_from: int | None = None  # where a range begins that the cursor extends
        self._legend: bool | None = None  # None: as the terminal's height asks for
        self._note = ""
        self._shut = False
        self._seen = threading.Event()
        for theme in THEMES.values():
            self.register_theme(theme)
        if "TEXTUAL_THEME" not in os.environ:
            self.theme = THEMES[not _light_terminal()].name

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
        self.tables.source = self._table
        self.timeline.focus()
        self.theme_changed_signal.subscribe(self, lambda _: self._look_again())
        threading.Thread(target=self._go_through_stages, name="trace-stages").start()
        if self._output is not None:
            self.set_interval(_OUTPUT_S, self._say_output)

    def _table(self, tab: str) -> TabTable:
        return table_of(self._scene, tab, self._found_differences(), self._window.axis, self._window.range_ns)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette: every key that does something now, and themes."""
        for key in KEYS:
            if self.check_action(key.action, ()):
                yield SystemCommand(key.help, f"key {key.shown}", partial(self.run_action, key.action))
        yield from (command for command in super().get_system_commands(screen) if "theme" in command.title.lower())

    @property
    def timeline(self) -> TimelineView:
        return self.screen_stack[0].query_one(TimelineView)

    @property
    def tables(self) -> TablePanel:
        return self.screen_stack[0].query_one(TablePanel)

    @property
    def window(self) -> Window | None:
        return self.timeline.window

    @property
    def _window(self) -> Window:
        window = self.window
        assert window is not None  # check_action lets no key through before
        return window

    @property
    def _scene(self) -> Scene:
        assert self.scene is not None
        return self.scene

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Before there is anything to see, only quitting and help do something; of one trace there are no differences; the
        cursor's keys are those of what has the focus."""
        needs = _NEEDS.get(f"{action}({parameters[0]!r})" if parameters else action, "nothing")
        if needs == "nothing":
            return True
        if self.window is None:
            return False
        if needs == "live replay":
            return self._live is not None
        if needs == "cursor":
            return self.timeline.has_focus or len(self.screen_stack) > 1
        return needs == "trace" or len(self.window.scene.traces) == 2

    def on_key(self, event: Key) -> None:
        """A key that does nothing here says why."""
        key = next((key for key in KEYS if key.keys == event.key), None)
        if key is not None and self.window is not None and len(self.screen_stack) == 1:
            if key.needs == "two traces" and len(self._scene.traces) == 1:
                self.tell(f"{key.shown} ({key.help}) is for two traces: trace view A B")
            elif key.needs == "live replay" and self._live is None:
                self.tell(f"{key.shown} ({key.help.removeprefix('live: ')}) is for a replay as it runs: trace replay --view")

    # --- loading ---

    @dataclass
    class Arrived(Message):
        """A stage has come."""

        stage: Stage

    def _go_through_stages(self) -> None:
        """In a thread of its own. Nothing here waits long for the app, which may be closed at any time: a thread that numpy is
        at work in must have ended before the interpreter does."""
        try:
            for stage in self._stages:
                if self._shut:
                    return
                self._seen.clear()
                self.post_message(self.Arrived(stage))
                self._seen.wait(_DRAWN_S)  # the next stage's work would hold up the drawing of this one
        except Exception as error:
            self.failure = error  # told by the command that ran the app, once the terminal is its own again
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
            self.selected = None  # its row may be another one now
            self.timeline.show(stage.scene)
            self._follow()
            self.tables.forget()
            self._say_headline()
            self.refresh_bindings()
        self.loaded = stage.share >= 1
        ended = self._live.returncode if self._live is not None else None
        if self.loaded and ended:
            base.query_one("#output", Static).add_class("open")  # it will say why
        self.tell("" if not self.loaded or ended is None else f"the replay has ended with exit code {ended}; q closes the view")

    def _follow(self) -> None:
        """Live: bring the last steps into sight."""
        marks = self.timeline.marks
        if self.following and marks and self.window is not None and len(self.window.scene.traces) == 2:
            begin_ns = marks[max(len(marks) - _FOLLOWED_STEPS, 0)][0]
            self.window.fit(begin_ns, self.window.axis.length_ns)
            self.window.cursor_ns = marks[-1][0]

    def _stay(self) -> None:
        """Somebody looks around: no longer follow a live replay."""
        self.following = False

    # --- what is said ---

    def on_resize(self, event: Resize) -> None:
        self._say_headline(event.size.width)
        stacked = event.size.width < WIDE_ENOUGH
        self.screen_stack[0].query_one("#main").set_class(stacked, "stacked")
        self.tables.set_class(stacked, "below")
        self._say_legend(event.size.height)

    def _look_again(self) -> None:
        """The theme is another one."""
        self._say_headline()
        if self.window is not None:
            self.tell()

    def _say_headline(self, width: int | None = None) -> None:
        if self.scene is None:
            return
        text = Text()
        for said in headline(self.scene, width or self.size.width):
            text.append(("\n" if text else "") + said.text, self.timeline.palette.tones.get(said.tone, Style()))
        self.screen_stack[0].query_one("#headline", Static).update(text)

    def _say_legend(self, height: int | None = None) -> None:
        widget = self.screen_stack[0].query_one("#legend", Static)
        shown = (height or self.size.height) >= HIGH_ENOUGH if self._legend is None else self._legend
        widget.set_class(shown, "open")
        if shown and self.window is not None:
            widget.update(legend(self.window, self.timeline.drawing, self.timeline.palette, self.size.width))

    def _say_output(self) -> None:
        """Live: the last lines that the script has printed."""
        if self._output is None or not self.screen_stack:
            return
        for widget in self.screen_stack[0].query("#output.open").results(Static):  # none as the app closes
            if self._output.written_bytes != self._output_bytes:
                self._output_bytes = self._output.written_bytes
                widget.update(Text.from_ansi("\n".join(self._output.tail(_OUTPUT_LINES))))

    def tell(self, note: str = "") -> None:
        """Bring the status line and the picture up to date; `note` says what just happened, once."""
        window = self.window
        text = note or self._note
        if window is not None:
            partner = self._light(window)
            if self._range_from is not None:
                ends = self._range_from, window.cursor_ns
                window.range_ns = min(ends), max(ends) + int(window.ns_per_column)
            if not text and window.range_ns is not None and self._range_from is None:
                text = range_text(window) + "; t lists what is in it, Esc ends it"
            elif not text:
                text = status(window, self.timeline.drawing, self.timeline.marks, self.selected, partner)
        self.screen_stack[0].query_one("#status", Static).update(Text(fit(text, self.size.width)))
        self._say_legend()
        self.timeline.redraw()

    def _light(self, window: Window) -> Span | None:
        """Light what is selected, its counterpart, and what launched it or was launched by it; return the counterpart."""
        window.lit = []
        span = self.selected
        if span is None:
            return None
        partner = counterpart(window.scene, span, window.alignment, window.cursor_ns)
        lit = [of for of in (span, partner, launcher(window.scene, span)) if of is not None]
        if span.table == "host":
            rows = launched_rows(window.scene.traces[span.side], span.number)[:_MOST_LIT]
            lit += [of for row in rows.tolist() if (of := find_span(window.scene, span.side, "device", row)) is not None]
        for of in lit:
            place = place_of(window, of)
            if place is not None:
                window.lit.append((of.row, of.side, place, place + duration_of(window.scene, of)))
        return partner

    def on_timeline_view_changed(self, event: TimelineView.Changed) -> None:
        self._stay()
        if event.selected and self.window is not None:
            self.selected = under(self.window)
            self.timeline.focus()
        self.tell()

    # --- moving ---

    def _with_window(self, act: Callable[[Window], object]) -> None:
        act(self._window)
        self.tell()

    def _go(self, at_ns: int) -> None:
        """Put the cursor at a place; nothing is selected then."""
        self._stay()
        self.selected = None
        self._with_window(lambda window: window.go(at_ns))

    def _select(self, span: Span, at_ns: int | None = None, note: str = "") -> None:
        """Put the cursor on a span, at the place given or the one closest to where it stands."""
        self._stay()
        window = self._window
        if at_ns is None:
            at_ns = place_of(window, span)
        if at_ns is None:
            self.tell(f"not on the axis by {window.alignment.value}: it lies outside the steps that are laid over each other")
            return
        window.go(at_ns, span.row, span.side)
        self.selected = span
        if note:
            note += " · " + status(window, self.timeline.drawing, self.timeline.marks, span, self._light(window))
        self.tell(note)

    def action_zoom(self, factor: float) -> None:
        self._stay()
        self._with_window(lambda window: window.zoom(factor))

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

    def action_step(self, place: int) -> None:
        marks = self.timeline.marks
        if not marks:
            self.tell("no steps in this trace")
        else:
            self._go(marks[place][0])

    def action_fit(self) -> None:
        window = self._window
        span, before = self.selected, (window.start_ns, window.ns_per_column)
        if window.range_ns is not None:
            window.fit(*window.range_ns)
        elif span is not None:
            begin = place_of(window, span)
            if begin is not None:
                window.fit(begin, begin + duration_of(window.scene, span))
        if before == (window.start_ns, window.ns_per_column):
            if window.at_home:
                window.everything()
            else:
                cursor_ns = window.cursor_ns
                window.home()
                window.cursor_ns = cursor_ns
        self.tell()

    # --- from one event to another ---

    def _span(self) -> Span | None:
        """What is selected, or what the cursor points at; where there is nothing, that is said."""
        span = self.selected or under(self._window)
        if span is None:
            self.tell("no event here; , and . go to the previous and next one")
        return span

    def _to_related(self, find: Callable[[Scene, Span], Span | None], missing: str) -> None:
        span = self._span()
        if span is not None:
            found = find(self._window.scene, span)
            if found is None:
                self.selected = span
                self.tell(missing)
            else:
                self._select(found)

    def action_neighbour(self, by: int) -> None:
        span = neighbour(self._window, self.selected or under(self._window), by)
        if span is None:
            self.tell("no event that way on this row")
        else:
            self._select(span)

    def action_same_name(self, by: int) -> None:
        span = self._span()
        if span is None:
            return
        self._to_named(place_among(self._window, span, by), "no other of this name on the axis")

    def _to_named(self, found: tuple[Span, int, int, int] | None, missing: str) -> None:
        """To one of several of its name (related.py)."""
        if found is None:
            self.tell(missing)
        else:
            span, place, number, count = found
            self._select(span, place, f"{number} of {count}")

    def action_counterpart(self) -> None:
        window = self._window
        other = self._scene.words[1 - window.cursor_side]
        self._to_related(
            lambda scene, span: counterpart(scene, span, window.alignment, window.cursor_ns), f"no counterpart, {other}"
        )

    def action_launcher(self) -> None:
        self._to_related(launcher, "nothing around it, and no launch that is known")

    def action_launched(self) -> None:
        self._to_related(launched, "it launched no GPU work")

    def action_backward(self) -> None:
        self._to_related(backward, "no op of the other pass is recorded for it")

    def action_details(self) -> None:
        span = self._span()
        if span is not None:
            lines = details(self._window.scene, span, self._window.alignment, self._window.cursor_ns)
            text = Text.assemble((lines[0] + "\n", "bold"), "\n".join(lines[1:]))
            self.push_screen(TextScreen("event", text))

    # --- differences ---

    def _found_differences(self) -> tuple[Difference, ...]:
        if not self.everything:
            return self._scene.differences
        if self._all_differences is None or self._all_differences[0] is not self.scene:
            self._all_differences = self._scene, differences(self._scene, everything=True)
        return self._all_differences[1]

    def action_difference(self, by: int) -> None:
        found = self._found_differences()
        if self._scene.counterparts is None:
            self.tell("counterparts are still being looked for")
        elif not found:
            self.tell("no differences worth going to")
        else:
            at = found.index(self._at_difference) + by if self._at_difference in found else 0 if by > 0 else -1
            self._to_difference(found[at % len(found)])

    def _to_difference(self, one: Difference) -> None:
        """Zoom to where it is largest, and say what differs."""
        self._at_difference = one
        window, found = self._window, self._found_differences()
        side = 1 if one.rows[1] >= 0 else 0
        span = find_span(window.scene, side, one.table, one.rows[side])
        near = next((place for place, _, pair in self.timeline.marks if pair == one.pair), window.cursor_ns)
        place = None if span is None else place_of(window, span, near)
        if span is None or place is None:
            self.tell(f"{one.sentence}: not on the axis by {window.alignment.value}")
            return
        duration_ns = duration_of(window.scene, span)
        beside_ns = int(_BESIDE[one.table] * max(duration_ns, *one.times_ns, 1))
        window.fit(place - beside_ns, place + duration_ns + beside_ns)
        self._select(span, place)
        number = found.index(one) + 1 if one in found else 0
        self.tell(f"{number} of {len(found)}: {one.sentence}")

    def action_everything(self) -> None:
        self.everything = not self.everything
        self.tables.forget("differences")
        words = "with waits for data and warm-up" if self.everything else "without waits for data and warm-up"
        self.tell(f"{counted(len(self._found_differences()), 'difference')}, {words}")

    # --- finding ---

    def action_goto(self) -> None:
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
        def chosen(hit: Hit | None) -> None:
            if hit is not None:
                self._hit = hit
                self._next_match(1)

        self.push_screen(SearchScreen(partial(self._search, self._scene), self._scene.words, self._searched), chosen)

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
        hit = self._hit
        if hit is None:
            return
        if hit.table == "steps":
            self._to_pair(hit.string)
            return
        missing = f"{hit.name} lies outside what is aligned by {self._window.alignment.value}"
        self._to_named(next_named(self._window, hit.side, hit.table, hit.string, by), missing)

    def _to_pair(self, number: int) -> None:
        place = next((place for place, _, pair in self.timeline.marks if pair == number), None)
        if place is None:
            self.tell("that step is not on the axis")
        else:
            self._go(place)

    def on_table_panel_chosen(self, event: TablePanel.Chosen) -> None:
        row, scene = event.row, self._scene
        if row.difference is not None:
            self._to_difference(row.difference)
            return
        if row.step >= 0:
            self._to_pair(row.step)
            return
        if not row.table:
            self.tell(f"{row.full_name}: a sum, no place to go to")
            return
        for side in (row.side, len(scene.traces) - 1 - row.side):
            string = scene.traces[side].strings.find(row.name)
            found = next_named(self._window, side, row.table, string, 1) if string >= 0 else None
            if found is not None:
                self._hit = Hit(row.table, row.name, 0, side, row.table, string)
                break
        self._to_named(found, f"{row.name} lies outside what is aligned by {self._window.alignment.value}")

    # --- how it looks ---

    def action_align(self) -> None:
        order = list(Alignment)
        self._window.align(order[(order.index(self._window.alignment) + 1) % len(order)])
        self.selected = self._range_from = None
        self.tables.forget("range")
        self.tell(f"aligned by {self._window.alignment.value}")

    def action_turn(self, what: str) -> None:
        self._with_window(lambda window: window.toggle(what))

    def action_fold(self) -> None:
        self.tell("" if self._window.fold(("thread", "device")) else "this row belongs to no stack or device of several rows")

    def action_fold_rank(self) -> None:
        self.tell("" if self._window.fold(("rank",)) else "there is one rank")

    def action_pin(self) -> None:
        row = self._window.cursor_row
        if row is not None:
            self.tell(f"{row.label} is pinned; p lets it go" if self._window.pin() else f"{row.label} is no longer pinned")

    def action_move_row(self, by: int) -> None:
        self._with_window(lambda window: window.move_row(by))

    def action_filter(self) -> None:
        def filtered(text: str | None) -> None:
            self._window.filter(text or "")
            shown = counted(len(self._window.rows), "row")
            self.tell(f"{shown} with {text} in the name; Esc shows all" if text else "")

        screen = PromptScreen("only rows whose name holds", "part of a row's name, e.g. stream", self._window.wanted)
        self.push_screen(screen, filtered)

    def action_legend(self) -> None:
        self._legend = not self.screen_stack[0].query_one("#legend").has_class("open")
        self._say_legend()

    def action_dark(self) -> None:
        self.theme = THEMES[not self.current_theme.dark].name

    def action_help(self) -> None:
        self.push_screen(HelpScreen(self.timeline.palette))

    def action_tables(self) -> None:
        if self.tables.is_open:
            self.tables.close()
            self.timeline.focus()
        else:
            self.tables.open("range" if self._window.range_ns is not None else self._first_tab())

    def _first_tab(self) -> str | None:
        """The tab to open, None for that of the last time: of one trace, whose first tabs may be empty, one with rows."""
        if len(self._scene.traces) == 2 or self._table(self.tables.tab).rows:
            return None
        return next((tab for tab in TABS if self._table(tab).rows), None)

    def action_range(self) -> None:
        window = self._window
        if self._range_from is None:
            self._range_from = window.cursor_ns
            self.selected = None
            self.tell("a range begins here: move the cursor; v ends it and lists what is in it")
        else:
            self._range_from = None
            self.tables.forget("range")
            self.tell()
            self.tables.open("range")

    def action_close(self) -> None:
        """Escape: close or undo the last of what is open, selected or filtered; it never quits."""
        window = self.window
        output = self.screen_stack[0].query_one("#output")
        if self.tables.end_filter():
            return
        if window is not None and window.range_ns is not None:
            self._range_from = window.range_ns = None
            self.tables.forget("range")
        elif self.tables.is_open:
            self.tables.close()
            self.timeline.focus()
        elif output.has_class("open"):
            output.remove_class("open")
        elif self.selected is not None:
            self.selected = None
        elif window is not None and window.wanted:
            window.filter("")
        self.tell()

    # --- live ---

    def action_follow(self) -> None:
        self.following = not self.following
        self._follow()
        self.tell("following the replay" if self.following else "staying here; l follows again")

    def action_output(self) -> None:
        self.screen_stack[0].query_one("#output", Static).toggle_class("open")
        self._output_bytes = 0
        self._say_output()

    # --- saving ---

    def action_export(self) -> None:
        svg = self.export_screenshot(title="trace view")
        hint = "NAME.svg: a picture; NAME.json.gz: a Chrome trace of what is in sight"
        self.push_screen(PromptScreen("save as", hint), partial(self._save, partial(self._write_view, svg), ""))

    def on_table_panel_saving(self, event: TablePanel.Saving) -> None:
        def write(path: Path) -> list[Path]:
            write_text(path, event.text)
            return [path]

        self.push_screen(PromptScreen("save as", "NAME.csv", f"{event.tab}.csv"), partial(self._save, write, ""))

    def _write_view(self, svg: str, path: Path) -> list[Path]:
        if ".json" in path.name:
            from tui.view.export import write_range  # not at the top: it takes a tenth of the time to the first picture

            return write_range(self._window, path)
        if path.suffix != ".svg":
            raise OSError(0, "give it the ending .svg, .json or .json.gz")
        write_text(path, svg)
        return [path]

    def _save(self, write: Callable[[Path], list[Path]], confirmed: str, name: str | None) -> None:
        """Write in a thread, for a long trace takes seconds; what is there already only after asking."""
        if name is None:
            self.tell()
            return
        path = Path(name).expanduser()
        if path.exists() and confirmed != name:
            screen = PromptScreen(f"{name} exists: Enter overwrites it, Esc does not", "", name)
            self.push_screen(screen, partial(self._save, write, name))
            return

        def work() -> None:
            try:
                written = write(path)
                said = "wrote " + ", ".join(map(str, written)) if written else "nothing in sight to write"
            except OSError as error:
                said = f"{name}: {error.strerror or error}"
            self.call_from_thread(self.tell, said)

        self.tell(f"writing {name} ...")
        self.run_worker(work, thread=True, exit_on_error=False)


def _light_terminal() -> bool:
    """Whether the terminal says that its background is light: COLORFGBG ends with the number of that colour."""
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return background in ("7", "15")


_NEEDS = {key.action: key.needs for key in KEYS}
