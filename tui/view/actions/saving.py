"""Implements the keyboard actions that save a picture of the timeline, a Chrome trace, or a table in CSV format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from traces.chrome.export import export_chrome
from traces.combining.excerpt import excerpt_between
from tui.outputs import write_text
from tui.view.actions.context import ViewContext
from tui.view.screens import PromptScreen
from tui.view.timeline.window import Window


def write_range(window: Window, path: Path) -> list[Path]:
    written = []
    scene = window.scene
    for word, trace, side in zip(scene.words, scene.traces, window.axis.sides, strict=True):
        pieces = side.pieces([int(window.start_ns), int(window.end_ns) + 1])
        seen = pieces.to_ns > pieces.from_ns
        if not seen.any():
            continue
        stem, dot, endings = path.name.partition(".json")
        target = path.with_name(f"{stem}_{word}{dot}{endings}") if word else path
        stretch = excerpt_between(trace, int(pieces.from_ns[seen].min()), int(pieces.to_ns[seen].max()))
        written += export_chrome(stretch, target)
    return written


class ViewSaving:
    def __init__(self, context: ViewContext, picture: Callable[[], str]) -> None:
        self._context, self._picture = context, picture

    def export(self) -> None:
        svg = self._picture()  # take the picture before the prompt covers the screen
        hint = "NAME.svg: a picture; NAME.json.gz: a Chrome trace of the visible part"
        self._context.open(PromptScreen("save as", hint), partial(self._save, partial(self._write_view, svg), ""))

    def table(self, tab: str, csv: str) -> None:
        def write(path: Path) -> list[Path]:
            write_text(path, csv)
            return [path]

        self._context.open(PromptScreen("save as", "NAME.csv", f"{tab}.csv"), partial(self._save, write, ""))

    def _write_view(self, svg: str, path: Path) -> list[Path]:
        if ".json" in path.name:
            return write_range(self._context.window, path)
        if path.suffix != ".svg":
            raise OSError(0, "the file name must end in .svg, .json or .json.gz")
        write_text(path, svg)
        return [path]

    def _save(self, write: Callable[[Path], list[Path]], confirmed: str, name: str | None) -> None:
        if name is None:
            self._context.tell("")
            return
        path = Path(name).expanduser()
        if path.exists() and confirmed != name:
            screen = PromptScreen(f"{name} exists: Enter overwrites it, Esc does not", "", name)
            self._context.open(screen, partial(self._save, write, name))
            return

        def work() -> str:
            try:
                written = write(path)
            except OSError as error:
                return f"{name}: {error.strerror or error}"
            return "wrote " + ", ".join(map(str, written)) if written else "nothing visible to write"

        self._context.tell(f"writing {name} ...")
        self._context.in_thread(work)
