"""Import of torch.profiler's (Kineto's) recordings, from the bare arrays of 2020 to today's files.

    trace = read_kineto("worker0.pt.trace.json.gz")
    trace.problems  # {"kernel-without-launch": 12}

The way through this package: `text` (bytes to events), `groups` with `rows` (by kind), `columns` (to numpy), `spans` with
`nesting`, `shapes` and `roles` (the tables), `steps` (steps and phases), `comms` and `parts` (collectives, parts of
nn.DataParallel), `ranks` (one trace). `eras` has what differs by version.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traces.kineto.groups import Piece
from traces.kineto.ranks import assemble
from traces.kineto.text import parse, read_bytes
from traces.model import Trace, TraceImportError

__all__ = ["read_kineto", "read_kineto_bytes"]

_SUFFIXES = (".json", ".json.gz")


def read_kineto(path: str | os.PathLike[str]) -> Trace:
    """Import a recording: a .json or .json.gz file, or a folder of them, one per rank.

    What cannot be read is counted by kind in the trace's `problems`. Raises TraceImportError if nothing can.
    """
    path = Path(path)
    problems: Counter[str] = Counter()
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES) and file.is_file())
        if not files:
            raise TraceImportError(f"{path}: has no .json or .json.gz files; give the folder of the ranks' traces")
    with _collector_off():
        documents = ((file.name, parse(read_bytes(file, problems), problems, str(file), Piece.of)) for file in files)
        return assemble(documents, problems)


def read_kineto_bytes(data: bytes, name: str = "trace.json") -> Trace:
    """Import a recording of one rank from the bytes of its JSON."""
    problems: Counter[str] = Counter()
    with _collector_off():
        return assemble([(name, parse(data, problems, name, Piece.of))], problems)


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
