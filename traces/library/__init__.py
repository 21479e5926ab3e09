"""Finds recordings and published step times by name.

    load("p100-no-cudnn")
    find("p100-no-cudnn")   # .../traces/library/p100-no-cudnn.msgpack
    find("runs/mine.msgpack")
    load("v100/resnet50@32")    # a cell at one batch size, as a trace: see catalogue.py
    [entry.name for entry in entries()]

The file index.json describes the origin of each bundled recording.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from traces.format.trace_file import load as load_file
from traces.library.catalogue import find_cell, folders, gpus
from traces.library.cell_traces import trace_of
from traces.model.trace import Trace, TraceLibraryError
from traces.names import did_you_mean

_FOLDER = Path(__file__).parent
SUFFIX = ".msgpack"

# former names of bundled recordings
FORMER_NAMES = {"p100": "p100-no-cudnn", "p100x2": "p100x2-no-cudnn"}


@dataclass(frozen=True)
class BundledRecording:
    name: str
    grain: str
    device: str
    what: str
    source: str

    @property
    def path(self) -> Path:
        return _FOLDER / (self.name + SUFFIX)


def entries() -> list[BundledRecording]:
    return [BundledRecording(**entry) for entry in json.loads((_FOLDER / "index.json").read_text(encoding="utf-8"))]


def load(name_or_path: str | os.PathLike[str], *, is_lazy: bool = False) -> Trace:
    """Load a trace from a file or, if no file has this name, from the bundled library. Raises TraceLibraryError and
    TraceFormatError. With `is_lazy`, columns are decoded and checked when they are first read."""
    name = os.fspath(name_or_path)
    if is_cell_name(name):
        cell_name, _, batch = name.partition("@")
        cell = find_cell(cell_name)
        if not batch.isdecimal():
            raise TraceLibraryError(
                f"{cell.name} has batch sizes from {cell.batches[0]} to {cell.last_batch}; choose one, like"
                f" {cell.name}@{cell.batches[0]}; `trace library show {cell.name}` lists them"
            )
        return trace_of(cell, int(batch))
    return load_file(find(name), is_lazy=is_lazy)


def is_cell_name(name: str) -> bool:
    gpu_name, _, model = name.partition("/")
    is_name = bool(gpu_name and model) and "/" not in model and not model.endswith(SUFFIX) and not Path(name).exists()
    return is_name and gpu_name in {gpu.name for gpu in gpus()} and _own(name) is None


def find(name_or_path: str | os.PathLike[str]) -> Path:
    name = os.fspath(name_or_path)
    path = Path(name)
    if path.is_file():
        return path
    known = {entry.name: entry.path for entry in entries()}
    entry_name = name.removesuffix(SUFFIX)
    if (entry := known.get(FORMER_NAMES.get(entry_name, entry_name))) is not None:
        return entry
    if (own := _own(entry_name)) is not None:
        return own
    if name and path.exists():
        return path
    names = ", ".join(sorted(known))
    if is_cell_name(name):
        cell = find_cell(name.partition("@")[0])
        raise TraceLibraryError(f"{cell.name} is a library entry, not a file; print it with `trace library show {cell.name}`")
    if name in {gpu.name for gpu in gpus()}:
        raise TraceLibraryError(
            f"{name} is a GPU in the library, not a file; add a network, such as {name}/resnet50, or use"
            f" `trace replay --gpu {name}`"
        )
    meant = did_you_mean(entry_name, [*known, *FORMER_NAMES] * (Path(name).name == name), 1, 0.6, "; {}", FORMER_NAMES)
    raise TraceLibraryError(f"{name}: no such file, and no such recording in the library, which has: {names}{meant}")


def _own(name: str) -> Path | None:
    if not name or name.startswith(("/", ".")) or ".." in name:
        return None
    return next((path for folder in folders()[1:] if (path := folder / (name + SUFFIX)).is_file()), None)
