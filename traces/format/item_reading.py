"""Reads the tables and other items of a trace file. If only some columns of a table are needed, the rest of the table may stay
compressed.

    for kind, value in unpack_items(content): ...
    later = LaterTable(table_head(frame.beginning()), 0, frame.pieces(), frame.offset_bytes)
    later.column("thread")              # decompresses only the beginning of the frame
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import msgpack
import numpy as np

from traces.format.column_encoding import MAX_ROWS, unpack_column, unpack_table
from traces.format.frames import MAX_CONTENT_BYTES, Damaged, located, require
from traces.model.trace import TABLES, Column, Table

T = TypeVar("T")

MAX_LIST = 1 << 14  # maximum number of elements in a list, and of texts in an item

# limits for one unchecked item; a table has about fifteen lists and maps
_MAX_LISTS_AND_MAPS = 64
_MAX_KEYS = 64


def unpack_items(content: bytes) -> Iterator[tuple[str, Any]]:
    limited = _Unpacker(len(content))
    unpacker = limited.unpacker
    unpacker.feed(content)
    whole_bytes = 0
    try:
        for item in unpacker:
            if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str):
                raise Damaged("an item is not a pair of kind and value")
            whole_bytes, limited.lists_and_maps = unpacker.tell(), 0
            yield item[0], item[1]
    except (ValueError, msgpack.UnpackException) as error:
        raise Damaged(f"not msgpack ({error})") from error
    require(whole_bytes == len(content), "an item ends too early")


class _Unpacker:
    """Unpacks the items of a trace file, and rejects items that would need too much memory. Without a limit, a damaged file of
    64 MiB could fill 4 GB of memory."""

    def __init__(self, content_bytes: int) -> None:
        self.lists_and_maps = 0
        self.unpacker = msgpack.Unpacker(
            max_buffer_size=content_bytes,
            unicode_errors="surrogatepass",
            strict_map_key=True,
            list_hook=self._counted,
            object_hook=self._counted,
            max_array_len=MAX_LIST,
            max_map_len=_MAX_KEYS,
        )

    def _counted(self, value: Any) -> Any:
        self.lists_and_maps += 1
        if self.lists_and_maps > _MAX_LISTS_AND_MAPS:
            raise Damaged(f"an item contains more than {_MAX_LISTS_AND_MAPS} lists and maps")
        return value


class TableHead(NamedTuple):
    kind: str
    rows: int


def table_head(beginning: bytes) -> TableHead | None:
    """Read a table's kind and number of rows from the first bytes of a frame. Return None if the frame contains no table."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(beginning)
    try:
        is_pair, kind = unpacker.read_array_header() == 2, unpacker.unpack()
        unpacker.read_map_header()
        name, rows = unpacker.unpack(), unpacker.unpack()
    except (ValueError, msgpack.UnpackException):
        return None
    is_head = is_pair and isinstance(kind, str) and name == "rows" and type(rows) is int and 0 < rows <= MAX_ROWS
    return TableHead(kind, rows) if is_head and kind in TABLES else None


class LaterTable:
    """Unpacks columns when they are needed. The columns that select rows come first."""

    def __init__(self, head: TableHead, first_row: int, pieces: Iterator[bytes], offset_bytes: int) -> None:
        self._head = head
        self._first_row = first_row
        self._offset_bytes = offset_bytes
        self._packed: dict[str, Any] = {}  # columns
        self._whole: Table | None = None
        self._reading = self._read(pieces)
        self._lock = Lock()

    def column(self, name: str) -> Column:
        kind, rows = TABLES[self._head.kind], self._head.rows
        with located(self._offset_bytes):
            with self._lock:
                while self._whole is None and name not in self._packed:
                    # the iterator has ended if reading another column has already found the damage
                    require(next(self._reading, False), "a large frame cannot be read")
            if self._whole is None:
                return unpack_column(self._packed[name], rows, np.dtype(kind.DTYPES[name]), name)
            column: Column = getattr(self._whole, name)
            return column

    def _read(self, pieces: Iterator[bytes]) -> Iterator[bool]:
        unpacker = _Unpacker(MAX_CONTENT_BYTES).unpacker

        def read(part: Callable[[], T]) -> T:
            while True:
                try:
                    return part()
                except msgpack.OutOfData:
                    if (piece := next(pieces, None)) is None:
                        raise Damaged("an item ends too early") from None
                    unpacker.feed(piece)
                except (ValueError, msgpack.UnpackException) as error:
                    raise Damaged(f"not msgpack ({error})") from error

        values: dict[str, Any] = {}
        read(unpacker.read_array_header), read(unpacker.unpack)
        for _ in range(read(unpacker.read_map_header)):
            key = read(unpacker.unpack)
            if key != "columns":
                values[key] = read(unpacker.unpack)
                continue
            values[key] = self._packed
            for _ in range(read(unpacker.read_map_header)):
                name = read(unpacker.unpack)
                self._packed[name] = read(unpacker.unpack)
                yield True
        if any(True for _ in pieces) or unpacker.read_bytes(1) or values.get("rows") != self._head.rows:
            raise Damaged("a large frame is not a single table")
        self._whole = unpack_table(TABLES[self._head.kind], values, self._first_row, is_lazy=True)
        yield True
