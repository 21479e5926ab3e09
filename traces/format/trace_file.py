"""Saves, loads and streams trace files. FORMAT.md describes the file format and the reasons for it.

    save(trace, "run.msgpack")          # atomic: a file under the final name is always complete
    trace = load("run.msgpack")         # or a TraceFormatError with a one-line message

    stream = TraceStream("run.msgpack.part")    # for recorders: each frame is in the file when `add` returns
    stream.header(Trace(threads=[main]))
    stream.add_strings(["aten::relu_"])
    stream.add("host", HostSpans.of(name=[0], start_ns=[100], duration_ns=[50]))
    stream.close()

`load` also reads incomplete files that were written by TraceStream.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from traces.format import frames
from traces.format.item_reading import table_head
from traces.format.items import (
    TRACKS,
    Assembly,
    end_item,
    header_item,
    number_items,
    row_counts,
    strings_item,
    table_items,
    text_items,
    unpacked_bytes,
)
from traces.format.unpack_limit import UnpackLimit, size_text
from traces.model import invariants as checks
from traces.model.trace import TABLES, Column, Table, Trace, TraceFormatError, TraceWriteError

# To save space, small tables share a frame of the file, because each frame begins with a header of 19 bytes.
_SHARED_BYTES = 32 << 10
# Data of up to 4 KiB is not compressed, because creating a compressor takes too long.
_STORED_BYTES = 4 << 10
_WORKERS = 4


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write `trace` to `path`. If writing fails, raise TraceWriteError and leave the old file unchanged."""
    if reason := checks.fault(trace):
        raise TraceWriteError(path, f"the trace is invalid: {reason}")
    parts: list[bytes] = []
    writer = frames.FrameWriter(parts.append)
    try:
        contents = [(frames.LZMA_TEXT, content) for content in _shared(text_items(trace))]
        contents += [(frames.LZMA_PLANES, content) for content in _shared(number_items(trace))]
        with ThreadPoolExecutor(_WORKERS) as pool:
            for (_, content), (codec, payload) in zip(contents, pool.map(_smallest, contents), strict=True):
                writer.add(frames.DATA, content, codec, payload)
        unpacked = max(unpacked_bytes(trace), sum(len(content) for _, content in contents))
        if (lacking_bytes := UnpackLimit.least_file_bytes(unpacked) - sum(map(len, parts))) > 0:
            writer.add(frames.DATA, header_item(trace, row_counts(trace), blanks=lacking_bytes))
    except (TypeError, ValueError) as error:  # the provenance cannot be stored as JSON, or a text is larger than a frame
        raise TraceWriteError(path, str(error)) from error
    writer.add(frames.END, end_item(len(trace.strings), row_counts(trace)))
    with _as_write_error(path):
        _replace(Path(os.path.realpath(path)), b"".join(parts))


def load(path: str | os.PathLike[str], *, is_ours: bool = False, is_lazy: bool = False) -> Trace:
    """Read a trace file. Raises TraceFormatError if the file is invalid or needs too much memory. `load` reads a truncated file
    as far as possible, and sets `problems["truncated-file"]` to 1. `is_ours` turns off the memory limit. With `is_lazy`,
    columns are decoded when they are first read, and reading a damaged column raises TraceFormatError."""
    with frames.as_format_error(path):
        data = _read(Path(path))
        limit = UnpackLimit(len(data), None) if is_ours else UnpackLimit.of(len(data))
        found = frames.scan(data)
        if not is_lazy or found.end is None:
            return _assemble(found, limit, Assembly(limit))
        return _lazy(path, found, limit)


class TraceStream:
    """Appends tables to a trace file during a run. Add strings, devices and threads before tables that refer to them. The class
    is not thread-safe."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.rows = dict.fromkeys(TABLES, 0)
        self.strings = 0
        with _as_write_error(path):
            self._file: int | None = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            self._identity = _identity(self._file)
        self._writer = frames.FrameWriter(self._write)

    def header(self, trace: Trace) -> None:
        """Write the header of `trace`. Readers use only the last header."""
        self._append(header_item(trace, {}))

    def add_strings(self, texts: list[str]) -> None:
        for item in strings_item(texts):
            self._append(item)
        self.strings += len(texts)

    def add(self, table_name: str, table: Table) -> None:
        self.add_tables({table_name: table})

    def add_tables(self, tables: Mapping[str, Table]) -> None:
        items = (item for name, table in tables.items() for item in table_items(name, table, self.rows[name], compact=False))
        self.add_items(items, {name: len(table) for name, table in tables.items()})

    def add_items(self, items: Iterable[bytes], rows: Mapping[str, int]) -> None:
        """Append encoded items (items.py)."""
        for content in _shared(items):
            self._append(content)
        for name, count in rows.items():
            self.rows[name] += count

    def close(self) -> None:
        """Mark the file as complete. After a failed write, do nothing."""
        if self._file is None:
            return
        self._writer.add(frames.END, end_item(self.strings, self.rows))
        with _as_write_error(self.path):
            os.fsync(self._file)
            os.close(self._file)
        self._file = None

    def _append(self, content: bytes) -> None:
        codec = frames.STORED if len(content) <= _STORED_BYTES else frames.DEFLATED
        self._writer.add(frames.DATA, content, codec, frames.compress(codec, content, level=1))

    def _write(self, frame: bytes) -> None:
        if self._file is None:
            raise TraceWriteError(self.path, "the stream is closed, or an earlier write failed")
        with _as_write_error(self.path):
            if _identity(self._file) != self._identity:
                # A script that becomes a daemon closes all file descriptors. The number of this file descriptor may now belong
                # to another file.
                self._file = None
                self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                _write_all(self._file, frame)
            except OSError:  # the last frame is incomplete, so nothing may be appended
                os.close(self._file)
                self._file = None
                raise


def _shared(parts: Iterable[bytes]) -> Iterator[bytes]:
    content = b""
    for item in parts:
        if content and len(content) + len(item) > _SHARED_BYTES:
            yield content
            content = b""
        content += item
    if content:
        yield content


def _smallest(task: tuple[int, bytes]) -> tuple[int, bytes]:
    usual, content = task
    codecs = (usual,) if len(content) > _SHARED_BYTES else (frames.DEFLATED, frames.LZMA_TEXT, frames.LZMA_PLANES)
    return min(((codec, frames.compress(codec, content)) for codec in codecs), key=lambda tried: len(tried[1]))


def _lazy(path: str | os.PathLike[str], found: frames.Scan, limit: UnpackLimit) -> Trace:
    assembly = Assembly(limit, is_lazy=True)
    try:
        trace = _assemble(found, limit, assembly)
    except frames.Damaged:
        return _assemble(found, limit, Assembly(limit))  # if data is damaged, the error describes the first damaged frame
    limits = checks.column_limits(trace)
    for name in TABLES:
        setattr(trace, name, _checked_when_read(path, trace, name, limits, assembly))
    return trace


def _assemble(found: frames.Scan, limit: UnpackLimit, assembly: Assembly) -> Trace:
    contents_bytes = sum(frame.content_bytes for frame in found.frames)
    limit.check(contents_bytes, f"frames of {size_text(contents_bytes)}")
    pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="trace-decompress")
    # Only small frames contain several items.
    is_later = [assembly.is_lazy and frame.content_bytes > _SHARED_BYTES for frame in found.frames]
    heads = [table_head(frame.beginning()) if later else None for frame, later in zip(found.frames, is_later, strict=True)]
    # Large tables are decompressed when they are first used, and all other data is decompressed now.
    frames_of = Counter(head.kind for head in heads if head is not None)
    contents: list[Iterator[bytes]] = []
    for frame, head in zip(found.frames, heads, strict=True):
        is_large = head is not None and frames_of[head.kind] > 1
        contents.append(frame.pieces() if is_large else _result(pool.submit(frame.content)))
    pool.shutdown(wait=False)
    for frame, head, content in zip(found.frames, heads, contents, strict=True):
        if head is not None:
            assembly.add_later(head, content, frame.offset_bytes)
        else:
            assembly.add(next(content), frame.offset_bytes)
    trace = assembly.trace()
    if found.end is not None:
        assembly.check_end(found.end.content(), found.end.offset_bytes)
    else:
        checks.clear_dangling_references(trace)
        trace.problems["truncated-file"] = 1
        trace.lacks.append(f"the end of the recording: the file is truncated at byte {limit.file_bytes}{assembly.missing()}")
    if reason := checks.fault_outside_tables(trace) if assembly.is_lazy else checks.fault(trace):
        raise frames.Damaged(reason, frames.HEADER.size)
    return trace


def _result(content: Future[bytes]) -> Iterator[bytes]:
    yield content.result()


def _checked_when_read(
    path: str | os.PathLike[str], trace: Trace, name: str, limits: dict[str, tuple[int, int]], assembly: Assembly
) -> Table:
    tracks = len(trace.devices) + len(trace.threads)

    def checked(stored: Table) -> Table:
        def column(column: str) -> dict[str, Column]:
            with frames.as_format_error(path):
                values = getattr(stored, column)
                if column == TRACKS.get(name, ("", ""))[1]:
                    assembly.check_tracks(tracks, {name: stored})
            if reason := checks.fault_of_column(stored, name, column, limits):
                raise TraceFormatError(path, frames.HEADER.size, reason)
            return {column: values}

        return TABLES[name].deferred(len(stored), column, lambda rows: checked(stored.take(rows)))

    return checked(getattr(trace, name))


def _read(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise frames.Damaged("it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file")
        with path.open("rb") as file:
            frames.check_header(file.read(frames.HEADER.size))
            file.seek(0)
            return file.read()
    except OSError as error:
        raise frames.Damaged(error.strerror or str(error)) from error


def _replace(target: Path, data: bytes) -> None:
    """Replace a file. An old file NAME.part is kept, because it may contain the data of a killed recorder."""
    if target.exists() and not target.is_file():
        raise IsADirectoryError(None, "it is not a regular file")
    part, file = _new_part(target)
    try:
        try:
            _write_all(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _new_part(target: Path) -> tuple[Path, int]:
    number = 1
    while True:
        part = target.with_name(f"{target.name}.part" if number == 1 else f"{target.name}.{number}.part")
        try:
            return part, os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            number += 1


def _identity(file: int) -> tuple[int, int] | None:
    """Return the device number and the inode number of an open file. Return None if the file descriptor is closed."""
    try:
        status = os.fstat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


@contextmanager
def _as_write_error(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TraceWriteError(path, error.strerror or str(error)) from error
