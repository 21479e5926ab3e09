"""The replay's own recording: what the script did on the virtual GPU, written as a trace while it runs.

Rows are gathered as plain integers and handed to the stream file a few thousand at a time by a thread of their own, so that
neither time nor memory per step grows with the length of the run.

    timeline = Timeline(TraceStream(path), recorded)
    row = timeline.op(thread, timeline.strings_of(site), start_ns, end_ns)
    timeline.work(device, stream, kind, name, start_ns, duration_ns, row, size_bytes, origin)
    timeline.close(header)
"""

from __future__ import annotations

import queue
import threading
from array import array

import numpy as np

from replayer.sites import Site
from traces.file import TraceStream
from traces.model import (
    Column,
    DeviceSpans,
    HostKind,
    HostSpans,
    MemoryEvents,
    Phases,
    Steps,
    Strings,
    Table,
    Thread,
    Trace,
    shapes_text,
)

# Rows gathered before they are handed over: some steps of a large model.
_FLUSH_ROWS = 8_192

_OP = int(HostKind.OP)

# Of a row of device work.
WORK_COLUMNS = ("device", "stream", "kind", "name", "start_ns", "duration_ns", "launch", "bytes", "origin")

# The columns that each table's rows give, in order; the others take their defaults.
_GATHERED: dict[str, tuple[type[Table], tuple[str, ...]]] = {
    "host": (HostSpans, ("thread", "kind", "name", "start_ns", "duration_ns", "shapes", "dtypes")),
    "device": (DeviceSpans, WORK_COLUMNS),
    "memory": (MemoryEvents, ("device", "time_ns", "bytes", "address", "allocated_bytes", "reserved_bytes")),
    "phases": (Phases, ("step", "name", "start_ns", "duration_ns", "device", "device_start_ns", "device_end_ns", "origin")),
    "steps": (Steps, ("rank", "number", "start_ns", "duration_ns", "kind", "recorded_step")),
}


class Timeline:
    """Gathers rows and streams them out. `strings` starts as the recording's, so recorded names keep their index."""

    def __init__(self, stream: TraceStream, recorded: Trace) -> None:
        self._stream = stream
        # Rows name devices and the first thread from the start; what else there is to say comes last, in `close`.
        stream.header(Trace(devices=recorded.devices, threads=[Thread(0, 0, "MainThread", "main")]))
        self.strings = Strings(list(recorded.strings.texts))
        self._written_strings = 0
        self._rows = {name: array("q") for name in _GATHERED}
        self.work = self._rows["device"].extend  # the hot ones: extend a flat array by one row
        self.memory = self._rows["memory"].extend
        self._host = self._rows["host"].extend
        self.host_rows = 0
        self.step_rows = 0
        self._queue: queue.SimpleQueue[tuple[list[str], dict[str, array[int]]] | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._writer = threading.Thread(target=self._write, name="trace-timeline", daemon=True)
        self._writer.start()

    def strings_of(self, site: Site) -> tuple[int, int, int]:
        """The string indices of a site's name, shapes and dtypes, worked out once."""
        if site.strings is None:
            dtypes = ";".join(dtype for shape, dtype in zip(site.shapes, site.dtypes, strict=True) if shape)
            site.strings = (
                self.strings.add(site.op),
                self.strings.add(shapes_text(site.shapes)),
                self.strings.add(dtypes),
            )
        return site.strings

    def work_rows(self, table: Column) -> None:
        """Add rows of the device table, as `work` does one: int64, one column per column of it."""
        self._rows["device"].frombytes(np.ascontiguousarray(table, dtype=np.int64).tobytes())

    def op(self, thread: int, strings: tuple[int, int, int], start_ns: int, end_ns: int) -> int:
        """Add a host op; returns its row."""
        name, shapes, dtypes = strings
        self._host((thread, _OP, name, start_ns, end_ns - start_ns, shapes, dtypes))
        self.host_rows = row = self.host_rows + 1
        return row - 1

    def phase(self, name: str, start_ns: int, end_ns: int, device_start_ns: int, device_end_ns: int, origin: int) -> None:
        """Add a phase of the step under way, which will be row `step_rows`."""
        self._rows["phases"].extend(
            (
                self.step_rows,
                self.strings.add(name),
                start_ns,
                end_ns - start_ns,
                0,
                device_start_ns,
                device_end_ns,
                origin,
            )
        )

    def step(self, number: int, start_ns: int, end_ns: int, kind: int, recorded_step: int) -> None:
        """Add the step whose phases were added since the last one."""
        self._rows["steps"].extend((0, number, start_ns, end_ns - start_ns, kind, recorded_step))
        self.step_rows += 1
        self.relieve()

    def relieve(self) -> None:
        """Hand the rows over if enough have gathered."""
        if any(len(rows) >= _FLUSH_ROWS * len(_GATHERED[name][1]) for name, rows in self._rows.items()):
            self._hand_over()

    def close(self, header: Trace) -> None:
        """Write what is left and the final header (a trace without tables), and end the file.

        Raises OSError or TraceError if writing failed now or earlier.
        """
        self._hand_over()
        self._queue.put(None)
        self._writer.join()
        if self._failure is not None:
            raise self._failure
        self._stream.header(header)
        self._stream.close()

    def _hand_over(self) -> None:
        new_strings = self.strings.texts[self._written_strings :]
        self._written_strings = len(self.strings)
        full = {}
        for name, rows in self._rows.items():
            if rows:
                full[name] = rows[:]
                del rows[:]
        if full or new_strings:
            self._queue.put((new_strings, full))

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._failure is not None:
                continue  # a full disk must not stop the script; close() reports it
            try:
                new_strings, full = item
                if new_strings:
                    self._stream.add_strings(new_strings)
                for name, rows in full.items():
                    kind, columns = _GATHERED[name]
                    matrix = np.frombuffer(rows, dtype=np.int64).reshape(-1, len(columns))
                    self._stream.add(name, kind.of(**{column: matrix[:, i] for i, column in enumerate(columns)}))
            except Exception as failure:  # handed to close(), which raises it in the caller's thread
                self._failure = failure


