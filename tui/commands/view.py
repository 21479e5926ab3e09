"""Opens the timeline app. Without a terminal, it prints a summary."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from traces.comparison.compare import compare
from traces.figures.summary import summarize
from tui.outputs import require_suffix, require_writable, write_text
from tui.terminal import terminal_style
from tui.text.diff import diff_text
from tui.text.info import info_text
from tui.trace_names import load_trace


def run(first: str, second: str | None, screenshot: Path | None, size: tuple[int, int]) -> int:
    names = [first] if second is None else [first, second]
    if screenshot is not None:
        from tui.view.picture import picture

        require_suffix(screenshot, ".svg")
        require_writable(screenshot)
        write_text(screenshot, picture(names, *size))
        return 0
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _summary(names)
    from tui.view.loading import stages

    reading = stages(names)
    from tui.view.app import ViewApp  # imported while another thread reads the traces

    app = ViewApp(reading)
    app.run()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0


def size_of(text: str) -> tuple[int, int]:
    """Return the columns and lines of a terminal size such as "130x40"."""
    columns, x, lines = text.partition("x")
    if not (x and columns.isdecimal() and lines.isdecimal() and 20 <= int(columns) <= 1000 and 10 <= int(lines) <= 1000):
        raise typer.BadParameter("must be COLUMNSxLINES between 20x10 and 1000x1000, as in 130x40", param_hint="--size")
    return int(columns), int(lines)


def _summary(names: list[str]) -> int:
    first = load_trace(names[0])
    if len(names) == 2:
        print(diff_text(compare(first, load_trace(names[1])), *names, details=False, **terminal_style(sys.stdout)))
    else:
        print(info_text(summarize(first, details=False), names[0], details=False, **terminal_style(sys.stdout)))
    return 0
