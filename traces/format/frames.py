"""Reads and writes the frames of a trace file, each with a checksum.

    writer = FrameWriter(sink=parts.append)
    writer.add(DATA, b"...")            # header and first frame are now in `parts`
    writer.add(END, b"")
    scan(b"".join(parts)).frames[0].content()   # b"..."

A trace file consists of a header, data frames and an end frame. FORMAT.md gives the layout byte by byte.
"""

from __future__ import annotations

import lzma
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from traces.model.trace import TraceFormatError

FORMAT_VERSION = 1
HEADER = struct.Struct(">15sH")  # a msgpack array of the string "trace-replay" and a uint16
MAGIC = b"\x92\xactrace-replay\xcd"  # the magic is not text, so encodings and line endings cannot produce it

# Frame head: marker 0xC9 (msgpack ext32), length after `kind`, kind, codec, decompressed length, CRC of the payload, CRC of the
# head
FRAME = struct.Struct(">BIbBIII")
FRAME_MARKER = 0xC9
_COUNTED_FROM = 6  # the length of a msgpack ext value excludes the first six bytes
_HEAD_CRC = FRAME.size - 4

DATA, END = 1, 2
STORED, DEFLATED, LZMA_TEXT, LZMA_PLANES = range(4)

# A preset dictionary of frequent words makes small files a third smaller (FDICT in RFC 1950). The file preset_dictionary.bin
# must never change, because existing trace files would become unreadable.
PRESET_DICTIONARY = Path(__file__).with_name("preset_dictionary.bin").read_bytes()

# limits the memory that a reader needs
MAX_CONTENT_BYTES = 64 << 20

_BEGINNING_BYTES = 64
_PIECE_BYTES = 1 << 16

# the LZMA settings lc=0 and pb=0 make files 5 % smaller
_THOROUGH = {"id": lzma.FILTER_LZMA1, "preset": 6, "dict_size": 4 << 20, "lp": 0, "pb": 0, "nice_len": 273, "depth": 200}
_FILTERS = {LZMA_TEXT: [_THOROUGH | {"lc": 3}], LZMA_PLANES: [_THOROUGH | {"lc": 0}]}
# Settings for fast compression of large contents. Compression is four times as fast as with the default settings, but files are
# 6 to 12 % larger. Readers do not use these settings.
_LARGE_BYTES = 1 << 16
_QUICK = {"mode": lzma.MODE_FAST, "mf": lzma.MF_HC4, "nice_len": 273, "depth": 32}


class Damaged(Exception):
    def __init__(self, reason: str, offset_bytes: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset_bytes = offset_bytes


@contextmanager
def located(offset_bytes: int) -> Iterator[None]:
    """If the code in the `with` block finds damage, add the offset of the frame to the error."""
    try:
        yield
    except Damaged as error:
        raise Damaged(error.reason, offset_bytes) from error


@contextmanager
def as_format_error(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        raise TraceFormatError(path, error.offset_bytes, error.reason) from error


def require(is_met: object, reason: str, offset_bytes: int = 0) -> None:
    """Raise Damaged if a part of the file is invalid."""
    if not is_met:
        raise Damaged(reason, offset_bytes)


def compress(codec: int, content: bytes, level: int = 9) -> bytes:
    if codec == STORED:
        return content
    if codec == DEFLATED:
        deflate = zlib.compressobj(level, wbits=-zlib.MAX_WBITS, zdict=PRESET_DICTIONARY)
        return deflate.compress(content) + deflate.flush()
    (settings,) = _FILTERS[codec]
    if len(content) > _LARGE_BYTES:
        settings = settings | _QUICK
    return lzma.compress(content, format=lzma.FORMAT_RAW, filters=[settings])


def _decompressed(codec: int, payload: bytes, piece_bytes: int) -> Iterator[bytes]:
    """Yield the decompressed content in pieces of at most `piece_bytes`. Uncompressed content is one piece."""
    if codec == STORED:
        yield payload
        return
    at_most = max(1, piece_bytes)  # zlib treats 0 as "no limit"
    if codec == DEFLATED:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS, PRESET_DICTIONARY)
        while piece := inflate.decompress(payload, at_most):
            yield piece
            payload = inflate.unconsumed_tail
        return
    decompressor = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=_FILTERS[codec])
    while piece := decompressor.decompress(payload, at_most):
        yield piece
        payload = b""


@dataclass(frozen=True)
class Frame:
    offset_bytes: int
    kind: int
    codec: int
    content_bytes: int
    payload: bytes

    def beginning(self) -> bytes:
        """Return the beginning of the decompressed content, or b"" if the frame is damaged."""
        try:
            return next(self._decompressed(_BEGINNING_BYTES), b"")[:_BEGINNING_BYTES]
        except Damaged:
            return b""

    def content(self) -> bytes:
        return b"".join(self.pieces(self.content_bytes))

    def pieces(self, piece_bytes: int = _PIECE_BYTES) -> Iterator[bytes]:
        """Decompress the content piece by piece. Raises Damaged."""
        found_bytes = 0
        for piece in self._decompressed(min(piece_bytes, self.content_bytes)):
            found_bytes += len(piece)
            yield piece
            if found_bytes >= self.content_bytes:
                break
        if found_bytes != self.content_bytes:
            raise Damaged(f"frame holds {found_bytes} bytes, not {self.content_bytes}", self.offset_bytes)

    def _decompressed(self, piece_bytes: int) -> Iterator[bytes]:
        try:
            yield from _decompressed(self.codec, self.payload, piece_bytes)
        except (zlib.error, lzma.LZMAError) as error:
            raise Damaged(f"frame cannot be decompressed ({error})", self.offset_bytes) from error


class FrameWriter:
    def __init__(self, sink: Callable[[bytes], None]) -> None:
        header = HEADER.pack(MAGIC, FORMAT_VERSION)
        self._sink = sink
        self._chain = zlib.crc32(header)
        sink(header)

    def add(self, kind: int, content: bytes, codec: int = STORED, payload: bytes | None = None) -> None:
        if len(content) > MAX_CONTENT_BYTES:
            raise ValueError(f"a frame has {len(content)} bytes, but the format's limit is {MAX_CONTENT_BYTES}")
        payload = content if payload is None else payload
        length = FRAME.size - _COUNTED_FROM + len(payload)
        head = FRAME.pack(FRAME_MARKER, length, kind, codec, len(content), zlib.crc32(payload), 0)[:_HEAD_CRC]
        chain = zlib.crc32(head, self._chain)
        self._sink(head + chain.to_bytes(4, "big") + payload)
        self._chain = chain


@dataclass(frozen=True)
class Scan:
    frames: list[Frame]
    end: Frame | None
    whole_bytes: int
    chain: int  # checksum of the last frame head; the checksum of the next head starts from this value


def scan(data: bytes, before: Scan | None = None) -> Scan:
    """Find all complete frames in the bytes of a trace file. Raises Damaged.

    Note [Cut or damaged]
        A file is truncated if its last frame is incomplete. A file with any other error is damaged. The head of a frame has its
        own checksum, so a corrupted length is not mistaken for truncation. The checksum of a frame's head also covers the
        previous head, so lost, duplicated or swapped frames are detected as damage.
    """
    if before is None:
        whole = scan(data[HEADER.size :], header_scan(data))
        if whole.end is None and not whole.frames:
            raise Damaged("the file ends inside its first frame; there is nothing to recover", HEADER.size)
        return whole
    begin, at, chain = before.whole_bytes, 0, before.chain
    frames: list[Frame] = []
    while len(data) - at >= FRAME.size:
        marker, length, kind, codec, content_bytes, payload_crc, head_crc = FRAME.unpack_from(data, at)
        if marker != FRAME_MARKER or zlib.crc32(data[at : at + _HEAD_CRC], chain) != head_crc:
            raise Damaged("wrong checksum in a frame's head", begin + at)
        if kind not in (DATA, END) or codec not in (STORED, DEFLATED, LZMA_TEXT, LZMA_PLANES):
            raise Damaged(f"unknown frame kind {kind} or codec {codec}", begin + at)
        if content_bytes > MAX_CONTENT_BYTES or length < FRAME.size - _COUNTED_FROM:
            raise Damaged(f"impossible frame length {length} ({content_bytes} decompressed)", begin + at)
        behind = at + _COUNTED_FROM + length
        if behind > len(data):
            break
        frame = Frame(begin + at, kind, codec, content_bytes, data[at + FRAME.size : behind])
        require(zlib.crc32(frame.payload) == payload_crc, "wrong checksum in a frame's content", begin + at)
        at, chain = behind, head_crc
        if kind == END:
            require(at == len(data), f"{len(data) - at} bytes follow the end frame", begin + at)
            return Scan(frames, frame, begin + at, chain)
        frames.append(frame)
    return Scan(frames, None, begin + at, chain)


def header_scan(data: bytes) -> Scan:
    """Scan only the file header. Raises Damaged."""
    check_header(data)
    return Scan([], None, HEADER.size, zlib.crc32(data[: HEADER.size]))


def check_header(data: bytes) -> None:
    require(data, "the file is empty")
    if not data.startswith(MAGIC[: len(data)]):
        raise Damaged(_what_it_is_instead(data))
    require(len(data) >= HEADER.size, "the file ends inside its header; there is nothing to recover", len(data))
    version = HEADER.unpack_from(data)[1]
    require(version <= FORMAT_VERSION, f"the file was written by a newer trace-replay (format {version}); upgrade", len(MAGIC))
    require(version >= FORMAT_VERSION, f"format {version} never existed", len(MAGIC))


def _what_it_is_instead(data: bytes) -> str:
    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[") or data[:2] == b"\x1f\x8b":
        return "it looks like a torch.profiler recording; import it first: trace import FILE -o NEW.msgpack"
    return "it is neither a trace file nor a torch.profiler recording"
