"""Writes the recorder's file twice a second, so that a killed script loses at most the last half second.

    output = RecordingFile(path, clock)
    row = output.add("steps", rank=0, number=0, start_ns=100, duration_ns=50, kind=0)
    output.flush(header)        # a Trace without tables (devices, threads, provenance); None: unchanged
    output.close(header)

If the disk is full, the training continues without a recording.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from tracer.device.clock import EpochClock
from traces.format.trace_file import TraceStream
from traces.model.trace import TABLES, Column, Strings, Table, Trace, TraceError
from traces.script.deferred_signals import deferred_signals

_Row = tuple[Any, ...]  # (names of columns, value, value...)

# longest time between writes; a killed run loses at most this much
FLUSH_NS = 500_000_000
_FIRST_FLUSH_NS = 10_000_000  # first time between writes; it doubles after each write


class RecordingFile:
    """Collects the rows of all tables, and writes the rows to the file. Python's garbage collector ignores tuples of numbers. A
    signal handler never sees half a row, because each row is added with one `append`."""

    def __init__(self, path: Path, clock: EpochClock) -> None:
        self.path = path
        self.strings = Strings()
        self.failed = False
        self._clock = clock
        self._pause_ns = _FIRST_FLUSH_NS
        self.due_ns = 0  # when the collected rows should be written, on the monotonic clock
        self._stream: TraceStream | None = None
        self._written_strings = 0
        self._rows: dict[str, list[_Row | Table]] = {name: [] for name in TABLES}
        self._written = dict.fromkeys(TABLES, 0)  # number of rows besides the length of `_rows`

    def add(self, table: str, **row: Any) -> int:
        """Append a row to a table, and return its index. Missing columns get default values."""
        number = self.count(table)
        self._rows[table].append((tuple(row), *row.values()))
        return number

    def add_all(self, table: str, rows: Iterable[_Row]) -> int:
        """Append rows to a table, and return the index of the first new row."""
        number = self.count(table)
        self._rows[table].extend(rows)
        return number

    def add_columns(self, table: str, **columns: Column) -> int:
        number, block = self.count(table), TABLES[table].of(**columns)
        self._rows[table].append(block)
        self._written[table] += len(block) - 1
        return number

    def count(self, table: str) -> int:
        return self._written[table] + len(self._rows[table])

    @property
    def is_regular(self) -> bool:
        """Return False during the first second, when the file is written more often."""
        return self._pause_ns == FLUSH_NS

    @property
    def has_rows(self) -> bool:
        return any(self._rows.values())

    def text(self, text: str) -> int:
        return self.strings.add(text)

    def flush(self, header: Trace | None) -> None:
        """Write the header and then the collected rows. An unchanged header may be None."""
        self.due_ns = self._clock.perf_ns() + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, FLUSH_NS)
        with deferred_signals():
            rows, self._rows = self._rows, {name: [] for name in TABLES}
            for name, gathered in rows.items():
                self._written[name] += len(gathered)
            if self.failed:
                return
            try:
                self._write(header, rows)
            except (TraceError, OSError) as failure:
                self._give_up(failure)

    def close(self, header: Trace) -> None:
        self.flush(header)
        if self._stream is None or self.failed:
            return
        try:
            self._stream.close()
        except (TraceError, OSError) as failure:
            self._give_up(failure)

    def _write(self, header: Trace | None, rows: dict[str, list[_Row | Table]]) -> None:
        if self._stream is None:
            self._stream = TraceStream(self.path)
        if header is not None:
            self._stream.header(header)
        texts = self.strings.texts[self._written_strings :]
        if texts:
            self._stream.add_strings(texts)
            self._written_strings = len(self.strings)
        self._stream.add_tables({name: _table(kind, rows[name]) for name, kind in TABLES.items() if rows[name]})

    def _give_up(self, failure: Exception) -> None:
        self.failed = True
        print(f"trace: recording stopped, the script continues: {failure}", file=sys.stderr)


def _table(kind: type[Table], rows: list[_Row | Table]) -> Table:
    parts: list[Table] = []
    for names, alike in groupby(rows, key=lambda row: None if isinstance(row, Table) else row[0]):
        if names is None:
            parts += [row for row in alike if isinstance(row, Table)]
        else:
            _, *columns = zip(*[row for row in alike if isinstance(row, tuple)], strict=True)
            parts.append(kind.of(**dict(zip(names, columns, strict=True))))
    return kind.concatenated(parts)
