"""Writes the trace of a replay in a separate thread while the script runs.

    timeline = TimelineWriter(TraceStream(path), recorded)
    row = timeline.op(thread, timeline.strings_of[signature], start_ns, end_ns)
    timeline.work(device, stream, kind, name, start_ns, duration_ns, row, size_bytes, origin)
    timeline.close(header)
"""

from __future__ import annotations

import queue
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns  # bound here, because surfaces/time.py may patch the module
from typing import NamedTuple

import numpy as np

from replayer.memory.op_rows import UnresolvedOps, host_rows
from replayer.op_signature import KeptBySignature, OpSignature
from replayer.timing.timeline.host_ranges import HostRanges, TakenRanges
from traces.format.trace_file import TraceStream
from traces.model.trace import (
    NONE,
    Collectives,
    Column,
    Device,
    DeviceSpans,
    HostKind,
    HostSpans,
    MemoryEvents,
    Parts,
    Phases,
    Steps,
    Strings,
    Table,
    Thread,
    Trace,
    shapes_text,
)

# Writing many rows at once is faster.
_FLUSH_ROWS = 65_536
_FLUSH_NS = 1_000_000_000
_HEADER_NS = 5_000_000_000  # time between two headers; if a process is killed, its figures are read from the last header
_MOST_ROWS = 4 * _FLUSH_ROWS
_WRITES_WITHIN_S = 300.0  # maximum time to wait for the writing thread

_OP = int(HostKind.OP)
_RANGE = int(HostKind.ANNOTATION)
_CALL = int(HostKind.RUNTIME)

# columns of host ops, device work and stages
HOST_COLUMNS = ("thread", "kind", "name", "start_ns", "duration_ns", "shapes", "dtypes", "layout")
WORK_COLUMNS = ("device", "stream", "kind", "name", "start_ns", "duration_ns", "launch", "bytes", "origin")
PART_COLUMNS = ("phase", "name", "thread", "start_ns", "duration_ns", "device", "device_start_ns", "device_end_ns", "origin")

_DEVICE, _TIME = 0, 1

# for each table, the columns that are filled with collected values; other columns have default values
_GATHERED: dict[str, tuple[type[Table], tuple[str, ...]]] = {
    "host": (HostSpans, HOST_COLUMNS),
    "device": (DeviceSpans, WORK_COLUMNS),
    "memory": (MemoryEvents, ("device", "time_ns", "bytes", "address", "allocated_bytes", "reserved_bytes")),
    "phases": (Phases, ("step", "name", "start_ns", "duration_ns", "device", "device_start_ns", "device_end_ns", "origin")),
    "parts": (Parts, PART_COLUMNS),
    "collectives": (
        Collectives,
        ("name", "dtype", "group", "group_size", "backend", "bytes", "called_ns", "start_ns", "duration_ns"),
    ),
    "steps": (Steps, ("rank", "number", "start_ns", "duration_ns", "kind", "recorded_step")),
}


@dataclass(slots=True, frozen=True)
class DeferredRows:
    count: int
    make: Callable[[], Column]

    @classmethod
    def of(cls, template: Column, written: dict[int, Column | int]) -> DeferredRows:
        return cls(len(template), partial(_written_over, template, written))


def _written_over(template: Column, written: dict[int, Column | int]) -> Column:
    table = template.copy(order="K")
    for column, values in written.items():
        table[:, column] = values
    return table


def concatenate_rows(tables: Sequence[Column | DeferredRows]) -> Column:
    whole = np.concatenate([table.make() if isinstance(table, DeferredRows) else table for table in tables])
    return whole.astype(np.int64, copy=False)


class BufferedRows:
    __slots__ = ("_in_tables", "_tables", "_width", "loose")

    def __init__(self, width: int) -> None:
        self.loose: array[int] = array("q")
        self._tables: list[Column | DeferredRows] = []
        self._in_tables = 0
        self._width = width

    def __len__(self) -> int:
        return self._in_tables + len(self.loose) // self._width

    def add(self, table: Column | DeferredRows) -> int:
        """Add rows to the table, and return the number of added rows. The caller must not change the rows afterwards."""
        if self.loose:
            self._bind()
        self._tables.append(table)
        count = table.count if isinstance(table, DeferredRows) else len(table)
        self._in_tables += count
        return count

    def _bind(self) -> None:
        self._tables.append(np.array(self.loose, dtype=np.int64).reshape(-1, self._width))
        self._in_tables += len(self.loose) // self._width
        del self.loose[:]

    def pop(self) -> list[Column | DeferredRows]:
        if self.loose:
            self._bind()
        taken, self._tables, self._in_tables = self._tables, [], 0
        return taken


def _time_memory(table: Column, ops: Column, start_ns: Column) -> None:
    there = (ops >= 0) & (ops < len(start_ns))
    table[there, _TIME] = start_ns[ops[there]]


def _put_in_order(table: Column, latest_ns: dict[int, int]) -> None:
    for device in np.unique(table[:, _DEVICE]).tolist():
        rows = np.flatnonzero(table[:, _DEVICE] == device)
        times = np.maximum.accumulate(np.maximum(table[rows, _TIME], latest_ns.get(device, table[rows[0], _TIME])))
        table[rows, _TIME] = times
        latest_ns[device] = int(times[-1])


class LoaderWait(NamedTuple):
    own_start_ns: int  # Unix time of this machine
    own_end_ns: int
    start_ns: int  # time on the recording's time axis
    end_ns: int


@dataclass(slots=True, frozen=True)
class _HandedOver:
    strings: list[str]
    tables: dict[str, list[Column | DeferredRows]]
    first: int
    ranges: TakenRanges
    nodes: array[int]
    memory_ops: list[UnresolvedOps]

    def matrices(self, memory_ns: dict[int, int]) -> dict[str, Column]:
        tables = {name: concatenate_rows(tables) for name, tables in self.tables.items()}
        if "memory" in tables and "host" in tables:
            start_ns = tables["host"][:, HOST_COLUMNS.index("start_ns")]
            _time_memory(tables["memory"], self.next_ops() - self.first, start_ns)
        if "memory" in tables:
            _put_in_order(tables["memory"], memory_ns)
        return tables

    def next_ops(self) -> Column:
        return host_rows(self.memory_ops)

    def written(self, memory_ns: dict[int, int]) -> dict[str, Table]:
        tables = self.matrices(memory_ns)
        columns = {name: dict(zip(_GATHERED[name][1], matrix.T, strict=True)) for name, matrix in tables.items()}
        if len(self.ranges) or self.nodes:
            columns["host"] = self._host(columns.get("host") or {name: np.empty(0, np.int64) for name in HOST_COLUMNS})
        return {name: _GATHERED[name][0].of(**values) for name, values in columns.items()}

    def _host(self, ops: dict[str, Column]) -> dict[str, Column]:
        start_ns = ops["start_ns"]
        more, parent = self.ranges.rows(ops["thread"], start_ns, start_ns + ops["duration_ns"], self.first)
        row, sequence, forward = np.array(self.nodes, np.int64).reshape(-1, 3).T
        columns = {name: np.append(ops[name], more[:, i]) for i, name in enumerate(HOST_COLUMNS[: more.shape[1]])}
        for name in ("shapes", "dtypes", "layout"):
            columns[name] = np.append(ops[name], np.full(len(more), NONE))
        for name, values in (("sequence", sequence), ("forward_thread", forward)):
            columns[name] = np.full(len(parent), NONE)
            columns[name][self.ranges.rows_of(row) - self.first] = values
        return columns | {"parent": parent}


class TimelineWriter:
    def __init__(self, stream: TraceStream, recorded: Trace, *, devices: Sequence[Device] = (), live: bool = False) -> None:
        """`devices` replaces the recorded list of devices."""
        self._stream = stream
        self._live = live
        # Write the header first, because the tables refer to devices and threads in the header.
        stream.header(Trace(devices=list(devices) or recorded.devices, threads=[Thread(0, 0, "MainThread", "main")]))
        self.strings = Strings(list(recorded.strings.texts))
        self.strings_of = KeptBySignature(self._strings_of)
        self._host_rows = KeptBySignature(self._host_row_of)
        self._written_strings = 0
        self._rows = {name: BufferedRows(len(columns)) for name, (_, columns) in _GATHERED.items()}
        # Use `array.extend` directly, because a Python method around it would be slower.
        self.work = self._rows["device"].loose.extend
        self._host = self._rows["host"].loose.extend
        self.host_rows = 0
        self.ranges = HostRanges()
        self.nodes = array("q")  # for each backward op: host row, sequence number, forward thread
        self._memory_ops: list[UnresolvedOps] = []
        self._memory_ns: dict[int, int] = {}
        self._first_row = 0
        self._watched: list[_HandedOver] | None = None
        self.loader_waits: list[LoaderWait] = []
        self._due_ns = perf_counter_ns() + _FLUSH_NS
        self._header_due_ns = 0
        self.header_of: Callable[[], Trace] | None = None  # this function returns the current header
        self.step_rows = 0
        self.phase_rows = 0
        self.home = 0
        self._queue: queue.SimpleQueue[_HandedOver | threading.Event | Trace | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._writer = threading.Thread(target=self._write, name="trace-timeline", daemon=True)
        self._writer.start()

    def _strings_of(self, signature: OpSignature) -> tuple[int, int, int, int]:
        add = self.strings.add
        dtypes = ";".join(dtype for shape, dtype in zip(signature.shapes, signature.dtypes, strict=True) if shape)
        layout = add(signature.layout) if signature.layout else NONE
        return add(signature.op), add(shapes_text(signature.shapes)), add(dtypes), layout

    def _host_row_of(self, signature: OpSignature) -> bytes:
        name, *arguments = self.strings_of[signature]
        return np.array((NONE, _OP, name, 0, 0, *arguments), np.int64).tobytes()

    def host_rows_of(self, signatures: Sequence[OpSignature]) -> Column:
        rows = map(self._host_rows.__getitem__, signatures)
        return np.frombuffer(b"".join(rows), np.int64).reshape(-1, len(HOST_COLUMNS))

    def work_rows(self, table: Column | DeferredRows) -> None:
        self._rows["device"].add(table)

    def memory(self, untimed: Column, ops: UnresolvedOps, now_ns: int) -> None:
        self._memory_ops.append(ops)
        self._rows["memory"].add(DeferredRows.of(untimed, {_TIME: now_ns}))

    def op(self, thread: int, strings: tuple[int, int, int, int], start_ns: int, end_ns: int) -> int:
        name, shapes, dtypes, layout = strings
        self._host((thread, _OP, name, start_ns, end_ns - start_ns, shapes, dtypes, layout))
        self.host_rows = row = self.host_rows + 1
        return row - 1

    def range(self, thread: int, name: str, start_ns: int, end_ns: int) -> None:
        self._host((thread, _RANGE, self.strings.add(name), start_ns, end_ns - start_ns, NONE, NONE, NONE))
        self.host_rows += 1

    def call(self, thread: int, name: str, start_ns: int, end_ns: int) -> int:
        self._host((thread, _CALL, self.strings.add(name), start_ns, end_ns - start_ns, NONE, NONE, NONE))
        self.host_rows = row = self.host_rows + 1
        return row - 1

    def op_rows(self, table: Column | DeferredRows) -> int:
        row = self.host_rows
        self.host_rows += self._rows["host"].add(table)
        return row

    def phase(self, name: str, start_ns: int, end_ns: int, device_start_ns: int, device_end_ns: int, origin: int) -> None:
        self.phase_rows += 1
        row = (self.step_rows, self.strings.add(name), start_ns, end_ns - start_ns)
        self._rows["phases"].loose.extend((*row, self.home, device_start_ns, device_end_ns, origin))

    def stage(self, phase: int, name: str, thread: int, start_ns: int, end_ns: int, *on_device: int) -> None:
        row = (self.phase_rows + phase, self.strings.add(name), thread, start_ns, end_ns - start_ns)
        self._rows["parts"].loose.extend((*row, *on_device))

    def collective(
        self, name: str, dtype: str, group: str, group_size: int, backend: str, size_bytes: int, times_ns: tuple[int, int, int]
    ) -> None:
        add, (call_ns, start_ns, end_ns) = self.strings.add, times_ns
        texts = add(name), add(dtype) if dtype else NONE, add(group), group_size, add(backend)
        self._rows["collectives"].loose.extend((*texts, size_bytes, call_ns, start_ns, end_ns - start_ns))

    def step(self, number: int, start_ns: int, end_ns: int, kind: int, recorded_step: int) -> None:
        self._rows["steps"].loose.extend((0, number, start_ns, end_ns - start_ns, kind, recorded_step))
        self.step_rows += 1
        if self._live:
            self._hand_over()
        else:
            self.hand_over_if_due()

    @property
    def is_due(self) -> bool:
        most = max(map(len, self._rows.values()))
        if self.ranges.under_way:
            return most >= _MOST_ROWS
        return most >= _FLUSH_ROWS or perf_counter_ns() >= self._due_ns

    def watch(self) -> None:
        """Start to collect events for `watched`."""
        self._hand_over()
        self._watched, self.loader_waits = [], []

    def loader_wait(self, wait: LoaderWait) -> None:
        if self._watched is not None:
            self.loader_waits.append(wait)

    def watched(self, header: Trace) -> tuple[Trace, Column]:
        """Return the events since `watch` was called. The second result contains, for each memory event, the index of the next
        op after the event."""
        self._hand_over()
        watched, self._watched = self._watched or [], None
        memory_ns: dict[int, int] = {}
        matrices = [handed_over.matrices(memory_ns) for handed_over in watched]
        tables: dict[str, dict[str, Column]] = {}
        for name in ("host", "device", "memory"):
            none = np.empty((0, len(_GATHERED[name][1])), np.int64)
            matrix = np.concatenate([none, *(found[name] for found in matrices if name in found)])
            tables[name] = {column: matrix[:, i].copy() for i, column in enumerate(_GATHERED[name][1])}
        places, row = np.full(self.host_rows + 1, NONE), 0
        for handed_over, found in zip(watched, matrices, strict=True):
            count = len(found.get("host", ()))
            places[handed_over.first : handed_over.first + count] = np.arange(row, row + count)
            row += count
        tables["device"]["launch"] = places[tables["device"]["launch"]]
        host = tables["host"]
        host["thread"] = np.maximum(host["thread"], 0)
        header.strings = Strings(list(self.strings.texts))
        header.host, header.device = HostSpans.of(**host), DeviceSpans.of(**tables["device"])
        header.memory = MemoryEvents.of(**tables["memory"])
        next_ops = np.concatenate([np.empty(0, np.int64), *(handed_over.next_ops() for handed_over in watched)])
        return header, places[next_ops]

    def hand_over_if_due(self) -> None:
        if not self.is_due:
            return
        self._hand_over()
        if self.header_of is not None and self._due_ns >= self._header_due_ns:
            self._header_due_ns = self._due_ns + _HEADER_NS
            self._queue.put(self.header_of())

    def flush(self, header: Trace) -> None:
        """Write the current rows and header to the file. Raises TimeoutError if the disk is too slow, and OSError or TraceError
        if writing fails."""
        self._hand_over()
        written = threading.Event()
        self._queue.put(written)
        self._end_of_writing(header, is_in_time=written.wait(_WRITES_WITHIN_S))

    def close(self, header: Trace) -> None:
        """Raises the same errors as `flush`."""
        self._hand_over()
        self._queue.put(None)
        self._writer.join(_WRITES_WITHIN_S)
        self._end_of_writing(header, is_in_time=not self._writer.is_alive())
        self._stream.close()

    def _end_of_writing(self, header: Trace, *, is_in_time: bool) -> None:
        if not is_in_time:
            late = f"the last rows were not written within {_WRITES_WITHIN_S:g} s; is the disk very slow?"
            raise TimeoutError(f"{self._stream.path}: {late}")
        if self._failure is not None:
            raise self._failure
        self._stream.header(header)

    def _hand_over(self) -> None:
        self._due_ns = perf_counter_ns() + _FLUSH_NS
        new_strings = self.strings.texts[self._written_strings :]
        self._written_strings = len(self.strings)
        full = {name: rows.pop() for name, rows in self._rows.items() if len(rows)}
        first = self._first_row
        ranges, nodes, self.nodes = self.ranges.pop(self.host_rows), self.nodes, array("q")
        memory_ops, self._memory_ops = self._memory_ops, []
        begun = len(ranges)
        self._first_row = self.host_rows = self.host_rows + begun
        if full or new_strings or begun:
            handed_over = _HandedOver(new_strings, full, first, ranges, nodes, memory_ops)
            if self._watched is not None:
                self._watched.append(handed_over)
            self._queue.put(handed_over)

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            if self._failure is not None:
                continue  # a full disk must not stop the script; close() reports the error
            try:
                if isinstance(item, Trace):
                    self._stream.header(item)
                    continue
                if item.strings:
                    self._stream.add_strings(item.strings)
                self._stream.add_tables(item.written(self._memory_ns))
            except Exception as failure:  # close() raises the error in the caller's thread
                self._failure = failure
