"""Writes a trace as Chrome JSON for Perfetto, chrome://tracing and Holistic Trace Analysis.

    export_chrome(load("v100.msgpack"), "v100.json.gz")   # [Path("v100.json.gz")]

If the trace has several ranks, each rank is written to a separate file, such as NAME_rank0.json.gz. Time stamps are in
microseconds since `baseTimeNanoseconds`, which is in the header of the file.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import orjson

from traces.chrome.events import RankEvents
from traces.chrome.export_notes import HEADER_KEY
from traces.format.atomic_write import atomic_write
from traces.model.machine import to_kineto
from traces.model.trace import NONE, Trace
from traces.model.typed_json import to_json
from traces.names.profiler_json import ProfilerJson

_BATCH = 4096  # number of events converted to text at a time, to limit memory


def export_chrome(trace: Trace, path: str | os.PathLike[str], ranks: Sequence[int] | None = None) -> list[Path]:
    """Write one file for each of `ranks` (default: all), and return the paths. Files are compressed if `path` ends in .gz.
    Raises OSError."""
    path = Path(path)
    written = []
    for rank in trace.ranks if ranks is None else ranks:
        target = path
        if path.is_dir():
            target = path / f"rank{rank}.json.gz"
        elif len(trace.ranks) > 1:
            stem, dot, endings = path.name.partition(".json")
            target = path.with_name(f"{stem}_rank{rank}{dot}{endings}")
        events = RankEvents(trace, rank)
        notes = {"baseTimeNanoseconds": events.base_ns, HEADER_KEY: events.notes()}
        write_events(events, {**_header(trace, rank), **notes}, target)
        written.append(target)
    return written


def _header(trace: Trace, rank: int) -> ProfilerJson:
    facts, nccl = trace.run_of(rank).distributed, trace.machine_of(rank).nccl
    distributed = {} if facts is None else to_json(facts) | ({"nccl_version": nccl} if nccl else {})
    devices = [
        {**to_kineto(device.properties), "id": device.index, "name": device.name}
        | ({"totalGlobalMem": device.total_memory_bytes} if device.total_memory_bytes != NONE else {})
        for device in trace.devices
        if device.rank == rank
    ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": len(trace.ranks)} | distributed,
        "deviceProperties": devices,
        "displayTimeUnit": "ms",
    }


def write_events(events: Iterable[ProfilerJson], header: ProfilerJson, path: Path) -> None:
    """Write a Chrome trace. Raises OSError."""
    with atomic_write(path) as raw:
        if path.suffix == ".gz":
            # without file name and time stamp, so that equal traces give equal bytes
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
                _write_json(events, header, packed)
        else:
            _write_json(events, header, raw)


def _write_json(events: Iterable[ProfilerJson], header: ProfilerJson, file: IO[bytes] | gzip.GzipFile) -> None:
    # Holistic Trace Analysis can only read a file header with one entry per line and a space after each colon.
    file.write(("{\n" + "".join(f'"{key}": {json.dumps(value)},\n' for key, value in header.items())).encode())
    file.write(b'"traceEvents": [\n')
    stream = iter(events)
    separator = b""
    while batch := list(itertools.islice(stream, _BATCH)):
        file.write(separator + b",\n".join(map(_text, batch)))
        separator = b",\n"
    file.write(b"\n]}\n")


def _text(event: ProfilerJson) -> bytes:
    # `json` escapes all characters outside ASCII, because terminals interpret some of these characters. Python's `json` also
    # accepts halves of surrogate pairs, which orjson rejects.
    with suppress(TypeError):
        if (text := orjson.dumps(event)).isascii():
            return text
    return json.dumps(event).encode()
