"""Provides the study's published times as a recording that any script can replay."""

from __future__ import annotations

from pathlib import Path

from traces.format.trace_file import load, save
from traces.library import find


def unsigned(name: str, folder: Path) -> Path:
    """Write a copy of a library entry without a workload signature, so that small scripts can use its times. Return the
    path."""
    trace = load(find(name))
    trace.workload = None
    save(trace, folder / f"unsigned-{name}.msgpack")
    return folder / f"unsigned-{name}.msgpack"
