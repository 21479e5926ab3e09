"""Finds the trace file for a path or a library name on the command line.

    load_trace("train.msgpack"), load_trace("p100-no-cudnn"), load_trace("worker0.pt.trace.json.gz")

A recording of torch.profiler is imported first.
"""

from __future__ import annotations

import atexit
import shlex
import shutil
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from traces.figures.measure import work_rows
from traces.format.frames import MAGIC
from traces.format.trace_file import load, save
from traces.library import FORMER_NAMES, SUFFIX, entries, find, is_cell_name
from traces.library import load as load_cell
from traces.model.trace import Trace, TraceError
from tui.running.narration import say
from tui.running.progress import working

_LONG_IMPORT_S = 5.0


def _must_be_imported(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            return False
    from traces.kineto.reading.sources import is_profiler_recording  # loads the importer, which trace files do not need

    return is_profiler_recording(path)


def viewable(name: str) -> str:
    """Return the name of a trace file. A recording of torch.profiler is first imported into a temporary trace file. Raises
    TraceLibraryError."""
    path = _find(name)
    return str(_imported_file(path)) if _must_be_imported(path) else name


def load_trace(name: str, *, is_lazy: bool = False) -> Trace:
    if is_cell_name(name):
        return load_cell(name)
    path = _find(name)
    return _imported(path) if _must_be_imported(path) else load(path, is_lazy=is_lazy)


def _find(name: str) -> Path:
    path = find(name)
    new_name = FORMER_NAMES.get(name.removesuffix(SUFFIX))
    if new_name is not None and any(entry.path == path for entry in entries()):
        say(f"{name} is now called {new_name}: it was measured without cuDNN, and a P100 with cuDNN is four times faster")
    return path


def _imported(path: Path) -> Trace:
    from traces.kineto import read_kineto

    start_s = time.monotonic()
    with working(f"importing {path}"):
        trace = read_kineto(path)
    taken_s = time.monotonic() - start_s
    if taken_s > _LONG_IMPORT_S:
        say(f"importing {path} took {taken_s:.0f} s; to do it only once: trace import {shlex.quote(str(path))}")
    return trace


@cache
def _imported_file(path: Path) -> Path:
    from tui.commands.import_ import default_name

    trace, folder = _imported(path), tempfile.mkdtemp(prefix="trace-import-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder) / default_name(path)
    save(trace, file)
    return file


def load_replayable(name: str) -> tuple[Path, Trace]:
    path = _find(name)
    path = _imported_file(path) if _must_be_imported(path) else path
    trace = load(path)
    if not (len(work_rows(trace)) or (trace.phases.device_end_ns >= 0).any()):
        cut = next((f" ({lack})" for lack in trace.lacks if "truncated" in lack), "")
        raise TraceError(f"{name} contains no GPU work to replay{cut}; record on a GPU, with CUDA activities enabled")
    return path.resolve(), trace
