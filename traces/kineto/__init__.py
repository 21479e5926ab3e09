"""Imports torch.profiler (Kineto) files of every format since 2020.

    trace = read_kineto("worker0.pt.trace.json.gz")
    trace.problems  # {"kernel-without-launch": 12}

`reading/` parses files into events, `spans/` turns events into host and device spans, and `structure/` finds steps, phases and
collectives. `ranks.py` combines the ranks into one trace. Files that `trace export` wrote contain a note on their origin
(traces/chrome/export_notes.py).
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
    """Import a recording: a .json or .json.gz file, or a folder or archive (.tar.gz, .zip) with one file per rank.

    Set `marks_are_steps` if each profiler step is exactly one training step, as in profiles made by our recorder. Unreadable
    parts of a file are counted by kind in `Trace.problems`. Raises TraceImportError if nothing can be read, or if the rank of a
    file cannot be identified.
    """
    path = Path(path)
    problems: Counter[str] = Counter()
    with _collector_off():
        return assemble(recordings_in(path, problems), problems, strangers=holds_several(path), marks_are_steps=marks_are_steps)


def read_kineto_bytes(data: bytes, name: str = "trace.json") -> Trace:
    """Import one rank's recording from JSON bytes."""
    problems: Counter[str] = Counter()
    with _collector_off():
        return assemble([Source(name, name, data)], problems)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Turn garbage collection off, because it would scan the millions of live objects of a parsed trace, which doubles the time
    of an import.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
