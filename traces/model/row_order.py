"""Sorts and groups the rows of a trace's tables.

    trace = in_order(load("replay-4711.msgpack"))

Trace files of scripts with several threads are not sorted by time.

Note [Calls that take no time]
    In a replay, several ops of a thread may start at the same nanosecond, and some of them may have no duration. These ops keep
    the order in which they were written. In a different order, `trace diff` would report a changed script.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np

from traces.model.invariants import REFERENCES
from traces.model.trace import NONE, TABLES, Column, HostKind, HostSpans, Strings, Table, Trace

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_DENSE = 8  # if the range of integers is more than this many times the number of rows, sorting is faster than counting


def in_order(trace: Trace) -> Trace:
    """Return the trace with sorted tables, for example with CPU events sorted by thread and start time."""
    # see Note [Calls that take no time]
    steps, phases, host, device = trace.steps, trace.phases, trace.host, trace.device
    parts, batches, collectives = trace.parts, trace.batches, trace.collectives
    step_order = np.argsort(steps.start_ns, kind="stable")
    orders = {
        "steps": step_order,
        "phases": np.lexsort((phases.start_ns, new_positions(step_order, len(steps))[phases.step])),
        "host": _host_order(host),
        "device": np.lexsort((device.start_ns, device.stream, device.device)),
        "memory": np.lexsort((trace.memory.time_ns, trace.memory.device)),
        "parts": np.lexsort((-parts.duration_ns, parts.start_ns)),
        "batches": np.lexsort((batches.start_ns, batches.rank)),
        "collectives": np.lexsort((collectives.start_ns, collectives.rank)),
    }
    return with_rows(trace, orders)


def _host_order(host: HostSpans) -> Column:
    keys = (host.kind == HostKind.OP, -host.duration_ns), (host.start_ns, host.thread)
    order = np.lexsort((*keys[0], *keys[1]))
    earlier = _called_before_longer(host, order)
    return np.asarray(np.lexsort((*keys[0], ~earlier, *keys[1])) if earlier.any() else order)


def _called_before_longer(host: HostSpans, order: Column) -> Column:
    # see Note [Calls that take no time]
    rows, thread, start_ns = np.arange(len(host)), host.thread[order], host.start_ns[order]
    begins = differs(thread, start_ns)
    longest = np.empty_like(rows)
    longest[order] = order[np.maximum.accumulate(np.where(begins, rows, 0))]
    takes_no_time = (host.kind == HostKind.OP) & (host.duration_ns == 0)
    doubtful = takes_no_time & (host.duration_ns[longest] > 0) & (host.kind[longest] != HostKind.RUNTIME)
    if not doubtful.any():
        return np.asarray(doubtful)
    outermost = rows  # for each span: the outermost enclosing span with the same start
    while True:
        around = host.parent[outermost]
        outer = np.where((around != NONE) & (longest[around] == longest), around, outermost)
        if np.array_equal(outer, outermost):
            break
        outermost = outer
    written = np.full(len(rows), len(rows))  # for each outermost span: the first row that was written
    np.minimum.at(written, outermost, rows)
    return np.asarray(doubtful & (outermost != longest) & (written[outermost] < written[longest]))


def with_rows(trace: Trace, rows: Mapping[str, Column]) -> Trace:
    """Return a copy of the trace with only the given rows of each table. References to removed rows become NONE."""
    tables: dict[str, Any] = {name: getattr(trace, name).take(order) for name, order in rows.items()}
    places = {name: cache(partial(new_positions, order, len(getattr(trace, name)))) for name, order in rows.items()}
    return _repointed(replace(trace, **tables), places)


def repointed(trace: Trace, places: Mapping[str, Column]) -> Trace:
    """Return a copy of the trace with reordered rows and updated references between rows."""
    return _repointed(trace, {name: partial(np.asarray, place) for name, place in places.items()})


def with_texts(trace: Trace, texts: Iterable[str | None]) -> Trace:
    """Return a copy of the trace with other texts. `texts` has a text for each text of the trace, or None to remove it."""
    strings = Strings()
    places = [NONE if text is None else strings.add(text) for text in texts]
    return replace(repointed(trace, {"strings": np.array([*places, NONE])}), strings=strings)


def _repointed(trace: Trace, places: Mapping[str, Callable[[], Column]]) -> Trace:
    changes: dict[str, dict[str, Callable[[], Column]]] = {name: {} for name in TABLES}
    for where, target in REFERENCES.items():
        if target in places:
            table, _, column = where.partition(".")
            changes[table][column] = places[target]
    tables: dict[str, Any] = {name: _with_places(getattr(trace, name), changes[name]) for name in TABLES}
    return replace(trace, **tables)


def _with_places(table: Table, places: Mapping[str, Callable[[], Column]]) -> Table:
    def column(name: str) -> dict[str, Column]:
        rows = getattr(table, name)
        return {name: places[name]()[rows].astype(rows.dtype) if name in places else rows}

    changed = table.deferred(len(table), column, lambda rows: _with_places(table.take(rows), places))
    if not table.is_lazy:
        changed.columns()
    return changed


def new_positions(order: Column | Sequence[int], rows: int) -> Column:
    place = np.full(rows + 1, NONE, dtype="i4")  # the dtype of all columns that contain row numbers
    place[np.asarray(order, "i8")] = np.arange(len(order))
    return place


def grouped(*columns: Column) -> list[Column]:
    if not len(columns[0]):
        return []
    changes = np.zeros(len(columns[0]) - 1, dtype=bool)  # from a row to the next
    is_sorted = True  # such as the devices and streams of a sorted trace
    for column in columns:
        is_sorted = is_sorted and bool((changes | (column[1:] >= column[:-1])).all())
        changes |= column[1:] != column[:-1]
    if is_sorted:
        return np.split(np.arange(len(columns[0])), np.flatnonzero(changes) + 1)
    order = np.lexsort([_narrow(column) for column in columns[::-1]])
    return np.split(order, np.flatnonzero(differs(*(column[order] for column in columns)))[1:])


def differs(*columns: Column) -> Column:
    """Mark the rows in which a column differs from the row before. The first row is always marked."""
    found = np.zeros(len(columns[0]), dtype=bool)
    found[:1] = True
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found


def distinct(column: Column) -> tuple[Column, Column, Column]:
    """Return the same as `np.unique(column, return_index=True, return_inverse=True)`."""
    least, most = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    if column.dtype.kind not in "iu" or most - least > _DENSE * len(column):
        values, first, place = np.unique(column, return_index=True, return_inverse=True)
        return values, first, place
    keys = column.astype("i8") - least
    first_of_key = np.full(most - least + 1, NONE, dtype="i8")
    first_of_key[keys[::-1]] = np.arange(len(keys) - 1, -1, -1)  # if a key occurs more than once, the last assignment is kept
    present = np.flatnonzero(first_of_key != NONE)
    first = first_of_key[present]
    first_of_key[present] = np.arange(len(present))  # now the place of each key
    return column[first], first, first_of_key[keys]


def by_value(column: Column) -> dict[int, Column]:
    return {int(column[rows[0]]): rows for rows in grouped(column)}


def lists_by_key(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """List the values of each key. Keys and values keep their order."""
    found: dict[K, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def sum_by(index: Column, values: Column, size: int) -> Column:
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, index, values)
    return sums


def _narrow(column: Column) -> Column:
    """Convert a column to 16-bit integers if possible, because numpy sorts 16-bit integers in linear time."""
    if column.dtype.kind not in "iu":
        return column
    least = column.min()
    return (column - least).astype(np.uint16) if int(column.max()) - int(least) < 1 << 16 else column
