"""Copies fields of events into columns.

    rows = CategoryEvents("kernel")
    rows.pieces.append(event_fields("kernel", [{"name": "k", "pid": 0, "tid": 7, "ts": 3, "dur": 4, "args": {"stream": 7}}]))
    rows.column("stream")  # [7]

Note [Take, then drop]
    A parsed recording consists of millions of small objects, and a second pass over them takes as long as parsing. The importer
    therefore copies the fields of each parsed piece while the piece is in the processor's cache. Then the event objects are
    freed.

Note [Arrays of pieces]
    The numbers of each piece are immediately converted to arrays, because Python's integers take five times as much memory. If
    a piece of a column cannot be converted, the whole column is converted value by value. Invalid values are repaired (Note
    [Trust, then mend] in traces/kineto/reading/event_columns.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

import numpy as np

from traces.kineto.reading.eras import DEVICE_CATEGORIES, HOST_CATEGORIES
from traces.kineto.reading.odd_events import args_of
from traces.kineto.spans.shapes import NO_SHAPES, json_rows, keys_of, layouts_of
from traces.model.trace import NONE, Column, HostKind
from traces.names.launch_configs import CONFIG_ARGS
from traces.names.profiler_json import ProfilerJson

Values = Sequence[Any] | Column
EventFields = list[Values]

FIELDS = ("name", "pid", "tid", "ts", "dur")
ABSENT = -(1 << 40)
SHAPES = "shapes"  # dims and types of an op's inputs, as keys of Shapes
LAYOUT = "layout"  # the memory layout of an op's image inputs, see layouts.py
COMMS = "comms"
CONFIG = "config"
QUEUE = "hsa queue"  # queue of work on an AMD GPU; queues and streams have separate numbers
MISSING = object()

_ARGS_OF_OPS = {
    "Sequence number": NONE,
    "Fwd thread id": 0,
    "External id": NONE,
    "Call stack": "",
    SHAPES: NO_SHAPES,
    LAYOUT: "",
    COMMS: None,
}
_ARGS_OF_ANNOTATIONS = {key: default for key, default in _ARGS_OF_OPS.items() if key != "External id"}
_ARGS_OF_CALLS = {"correlation": NONE, "External id": NONE, "external id": NONE}
_ARGS_OF_DEVICE_SPANS = {
    "device": ABSENT,
    "stream": ABSENT,
    "bytes": NONE,
    "External id": 0,
    "external id": 0,
    "correlation": 0,
    "graph id": NONE,
    "graph node id": NONE,
    "context": ABSENT,
    QUEUE: NONE,
    CONFIG: b"",
}
_ARGS: dict[str, ProfilerJson] = (
    {category: _ARGS_OF_OPS for category, kind in HOST_CATEGORIES.items() if kind == HostKind.OP}
    | {category: _ARGS_OF_ANNOTATIONS for category, kind in HOST_CATEGORIES.items() if kind == HostKind.ANNOTATION}
    | {category: _ARGS_OF_CALLS for category, kind in HOST_CATEGORIES.items() if kind == HostKind.RUNTIME}
    | {category: _ARGS_OF_DEVICE_SPANS for category in DEVICE_CATEGORIES}
)
_NO_ARGS: ProfilerJson = {}
_COMMS = ("record_param_comms", "nccl:", "gloo:", "ucc:", "mpi:", "xccl:")
_TAKE = itemgetter(*FIELDS, "args")
_NUMERIC = (np.dtype("i8"), np.dtype("f8"))


class CategoryEvents:
    def __init__(self, category: str) -> None:
        self.defaults = _ARGS.get(category, _NO_ARGS)
        self.pieces: list[EventFields] = []

    def __len__(self) -> int:
        return sum(len(piece[0]) for piece in self.pieces)

    def column(self, key: str) -> Values:
        """Return a column as an array, or as a list if some values are not numbers."""
        place = (*FIELDS, *self.defaults).index(key)
        parts = [piece[place] for piece in self.pieces]
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        if arrays and len(arrays) == len(parts):
            return np.concatenate(arrays)
        return list(chain.from_iterable(as_list(part) for part in parts))

    def take(self, key: str) -> Values:
        column = self.column(key)
        place = (*FIELDS, *self.defaults).index(key)
        for piece in self.pieces:
            piece[place] = ()
        return column


def event_fields(category: str, events: list[ProfilerJson]) -> EventFields:
    try:
        names, pids, tids, stamps, durations, args = zip(*map(_TAKE, events), strict=True)
        names = _shared(names)
        fields = [names, _as_ids(pids), _as_ids(tids), as_array(stamps), as_array(durations)]
        return [*fields, *_args_of_category(category, names, args)]
    except (KeyError, TypeError):
        rows = list(zip(*([event.get(key, MISSING) for key in FIELDS] for event in events), strict=True))
        texts = [name if isinstance(name, str) else "" for name in rows[0]]
        return [*rows, *_args_of_category(category, texts, list(map(args_of, events)))]


def _args_of_category(category: str, names: Sequence[str], args: Sequence[ProfilerJson]) -> EventFields:
    columns: EventFields = []
    for key, default in _ARGS.get(category, _NO_ARGS).items():
        if key == SHAPES:
            columns.append(_shared(keys_of(args)))
        elif key == LAYOUT:
            columns.append(tuple(layouts_of(args)))
        elif key == COMMS:
            columns.append(_of_comms(names, args))
        elif key == CONFIG:
            columns.append(_shared(_configs(args)))
        else:
            values = tuple(map(dict.get, args, repeat(key), repeat(default)))
            columns.append(as_array(values, "i8") if type(default) is int else values)
    return columns


def as_array(values: Sequence[Any], dtype: str | None = None) -> Values:
    # see Note [Arrays of pieces]
    try:
        column = np.array(values, dtype)
    except (TypeError, ValueError, OverflowError):
        return values
    return column if column.ndim == 1 and column.dtype in _NUMERIC else values


def _as_ids(values: Sequence[Any]) -> Values:
    return as_array(values, "i8") if set(map(type, values)) == {int} else values


def as_list(values: Values) -> Sequence[Any]:
    return values.tolist() if isinstance(values, np.ndarray) else values


def _configs(args: Sequence[ProfilerJson]) -> list[bytes]:
    columns = [list(map(dict.get, args, repeat(key))) for key in CONFIG_ARGS]
    if all(column.count(None) == len(column) for column in columns):
        return [b""] * len(args)
    return json_rows(*columns) or [b""] * len(args)


def _of_comms(names: Sequence[str], args: Sequence[ProfilerJson]) -> tuple[ProfilerJson | None, ...]:
    wanted = {name for name in set(names) if isinstance(name, str) and name.startswith(_COMMS)}
    if not wanted:
        return (None,) * len(names)
    return tuple(own if name in wanted else None for name, own in zip(names, args, strict=True))


def _shared(texts: Sequence[Any]) -> tuple[Any, ...]:
    seen: dict[Any, Any] = {}
    return tuple(map(seen.setdefault, texts, texts))
