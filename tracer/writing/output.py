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
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tracer.device.clock import EpochClock
from traces.format.items import block_item, row_items
from traces.format.step_block import StepBlock
from traces.format.trace_file import TraceStream
from traces.model.trace import TABLES, Strings, Trace, TraceError

_Row = tuple[Any, ...]  # (names of columns, value, value...)

# longest time between two writes; a killed script loses at most the data of this time
FLUSH_NS = 500_000_000
_FIRST_FLUSH_NS = 10_000_000  # initial time between two writes; the time doubles after each write


class RecordingFile:
    """Collects the rows of the recording's tables, and writes the rows to the file. Rows are tuples of numbers, because the
    garbage collector skips such tuples."""

    def __init__(self, path: Path, clock: EpochClock) -> None:
        self.path = path
        self.strings = Strings()
        self.is_ended = False  # True after `close` or a failed write; later rows, for example from daemon threads, are ignored
        self._clock = clock
        self._pause_ns = _FIRST_FLUSH_NS
        self.due_ns = 0  # time (monotonic clock) at which the collected rows should be written
        self._stream: TraceStream | None = None
        self._written_strings = 0
        self._rows: dict[str, list[_Row]] = {name: [] for name in TABLES}
        self._items: list[bytes] = []  # encoded rows, which precede the rows in `_rows`
        self._encoded = dict.fromkeys(TABLES, 0)  # numbers of encoded rows

    def add(self, table: str, **row: Any) -> int:
        """Append a row to a table, and return the row's index. Missing columns get default values."""
        number = self.count(table)
        self._rows[table].append((tuple(row), *row.values()))
        return number

    def add_all(self, table: str, rows: Iterable[_Row]) -> int:
        number = self.count(table)
        self._rows[table].extend(rows)
        return number

    def add_block(self, block: StepBlock) -> None:
        self._encode("steps", "phases")
        self._items.append(block_item(block))
        self._encoded["steps"] += block.steps
        self._encoded["phases"] += block.steps * len(block.names)

    def _encode(self, *tables: str) -> None:
        for name in tables:
            rows = self._rows[name]
            if rows:
                self._rows[name] = []
                self._encoded[name] += len(rows)
                for columns, alike in groupby(rows, itemgetter(0)):
                    self._items += row_items(name, columns, [row[1:] for row in alike])

    def count(self, table: str) -> int:
        return self._encoded[table] + len(self._rows[table])

    @property
    def has_rows(self) -> bool:
        return bool(self._items) or any(self._rows.values())

    def text(self, text: str) -> int:
        return self.strings.add(text)

    def flush(self, header: Trace | None) -> None:
        """Write the header and then the rows. Pass None for an unchanged header. Signals must be deferred."""
        self.due_ns = self._clock.perf_ns() + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, FLUSH_NS)
        self._encode(*TABLES)
        items, self._items = self._items, []
        if self.is_ended:
            return
        try:
            self._write(header, items)
        except (TraceError, OSError) as failure:
            self._give_up(failure)

    def close(self, header: Trace) -> None:
        self.flush(header)
        if self._stream is None or self.is_ended:
            return
        try:
            self._stream.close()
            self.is_ended = True
        except (TraceError, OSError) as failure:
            self._give_up(failure)

    def _write(self, header: Trace | None, items: list[bytes]) -> None:
        if self._stream is None:
            self._stream = TraceStream(self.path)
        if header is not None:
            self._stream.header(header)
        texts = self.strings.texts[self._written_strings :]
        if texts:
            self._stream.add_strings(texts)
            self._written_strings = len(self.strings)
        self._stream.add_items(items, {})
        self._stream.rows.update(self._encoded)

    def _give_up(self, failure: Exception) -> None:
        self.is_ended = True
        say(f"recording stopped, the script continues: {failure}")


def say(text: str) -> None:
    """Print a line to stderr. Do nothing if the script has closed stderr, or has replaced stderr by an object that raises an
    error."""
    if sys.stderr is not None:  # `print` would use stdout instead of None
        with suppress(Exception):
            print(f"trace: {text}", file=sys.stderr)
