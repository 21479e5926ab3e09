"""Where results go: JSON on stdout, or a file under its final name only when it is whole.

require_place_for(Path("out/report.json"))  # before the long work: OSError says what is wrong
write_json(Path("out/report.json"), facts)
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from tui.figures import printable
from tui.terminal import look


class TraceOutputError(OSError):
    """A file that something else should be written to; its text is one line for a person."""


def open_standard_streams() -> None:
    """A stream that was closed when we began (`trace info T >&-`) leads nowhere; what its encoding lacks is written escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for as long as we run
        elif name == "stdout" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def show_text(text: str) -> None:
    """Print a result in which names of a recording may be: nothing in it is a command to the terminal."""
    print(printable(text, colour=look(sys.stdout)["colour"]))


def to_json(facts: dict[str, Any]) -> str:
    return json.dumps(facts, indent=2, allow_nan=False)


def require_place_for(path: Path | None) -> None:
    """Raise the OSError that writing `path` at the end would raise, as far as that can be known now."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file in it", str(path))
    folder = path.absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder; make it first", str(folder))
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "this folder cannot be written to", str(folder))


def require_suffix(path: Path, *suffixes: str) -> None:
    """Refuse a name whose ending promises another format. Devices and pipes may be called anything."""
    if not path.name.lower().endswith(suffixes) and (path.is_file() or not path.exists()):
        raise TraceOutputError(f"{path}: this writes {' or '.join(suffixes)}; end the file's name so")


def write_json(path: Path, facts: dict[str, Any]) -> None:
    """Write `facts` to `path`, as `write_text` does."""
    write_text(path, to_json(facts) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, atomically where it is a file. Raises OSError as the file system does."""
    if path.exists() and not path.is_file():  # /dev/stdout, a pipe: nothing to replace
        path.write_text(text, encoding="utf-8")
        return
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)  # still there only if something failed
