"""Describes expected errors, such as a missing file, in one line.

    line_for(FileNotFoundError(2, "No such file or directory", "x.json"))  # "x.json: No such file or directory"
    line_for(ZeroDivisionError())  # None: a bug, show the traceback
"""

from __future__ import annotations


def line_for(error: Exception) -> str | None:
    """Return a one-line message for an expected error, or None for any other exception."""
    from traces.model.trace import TraceError  # imported here because it needs numpy, which `trace --help` does not

    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error) if isinstance(error, (TraceError, OSError)) else None
