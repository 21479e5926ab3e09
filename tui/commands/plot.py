"""Draws one figure about one or two traces.

    $ trace plot v100.msgpack replay.msgpack --what memory -o memory.pdf
    trace: wrote memory.pdf
"""

from __future__ import annotations

from pathlib import Path

from tui.outputs import require_suffix, require_writable
from tui.report.page import NamedTrace
from tui.report.plots import SUFFIXES, draw
from tui.running.narration import say
from tui.running.progress import working
from tui.trace_names import load_trace


def run(first: str, second: str | None, what: str, output: Path) -> int:
    require_suffix(output, *SUFFIXES)
    require_writable(output)
    names = [first] if second is None else [first, second]
    sides = [NamedTrace(name, load_trace(name)) for name in names]
    with working(f"drawing {output}"):
        draw(what, sides, output)
    say(f"wrote {output}")
    return 0
