"""Creates trace files with valid checksums that no recorder writes. They are small, but huge or nonsensical when they are read.

    for name, data in amplified(): ...    # "rows-of-zeros", b"\\x92\\xactrace-replay..."

Checksums detect only accidental damage, because the author of a malicious file can compute valid checksums.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import msgpack

from tests.traces.sound_traces import small_trace
from traces.format.frames import DATA, DEFLATED, END, LZMA_PLANES, FrameWriter, compress
from traces.format.items import end_item
from traces.model.trace import Device, Thread, Trace

MAX_ROWS = 1 << 19


def packed(kind: str, value: Any) -> bytes:
    """Return one item of a frame as bytes."""
    item = msgpack.packb([kind, value])
    assert isinstance(item, bytes)
    return item


def file_of(contents: list[bytes], strings: int = 0, rows: dict[str, int] | None = None, codec: int = DEFLATED) -> bytes:
    """Return a whole file with these frames. Equal contents are compressed only once."""
    parts: list[bytes] = []
    writer = FrameWriter(parts.append)
    payloads: dict[bytes, bytes] = {}
    for content in contents:
        if content not in payloads:
            payloads[content] = compress(codec, content, level=1)
        writer.add(DATA, content, codec, payloads[content])
    writer.add(END, end_item(strings, rows or {}))
    return b"".join(parts)


def header(trace: Trace | None = None, **changes: Any) -> bytes:
    """Return a header item with any `changes`."""
    trace = trace or small_trace()
    facts: dict[str, Any] = {"grain": trace.grain, "problems": {}, "lacks": [], "rows": {}, "provenance": {}}
    facts["devices"] = [asdict(device) for device in trace.devices]
    facts["threads"] = [asdict(thread) for thread in trace.threads]
    return packed("header", json.dumps(facts | changes))


def strings(texts: list[str]) -> bytes:
    """Return the given texts in as many items as necessary."""
    return b"".join(packed("strings", texts[first : first + (1 << 14)]) for first in range(0, len(texts), 1 << 14))


def constant_rows(count: int, **columns: Any) -> dict[str, Any]:
    """Return `count` rows with constant columns. One byte plane is all zeros, and compresses to almost nothing."""
    first, *others = columns
    return {"rows": count, "columns": {first: [0, columns[first], 1, bytes(count)]} | {name: columns[name] for name in others}}


def amplified() -> Iterator[tuple[str, bytes]]:
    """Yield files of a few hundred kilobytes that would take gigabytes of memory."""
    start = header() + strings(["a"])
    zeros = bytes(16 << 20)
    yield "frames-of-zeros", file_of([start, *[zeros] * 40], codec=LZMA_PLANES)
    yield "frames-of-zeros-deflated", file_of([start, *[zeros] * 40])
    million = b"".join(packed("host", constant_rows(MAX_ROWS, thread=0)) for _ in range(100))
    yield "rows-of-constants", file_of([start, million], strings=1, rows={"host": 100 * MAX_ROWS})
    phases, times = 1 << 14, [0, 0, 1, bytes(1001)]
    block = [0, 0, 0, 1000, 1, [0] * phases, [0] * phases, [1] * phases, times, -1, 0, [], [], []]
    yield "blocks-of-many-phases", file_of([start, packed("block", block) * 20], strings=1)
    yield "empty-texts", file_of([start, *[packed("strings", [""] * (1 << 14)) * 3000] * 2], strings=3000 << 14)
    yield "empty-lists-in-a-row", file_of([start, packed("host", [[[]] * (1 << 13)] * (1 << 9))])
    yield "empty-lists-in-lists", file_of([start, packed("host", [[]] * (30 << 20))])
    yield "maps-in-lists", file_of([start, packed("steps", [{}] * (1 << 14)) * 100])
    yield "a-header-of-lists", file_of([header(provenance={"x": [[]] * (8 << 20)})])
    yield "texts-in-the-header", file_of([header(lacks=[""] * (7 << 20))])
    yield "long-texts", file_of([start, *(strings([letter * (40 << 20)]) for letter in "abcd")], strings=5)
    yield "devices", file_of([header(devices=[asdict(Device(0, 0, ""))] * 100_000)])
    yield "threads", file_of([header(threads=[asdict(Thread(0, 0))] * 100_000)])


def nested(levels: int) -> Iterator[tuple[str, bytes]]:
    """Yield headers with deeply nested objects, with nested lists, and with both."""
    for name, opening, closing in (("objects", '{"a":', "}"), ("lists", "[", "]"), ("both", '[{"a":', "}]")):
        text = msgpack.unpackb(header())[1]
        deep = text.replace('"provenance": {}', f'"provenance": {{"x": {opening * levels}1{closing * levels}}}')
        yield f"{levels}-nested-{name}", file_of([packed("header", deep)])


def many_tracks() -> Iterator[tuple[str, bytes]]:
    """Yield small files within the size limit that have too many timeline rows to draw."""
    start, count = header() + strings(["a"]), 100_000
    each = [1, 0, 1, b"\0" + b"\1" * (count - 1)]  # these bytes stand for the numbers 0, 1, 2, ...
    rows: dict[str, Any] = {"rows": count, "columns": {"start_ns": each, "duration_ns": 1}}
    of = rows["columns"]
    yield "streams", file_of([start + packed("device", rows | {"columns": of | {"stream": each}})], 1, {"device": count})
    yield "loaders", file_of([start + packed("batches", rows | {"columns": of | {"loader": each}})], 1, {"batches": count})
    yield "threads-within", file_of([header(threads=[asdict(Thread(0, 0))] * 10_000)])
    yield "steps", file_of([start + packed("steps", rows) * 3], 1, {"steps": 3 * count})
