"""Finds the trace file for a name on the command line, which may be a path or the name of a recording in the library.

    find_trace("train.msgpack"), load_trace("p100-no-cudnn")
"""

from __future__ import annotations

from pathlib import Path

from traces.figures.measure import work_rows
from traces.format.trace_file import load
from traces.library import FORMER_NAMES, SUFFIX, entries, find, is_cell_name
from traces.library import load as load_cell
from traces.model.trace import Trace, TraceError
from tui.running.narration import say


def find_trace(name: str) -> Path:
    """Return the path of a trace file, given its path or its name in the library. Raise TraceLibraryError for an unknown
    name."""
    path = find(name)
    new_name = FORMER_NAMES.get(name.removesuffix(SUFFIX))
    if new_name is not None and any(entry.path == path for entry in entries()):
        say(f"{name} is now called {new_name}: it was measured without cuDNN, and a P100 with cuDNN is four times faster")
    return path


def load_trace(name: str) -> Trace:
    return load_cell(name) if is_cell_name(name) else load(find_trace(name))


def load_replayable(name: str) -> tuple[Path, Trace]:
    """Return the path of the trace file, and the trace. Raise TraceError if no GPU work was recorded."""
    path = find_trace(name).resolve()
    trace = load(path)
    if not (len(work_rows(trace)) or (trace.phases.device_end_ns >= 0).any()):
        raise TraceError(f"{path}: no GPU work to replay; record on a GPU, with CUDA activities enabled")
    return path, trace
