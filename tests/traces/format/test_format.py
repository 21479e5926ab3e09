"""Tests each byte of a trace file against traces/format/FORMAT.md. Tests change fields at their offsets, and check the exact
error."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.traces.sound_traces import differences, small_trace
from traces.format.column_encoding import ABOVE, LEAST, ROW, ZERO, pack_column, pack_table, unpack_column
from traces.format.frames import (
    DATA,
    DEFLATED,
    END,
    LZMA_PLANES,
    LZMA_TEXT,
    PRESET_DICTIONARY,
    STORED,
    Damaged,
    FrameWriter,
    compress,
    scan,
)
from traces.format.items import Assembly, end_item, header_item, number_items, row_counts, text_items
from traces.format.trace_file import TraceStream, load, save
from traces.format.unpack_limit import UnpackLimit
from traces.model import invariants as checks
from traces.model.invariants import fault
from traces.model.trace import TABLES, Collectives, HostSpans, Phases, TraceFormatError

# These are offsets from the start of the file, and from the first byte of a frame.
VERSION = 15
MARKER, LENGTH, KIND, CODEC, CONTENT_BYTES, PAYLOAD_CRC, HEAD_CRC, PAYLOAD = 0, 1, 5, 6, 7, 11, 15, 19
FIRST_FRAME = 17


def patched(data: bytes, at: int, field: bytes, reseal: bool) -> bytes:
    """Return the data with `field` at the offset `at`. If `reseal` is true, correct the checksums in the heads of all
    frames."""
    new = bytearray(data)
    new[at : at + len(field)] = field
    head, crc = FIRST_FRAME, zlib.crc32(new[:FIRST_FRAME])
    while reseal and head + PAYLOAD <= len(new):
        crc = zlib.crc32(new[head : head + HEAD_CRC], crc)
        new[head + HEAD_CRC : head + PAYLOAD] = struct.pack(">I", crc)
        head += KIND + 1 + struct.unpack_from(">I", new, head + LENGTH)[0]
    return bytes(new)


@pytest.mark.parametrize(
    ("at", "field", "reseal", "says"),
    [
        (VERSION, b"\0\2", False, "at byte 15: the file was written by a newer trace-replay (format 2); upgrade"),
        (VERSION, b"\1\0", False, "at byte 15: the file was written by a newer trace-replay (format 256); upgrade"),
        (VERSION, b"\0\0", False, "at byte 15: format 0 never existed"),
        (FIRST_FRAME + MARKER, b"\xc8", True, "at byte 17: wrong checksum in a frame's head"),
        (FIRST_FRAME + LENGTH, b"\0\1", False, "at byte 17: wrong checksum in a frame's head"),
        (FIRST_FRAME + HEAD_CRC, b"\0\0\0\0", False, "at byte 17: wrong checksum in a frame's head"),
        (FIRST_FRAME + PAYLOAD_CRC, b"\0\0\0\0", True, "at byte 17: wrong checksum in a frame's content"),
        (FIRST_FRAME + PAYLOAD, b"\0\0", False, "at byte 17: wrong checksum in a frame's content"),
        (FIRST_FRAME + KIND, b"\3", True, "at byte 17: unknown frame kind 3 or codec 1"),
        (FIRST_FRAME + CODEC, b"\4", True, "at byte 17: unknown frame kind 1 or codec 4"),
        (FIRST_FRAME + CONTENT_BYTES, b"\4\0\0\1", True, "at byte 17: impossible frame length {0} (67108865 decompressed)"),
        (FIRST_FRAME + CONTENT_BYTES, b"\4\0\0\0", True, "at byte 17: frame holds {1} bytes, not 67108864"),
        (FIRST_FRAME + CODEC, b"\2", True, "at byte 17: frame cannot be decompressed (Corrupt input data)"),
    ],
)
def test_a_changed_field_of_a_frame_is_rejected(tmp_path: Path, at: int, field: bytes, reseal: bool, says: str) -> None:
    path = tmp_path / "t.msgpack"
    save(small_trace(), path)
    data = path.read_bytes()
    length = struct.unpack_from(">I", data, FIRST_FRAME + LENGTH)[0]
    content = struct.unpack_from(">I", data, FIRST_FRAME + CONTENT_BYTES)[0]

    path.write_bytes(patched(data, at, field, reseal))

    with pytest.raises(TraceFormatError) as error:
        load(path)
    assert str(error.value) == f"{path}: not a readable trace {says.format(length, content)}"


def test_a_frame_shorter_than_its_head_is_rejected(tmp_path: Path) -> None:
    only_a_head = file_of(b"x")[: FIRST_FRAME + PAYLOAD]
    data = patched(only_a_head, FIRST_FRAME + LENGTH, struct.pack(">I", 12), reseal=True)

    assert refusal(tmp_path, data) == "not a readable trace at byte 17: impossible frame length 12 (1 decompressed)"


def test_swapped_or_repeated_or_missing_frames_are_rejected(tmp_path: Path) -> None:
    header, *frames = pieces(file_of(*text_items(small_trace()), *number_items(small_trace())))
    assert len(frames) == 12

    for order in ([1, 0, *range(2, 12)], [0, 0, *range(1, 12)], [0, *range(2, 12)], [*range(11), 0]):
        with_order = header + b"".join(frames[i] for i in order)
        assert "wrong checksum in a frame's head" in refusal(tmp_path, with_order)


def pieces(data: bytes) -> list[bytes]:
    """Return the header and each frame of a file."""
    cuts = [0] + [frame.offset_bytes for frame in scan(data).frames] + [data.rindex(b"\xc9"), len(data)]
    return [data[start:end] for start, end in pairwise(cuts)]


def test_a_trace_file_is_readable_by_any_msgpack_reader(tmp_path: Path) -> None:
    path = tmp_path / "t.msgpack"
    save(small_trace(), path)

    unpacker = msgpack.Unpacker()
    unpacker.feed(path.read_bytes())
    header, *frames = list(unpacker)

    assert header == ["trace-replay", 1]
    assert [frame.code for frame in frames] == [DATA, DATA, END]


def test_the_compression_dictionary_has_not_changed_since_format_1() -> None:
    """With another dictionary, existing compressed files would be unreadable. A change would need a new FORMAT_VERSION."""
    assert zlib.crc32(PRESET_DICTIONARY) == 1431186743


@pytest.mark.parametrize("codec", [STORED, DEFLATED, LZMA_TEXT, LZMA_PLANES])
@pytest.mark.parametrize("content", [b"", b"a", bytes(range(256)) * 300])
def test_every_codec_restores_the_original_content(codec: int, content: bytes) -> None:
    parts: list[bytes] = []
    FrameWriter(parts.append).add(DATA, content, codec, compress(codec, content))

    assert scan(b"".join(parts)).frames[0].content() == content


def file_of(*contents: bytes, end: bytes | None = None) -> bytes:
    """Return a file that has valid checksums and the given contents."""
    parts: list[bytes] = []
    writer = FrameWriter(parts.append)
    for content in contents:
        writer.add(DATA, content)
    trace = small_trace()
    counts = end_item(len(trace.strings), row_counts(trace))
    writer.add(END, counts if end is None else end)
    return b"".join(parts)


def refusal(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "t.msgpack"
    path.write_bytes(data)
    with pytest.raises(TraceFormatError) as error:
        load(path)
    text = str(error.value)
    assert "\n" not in text and text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


def pack(kind: str, value: Any) -> bytes:
    packed = msgpack.packb([kind, value])
    assert isinstance(packed, bytes)
    return packed


HOST: dict[str, Any] = pack_table(small_trace().host)
NEST = HOST["nested"]


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (b"\xc1", "not msgpack"),
        (b"\x92\xa4host", "an item ends too early"),
        (pack("more", 1), "unknown item 'more'"),
        (msgpack.packb(["host"]), "an item is not a pair of kind and value"),
        (pack("strings", [1]), "strings that are not text"),
        (pack("header", "{"), "header is not JSON"),
        (pack("header", "[" * 100_000), "header is not JSON"),
        (pack("header", "[]"), "header without 'grain'"),
        (pack("host", []), "table without 'rows'"),
        (pack("host", HOST | {"columns": None}), "table without 'columns'"),
        (pack("host", HOST | {"rows": 5}), "column 'kind' has 4 bytes for 5 rows"),
        (pack("host", HOST | {"columns": {"what": 1}}), "unknown column 'what'"),
        (pack("host", HOST | {"columns": {"thread": "x"}}), "column 'thread' is neither a single value nor an encoded column"),
        (pack("host", HOST | {"columns": {"thread": 1 << 31}}), "column 'thread' has the invalid value 2147483648"),
        (pack("host", HOST | {"columns": {"thread": [0, 0, 1, b"\0\0\0"]}}), "column 'thread' has 3 bytes for 4 rows"),
        (pack("host", HOST | {"columns": {"thread": [8, 0, 1, b"\0\0\0\0"]}}), "column 'thread' has 4 bytes for 4 rows"),
        (pack("host", HOST | {"columns": {"kind": [0, 255, 1, b"\0\1\0\0"]}}), "column 'kind' has values outside"),
        (pack("host", HOST | {"nested": NEST[:2]}), "invalid nest"),
        (pack("host", HOST | {"nested": [0, [0, 0, 1, b"\0\2\0\1"], NEST[2]]}), "host spans have invalid nesting depths"),
        (pack("host", HOST | {"nested": [0, [0, 1, 1, b"\0\0\0\0"], NEST[2]]}), "host spans have invalid nesting depths"),
        (pack("steps", {"rows": 1, "columns": {}, "nested": NEST}), "invalid nest"),
        (pack("steps", {"rows": 1 << 40, "columns": {"rank": 0}}), "a table that claims 1099511627776 rows"),
    ],
)
def test_content_that_the_writer_never_produces_is_rejected(tmp_path: Path, item: bytes, says: str) -> None:
    texts = b"".join(text_items(small_trace()))

    text = refusal(tmp_path, file_of(texts, item))

    assert text.startswith(f"not a readable trace at byte {FIRST_FRAME + PAYLOAD + len(texts)}: {says}")


def test_a_file_with_inconsistent_parts_is_rejected(tmp_path: Path) -> None:
    texts, numbers = b"".join(text_items(small_trace())), b"".join(number_items(small_trace()))

    assert "the counts in the end frame are wrong" in refusal(tmp_path, file_of(texts))
    for end in (b"\x90", b"\x92\xa3end", pack("end", [6, {"host": 4}]), pack("end", [6]), pack("end", {"host": 4})):
        assert re.search("counts in the end frame|an item (is not|ends)", refusal(tmp_path, file_of(texts, numbers, end=end)))
    assert "no header found" in refusal(tmp_path, file_of(numbers))
    stray = HostSpans.of(thread=[0], name=[6])
    content = texts + pack("host", pack_table(stray))
    end = end_item(6, {"host": 1})
    assert "host.name holds 6, outside 0..5" in refusal(tmp_path, file_of(content, end=end))
    end = end_item(0, {})
    header = json.loads(msgpack.unpackb(next(text_items(small_trace())))[1])
    for key, what in (("devices", "device"), ("threads", "thread")):
        strange = pack("header", json.dumps(header | {key: [{"rank": "first"}]}))
        assert f"header with an invalid {what}" in refusal(tmp_path, file_of(strange, end=end))
    for key, value in (("rows", {"host": "many"}), ("problems", {"kind": "many"})):
        strange = pack("header", json.dumps(header | {key: value}))
        assert "the header contains a count that is not a number" in refusal(tmp_path, file_of(strange, end=end))
    for strange_ranks in ([1], [{"ranks": 0}], [{"ranks": ["0"]}]):
        strange = pack("header", json.dumps(header | {"machines": strange_ranks}))
        assert re.search("header with (invalid machines|a machine without ranks)", refusal(tmp_path, file_of(strange, end=end)))
    strange = pack("header", json.dumps(header | {"lacks": [1]}))
    assert "the list `lacks` in the header contains something other than text" in refusal(tmp_path, file_of(strange, end=end))


def test_a_text_has_at_most_a_million_characters() -> None:
    Assembly(UnpackLimit(0, None)).add(pack("strings", ["x" * (1 << 20), ""]), 0)
    with pytest.raises(Damaged, match="a text of 1048577 characters"):
        Assembly(UnpackLimit(0, None)).add(pack("strings", ["", "x" * ((1 << 20) + 1)]), 0)


def test_a_truncated_file_names_the_tables_with_missing_rows() -> None:
    """GIVEN a header that announces 3 phases and 2 steps WHEN the file ends after 2 phases THEN one phase and two steps are
    missing."""
    assembly = Assembly(UnpackLimit(0, None))
    assembly.add(header_item(small_trace(), {"phases": 3, "host": 4, "steps": 2}), 0)
    assembly.add(pack("phases", pack_table(Phases.of(step=[0, 0]))), 0)
    assembly.add(pack("host", HOST), 0)
    assembly.trace()
    assert assembly.missing() == ", 1 of 3 rows of phases are missing, 2 of 2 rows of steps are missing"


def test_a_file_written_before_a_table_was_added_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a saved file and a streamed file that were written before traces had a table of collectives
    trace = small_trace()
    trace.collectives = Collectives.empty()
    with monkeypatch.context() as before:
        before.delitem(TABLES, "collectives")
        before.setattr(checks, "REFERENCES", {w: to for w, to in checks.REFERENCES.items() if not w.startswith("collectives")})
        save(trace, tmp_path / "saved.msgpack")
        stream = TraceStream(tmp_path / "streamed.msgpack")
        stream.header(trace)
        stream.add_strings(trace.strings.texts)
        for name in TABLES:
            stream.add(name, getattr(trace, name))
        stream.close()

    # THEN the current release reads both files, and writes the same bytes
    for name in ("saved.msgpack", "streamed.msgpack"):
        assert differences(load(tmp_path / name), trace) == []
    save(trace, tmp_path / "today.msgpack")
    assert (tmp_path / "today.msgpack").read_bytes() == (tmp_path / "saved.msgpack").read_bytes()


def test_a_table_of_a_later_release_is_rejected_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(small_trace(), tmp_path / "t.msgpack")
    monkeypatch.delitem(TABLES, "collectives")

    with pytest.raises(TraceFormatError, match="unknown item 'collectives'; the file may be from a newer trace-replay"):
        load(tmp_path / "t.msgpack")


IN_THE_SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@IN_THE_SAME_FOLDER
@given(content=st.binary(max_size=60), as_item=st.sampled_from(["", "header", "strings", *TABLES]))
def test_arbitrary_content_is_rejected(tmp_path: Path, content: bytes, as_item: str) -> None:
    item = msgpack.packb(as_item)
    assert isinstance(item, bytes)

    refusal(tmp_path, file_of(b"".join(text_items(small_trace())), b"\x92" + item + content))


STORED_NUMBERS: dict[int, Callable[[list[int]], list[int]]] = {
    LEAST: lambda numbers: [number - min(numbers) for number in numbers],
    ABOVE: lambda numbers: [0, *(number - before for before, number in pairwise(numbers))],
    ROW: lambda numbers: [row - (number - numbers[0]) for row, number in enumerate(numbers)],
    ZERO: lambda numbers: numbers,
}


@pytest.mark.parametrize("method", STORED_NUMBERS)
def test_the_largest_number_of_a_packed_column_decides_its_size(method: int) -> None:
    """If no stored number is negative, the numbers are stored unchanged. If a number is negative, all numbers are stored in
    zigzag encoding."""
    for numbers in product((-129, -1, 0, 1, 127, 128, 255, 256), repeat=3):
        stored = STORED_NUMBERS[method](list(numbers))
        if min(stored) < 0:
            stored = [2 * number if number >= 0 else -2 * number - 1 for number in stored]
        column = np.array(numbers, np.int64)
        packed = pack_column(column, method, divide=False)
        assert len(packed[3]) == 3 * max(1, -(-max(stored).bit_length() // 8)), (numbers, packed)
        assert np.array_equal(unpack_column(packed, 3, column.dtype, ""), column)


@IN_THE_SAME_FOLDER
@given(data=st.data())
def test_changed_content_with_valid_checksums_is_read_correctly_or_rejected(tmp_path: Path, data: Any) -> None:
    """Checksums only detect accidental changes. Therefore each trace that loads must be valid."""
    contents = [*text_items(small_trace()), *number_items(small_trace())]
    which = data.draw(st.integers(0, len(contents) - 1))
    changed = bytearray(contents[which])
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "t.msgpack"
    path.write_bytes(file_of(*contents[:which], bytes(changed), *contents[which + 1 :]))

    try:
        trace = load(path)
    except TraceFormatError as error:
        assert "\n" not in str(error)
    else:
        assert fault(trace) is None


@pytest.mark.program
def test_every_changed_byte_with_a_valid_checksum_is_rejected_or_harmless(tmp_path: Path) -> None:
    contents = [*text_items(small_trace()), *number_items(small_trace())]
    path = tmp_path / "t.msgpack"
    for which, content in enumerate(contents):
        for at in range(len(content)):
            changed = content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]
            path.write_bytes(file_of(*contents[:which], changed, *contents[which + 1 :]))
            try:
                trace = load(path)
            except TraceFormatError as error:
                assert "\n" not in str(error)
            else:
                assert fault(trace) is None
