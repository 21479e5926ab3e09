"""Reads a trace file while another process is still writing it.

    follower = Follower("replay-4711.msgpack")
    if follower.more():            # whether anything new was written
        trace = follower.trace()   # everything so far
    follower.ended                 # whether the writer has closed the file

    count = StepCount("replay-4711.msgpack")
    count.now()                    # 40: the number of steps written so far

Each call reads only new data.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from traces.format.frames import HEADER, Damaged, Frame, Scan, as_format_error, header_scan, scan
from traces.format.items import Assembly, steps_within
from traces.format.unpack_limit import UnpackLimit
from traces.model import invariants as checks
from traces.model.row_order import in_order
from traces.model.trace import TABLES, Strings, Trace, TraceFormatError


class _Tail:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._found: Scan | None = None

    @property
    def ended(self) -> bool:
        return self._found is not None and self._found.end is not None

    def frames(self) -> list[Frame]:
        if self.ended:
            return []
        try:
            with self.path.open("rb") as file:
                file.seek(self._found.whole_bytes if self._found is not None else 0)
                data = file.read()
        except OSError as error:
            raise Damaged(error.strerror or str(error)) from error
        if self._found is None:
            if len(data) < HEADER.size:
                return []
            self._found, data = header_scan(data), data[HEADER.size :]
        self._found = scan(data, self._found)
        return self._found.frames


class Follower(_Tail):
    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._assembly = Assembly(UnpackLimit(0, None))  # no memory limit, because our own child process writes the file

    def more(self) -> bool:
        """Read new data of the file. Return True if there is any. Raises TraceFormatError."""
        had_ended = self.ended
        with as_format_error(self.path):
            frames = self.frames()
            for frame in frames:
                self._assembly.add(frame.content(), frame.offset_bytes)
        return bool(frames) or (self.ended and not had_ended)

    def trace(self) -> Trace:
        """Return all complete data so far, sorted. Raises TraceFormatError."""
        with as_format_error(self.path):
            trace = self._assembly.trace()
        copies: dict[str, Any] = {
            name: kind(**{column: values.copy() for column, values in getattr(trace, name).columns().items()})
            for name, kind in TABLES.items()
        }
        for name, table in copies.items():
            setattr(trace, name, table)
        trace.strings = Strings(list(trace.strings.texts))
        if not self.ended:
            checks.clear_dangling_references(trace)
        if reason := checks.fault(trace):
            raise TraceFormatError(self.path, HEADER.size, reason)
        return in_order(trace)


class StepCount(_Tail):
    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._steps = 0

    def now(self) -> int:
        """Return the number of steps written so far. Raises TraceFormatError."""
        with as_format_error(self.path):
            self._steps += sum(steps_within(frame.content()) for frame in self.frames())
        return self._steps


def timeline_files(folder: Path) -> list[Path]:
    """Return the trace files of a replay's processes. The largest file is first."""
    return sorted(folder.glob("replay-*.msgpack"), key=lambda file: file.stat().st_size, reverse=True)


def timeline_of(folder: Path, pid: int) -> Path | None:
    """Return the trace file that a replay process writes. If the process writes no trace file, return the largest trace file of
    its child processes."""
    files = timeline_files(folder)
    own = folder / f"replay-{pid}.msgpack"
    return own if own in files else next(iter(files), None)
