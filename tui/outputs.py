"""Writes the results of commands to stdout or to files.

    require_writable(Path("out/report.json"))  # call this before long work; raises OSError
    write_json(Path("out/report.json"), facts)

Files are written under a temporary name, so an interrupted command leaves no incomplete file.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import sys
from pathlib import Path

from traces.format.atomic_write import atomic_write
from traces.model.json_facts import as_json
from tui.formatting import printable
from tui.terminal import terminal_style


class TraceOutputError(OSError):
    """Raised if the name of an output file has the wrong ending."""


_IN_ASCII = {"µ": "u", "±": "+-", "→": "->", "…": "~", "≤": "<=", "✓": "yes", "·": ".", **dict.fromkeys("▁▂▃▄▅▆▇█", "#")}


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Return a replacement for characters that the terminal's encoding lacks, and the position after them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    known = (_IN_ASCII.get(char) or char.encode("ascii", "backslashreplace").decode("ascii") for char in missing)
    return "".join(known), error.end


def open_standard_streams() -> None:
    """If the shell has closed a standard stream (`trace info T >&-`), use the null device instead."""
    codecs.register_error("trace", _replaced)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # stays open until exit
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="trace")


def show_text(text: str) -> None:
    print(printable(text, colour=terminal_style(sys.stdout)["colour"]))


def json_text(facts: object) -> str:
    return json.dumps(as_json(facts), indent=2, allow_nan=False)


def require_writable(path: Path | None) -> None:
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder; give the name of a file in it", str(path))
    folder = path.absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder; create it first", str(folder))
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "this folder is not writable", str(folder))


def require_suffix(path: Path, *suffixes: str) -> None:
    """Raise TraceOutputError for a wrong file extension. Devices and pipes may have any name."""
    if not path.name.lower().endswith(suffixes) and (path.is_file() or not path.exists()):
        raise TraceOutputError(f"{path}: the file name must end in {' or '.join(suffixes)}")


def write_json(path: Path, facts: object) -> None:
    write_text(path, json_text(facts) + "\n")


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())
