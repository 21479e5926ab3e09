"""Writes traces in Chrome's trace format.

    $ trace export v100.msgpack -o v100.json.gz
    trace: wrote v100.json.gz; open it in ui.perfetto.dev or chrome://tracing
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from traces.chrome.export import export_chrome
from traces.chrome.pair import export_pair
from tui.outputs import json_text, require_suffix, require_writable
from tui.running.narration import say
from tui.running.progress import working
from tui.trace_names import load_trace

_MOST_NAMED = 8  # files; more files are named by the first and the last


@dataclass(frozen=True, slots=True)
class ExportFacts:
    files: list[str]  # the written files


def run(first: str, second: str | None, output: Path, json: bool) -> int:
    if not output.is_dir():
        require_suffix(output, ".json", ".json.gz")
        require_writable(output)
    trace = load_trace(first)
    if second is None:
        with working(f"writing {output}"):
            written = export_chrome(trace, output)
    else:
        other = load_trace(second)
        target = output / "both.json.gz" if output.is_dir() else output
        names = ("recorded", "replayed") if other.is_replay_of(trace) else ("A", "B")
        with working(f"writing {target}"):
            written = [export_pair(trace, other, target, names)]
    if json:
        print(json_text(ExportFacts([str(path) for path in written])))
    else:
        files = ", ".join(map(str, written))
        if len(written) > _MOST_NAMED:
            files = f"{written[0]} to {written[-1]} ({len(written)} files)"
        say(f"wrote {files}; open it in ui.perfetto.dev or chrome://tracing")
    return 0
