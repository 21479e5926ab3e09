"""Encodes a trace as a sequence of msgpack items. Each item consists of a kind, such as "header", and a value. The kinds of
items are:

    header   JSON text: grain, devices, threads, provenance, problems, lacks, and the row counts if known
    strings  texts to append to the string table
    TABLE    rows to append to the table of this name, see column_encoding.py
    block    rows to append to the tables "steps" and "phases", see step_block.py
    end      expected number of texts and rows; the only item of the end frame

    content = b"".join([*text_items(trace), *number_items(trace)])
    assembly = Assembly(); assembly.add(content, offset_bytes=17)
    assembly.trace()                    # equal to `trace`
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any, TypeVar

import msgpack
import numpy as np

from traces.format.column_encoding import claimed_rows, pack_rows, pack_table, unpack_table
from traces.format.frames import Damaged, located, require
from traces.format.item_reading import MAX_LIST, LaterTable, TableHead, unpack_items
from traces.format.step_block import StepBlock, unpack_block
from traces.format.unpack_limit import UnpackLimit, size_text
from traces.model.json_facts import Json
from traces.model.machine import Machine, from_kineto, to_kineto
from traces.model.row_order import differs, lists_by_key
from traces.model.run import Run
from traces.model.trace import TABLES, Device, PhaseTiming, Strings, Table, Thread, Trace
from traces.model.typed_json import from_json, to_json
from traces.model.workload import WorkloadSignature

T = TypeVar("T")

_PACKER = msgpack.Packer(unicode_errors="surrogatepass")  # shared by all items, because `packb` allocates a buffer in each call

# Bytes of memory per text (with its entry in the string table), and per character of JSON in the worst case ("[[],[],...")
_BYTES_PER_TEXT = 128
_BYTES_PER_JSON_CHARACTER = 24
_ROW_BYTES = {name: sum(np.dtype(dtype).itemsize for dtype in kind.DTYPES.values()) for name, kind in TABLES.items()}
_ROW_BYTES["steps"] = 512  # includes the statistics that are computed for each step
_BYTES_PER_TRACK = 32 << 10  # a timeline row and sums of a thread, device, stream or loader
TRACKS = {"device": ("device", "stream"), "batches": ("rank", "loader")}  # columns with a timeline row per pair of values
_LONGEST_TEXT = 1 << 20  # characters; C++ template names have thousands

# rows of a table per item; a reader that needs only some ranks decompresses only the frames with rows of these ranks
_ITEM_ROWS = 1 << 17

# depth of nested lists and objects in provenance and properties; PyTorch uses three levels
MAX_DEPTH = 32

_HEADER_TYPES = {
    "grain": str,
    "devices": list,
    "threads": list,
    "provenance": dict,
    "problems": dict,
    "lacks": list,
    "rows": dict,
}


def text_items(trace: Trace) -> Iterator[bytes]:
    yield header_item(trace, row_counts(trace))
    yield from strings_item(trace.strings.texts)


def number_items(trace: Trace) -> Iterator[bytes]:
    for name in TABLES:
        yield from table_items(name, getattr(trace, name), 0, compact=True)


def row_counts(trace: Trace) -> dict[str, int]:
    return {name: rows for name in TABLES if (rows := len(getattr(trace, name)))}


def header_item(trace: Trace, rows: dict[str, int], blanks: int = 0) -> bytes:
    """Return the header as JSON, because msgpack has no integers above 64 bits."""
    header = {name: getattr(trace, name) for name in ("grain", "provenance", "problems", "lacks")}
    header["devices"] = [_device_values(device) for device in trace.devices]
    header["machines"] = _machine_values(trace.machines)
    header["runs"] = [{"ranks": [rank], **to_json(run)} for rank, run in sorted(trace.runs.items())]
    header["threads"] = [asdict(thread) for thread in trace.threads]
    header["rows"] = rows
    if trace.workload is not None:
        header["workload"] = trace.workload.to_json()
    if trace.phase_timing is not PhaseTiming.ASYNCHRONOUS:
        header["phase_timing"] = trace.phase_timing.value
    return _pack("header", json.dumps(_json_value(header), separators=(",", ":"), allow_nan=False) + " " * blanks)


def strings_item(texts: list[str]) -> Iterator[bytes]:
    for first in range(0, len(texts), MAX_LIST):
        yield _pack("strings", texts[first : first + MAX_LIST])


def table_items(name: str, table: Table, first_row: int, compact: bool) -> Iterator[bytes]:
    for first in range(0, len(table), _ITEM_ROWS):
        part = table.take(slice(first, first + _ITEM_ROWS)) if len(table) > _ITEM_ROWS else table
        yield _pack(name, pack_table(part, first_row + first, compact))


def row_items(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[bytes]:
    for first in range(0, len(rows), _ITEM_ROWS):
        yield _pack(name, pack_rows(TABLES[name], columns, rows[first : first + _ITEM_ROWS]))


def block_item(block: StepBlock) -> bytes:
    return _pack("block", block.packed())


def unpacked_bytes(trace: Trace) -> int:
    texts = trace.strings.texts
    rows_and_texts = sum(bytes_of_row * len(getattr(trace, name)) for name, bytes_of_row in _ROW_BYTES.items())
    rows_and_texts += sum(map(len, texts)) + _BYTES_PER_TEXT * len(texts)
    header = _BYTES_PER_JSON_CHARACTER * len(header_item(trace, row_counts(trace)))
    tracks = len(trace.devices) + len(trace.threads) + sum(_pairs(getattr(trace, name), *of) for name, of in TRACKS.items())
    return max(rows_and_texts, header, tracks * _BYTES_PER_TRACK)


def end_item(strings: int, rows: dict[str, int]) -> bytes:
    return _pack("end", [strings, {name: count for name, count in rows.items() if count}])


class Assembly:
    """Builds a trace from the content of a trace file. The methods raise Damaged for invalid content."""

    def __init__(self, limit: UnpackLimit, *, is_lazy: bool = False) -> None:
        self._limit = limit
        self.is_lazy = is_lazy
        self._unpacked_bytes = 0
        self._last_header: tuple[Any, int] | None = None  # content and offset
        self._texts: list[str] = []
        self._parts: dict[str, list[Table]] = {name: [] for name in TABLES}
        self._rows = dict.fromkeys(TABLES, 0)
        self._expected_rows: dict[str, int] = {}

    def add(self, content: bytes, offset_bytes: int) -> None:
        with located(offset_bytes):
            for kind, value in unpack_items(content):
                if kind == "header":
                    self._last_header = value, offset_bytes
                else:
                    self._add(kind, value)

    def add_later(self, head: TableHead, pieces: Iterator[bytes], offset_bytes: int) -> None:
        """Add a table to the trace. Each column of the table is unpacked when it is first read."""
        self._grow(_ROW_BYTES[head.kind] * head.rows)
        later = LaterTable(head, self._rows[head.kind], pieces, offset_bytes)
        self._append(head.kind, TABLES[head.kind].deferred(head.rows, lambda name: {name: later.column(name)}))

    def _header(self) -> dict[str, Json]:
        if self._last_header is None:
            raise Damaged("no header found")
        value, offset_bytes = self._last_header
        with located(offset_bytes):
            if isinstance(value, str):
                self._limit.check(_BYTES_PER_JSON_CHARACTER * len(value), f"a header of {size_text(len(value))}")
            return _parse_header(value)

    def _add(self, kind: str, value: Any) -> None:
        if kind == "strings":
            require(isinstance(value, list) and all(isinstance(text, str) for text in value), "strings that are not text")
            if max(map(len, value), default=0) > _LONGEST_TEXT:
                raise Damaged(f"a text of {max(map(len, value))} characters")
            self._grow(sum(map(len, value)) + _BYTES_PER_TEXT * len(value))
            self._texts += value
        elif kind in TABLES:
            self._grow(_ROW_BYTES[kind] * claimed_rows(value))
            self._append(kind, unpack_table(TABLES[kind], value, self._rows[kind], is_lazy=self.is_lazy))
        elif kind == "block":
            block = unpack_block(value)
            self._grow(block.steps * (_ROW_BYTES["steps"] + len(block.names) * _ROW_BYTES["phases"]))
            steps, phases = block.tables(self._rows["steps"])
            self._append("steps", steps)
            self._append("phases", phases)
        else:
            raise Damaged(f"unknown item {kind!r}; the file may be from a newer trace-replay, so upgrade")

    def _append(self, name: str, part: Table) -> None:
        self._parts[name].append(part)
        self._rows[name] += len(part)

    def _grow(self, more_bytes: int) -> None:
        self._unpacked_bytes += more_bytes
        self._limit.check(self._unpacked_bytes, f"rows and texts that take {size_text(self._unpacked_bytes)} or more in memory")

    def trace(self) -> Trace:
        values = self._header()
        self._expected_rows = values["rows"]
        header = {name: values[name] for name in _HEADER_TYPES if name != "rows"}
        tables: dict[str, Any] = {name: kind.concatenated(self._parts[name]) for name, kind in TABLES.items()}
        header["devices"] = [_make_device(device) for device in header["devices"]]
        header["threads"] = [_made(Thread, thread) for thread in header["threads"]]
        header["workload"] = values.get("workload")
        header["phase_timing"] = values.get("phase_timing", PhaseTiming.ASYNCHRONOUS)
        self.check_tracks(len(header["devices"]) + len(header["threads"]), {} if self.is_lazy else tables)
        header["machines"] = _make_by_rank(Machine, values.get("machines", []))
        header["runs"] = _make_by_rank(Run, values.get("runs", []))
        return Trace(strings=Strings(self._texts), **header, **tables)

    def check_tracks(self, devices_and_threads: int, tables: Mapping[str, Any]) -> None:
        """Reject a file if its threads, devices, streams or loaders would need too much memory."""
        tracks = devices_and_threads + sum(_pairs(tables[name], *TRACKS[name]) for name in tables.keys() & TRACKS)
        self._limit.check(tracks * _BYTES_PER_TRACK, f"{tracks} threads, devices, streams and loaders")

    def check_end(self, content: bytes, offset_bytes: int) -> None:
        counts = [len(self._texts), {name: rows for name, rows in self._rows.items() if rows}]
        with located(offset_bytes):
            require([*unpack_items(content)] == [("end", counts)], "the counts in the end frame are wrong")

    def missing(self) -> str:
        """Return a text such as ", 12 of 30 rows of device are missing" for the message about a truncated file."""
        missing = [(count - self._rows.get(name, 0), count, name) for name, count in self._expected_rows.items()]
        return "".join(f", {absent} of {count} rows of {name} are missing" for absent, count, name in missing if absent > 0)


def _pairs(table: Table, owner: str, number: str) -> int:
    pairs = getattr(table, number) + (getattr(table, owner).astype(np.int64) << 40)
    return len(np.unique(pairs[differs(pairs)]))


def _pack(kind: str, value: Any) -> bytes:
    packed: bytes = _PACKER.pack([kind, value])
    return packed


def steps_within(content: bytes) -> int:
    items = list(unpack_items(content))
    rows = sum(claimed_rows(value) for kind, value in items if kind == "steps")
    return rows + sum(unpack_block(value).steps for kind, value in items if kind == "block")


def _parse_header(text: Any) -> dict[str, Json]:
    try:
        header: dict[str, Json] = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (TypeError, ValueError, RecursionError) as error:
        raise Damaged(f"header is not JSON ({error})") from error
    require(_levels(header) <= MAX_DEPTH, f"header is nested in more than {MAX_DEPTH} levels")
    for name, kind in _HEADER_TYPES.items():
        require(isinstance(header, dict) and isinstance(header.get(name), kind), f"header without {name!r}")
    if not all(type(count) is int for count in [*header["problems"].values(), *header["rows"].values()]):
        raise Damaged("the header contains a count that is not a number")
    if not all(isinstance(lack, str) for lack in header["lacks"]):
        raise Damaged("the list `lacks` in the header contains something other than text")
    try:
        if "workload" in header:
            header["workload"] = WorkloadSignature.from_json(header["workload"])
        if "phase_timing" in header:
            header["phase_timing"] = PhaseTiming(header["phase_timing"])
    except ValueError as error:
        raise Damaged(f"header: {error}") from error
    return header


def _device_values(device: Device) -> dict[str, Json]:
    values = {name: getattr(device, name) for name in ("rank", "index", "name", "total_memory_bytes")}
    known = {name: getattr(device, name) for name in ("outside_bytes", "peak_bytes") if getattr(device, name)}
    return {**values, "properties": to_kineto(device.properties), **known}


def _make_device(values: Any) -> Device:
    properties = values.get("properties") if isinstance(values, dict) else None
    if not isinstance(properties, dict):
        raise Damaged("header with an invalid device")
    return replace(_made(Device, values | {"properties": {}}), properties=from_kineto(properties))


def _machine_values(machines: dict[int, Machine]) -> list[dict[str, Json]]:
    ranks = lists_by_key((machine, rank) for rank, machine in sorted(machines.items()))
    return [{"ranks": of, **to_json(machine)} for machine, of in ranks.items()]


def _make_by_rank(kind: type[T], values: Any) -> dict[int, T]:
    what = kind.__name__.lower()
    require(isinstance(values, list) and all(isinstance(one, dict) for one in values), f"header with invalid {what}s")
    made: dict[int, T] = {}
    for one in values:
        ranks = one.get("ranks")
        require(isinstance(ranks, list) and all(type(rank) is int for rank in ranks), f"header with a {what} without ranks")
        made |= dict.fromkeys(ranks, _made(kind, one))
    return dict(sorted(made.items()))


def _made(kind: type[T], values: Any) -> T:
    try:
        return from_json(kind, values)
    except ValueError as error:
        raise Damaged(f"header with an invalid {kind.__name__.lower()}: {error}") from error


def _json_value(value: Any, depth: int = 0) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict | list | tuple):
        if depth >= MAX_DEPTH:
            raise ValueError(f"provenance or properties are nested in more than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            return {key: _json_value(inner, depth + 1) for key, inner in value.items()}
        return [_json_value(inner, depth + 1) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    raise ValueError(f"provenance or properties contain a {type(value).__name__}, which is not a JSON value")


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _levels(value: Any) -> int:
    levels, inner = 0, [value]
    while outer := [one for one in inner if isinstance(one, dict | list)]:
        inner = list(chain.from_iterable(one.values() if isinstance(one, dict) else one for one in outer))
        levels += 1
    return levels
