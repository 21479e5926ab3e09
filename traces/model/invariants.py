"""Checks traces for invalid indices and values, before saving and after loading.

    fault(trace)        # None, or "host.parent holds 7, outside 0..4"
    column_limits(trace)       # {"host.parent": (-1, 5), "host.start_ns": (-2**62 + 1, 2**62), ...}
    clear_dangling_references(trace)  # after a truncated file: references to lost spans become NONE
"""

from __future__ import annotations

import numpy as np

from traces.model.trace import NONE, TABLES, Column, Table, Thread, Trace

_MEANINGS = {f"{table}.{column}": of for table, kind in TABLES.items() for column, of in kind.MEANINGS.items()}
REFERENCES = {where: meaning for where, meaning in _MEANINGS.items() if isinstance(meaning, str)}
KINDS = {where: meaning for where, meaning in _MEANINGS.items() if isinstance(meaning, type)}

# Sums of times must fit into 64 bits. A start time may therefore be at most 2**62 ns after 1970 (the year 2116), and a duration
# may be at most 2**56 ns (two years).
_MOST = 1 << 62
_MOST_OF_AMOUNTS = 1 << 56
_AMOUNTS = ("duration_ns", "bytes")
_START = "start_ns"  # a column of each table with `duration_ns`


def fault(trace: Trace) -> str | None:
    for name, kind in TABLES.items():
        table = getattr(trace, name)
        for column, dtype in kind.DTYPES.items():
            values = getattr(table, column)
            if values.shape != (len(table),) or values.dtype != dtype:
                return f"{name}.{column} is {values.dtype}{values.shape}, not {np.dtype(dtype)}({len(table)},)"
    within = column_limits(trace)
    for name, kind in TABLES.items():
        for column in kind.DTYPES:
            if reason := fault_of_column(getattr(trace, name), name, column, within):
                return reason
    return fault_outside_tables(trace)


def fault_of_column(table: Table, name: str, column: str, within: dict[str, tuple[int, int]]) -> str | None:
    """Describe the first invalid value in a column, or return None."""
    values, where = getattr(table, column), f"{name}.{column}"
    if not len(values):
        return None
    if where in within:
        lowest, count = within[where]
        if values.min() < lowest or values.max() >= count:
            outside = (values < lowest) | (values >= count)
            return f"{where} holds {values[outside.argmax()]}, outside {lowest}..{count - 1}"
    if column in _AMOUNTS and np.abs(values).sum(dtype=np.float64) >= _MOST:
        return f"{where} adds up to 2**62 or more"
    if column == "duration_ns" and np.abs(getattr(table, _START) + values).max() >= _MOST:
        return f"{name}.start_ns and {name}.duration_ns end beyond 2**62"
    is_whole = where in within and len(values) == within[where][1]  # False if only some rows of the column are checked
    if where == "host.parent" and is_whole and _has_cycle(values):
        return "host.parent contains a cycle"
    return None


def fault_outside_tables(trace: Trace) -> str | None:
    if reason := _fault_of_header(trace):
        return reason
    if len(set(trace.strings.texts)) != len(trace.strings.texts):
        return "a text occurs twice in the string table"
    return None


def column_limits(trace: Trace) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for table, of in TABLES.items():
        for column, dtype in of.DTYPES.items():
            if column == "rank":
                found[f"{table}.rank"] = (0, 1 << 31)
            elif dtype == "i8":
                most = _MOST_OF_AMOUNTS if column in _AMOUNTS else _MOST
                found[f"{table}.{column}"] = (1 - most, most)
    found |= {where: (0, len(kind)) for where, kind in KINDS.items()}
    for where, target in REFERENCES.items():
        found[where] = (lowest_value(where), len(getattr(trace, target)))
    return found


def _fault_of_header(trace: Trace) -> str | None:
    devices, threads = trace.devices, trace.threads
    numbers = {
        "devices.index": [device.index for device in devices],
        "devices.total_memory_bytes": [device.total_memory_bytes for device in devices],
        "threads.tid": [thread.tid for thread in threads],
        "problems": list(trace.problems.values()),
    }
    for where, values in numbers.items():
        if max(map(abs, values), default=0) >= _MOST:
            return f"{where} contains a number beyond 2**62"
    for where, ranks in (("devices", [of.rank for of in devices]), ("threads", [of.rank for of in threads])):
        if ranks and not 0 <= min(ranks) <= max(ranks) < 1 << 31:
            return f"{where}.rank contains a number outside 0..{(1 << 31) - 1}"
    return None


def lowest_value(where: str) -> int:
    table, _, column = where.partition(".")
    return NONE if TABLES[table].DEFAULTS.get(column) == NONE else 0


def column_at(trace: Trace, where: str) -> Column:
    table, _, name = where.partition(".")
    column: Column = getattr(getattr(trace, table), name)
    return column


_MOST_THREADS = 1 << 16  # maximum threads in one file; a damaged file may contain any thread number


def clear_dangling_references(trace: Trace) -> None:
    """Repair a truncated trace: remove references to missing rows, and add a `Thread` without a name for each missing
    thread."""
    seen = min(int(trace.host.thread.max(initial=-1)) + 1, _MOST_THREADS)
    trace.threads += [Thread(trace.ranks[0], number) for number in range(len(trace.threads), seen)]
    kept = trace.phases.step < len(trace.steps)
    place = np.where(kept, np.cumsum(kept) - 1, NONE)
    of_part = trace.parts.phase
    inside = (of_part >= 0) & (of_part < len(place))
    of_part[inside] = place[of_part[inside]]
    of_part[of_part >= len(place)] = NONE
    trace.phases = trace.phases.take(kept)
    steps, hosts = len(trace.steps), len(trace.host)
    for column, count in ((trace.host.parent, hosts), (trace.device.launch, hosts)):
        column[column >= count] = NONE
    for column in (trace.values.step, trace.sizes.step):
        column[column >= steps] = NONE


def _has_cycle(parent: Column) -> bool:
    if (parent < np.arange(len(parent), dtype=parent.dtype)).all():
        return False
    above = np.append(parent, NONE)
    for _ in range(len(parent).bit_length()):
        above = above[above]
    return bool((above != NONE).any())
