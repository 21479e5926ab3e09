"""Completes the names of trace files, folders and library models when the user presses Tab in the shell.

    trace_names("p1")    # ["p100-no-cudnn"]
"""

from __future__ import annotations

from pathlib import Path


def trace_names(incomplete: str) -> list[str]:
    from traces.library import SUFFIX, entries  # imports numpy

    names = [entry.name for entry in entries() if entry.name.startswith(incomplete)]
    folder = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    head = incomplete[: incomplete.rfind("/") + 1]
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            name = head + path.name
            if name.startswith(incomplete) and not path.name.startswith("."):
                names += [name + "/"] if path.is_dir() else [name] if SUFFIX in path.suffixes else []
    return names
