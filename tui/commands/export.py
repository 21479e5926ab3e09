"""`trace export`: a trace file becomes a Chrome trace, one file per rank.

    $ trace export v100.msgpack -o v100.json.gz
    trace: wrote v100.json.gz; open it in ui.perfetto.dev or chrome://tracing
"""

from __future__ import annotations

import sys
from pathlib import Path

from traces.chrome import export_chrome
from tui.outputs import require_place_for, to_json
from tui.progress import working
from tui.trace_names import load_trace


def run(name: str, output: Path, json: bool) -> int:
    if not output.is_dir():
        require_place_for(output)
    trace = load_trace(name)
    with working(f"writing {output}"):
        written = export_chrome(trace, output)
    if json:
        print(to_json({"files": [str(path) for path in written]}))
    else:
        files = ", ".join(map(str, written))
        print(f"trace: wrote {files}; open it in ui.perfetto.dev or chrome://tracing", file=sys.stderr)
    return 0
