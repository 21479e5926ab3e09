"""Creates profiler JSON that no profiler writes: files with a huge number of similar events, or with damage in each event.

    for name, data in recordings(events=60_000): ...      # "one-time", b'{"traceEvents":[...'
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any


def _event(**changes: Any) -> str:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1, "args": {"stream": 7}}
    return json.dumps(event | changes)


def _unquoted(row: int) -> str:
    return f'{{"ph":"X","name":"a"b","cat":"kernel","pid":0,"tid":7,"ts":{row},"dur":1}}'


def _thread_names(row: int) -> str:
    return json.dumps({"ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": {"name": f"n{row}"}})


_SHAPES: dict[str, Callable[[int], str]] = {
    "one time": lambda row: _event(),
    "threads": lambda row: _event(cat="cpu_op", pid=1, tid=row, ts=row + 1),
    "threads named by words": lambda row: _event(cat="cpu_op", pid=1, tid=f"t{row}", ts=row + 1),
    "names of threads": _thread_names,
    "names": lambda row: _event(name=f"k{row}", ts=row + 1),
    "streams": lambda row: _event(tid=row, ts=row + 1, args={"stream": row, "device": 0}),
    "processes": lambda row: _event(cat="cpu_op", pid=row, ts=row + 1),
    "one launch": lambda row: _event(cat=("cuda_runtime", "kernel")[row % 2], ts=row + 1, args={"stream": 7, "correlation": 5}),
    "each in the one before": lambda row: _event(cat="cpu_op", ts=row + 1, dur=1_000_000 - 2 * row),
    "all overlap": lambda row: _event(cat="cpu_op", ts=10 * row + 1, dur=10_000_000),
    "steps": lambda row: _event(cat="user_annotation", name=f"ProfilerStep#{row}", ts=10 * row + 1, dur=9),
    "times that are words": lambda row: _event(ts=f"x{row}"),
    "quotes in names": _unquoted,
    "numbers that JSON has not": lambda row: _event(ts=row + 1)[:-1] + ',"x":nan}',
    "objects in arguments": lambda row: _event(ts=row + 1, args={"l": [{}, {}]})[:-1] + ',"x":inf}',
}


def recordings(events: int) -> Iterator[tuple[str, bytes]]:
    """Yield a recording with the given number of events for each kind of JSON, and then texts that are not quite JSON."""
    for name, shape in _SHAPES.items():
        yield name, ('{"traceEvents":[' + ",\n".join(map(shape, range(events))) + "]}").encode()
    yield "cut", ('{"traceEvents":[' + ",\n".join(_event(ts=row + 1) for row in range(events)))[:-9].encode()
    yield "an object in each other", b'{"traceEvents":[{"ph":"X","args":' + b'{"a":' * events + b"}" * events + b"}]}"
    yield "lists in events", b'{"traceEvents":[' + (b'{"x":' + b"[" * 500 + b"]" * 500 + b"},") * (events // 100) + b"{}]}"
    for name, piece in (("lists", b"[],"), ("braces", b"{"), ("quotes", b'"'), ("open names", b'{"name":"'), ("digits", b"9")):
        yield f"nothing but {name}", b'{"traceEvents":[' + piece * (20 * events)
