"""The recorder's file: rows are gathered and appended twice a second, so that a killed run loses half a second.

    output = RecordingFile(path, clock)
    row = output.add("steps", rank=0, number=0, start_ns=100, duration_ns=50, kind=0)
    output.flush(header)        # a Trace without tables: devices, threads, provenance so far; None: as before
    output.close(header)

A disk that fills up must not stop the training: the first failure ends the recording, is reported in one line, and everything
written before stays readable.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tracer.device.clock import EpochClock
from traces.format.trace_file import TraceStream
from traces.model.trace import TABLES, Strings, Table, Trace, TraceError
from traces.script.deferred_signals import deferred_signals

_Row = tuple[Any, ...]  # (names of columns, value, value...)

# How much of a run may be lost when it is killed.
_FLUSH_NS = 500_000_000


class RecordingFile:
    """Gathers rows and streams them out. Not for several threads at once; the recorder's lock guards it.

    A row is a tuple of the names of its columns and then its values. Tuples of numbers are not followed by Python's garbage
    collector, which would run more often in the script otherwise; and a signal that interrupts leaves no half of a row.
    """

    def __init__(self, path: Path, clock: EpochClock) -> None:
        self.path = path
        self.strings = Strings()
        self.failed = False
        self._clock = clock
        self._due_ns = 0
        self._stream: TraceStream | None = None
        self._written_strings = 0
        self._rows: dict[str, list[_Row]] = {name: [] for name in TABLES}
        self._written = dict.fromkeys(TABLES, 0)  # rows that are no longer in `_rows`

    def add(self, table: str, **row: Any) -> int:
        """Append a row; columns that are left out take their defaults. Returns the row's number."""
        number = self.count(table)
        self._rows[table].append((tuple(row), *row.values()))
        return number

    def add_all(self, table: str, rows: Iterable[_Row]) -> int:
        """Append rows, each a tuple of the names of its columns and then its values. Returns the first row's number."""
        number = self.count(table)
        self._rows[table].extend(rows)
        return number

    def count(self, table: str) -> int:
        """How many rows the table has."""
        return self._written[table] + len(self._rows[table])

    def text(self, text: str) -> int:
        return self.strings.add(text)

    @property
    def due(self) -> bool:
        """Whether enough time has passed since the last flush."""
        return self._clock.perf_ns() >= self._due_ns

    def flush(self, header: Trace | None) -> None:
        """Write what was gathered, and `header` before it, for rows may name devices and threads that are new.

        None: there is nothing new in it since the last time. The first time it must be there.
        """
        self._due_ns = self._clock.perf_ns() + _FLUSH_NS
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
        """Write the rest and mark the file as whole."""
        self.flush(header)
        if self._stream is None or self.failed:
            return
        try:
            self._stream.close()
        except (TraceError, OSError) as failure:
            self._give_up(failure)

    def _write(self, header: Trace | None, rows: dict[str, list[_Row]]) -> None:
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
        print(f"trace: the recording stops here, the script goes on: {failure}", file=sys.stderr)


def _table(kind: type[Table], rows: list[_Row]) -> Table:
    """The rows as a table, in their order."""
    parts = []
    for names, alike in groupby(rows, key=itemgetter(0)):
        _, *columns = zip(*alike, strict=True)
        parts.append(kind.of(**dict(zip(names, columns, strict=True))))
    return kind.concatenated(parts)
