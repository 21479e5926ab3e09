"""Finds all recordings at a path, which may be a file, a folder or an archive.

    for source in recordings_in(Path("run.tar.gz"), problems): ...    # Source("rank0.json", "run.tar.gz: rank0.json", b"{...}")
"""

from __future__ import annotations

import lzma
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from traces.format.unpack_limit import TooLarge, UnpackLimit, size_text
from traces.kineto.reading.text import BYTES_PER_CHARACTER, GZIP_MAGIC, decompressed, read_bytes
from traces.model.trace import TraceImportError

_SUFFIXES = (".json", ".json.gz")
_ZIP_MAGIC = b"PK\x03\x04"
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257


def holds_several(path: Path) -> bool:
    return path.is_dir() or _is_zip(path) or _is_tar(path)


def is_profiler_recording(path: Path) -> bool:
    """Return True if the path may be a profiler recording: a folder, an archive, a gzip file or a JSON file."""
    head = _head(path).removeprefix(b"\xef\xbb\xbf").lstrip()
    return holds_several(path) or head.startswith((b"{", b"[", GZIP_MAGIC))


class Source(NamedTuple):
    name: str
    label: str
    text: bytes


def recordings_in(path: Path, problems: Counter[str]) -> Iterator[Source]:
    """Yield the recordings at a path. Raises TraceImportError if the path cannot be read or contains no recordings."""
    count = 0
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.name.endswith(_SUFFIXES) and file.is_file():
                count += 1
                yield Source(file.name, str(file), read_bytes(file, problems))
    elif holds_several(path):
        import tarfile
        import zipfile

        try:
            for name, data in _zip_members(path) if _is_zip(path) else _tar_members(path):
                count += 1
                yield Source(name, f"{path}: {name}", decompressed(data, problems))
        except TooLarge as error:
            raise TraceImportError(f"{path}: {error}") from error
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, RuntimeError, zlib.error, lzma.LZMAError) as error:
            raise TraceImportError(f"{path} is a damaged archive ({error}); give a folder with the readable files") from error
    else:
        count += 1
        yield Source(path.name, str(path), read_bytes(path, problems))
    if not count:
        raise TraceImportError(f"{path} has no .json or .json.gz files; give the folder of the ranks' traces")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(1 << 16)
    except OSError:
        return b""


def _is_zip(path: Path) -> bool:
    return _head(path).startswith(_ZIP_MAGIC)


def _is_tar(path: Path) -> bool:
    head = _head(path)
    if head.startswith(GZIP_MAGIC):
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, 1 << 10)
        except zlib.error:
            return False
    return head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] == _TAR_MAGIC


def _zip_members(path: Path) -> Iterator[tuple[str, bytes]]:
    import zipfile

    limit, size_bytes = UnpackLimit.of(path.stat().st_size), 0
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(_SUFFIXES) and not _is_hidden(name):
                size_bytes += archive.getinfo(name).file_size
                limit.check(BYTES_PER_CHARACTER * size_bytes, f"files of {size_text(size_bytes)}")
                yield name, archive.read(name)


def _tar_members(path: Path) -> Iterator[tuple[str, bytes]]:
    import tarfile

    limit, size_bytes = UnpackLimit.of(path.stat().st_size), 0
    with tarfile.open(path) as archive:
        for member in archive:
            size_bytes += member.size
            limit.check(BYTES_PER_CHARACTER * size_bytes, f"files of {size_text(size_bytes)}")
            if member.isfile() and member.name.endswith(_SUFFIXES) and not _is_hidden(member.name):
                file = archive.extractfile(member)
                if file is not None:
                    yield member.name, file.read()


def _is_hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".")
