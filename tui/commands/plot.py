"""Draws one figure about one or two traces.

    $ trace plot v100.msgpack replay.msgpack --what memory -o memory.svg
    trace: wrote memory.svg
"""

from __future__ import annotations

from pathlib import Path

from traces.model.trace import TraceError
from tui.formatting import fit
from tui.outputs import require_suffix, require_writable, write_text
from tui.report.plots import PLOTS, NamedTrace, compared
from tui.running.narration import say
from tui.running.progress import working
from tui.trace_names import load_trace


def run(first: str, second: str | None, what: str, output: Path) -> int:
    require_suffix(output, ".svg")
    require_writable(output)
    names = [first] if second is None else [first, second]
    sides = [NamedTrace(name, load_trace(name)) for name in names]
    with working(f"drawing {output}"):
        chart = PLOTS[what](sides, [fit(name, 24) for name in names], compared(sides))
        if chart is None:
            raise TraceError(f"{' and '.join(names)}: no data to draw {what}")
        write_text(output, chart.svg_file())
    say(f"wrote {output}")
    return 0
