"""Writes an HTML page about one or two traces.

    $ trace report v100.msgpack replay.msgpack -o report.html
    trace: wrote report.html (84.1 KiB)
"""

from __future__ import annotations

from pathlib import Path

from tui.formatting import size_text
from tui.outputs import require_suffix, require_writable, write_text
from tui.report.page import report_of
from tui.running.narration import say
from tui.running.progress import working
from tui.trace_names import load_trace


def run(first: str, second: str | None, output: Path, tolerance: float, *, all_ranks: bool = False) -> int:
    require_suffix(output, ".html", ".htm")
    require_writable(output)
    names = [first] if second is None else [first, second]
    traces = [load_trace(name, is_lazy=True) for name in names]
    with working(f"writing {output}"):
        page = report_of(list(zip(names, traces, strict=True)), tolerance, all_ranks=all_ranks)
        write_text(output, page)
    say(f"wrote {output} ({size_text(len(page.encode()))})")
    return 0
