"""Converts profiler events to numpy columns, and repairs invalid events.

    columns = complete_columns(groups.complete["cpu_op"], clock, names, problems)  # of one event, {"ts": 3, "dur": 4, ...}
    columns.start_ns  # array([3000])

Note [Trust, then mend]
    Nearly all files are unchanged since Kineto wrote them, so many events are converted together and without checks. If an
    event is invalid, numpy raises an error, and the importer repairs the events one by one. Missing and guessed values are
    counted as problems of the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress, repeat
from operator import itemgetter
from typing import Any

import numpy as np

from traces.kineto.reading.eras import TsUnit, microseconds_as_ns
from traces.kineto.reading.event_rows import FIELDS, MISSING, CategoryEvents, Values, as_list
from traces.kineto.reading.odd_events import args_of
from traces.model.trace import NONE, Column, Strings
from traces.names.profiler_json import ProfilerJson

_MAX_DURATION_NS = 30 * 86_400 * 10**9  # one month; for a longer duration, the profiler never recorded the end

_HUGE = 1e300
_ID_BITS = (1 << 63) - 1
_MOST_OF_TID = 1 << 62


class _Odd(Exception):
    # see Note [Trust, then mend]
    pass


_TROUBLE = (_Odd, KeyError, TypeError, ValueError, OverflowError)


class Names:
    def __init__(self, strings: Strings) -> None:
        self.strings = strings
        self._ids: dict[str, int] = {}

    def ids(self, texts: Sequence[str]) -> Column:
        for text in dict.fromkeys(texts):
            if text not in self._ids:
                if type(text) is not str:
                    raise _Odd
                self._ids[text] = self.strings.add(text)
        return np.fromiter(map(self._ids.__getitem__, texts), "i4", len(texts))


class Threads:
    """Gives each thread in a file a number, in order of appearance."""

    def __init__(self) -> None:
        self.keys: list[tuple[int, int]] = []
        self.texts: list[str] = []  # thread names from the file, for threads without a number
        self._rows: dict[tuple[Any, Any], int] = {}
        self._row_of_key: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, pids: Values, tids: Values) -> Column:
        if isinstance(pids, np.ndarray) and isinstance(tids, np.ndarray):
            changes = np.flatnonzero((np.diff(pids) != 0) | (np.diff(tids) != 0)) + 1
            firsts = np.append(0, changes) if len(pids) else changes
            rows = self.rows(pids[firsts].tolist(), tids[firsts].tolist())
            return np.repeat(rows, np.diff(firsts, append=len(pids)))
        pids, tids = as_list(pids), as_list(tids)
        if len(set(pids)) == 1:
            row_of_tid = {tid: self.row(pids[0], tid) for tid in dict.fromkeys(tids)}
            return np.fromiter(map(row_of_tid.__getitem__, tids), "i4", len(tids))
        keys = list(zip(pids, tids, strict=True))
        row_of = {key: self.row(*key) for key in dict.fromkeys(keys)}
        return np.fromiter(map(row_of.__getitem__, keys), "i4", len(keys))

    def row(self, pid: Any, tid: Any) -> int:
        row = self.find(pid, tid)
        if row is None:
            process, thread = _number(pid, NONE), _number(tid, None)
            row = self._rows[pid, tid] = len(self.keys)
            # number threads whose tid is text or out of range
            if thread is not None and abs(thread) >= _MOST_OF_TID:
                thread = None
            self.keys.append((process, -2 - row if thread is None else thread))
            self._row_of_key.setdefault(self.keys[-1], row)
            self.texts.append(str(tid) if thread is None else "")
        return row

    def find(self, pid: Any, tid: Any) -> int | None:
        row = self._rows.get((pid, tid))
        key = (_number(pid, NONE), _number(tid, None))
        if row is None and key in self._row_of_key:
            row = self._rows[pid, tid] = self._row_of_key[key]
        return row


@dataclass
class EventColumns:
    names: Column
    pids: Values
    tids: Values
    start_ns: Column
    duration_ns: Column
    args: dict[str, Values]
    defaults: ProfilerJson

    def __len__(self) -> int:
        return len(self.start_ns)

    def numbers(self, key: str) -> Column:
        return _whole(self.args[key], self.defaults[key], "i8")

    def ids(self, key: str) -> Column:
        """Return one id per event. Ids are reduced to 63 bits, because numpy columns are signed."""
        values = self.args[key]
        try:
            return _whole_exactly(values, "i8")
        except _TROUBLE:
            cut = [value & _ID_BITS if type(value) is int else value for value in as_list(values)]
            return _whole(cut, self.defaults[key], "i8")


def complete_columns(rows: CategoryEvents, clock: TsUnit, names: Names, problems: Counter[str]) -> EventColumns:
    """Convert events with a duration ("ph": "X") to columns, and remove them from `rows`. Events without a valid start time are
    skipped and counted."""
    fields = [rows.take(key) for key in FIELDS]
    args = {key: rows.take(key) for key in rows.defaults}
    try:
        columns = _read(fields, clock, names, problems)
    except _TROUBLE:
        listed = zip(*map(as_list, fields), strict=True)
        events = ({k: v for k, v in zip(FIELDS, row, strict=True) if v is not MISSING} for row in listed)
        mended = [_mended(event, clock, problems) for event in events]
        kept = [event for event in mended if event]
        columns = _read([[event[key] for event in kept] for key in FIELDS], clock, names, problems)
        args = {key: list(compress(as_list(column), mended)) for key, column in args.items()}
    return replace(columns, args=args, defaults=rows.defaults)


def _read(fields: Sequence[Values], clock: TsUnit, names: Names, problems: Counter[str]) -> EventColumns:
    texts, pids, tids, stamps, durations = fields
    if any(not isinstance(ids, np.ndarray) and not set(map(type, ids)) <= {int, str} for ids in (pids, tids)):
        raise _Odd
    starts_ns = clock.start_ns(_checked(stamps, clock))
    durations_ns = _durations_ns(_numbers(durations), clock, problems)
    return EventColumns(names.ids(as_list(texts)), pids, tids, starts_ns, durations_ns, {}, {})


def _checked(values: Values, clock: TsUnit) -> Column:
    stamps = _numbers(values)
    if len(stamps) and (stamps.max() > clock.latest or stamps.min() < (1 if clock.epochal else -clock.latest)):
        raise _Odd
    return stamps


def instant_events(events: list[ProfilerJson], clock: TsUnit, problems: Counter[str]) -> tuple[list[ProfilerJson], Column]:
    try:
        return events, _instants(events, clock)
    except _TROUBLE:
        events = [e for event in events if (e := _mended(event | {"dur": 0}, clock, problems))]
        return events, _instants(events, clock)


def _instants(events: list[ProfilerJson], clock: TsUnit) -> Column:
    stamps = _checked(list(map(itemgetter("ts"), events)), clock)
    if not {type(event["pid"]) for event in events} | {type(event["tid"]) for event in events} <= {int, str}:
        raise _Odd
    if not {type(event["args"]) for event in events} <= {dict}:
        raise _Odd
    return clock.start_ns(stamps)


def numbers(args: list[ProfilerJson], key: str, default: int, dtype: str = "i8") -> Column:
    return _whole(list(map(dict.get, args, repeat(key), repeat(default))), default, dtype)


def _whole_exactly(values: Values, dtype: str) -> Column:
    column = np.array(values, dtype=dtype)
    if column.ndim != 1:
        raise _Odd
    return column


def _whole(values: Values, default: int, dtype: str) -> Column:
    try:
        return _whole_exactly(values, dtype)
    except (_Odd, TypeError, ValueError, OverflowError):
        limit = np.iinfo(dtype)
        whole = (_number(value, default) for value in as_list(values))
        return np.array([v if limit.min <= v <= limit.max else default for v in whole], dtype=dtype)


def _numbers(values: Values) -> Column:
    column = np.asarray(values) if len(values) else np.empty(0, "i8")
    if column.dtype.kind not in "if" or column.ndim != 1 or not np.isfinite(column).all():
        raise _Odd
    return column


def _durations_ns(durations: Column, clock: TsUnit, problems: Counter[str]) -> Column:
    in_ns = clock.duration_unit == "nanoseconds"
    too_long = durations > _MAX_DURATION_NS // (1 if in_ns else 1000)
    negative = durations < 0
    for kind, wrong in (("duration-overflow", too_long), ("negative-duration", negative)):
        if wrong.any():
            problems[kind] += int(wrong.sum())
            durations = np.where(wrong, 0, durations)
    return durations.astype("i8") if in_ns else microseconds_as_ns(durations)


def _mended(event: ProfilerJson, clock: TsUnit, problems: Counter[str]) -> ProfilerJson | None:
    start = _finite(event.get("ts"))
    if start is None or abs(start) > clock.latest:
        problems["unreadable-event"] += 1
        return None
    if clock.epochal and start < 1:
        problems["zero-timestamp"] += 1
        return None
    if "dur" not in event:
        problems["event-without-duration"] += 1
    duration = _finite(event.get("dur", 0))
    if duration is None:
        problems["unreadable-duration"] += 1
    mended: ProfilerJson = {"ts": start, "dur": min(max(duration or 0, -1), 2**60)}
    name = event.get("name")
    if not isinstance(name, str):
        problems["event-without-name"] += 1
        name = "unknown"
    for key in ("pid", "tid"):
        value = event.get(key, 0)
        mended[key] = value if type(value) in (int, str) else _number(value, 0)
    return mended | {"name": name, "args": args_of(event)}


def _finite(value: Any) -> int | float | None:
    if isinstance(value, str):
        try:
            value = int(value) if value.strip().lstrip("-").isdecimal() else float(value)
        except ValueError:
            return None
    return value if type(value) in (int, float) and -_HUGE < value < _HUGE else None


def _number(value: Any, default: Any) -> Any:
    number = _finite(value)
    return default if number is None else int(number)
