"""The frame of the timeline app: its widgets, what it loads, and what it says. What keys do is in moving, finding and app.

It never reads a trace: a thread goes through the stages and posts each scene (loading.py, live.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.events import Resize
from textual.message import Message
from textual.widgets import Footer, ProgressBar, Static

from tui.figures import fit
from tui.view.headline import LINES, headline
from tui.view.live import Live
from tui.view.loading import Stage
from tui.view.output import Output
from tui.view.palette import BACKGROUND
from tui.view.scene import Scene
from tui.view.spans import Span, start_of, under
from tui.view.status import status
from tui.view.tables import Tables
from tui.view.timeline import Timeline
from tui.view.window import Window

WIDE_ENOUGH = 120  # columns from which on tables stand beside the lanes, not below
_OUTPUT_LINES = 8
_OUTPUT_S = 0.25
_FOLLOWED_STEPS = 4
_DRAWN_S = 0.5  # at most, until what has come is drawn
_TONES = {"good": "#7fb069", "bad": "#ff5c57 bold", "plain": "#c8d0d8"}


class ViewBase(App[int]):
    """`stages` is gone through in a thread of its own. `failure` is what it raised, once the app has returned."""

    TITLE = "trace view"
    ENABLE_COMMAND_PALETTE = False
    CSS = f"""
    Screen {{ background: {BACKGROUND}; }}
    ModalScreen {{ background: {BACKGROUND} 60%; }}
    #headline {{ height: auto; min-height: 1; max-height: {LINES}; background: {BACKGROUND}; }}
    #below {{ height: 1; background: #1a2026; }}
    #status {{ width: 1fr; height: 1; color: #c8d0d8; }}
    #main {{ height: 1fr; }}
    #main.stacked {{ layout: vertical; }}
    #output {{ height: {_OUTPUT_LINES + 1}; display: none; border-top: solid #3a424b; text-wrap: nowrap; }}
    #output.open {{ display: block; }}
    #progress {{ width: 39; display: none; }}
    #progress.busy {{ display: block; }}
    """

    def __init__(self, stages: Iterable[Stage], live: Live | None = None, output: Output | None = None) -> None:
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
        self._note = ""
        self._shut = False
        self._seen = threading.Event()

    def compose(self) -> ComposeResult:
        yield Static(id="headline")
        with Horizontal(id="main"):
            yield Timeline()
            yield Tables()
        yield Static(id="output")
        with Horizontal(id="below"):
            yield Static(id="status")
            yield ProgressBar(total=100, show_eta=False, id="progress")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.timeline.focus()
        threading.Thread(target=self._go_through_stages, name="trace-stages").start()
        if self._output is not None:
            self.set_interval(_OUTPUT_S, self._say_output)

    @property
    def timeline(self) -> Timeline:
        return self.screen_stack[0].query_one(Timeline)

    @property
    def window(self) -> Window | None:
        return self.timeline.window

    # --- loading ---

    class Arrived(Message):
        """A stage has come."""

        def __init__(self, stage: Stage) -> None:
            super().__init__()
            self.stage = stage

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

    def on_view_base_arrived(self, event: Arrived) -> None:
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
            base.query_one(Tables).show(stage.scene)
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
        self.screen_stack[0].query_one(Tables).set_class(stacked, "below")

    def _say_headline(self, width: int | None = None) -> None:
        if self.scene is None:
            return
        text = Text()
        for said in headline(self.scene, width or self.size.width):
            text.append(("\n" if text else "") + said.text, _TONES[said.tone])
        self.screen_stack[0].query_one("#headline", Static).update(text)

    def _say_output(self) -> None:
        """Live: the last lines that the script has printed."""
        output, widget = self._output, self.screen_stack[0].query_one("#output", Static)
        if output is not None and widget.has_class("open") and output.written_bytes != self._output_bytes:
            self._output_bytes = output.written_bytes
            widget.update(Text.from_ansi("\n".join(output.tail(_OUTPUT_LINES))))

    def tell(self, note: str = "") -> None:
        """Bring the status line and the picture up to date; `note` says what just happened, once."""
        window = self.window
        text = note or self._note
        if window is not None and not text:
            text = status(window, self.timeline.drawing, self.timeline.marks, self.selected)
        self.screen_stack[0].query_one("#status", Static).update(Text(fit(text, self.size.width)))
        self.timeline.redraw()

    def on_timeline_changed(self, event: Timeline.Changed) -> None:
        self._stay()
        if event.selected and self.window is not None:
            self.selected = under(self.window)
            self.timeline.focus()
        self.tell()

    def _with_window(self, act: Callable[[Window], object]) -> None:
        window = self.window
        if window is not None:
            act(window)
            self.tell()

    def _go(self, at_ns: int) -> None:
        """Put the cursor at a place; nothing is selected then."""
        self._stay()
        self.selected = None
        self._with_window(lambda window: window.go(at_ns))

    def _select(self, span: Span, at_ns: int | None = None) -> None:
        """Put the cursor on a span, at the place given or the one closest to where it stands."""
        self._stay()
        window = self.window
        assert window is not None
        if at_ns is None:
            lane = window.scene.rows[span.row].lane(span.side)
            start_ns = start_of(window.scene, span) if lane is None else int(lane.start_ns[span.place])
            at_ns = window.axis.sides[span.side].place(start_ns, window.cursor_ns)
        if at_ns is None:
            self.tell(f"not on the axis by {window.alignment.value}: it lies outside the steps that are laid over each other")
            return
        window.go(at_ns, span.row, span.side)
        self.selected = span
        self.tell()
