"""Trouble in one line: what is told of an error that can happen to anyone.

line_for(FileNotFoundError(2, "No such file or directory", "x.json"))  # "x.json: No such file or directory"
line_for(ZeroDivisionError())  # None: a mistake of ours, show the traceback
"""

from __future__ import annotations


def line_for(error: Exception) -> str | None:
    """How the error is told, or None for what must be a mistake of ours."""
    from traces.model.trace import TraceError  # not at the top: it needs numpy, and `trace --help` does not

    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) if isinstance(error, (TraceError, OSError)) else None
