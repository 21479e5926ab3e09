"""Writes traces in Chrome's trace format.

    $ trace export v100.msgpack -o v100.json.gz
    trace: wrote v100.json.gz; open it in ui.perfetto.dev or chrome://tracing
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from traces.analyses.stragglers import RankGroups, rank_groups
from traces.chrome.export import export_chrome
from traces.chrome.pair import export_pair
from tui.formatting import ranges_text
from tui.outputs import json_text, require_suffix, require_writable
from tui.running.narration import say
from tui.running.progress import working
from tui.trace_names import load_trace

_MOST_NAMED = 8  # if there are more files, print only the first and the last name


@dataclass(frozen=True, slots=True)
class ExportFacts:
    files: list[str]  # the written files
    similar_ranks: list[int]  # ranks that were not written, because they are similar to a written rank


def run(first: str, second: str | None, output: Path, json: bool, *, all_ranks: bool = False) -> int:
    if not output.is_dir():
        require_suffix(output, ".json", ".json.gz")
        require_writable(output)
    trace = load_trace(first, is_lazy=True)
    groups = RankGroups() if all_ranks or second is not None else rank_groups(trace)
    if second is None:
        shown = [rank for rank in trace.ranks if rank not in set(groups.omitted)]
        with working(f"writing {output}"):
            written = export_chrome(trace, output, shown)
    else:
        other = load_trace(second)
        target = output / "both.json.gz" if output.is_dir() else output
        names = ("recorded", "replayed") if other.is_replay_of(trace) else ("A", "B")
        with working(f"writing {target}"):
            written = [export_pair(trace, other, target, names)]
    if json:
        print(json_text(ExportFacts([str(path) for path in written], groups.omitted)))
    else:
        files = ", ".join(map(str, written))
        if len(written) > _MOST_NAMED:
            files = f"{written[0]} to {written[-1]} ({len(written)} files)"
        say(f"wrote {files}; open {'it' if len(written) == 1 else 'each file'} in ui.perfetto.dev or chrome://tracing")
        for kept, *omitted in groups.similar:
            left_out = ranges_text(omitted)
            say(f"ranks {left_out} were not written, because they are similar to rank {kept}; --all-ranks writes them")
    return 0
