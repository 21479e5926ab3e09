"""Tests a second scan of a growing file, the offsets of damaged frames, and sizes at the limits of the format."""

from __future__ import annotations

import lzma
from typing import Any

import msgpack
import numpy as np
import pytest

from traces.format import frames, item_reading, trace_file
from traces.format.column_encoding import unpack_column
from traces.format.frames import (
    DATA,
    DEFLATED,
    END,
    FRAME,
    HEADER,
    LZMA_PLANES,
    LZMA_TEXT,
    STORED,
    Damaged,
    FrameWriter,
    scan,
)
from traces.format.item_reading import table_head


def parts_of(*contents: tuple[int, bytes, int]) -> list[bytes]:
    """Return a file header and one frame for each (kind, content, codec)."""
    parts: list[bytes] = []
    writer = FrameWriter(parts.append)
    for kind, content, codec in contents:
        writer.add(kind, content, codec, content)
    return parts


def test_scanning_a_growing_file_continues_where_the_first_scan_ended() -> None:
    header, first, second, end = parts_of((DATA, b"one", STORED), (DATA, b"second", STORED), (END, b"", STORED))
    assert len(header) == HEADER.size == 17 and len(first) == FRAME.size + 3 == 22
    seen = scan(header + first)
    assert (seen.whole_bytes, [frame.offset_bytes for frame in seen.frames]) == (17 + 22, [17])
    more = scan(second + end, seen)
    assert [frame.offset_bytes for frame in more.frames] == [39] and more.end is not None
    assert more.end.offset_bytes == 39 + 25 and more.whole_bytes == 39 + 25 + 19
    cut = scan(second + end[:-1], seen)
    assert cut.end is None and cut.whole_bytes == 39 + 25


@pytest.mark.parametrize(
    ("third", "says"),
    [
        ((9, b"", STORED), "unknown frame kind 9 or codec 0"),
        ((DATA, b"", 7), "unknown frame kind 1 or codec 7"),
    ],
)
def test_an_unknown_frame_is_reported_with_its_offset(third: tuple[int, bytes, int], says: str) -> None:
    parts = parts_of((DATA, b"one", STORED), (DATA, b"second", STORED), third)
    with pytest.raises(Damaged, match=says) as raised:
        scan(b"".join(parts[2:]), scan(b"".join(parts[:2])))
    assert raised.value.offset_bytes == 17 + 22 + 25


def test_a_damaged_frame_of_a_second_scan_is_reported_with_its_offset() -> None:
    parts = parts_of((DATA, b"one", STORED), (DATA, b"second", STORED), (DATA, b"third", STORED))
    seen = scan(b"".join(parts[:2]))
    for at, says in ((FRAME.size, "content"), (3, "head")):  # the change is in the content, or in the length field
        third = bytearray(parts[3])
        third[at] ^= 1
        with pytest.raises(Damaged, match=f"wrong checksum in a frame's {says}") as raised:
            scan(parts[2] + bytes(third), seen)
        assert raised.value.offset_bytes == 17 + 22 + 25
    end = parts_of((DATA, b"one", STORED), (END, b"", STORED))[2]
    with pytest.raises(Damaged, match="4 bytes follow the end frame") as raised:
        scan(end + b"more", seen)
    assert raised.value.offset_bytes == 17 + 22 + len(end)


def test_a_frame_has_at_most_the_content_that_the_format_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of((DATA, b"ten bytes.", STORED), (DATA, b"", STORED))
    monkeypatch.setattr(frames, "MAX_CONTENT_BYTES", 10)
    assert len(scan(b"".join(parts)).frames) == 2 and parts_of((DATA, b"ten bytes.", STORED)) == parts[:2]
    with pytest.raises(ValueError, match="a frame has 11 bytes, but the format's limit is 10"):
        parts_of((DATA, b"eleven byte", STORED))
    monkeypatch.setattr(frames, "MAX_CONTENT_BYTES", 9)
    with pytest.raises(Damaged, match=r"impossible frame length 23 \(10 decompressed\)"):
        scan(b"".join(parts))


def test_only_content_above_64_kib_is_compressed_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[list[dict[str, Any]]] = []

    def compressed(content: bytes, *, format: int, filters: list[dict[str, Any]]) -> bytes:
        used.append(filters)
        return b""

    monkeypatch.setattr(lzma, "compress", compressed)
    for size in (65_536, 65_537):
        frames.compress(LZMA_TEXT, bytes(size))
    assert [settings.get("depth") for (settings,) in used] == [200, 32]


def test_items_are_written_into_one_frame_until_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "_SHARED_BYTES", 5)
    assert [*trace_file._shared([b"123", b"45", b"6", b"1234567", b"8"])] == [b"12345", b"6", b"1234567", b"8"]


def test_small_content_gets_the_codec_with_the_smallest_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """For content of up to 5 bytes, all codecs are tried. For larger content, only one codec is used."""
    results = {DEFLATED: b"aaa", LZMA_TEXT: b"bb", LZMA_PLANES: b"c"}
    monkeypatch.setattr(trace_file, "_SHARED_BYTES", 5)
    monkeypatch.setattr(frames, "compress", lambda codec, content: results[codec])
    assert trace_file._smallest((LZMA_TEXT, b"12345")) == (LZMA_PLANES, b"c")
    assert trace_file._smallest((LZMA_TEXT, b"123456")) == (LZMA_TEXT, b"bb")


@pytest.mark.parametrize(("base", "is_damaged"), [(-128, False), (87, False), (88, True), (-129, True)])
def test_a_packed_column_must_fit_into_its_dtype(base: int, is_damaged: bool) -> None:
    """GIVEN a packed int8 column with the values 0 and 20, and a step of 2 THEN the base and the base + 40 must fit into
    int8."""
    packed, dtype = [0, base, 2, bytes([0, 20])], np.dtype(np.int8)
    if is_damaged:
        with pytest.raises(Damaged, match="column 'kind' has values outside int8"):
            unpack_column(packed, 2, dtype, "kind")
    else:
        assert unpack_column(packed, 2, dtype, "kind").tolist() == [base, base + 40]


def test_an_item_may_contain_at_most_64_lists_and_maps() -> None:
    unpacker = item_reading._Unpacker(100)
    for _ in range(64):
        unpacker._counted([])
    with pytest.raises(Damaged, match="an item contains more than 64 lists and maps"):
        unpacker._counted([])


@pytest.mark.parametrize(
    ("kind", "rows", "is_head"), [("host", 3, True), ("host", 0, False), ("other", 3, False), (5, 3, False)]
)
def test_the_header_of_a_frame_is_read_only_if_its_table_is_known(kind: object, rows: int, is_head: bool) -> None:
    head = table_head(msgpack.packb([kind, {"rows": rows, "name": []}]))
    assert head == ((kind, rows) if is_head else None)
