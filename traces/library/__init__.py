"""The recordings that ship with the tool: index.json says what each is and where its figures come from.

    find("p100")            # .../traces/library/p100.msgpack
    find("runs/mine.msgpack")
    [entry.name for entry in entries()]
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from traces.model import TraceLibraryError

_FOLDER = Path(__file__).parent
SUFFIX = ".msgpack"


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


def find(name_or_path: str) -> Path:
    """The file that a person means: a file of that name, else the library's entry of that name.

    A folder of that name does not hide an entry, for `p100` is a likely name for a folder of results too.
    Raises TraceLibraryError.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    known = {entry.name: entry.path for entry in entries()}
    if (entry := known.get(name_or_path.removesuffix(SUFFIX))) is not None:
        return entry
    if name_or_path and path.exists():
        return path
    names = ", ".join(sorted(known))
    raise TraceLibraryError(f"{name_or_path}: no such file, nor a trace of the library, which has: {names}")
