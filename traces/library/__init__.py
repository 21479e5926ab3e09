"""The recordings that ship with the tool: index.json says what each is and where its figures come from.

    load("p100")
    find("p100-no-cudnn")   # .../traces/library/p100-no-cudnn.msgpack
    find("runs/mine.msgpack")
    [entry.name for entry in entries()]
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from traces.file import load as load_file
from traces.model import Trace, TraceLibraryError

_FOLDER = Path(__file__).parent
SUFFIX = ".msgpack"

# Names of earlier releases, which still find their entries. A P100 with cuDNN, as everybody has it, is four times faster.
FORMER_NAMES = {"p100": "p100-no-cudnn", "p100x2": "p100x2-no-cudnn"}


@dataclass(frozen=True)
class Entry:
    """One recording of the library."""

    name: str  # what `--trace` takes
    grain: str  # as in Trace
    device: str
    what: str  # the workload
    source: str

    @property
    def path(self) -> Path:
        return _FOLDER / (self.name + SUFFIX)


def entries() -> list[Entry]:
    """What the library holds, in the order of its index."""
    return [Entry(**entry) for entry in json.loads((_FOLDER / "index.json").read_text(encoding="utf-8"))]


def load(name_or_path: str | os.PathLike[str]) -> Trace:
    """Read a trace: a file of that name, else the library's. Raises TraceLibraryError and TraceFormatError."""
    return load_file(find(name_or_path))


def find(name_or_path: str | os.PathLike[str]) -> Path:
    """The file that a person means: a file of that name, else the library's entry of that name.

    A folder of that name does not hide an entry, for `p100-no-cudnn` is a likely name for a folder of results too.
    Raises TraceLibraryError.
    """
    name = os.fspath(name_or_path)
    path = Path(name)
    if path.is_file():
        return path
    known = {entry.name: entry.path for entry in entries()}
    entry_name = name.removesuffix(SUFFIX)
    if (entry := known.get(FORMER_NAMES.get(entry_name, entry_name))) is not None:
        return entry
    if name and path.exists():
        return path
    names = ", ".join(sorted(known))
    raise TraceLibraryError(f"{name}: no such file, nor a trace of the library, which has: {names}")
