"""Imports files that torch.profiler (Kineto) has written since 2020.

    trace = read_kineto("worker0.pt.trace.json.gz")
    trace.problems  # {"kernel-without-launch": 12}

The folder `reading/` parses files, and `structure/` finds training steps, phases and collectives.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from traces.garbage_collection import without_garbage_collection
from traces.kineto.ranks import assemble
from traces.kineto.reading.sources import Source, holds_several, recordings_in
from traces.model.trace import Trace

__all__ = ["read_kineto", "read_kineto_bytes"]


def read_kineto(*paths: str | os.PathLike[str], marks_are_steps: bool = False) -> Trace:
    """Import profiler files (.json or .json.gz) of one run, or a folder or archive (.tar.gz or .zip) with one file per rank. If
    `marks_are_steps` is True, every call of `profiler.step()` ends a training step. Raises TraceImportError if the recording
    cannot be read, or if it is unknown which rank recorded a file."""
    places = [Path(path) for path in paths]
    problems: Counter[str] = Counter()
    with without_garbage_collection():
        recordings = (recording for place in places for recording in recordings_in(place, problems))
        return assemble(recordings, problems, skip_others=any(map(holds_several, places)), marks_are_steps=marks_are_steps)


def read_kineto_bytes(data: bytes, name: str = "trace.json") -> Trace:
    """Import one rank's recording from JSON bytes."""
    problems: Counter[str] = Counter()
    with without_garbage_collection():
        return assemble([Source(name, name, data)], problems)
