"""Import of torch.profiler's (Kineto's) recordings, from the bare arrays of 2020 to today's files.

    trace = read_kineto("worker0.pt.trace.json.gz")
    trace.problems  # {"kernel-without-launch": 12}

The way through this package: `sources` (files, folders, archives), `text` (bytes to events), `groups` with `rows` (by rank
and kind), `columns` (to numpy), `spans` with `nesting`, `shapes`, `out_variants` and `roles` (the tables),
`devices`, `steps` (steps and phases), `comms` and `parts` (collectives, parts of nn.DataParallel), `ranks` (one trace). `eras`
has what differs by version. Files that `trace export` wrote say what they were made from (traces/chrome/export_notes.py).
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traces.kineto.ranks import assemble
from traces.kineto.reading.sources import Source, holds_several, recordings_in
from traces.model.trace import Trace

__all__ = ["read_kineto", "read_kineto_bytes"]


def read_kineto(path: str | os.PathLike[str], *, marks_are_steps: bool = False) -> Trace:
    """Import a recording: a .json or .json.gz file, or a folder or archive (.tar.gz, .zip) of them, one per rank.

    `marks_are_steps`: who set the marks knew where steps end, as our recorder does; none holds several.
    What cannot be read is counted by kind in the trace's `problems`. Raises TraceImportError if nothing can, or if the files
    are not told apart by their ranks.
    """
    path = Path(path)
    problems: Counter[str] = Counter()
    with _collector_off():
        return assemble(recordings_in(path, problems), problems, strangers=holds_several(path), marks_are_steps=marks_are_steps)


def read_kineto_bytes(data: bytes, name: str = "trace.json") -> Trace:
    """Import a recording of one rank from the bytes of its JSON."""
    problems: Counter[str] = Counter()
    with _collector_off():
        return assemble([Source(name, name, data)], problems)


@contextmanager
def _collector_off() -> Iterator[None]:
    """No garbage collection within: a parsed trace is millions of live objects; walking them doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
