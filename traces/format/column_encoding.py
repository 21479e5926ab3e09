"""Encodes tables as msgpack values that compress well, and decodes them without loss.

    packed = pack_table(steps)          # {"rows": 2, "columns": {"start_ns": [1, 100, 50, b"..."]}}
    unpack_table(Steps, packed)         # the same steps; raises Damaged for invalid input

The highest bytes of all integers are stored together, because they are often equal and therefore compress well. Columns of up
to 256 numbers are stored as plain msgpack numbers, because packing them takes 1 µs instead of 50 µs. FORMAT.md describes the
encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from traces.format import host_nesting as nesting
from traces.format.frames import Damaged, require
from traces.model.trace import Column, HostSpans, Table

T = TypeVar("T", bound=Table)

# methods to store numbers: minus the minimum, minus the previous number, minus the row number, or unchanged
LEAST, ABOVE, ROW, ZERO = range(4)
SIGNED = 4  # added for signed differences, stored as zigzag numbers

# Longer tables are split, because a frame of a trace file may hold at most MAX_CONTENT_BYTES.
MAX_ROWS = 1 << 19

PLAIN_NUMBERS = 256  # a longer column is packed; readers accept plain columns of any length that a msgpack list may have

_CACHED_ROWS = 1 << 14  # number of rows decoded together; small, so that intermediate results fit in the processor's cache

# columns with increasing values; differences between rows take less space
_GROWING = (
    "start_ns time_ns called_ns device_start_ns device_end_ns launch number step phase read allocated_bytes recorded_step"
)
_METHODS = dict.fromkeys(_GROWING.split(), ABOVE) | {"parent": ROW}

# columns with multiples of a number: 1000 for times in µs, 512 for sizes and addresses
_DIVISIBLE = ("_ns", "bytes", "address")

_PLAIN = ({int}, {int, float})  # types of the numbers in a plain column of integers, and of floats

_U8 = np.dtype("<u8")
_I8 = np.dtype("<i8")


def pack_table(table: Table, first_row: int = 0, compact: bool = True) -> dict[str, Any]:
    """Return a table as values that msgpack can store. With `compact`, the result takes less space."""
    rows = len(table)
    if rows > MAX_ROWS:
        raise ValueError(f"{rows} rows are too many for one packed table; the limit is {MAX_ROWS}")
    if not rows:
        return {"rows": 0, "columns": {}}
    stored: dict[str, int | list[Any]] = {}
    packed: dict[str, Any] = {"rows": rows, "columns": stored}
    columns = table.columns()
    if compact and isinstance(table, HostSpans) and (nest := nesting.encode_nesting(table, first_row)) is not None:
        packed["nested"] = [nest.first_ns, pack_column(nest.depth, LEAST, False), pack_column(nest.gaps_ns, ZERO, True)]
        for name in nesting.COLUMNS:
            del columns[name]
    for name, column in columns.items():
        if column.dtype.kind != "f" and (column == column[0]).all():
            if column[0] != table.DEFAULTS[name]:
                stored[name] = int(column[0])
        else:
            stored[name] = pack_column(column, _METHODS.get(name, LEAST), compact and name.endswith(_DIVISIBLE))
    if "nested" not in packed and not any(isinstance(value, list) for value in stored.values()):
        # All columns are constant, so only one value of each column would be stored. `load` rejects such a table, because a
        # file of a few bytes could then claim gigabytes of rows (FORMAT.md). Therefore, store all values of one column.
        name = next(iter(table.DTYPES))
        stored[name] = pack_column(columns[name], LEAST, False)
    return packed


def pack_rows(kind: type[Table], columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    packed: dict[str, Any] = dict(zip(columns, zip(*rows, strict=True), strict=True))
    for name, values in packed.items() if len(rows) > PLAIN_NUMBERS else ():
        dtype = kind.DTYPES[name]
        # Many columns are constant, and counting takes a tenth of the time of packing. All values of the last column are
        # stored, see `pack_table`.
        is_one = name != columns[-1] and dtype[0] != "f" and values.count(values[0]) == len(rows)
        packed[name] = int(values[0]) if is_one else pack_numbers(values, _METHODS.get(name, LEAST), dtype)
    return {"rows": len(rows), "columns": packed}


def pack_numbers(numbers: Sequence[Any] | Column, method: int = ABOVE, dtype: str = "i8") -> Sequence[Any] | Column:
    return numbers if len(numbers) <= PLAIN_NUMBERS else pack_column(np.array(numbers, dtype), method, False)


def claimed_rows(packed: Any) -> int:
    rows: int = _entry(packed, "rows", int)
    require(0 <= rows <= MAX_ROWS, f"a table that claims {rows} rows")
    return rows


def unpack_table(kind: type[T], packed: Any, first_row: int = 0, *, is_lazy: bool = False) -> T:
    """Decode the result of `pack_table`. With `is_lazy`, each column is decoded when it is first read. Raises Damaged."""
    rows = claimed_rows(packed)
    stored = _entry(packed, "columns", dict)
    nested = packed.get("nested")
    if rows and nested is None and not any(isinstance(v, list) for v in stored.values()):
        raise Damaged(f"a table that claims {rows} rows")
    if unknown := stored.keys() - kind.DTYPES.keys():
        raise Damaged(f"unknown column {sorted(map(str, unknown))[0]!r}")
    nest = None
    if nested is not None:
        require(kind is HostSpans and rows and _is_list_of(nested, int, list, list), "invalid nest")
        nest = nested

    def decoded(name: str) -> dict[str, Column]:
        if nest is not None and name in nesting.COLUMNS:
            depth = unpack_column(nest[1], rows, _I8, "depth")
            gaps_ns = unpack_column(nest[2], 2 * rows, _I8, "gaps")
            spans = nesting.HostNesting(depth, _in_range(nest[0], _I8, "start_ns"), gaps_ns)
            return nesting.decode_nesting(spans, decoded("name")["name"], first_row)
        value = stored.get(name, kind.DEFAULTS[name])
        return {name: unpack_column(value, rows, np.dtype(kind.DTYPES[name]), name)}

    table = kind.deferred(rows, decoded)
    if not is_lazy:
        table.columns()
    return table


def pack_column(column: Column, method: int, divide: bool) -> list[Any]:
    """Encode a column of a table as described in FORMAT.md. With `divide`, values are divided by their greatest common
    divisor."""
    bits = column.view(_U8) if column.dtype.itemsize == 8 else column.astype(_I8).view(_U8)
    base = bits.dtype.type(0)
    if method == LEAST:
        base = bits[np.argmin(bits if column.dtype.kind == "f" else column)]
    elif method != ZERO:
        base = bits[0]
    small = bits - base
    if method == ABOVE:
        small = np.diff(small, prepend=small[:1])
    elif method == ROW:
        small = np.arange(len(small), dtype=_U8) - small
    scale = 1
    signed = method != LEAST and bool((small.view(_I8) < 0).any())
    if divide and (divisor := _common_divisor(small.view(_I8) if signed else small)) > 1:
        scale = divisor
        small = (small.view(_I8) // scale).view(_U8) if signed else small // np.uint64(scale)
    if signed:
        method |= SIGNED
        small = (small << np.uint64(1)) ^ (small.view(_I8) >> np.int64(63)).view(_U8)
    width = max(1, (int(small.max()).bit_length() + 7) // 8)
    return [method, int(base.view(_I8)), scale, small.view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes()]


def _common_divisor(values: npt.NDArray[Any]) -> int:
    divisor = int(np.gcd.reduce(values[:64]))
    return 1 if divisor == 1 else max(1, int(np.gcd.reduce(values)))


def unpack_column(value: Any, rows: int, dtype: np.dtype[Any], name: str) -> Column:
    """Decode the result of `pack_column`. Raises Damaged."""
    if type(value) is int:
        return np.full(rows, _in_range(value, dtype, name), dtype)
    if isinstance(value, list) and len(value) == rows and set(map(type, value)) <= _PLAIN[dtype.kind == "f"]:
        if dtype.kind != "f":
            _in_range(min(value), dtype, name), _in_range(max(value), dtype, name)
        return np.array(value, dtype)
    require(_is_list_of(value, int, int, int, bytes), f"column {name!r} is neither a single value nor an encoded column")
    method, base, scale, planes = value
    width = len(planes) // rows if rows else 0
    if not 0 <= method < 2 * SIGNED or not 1 <= width <= 8 or width * rows != len(planes):
        raise Damaged(f"column {name!r} has {len(planes)} bytes for {rows} rows")
    if width == 1 and method == LEAST and dtype.kind != "f" and scale == 1:
        return _small_column(np.frombuffer(planes, np.uint8), base, dtype, name)
    step, shift = _in_range(scale, _U8, name), _in_range(base, _I8, name).view(_U8)
    column: Column = np.empty(rows, dtype)
    limits = np.iinfo(dtype) if dtype.itemsize < 8 else None
    above = _U8.type(0)  # the previous row, for `ABOVE`
    packed = np.frombuffer(planes, np.uint8).reshape(width, rows)
    for first in range(0, rows, _CACHED_ROWS):
        part = slice(first, first + _CACHED_ROWS)
        small = packed[0, part].astype(_U8)
        for place in range(1, width):
            small |= packed[place, part].astype(_U8) << np.uint64(8 * place)
        if method & SIGNED:
            small = (small >> np.uint64(1)) ^ (np.uint64(0) - (small & np.uint64(1)))
        if scale != 1:
            small *= step
        if method & ~SIGNED == ABOVE:
            small[:1] += above
            np.cumsum(small, out=small)
            above = small[-1]
        elif method & ~SIGNED == ROW:
            small = np.arange(first, first + len(small), dtype=_U8) - small
        small += shift
        if limits is None:
            column[part] = small.view(dtype)
        else:
            values = small.view(_I8)
            require(values.min() >= limits.min and values.max() <= limits.max, f"column {name!r} has values outside {dtype}")
            column[part] = values
    return column


def _small_column(plane: Column, base: int, dtype: np.dtype[Any], name: str) -> Column:
    _in_range(base, dtype, name)
    require(base + int(plane.max()) <= np.iinfo(dtype).max, f"column {name!r} has values outside {dtype}")
    column = plane.astype(dtype)
    column += dtype.type(base)
    return column


def _in_range(value: int, dtype: np.dtype[Any], name: str) -> Any:
    limits = np.iinfo(dtype if dtype.kind != "f" else _I8)
    require(limits.min <= value <= limits.max, f"column {name!r} has the invalid value {value}")
    return dtype.type(value)


def _is_list_of(value: Any, *kinds: type[Any]) -> bool:
    return isinstance(value, list) and tuple(type(part) for part in value) == kinds


def _entry(packed: Any, key: str, kind: type[Any]) -> Any:
    value = packed.get(key) if isinstance(packed, dict) else None
    require(type(value) is kind, f"table without {key!r}")
    return value
