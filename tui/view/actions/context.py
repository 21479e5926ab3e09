"""Gives key handlers access to the app's timeline, tables and status line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from textual.app import App
from textual.screen import Screen

from tui.view.scene.scene import Scene
from tui.view.tables.panel import TablePanel
from tui.view.timeline.timeline import TimelineView
from tui.view.timeline.window import Window

T = TypeVar("T")


class ViewContext:
    def __init__(self, app: App[Any], tell: Callable[[str], None]) -> None:
        self._app = app
        self.tell = tell
        self.following = False  # True if the window moves with each new step of a live replay

    @property
    def timeline(self) -> TimelineView:
        return self._app.screen_stack[0].query_one(TimelineView)

    @property
    def tables(self) -> TablePanel:
        return self._app.screen_stack[0].query_one(TablePanel)

    @property
    def window(self) -> Window:
        window = self.timeline.window
        assert window is not None
        return window

    @property
    def scene(self) -> Scene:
        return self.window.scene

    def open(self, screen: Screen[T], then: Callable[[T | None], None] | None = None) -> None:
        self._app.push_screen(screen, then)

    def in_thread(self, work: Callable[[], str]) -> None:
        self._app.run_worker(lambda: self._app.call_from_thread(self.tell, work()), thread=True, exit_on_error=False)

    def change_window(self, change: Callable[[Window], object]) -> None:
        change(self.window)
        self.tell("")
