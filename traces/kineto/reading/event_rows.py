"""Copies parsed events into columns, with only the fields that the importer needs.

    rows = CategoryEvents("kernel")
    rows.pieces.append(taken("kernel", [{"name": "k", "pid": 0, "tid": 7, "ts": 3, "dur": 4, "args": {"stream": 7}}]))
    rows.column("stream")  # [7]

Note [Take, then drop]
    A parsed recording consists of millions of small objects, and a second pass over them takes as long as parsing. The importer
    therefore copies the fields of each parsed piece while the piece is in the processor's cache. The event objects are freed
    afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

from traces.kineto.reading.eras import DEVICE_CATEGORIES, HOST_CATEGORIES
from traces.kineto.spans.shapes import NO_SHAPES, json_rows, keys_of, layouts_of
from traces.model.trace import NONE, HostKind
from traces.names.launch_configs import CONFIG_ARGS
from traces.names.profiler_json import ProfilerJson

Taken = list[tuple[Any, ...]]

FIELDS = ("name", "pid", "tid", "ts", "dur")
ABSENT = -(1 << 40)
SHAPES = "shapes"  # dims and types of an op's inputs, as keys of Shapes
LAYOUT = "layout"  # the memory layout of an op's image inputs, see layouts.py
COMMS = "comms"
CONFIG = "config"
QUEUE = "hsa queue"  # queue of device work on AMD, where streams have separate numbers
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


class CategoryEvents:
    """Stores the events of one category as columns."""

    def __init__(self, category: str) -> None:
        self.defaults = _ARGS.get(category, _NO_ARGS)
        self.pieces: list[Taken] = []

    def __len__(self) -> int:
        return sum(len(piece[0]) for piece in self.pieces)

    def column(self, key: str) -> list[Any]:
        place = (*FIELDS, *self.defaults).index(key)
        return list(chain.from_iterable(piece[place] for piece in self.pieces))

    def take(self, key: str) -> list[Any]:
        """Return a column and free its memory."""
        column = self.column(key)
        place = (*FIELDS, *self.defaults).index(key)
        for piece in self.pieces:
            piece[place] = ()
        return column


def taken(category: str, events: list[ProfilerJson]) -> Taken:
    try:
        *fields, args = zip(*map(_TAKE, events), strict=True)
        names = _shared(fields[0])
        return [names, *fields[1:], *_args_of_category(category, names, args)]
    except (KeyError, TypeError):
        fields = list(zip(*([event.get(key, MISSING) for key in FIELDS] for event in events), strict=True))
        texts = [name if isinstance(name, str) else "" for name in fields[0]]
        kept = [event.get("args") for event in events]
        return [*fields, *_args_of_category(category, texts, [args if isinstance(args, dict) else _NO_ARGS for args in kept])]


def _args_of_category(category: str, names: Sequence[str], args: Sequence[ProfilerJson]) -> Taken:
    columns: Taken = []
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
            columns.append(tuple(map(dict.get, args, repeat(key), repeat(default))))
    return columns


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
