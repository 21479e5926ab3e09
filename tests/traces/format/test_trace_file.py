"""Tests that saved and streamed traces are loaded unchanged, and that an invalid trace gives a one-line error."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.traces.sound_traces import differences, small_trace, traces
from traces.combining.merge import trace_of_ranks
from traces.format import items
from traces.format.column_encoding import MAX_ROWS, pack_table, unpack_table
from traces.format.frames import (
    _PIECE_BYTES,
    DATA,
    DEFLATED,
    END,
    LZMA_PLANES,
    STORED,
    Damaged,
    Frame,
    FrameWriter,
    compress,
    scan,
)
from traces.format.items import end_item, header_item, row_counts, strings_item, table_items
from traces.format.trace_file import TraceStream, load, save
from traces.kineto import read_kineto
from traces.model.invariants import fault
from traces.model.trace import (
    NONE,
    TABLES,
    HostSpans,
    MemoryEvents,
    Phases,
    Steps,
    Strings,
    Table,
    Thread,
    Trace,
    TraceFormatError,
    TraceWriteError,
    Values,
)

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@SAME_FOLDER
@given(trace=traces())
def test_a_saved_trace_is_loaded_unchanged(tmp_path: Path, trace: Trace) -> None:
    assert fault(trace) is None

    save(trace, tmp_path / "t.msgpack")

    assert differences(load(tmp_path / "t.msgpack"), trace) == []
    assert os.listdir(tmp_path) == ["t.msgpack"]


@SAME_FOLDER
@given(trace=traces(), cuts=st.integers(1, 5), at_once=st.booleans())
def test_a_stream_of_chunks_is_loaded_as_one_trace(tmp_path: Path, trace: Trace, cuts: int, at_once: bool) -> None:
    path = tmp_path / "t.part"

    write_in_chunks(trace, path, cuts, at_once)

    streamed = load(path)
    assert differences(streamed, trace) == []
    save(streamed, tmp_path / "t.msgpack")
    assert differences(load(tmp_path / "t.msgpack"), trace) == []


def write_in_chunks(trace: Trace, path: Path, rows_per_chunk: int, at_once: bool) -> None:
    """Write a trace in chunks like a recorder. Each chunk has some rows of each table, and the complete header comes last."""
    stream = TraceStream(path)
    stream.header(Trace(devices=trace.devices, threads=trace.threads))
    stream.add_strings(trace.strings.texts)
    for first in range(0, 12, rows_per_chunk):
        tables: dict[str, Table] = {name: getattr(trace, name).take(slice(first, first + rows_per_chunk)) for name in TABLES}
        if at_once:
            stream.add_tables(tables)
            continue
        for name, table in tables.items():
            stream.add(name, table)
    stream.header(trace)
    stream.close()
    stream.close()


def test_several_tables_of_any_size_can_be_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traces.format.items._ITEM_ROWS", 10)
    stream = TraceStream(tmp_path / "t")
    stream.header(Trace())
    stream.add_tables({"phases": Phases.empty(), "steps": Steps.empty()})
    stream.add_tables({"steps": Steps.of(number=list(range(-5, 20)), duration_ns=[7] * 25)})
    stream.add_tables({"steps": Steps.of(duration_ns=[9])})
    stream.close()
    steps = load(tmp_path / "t").steps
    assert steps.number.tolist() == [*range(-5, 20), 0]
    assert steps.duration_ns.tolist() == [*[7] * 25, 9]
    assert set(steps.recorded_step.tolist()) == {NONE}
    assert os.path.getsize(tmp_path / "t") < 500


def test_packing_a_table_with_too_many_rows_raises_an_error() -> None:
    with pytest.raises(ValueError, match="too many for one packed table"):
        pack_table(Steps.of(number=range(MAX_ROWS + 1)))


@given(spans=st.integers(0, 2**32 - 1))
def test_parents_of_calls_can_be_stored_and_read_whether_nested_or_not(spans: int) -> None:
    random = np.random.default_rng(spans)
    rows = 200
    depth = [0]
    for _ in range(rows - 1):
        depth.append(int(random.integers(0, depth[-1] + 2)))
    latest: dict[int, int] = {}
    parent = []
    for row, level in enumerate(depth):
        latest[level] = row
        parent.append(latest[level - 1] if level else NONE)
    table = HostSpans.of(
        parent=parent,
        name=random.integers(0, 70_000, rows),  # there are more names than 16-bit numbers
        start_ns=random.integers(-(2**62), 2**62, rows),
        duration_ns=random.integers(-5, 2**40, rows),
    )
    shuffled = table.take(np.arange(rows)[::-1])

    assert "nested" in pack_table(table) and "nested" not in pack_table(table, compact=False)
    assert "nested" not in pack_table(shuffled)
    for spans_of_it in (table, shuffled):
        for compact in (True, False):
            back = unpack_table(HostSpans, pack_table(spans_of_it, compact=compact))
            assert all((back.columns()[name] == column).all() for name, column in spans_of_it.columns().items())


def test_parents_in_a_later_chunk_refer_to_rows_of_the_whole_table() -> None:
    table = HostSpans.of(parent=[NONE, 1000, 1001, 1000], start_ns=[0, 1, 2, 5], duration_ns=[9, 3, 1, 1], name=[0] * 4)

    packed = pack_table(table, first_row=1000)

    assert "nested" in packed
    assert unpack_table(HostSpans, packed, first_row=1000).parent.tolist() == [NONE, 1000, 1001, 1000]


def test_a_table_larger_than_a_frame_is_split_and_joined(tmp_path: Path) -> None:
    rows = MAX_ROWS + 3
    trace = Trace(threads=[Thread(0, 1)], strings=Strings(["a"]))
    trace.host = HostSpans.of(
        start_ns=np.arange(rows) // 2, duration_ns=np.arange(rows) % 2, parent=np.tile([NONE, 0], rows)[:rows]
    )
    trace.host.parent[1::2] = np.arange(0, rows - 1, 2)  # the last pair of rows is in two different frames

    save(trace, tmp_path / "t.msgpack")

    assert differences(load(tmp_path / "t.msgpack"), trace) == []


def test_extreme_values_can_be_stored_and_read(tmp_path: Path) -> None:
    trace = Trace(strings=Strings(["", "\ud800 lone surrogate", "\0"]))
    ends = [1 - 2**62, 2**62 - 1, 0, -1, 2**61, -(2**62) + 1]
    trace.steps = Steps.of(start_ns=ends, duration_ns=[2**56 - 1, 0, 7, -(2**56) + 1, 0, 0], number=ends)
    trace.memory = MemoryEvents.of(address=[2**64 - 1, 0, 2**63], time_ns=ends[:3], bytes=[1 - 2**56] * 3)
    trace.values = Values.of(
        op=[0] * 4, dtype=[0] * 4, value=[float("nan"), float("-inf"), -0.0, 5e-324], read=[0, 0, 1, 2], rank=[0] * 4
    )

    save(trace, tmp_path / "t.msgpack")

    assert differences(load(tmp_path / "t.msgpack"), trace) == []


def test_nan_and_infinity_in_a_header_are_loaded_as_none(tmp_path: Path) -> None:
    save(Trace(provenance={"loss": [float("nan"), np.float32("inf"), 0.5]}), tmp_path / "t.msgpack")

    assert load(tmp_path / "t.msgpack").provenance == {"loss": [None, None, 0.5]}


def test_numpy_numbers_in_the_header_are_loaded_as_python_numbers(tmp_path: Path) -> None:
    save(Trace(provenance={"steps": np.int64(3), "lr": np.float64(0.5)}), tmp_path / "t.msgpack")

    assert load(tmp_path / "t.msgpack").provenance == {"steps": 3, "lr": 0.5}


@pytest.mark.parametrize(
    ("table", "column", "value", "says"),
    [
        ("host", "name", 99, "host.name holds 99, outside 0..5"),
        ("steps", "start_ns", 2**62, f"steps.start_ns holds {2**62}, outside {1 - 2**62}..{2**62 - 1}"),
        ("steps", "start_ns", 2**62 - 100, r"steps.start_ns and steps.duration_ns end beyond 2\*\*62"),
        ("device", "duration_ns", 2**56, f"device.duration_ns holds {2**56}, outside"),
        ("memory", "bytes", -(2**56), f"memory.bytes holds {-(2**56)}, outside"),
        ("memory", "allocated_bytes", 2**62, "memory.allocated_bytes holds"),
        ("steps", "rank", -1, "steps.rank holds -1, outside 0..2147483647"),
        ("values", "read", 2**62, "values.read holds"),
        ("host", "parent", 4, "host.parent holds 4, outside -1..3"),
        ("host", "parent", 1, "host.parent contains a cycle"),
        ("device", "launch", -2, "device.launch holds -2, outside -1..3"),
        ("device", "device", 1, "device.device holds 1, outside 0..0"),
        ("phases", "step", 2, "phases.step holds 2, outside 0..1"),
        ("steps", "kind", 6, "steps.kind holds 6, outside 0..5"),
        ("parts", "phase", 2, "parts.phase holds 2, outside -1..1"),
        ("batches", "kind", 2, "batches.kind holds 2, outside 0..1"),
    ],
)
def test_saving_an_invalid_trace_raises_an_error(tmp_path: Path, table: str, column: str, value: int, says: str) -> None:
    trace = small_trace()
    values = getattr(getattr(trace, table), column)
    values[min(1, len(values) - 1)] = value

    with pytest.raises(TraceWriteError, match=f"not written: the trace is invalid: {says}"):
        save(trace, tmp_path / "t.msgpack")

    assert os.listdir(tmp_path) == []


def test_a_cycle_of_parents_is_rejected() -> None:
    trace = small_trace()
    trace.host.parent[:] = [1, 2, 3, NONE]
    assert fault(trace) is None

    trace.host.parent[3] = 0

    assert fault(trace) == "host.parent contains a cycle"


def test_wrong_column_lengths_and_types_and_duplicate_strings_are_rejected() -> None:
    short, narrow, doubled = small_trace(), small_trace(), small_trace()
    short.host.shapes = short.host.shapes[:-1]
    narrow.host.start_ns = narrow.host.start_ns.astype(np.int32)
    doubled.strings.texts[1] = doubled.strings.texts[0]

    assert fault(short) == "host.shapes is int32(3,), not int32(4,)"
    assert fault(narrow) == "host.start_ns is int32(4,), not int64(4,)"
    assert fault(doubled) == "a text occurs twice in the string table"


A_PROFILE = "it looks like a torch.profiler recording; import it first: trace import FILE -o NEW.msgpack"
NO_TRACE = "it is neither a trace file nor a torch.profiler recording"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b'{"traceEvents": []}', A_PROFILE),
        (b"\xef\xbb\xbf \n[{", A_PROFILE),
        (b"\x1f\x8b\x08\x00", A_PROFILE),
        (b"import torch\n", NO_TRACE),
        (b"\x92\xa3", NO_TRACE),
    ],
)
def test_a_file_that_is_not_a_trace_gives_an_error_with_advice(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)

    with pytest.raises(TraceFormatError) as error:
        load(path)

    assert str(error.value) == f"{path}: not a readable trace: {says}"


def test_a_path_that_is_not_a_regular_file_gives_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for name, says in (("none", "No such file or directory"), (".", "is a directory"), ("pipe", "not a regular file")):
        with pytest.raises(TraceFormatError, match=f"{name}: not a readable trace: .*{says}"):
            load(f"{tmp_path}/{name}")


def test_saving_replaces_a_file_atomically_and_follows_links(tmp_path: Path) -> None:
    path, link = tmp_path / "t.msgpack", tmp_path / "link"
    path.write_bytes(b"old")
    link.symlink_to(path)

    save(small_trace(), link)

    assert link.is_symlink() and differences(load(path), small_trace()) == []
    assert sorted(os.listdir(tmp_path)) == ["link", "t.msgpack"]


def test_saving_keeps_the_partial_file_of_a_killed_recorder(tmp_path: Path) -> None:
    part = tmp_path / "t.msgpack.part"
    write_in_chunks(small_trace(), part, 2, at_once=False)
    before = part.read_bytes()

    save(load(part), tmp_path / "t.msgpack")

    assert part.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["t.msgpack", "t.msgpack.part"]


def test_a_file_is_written_beside_the_partial_files_and_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(os, "replace", lambda part, target: written.append(Path(part).name))
    for left in ("none", "t.part", "t.2.part"):
        (tmp_path / left).touch()
        save(small_trace(), tmp_path / "t")
    assert written == ["t.part", "t.2.part", "t.3.part"]


def test_saving_to_a_path_that_is_not_a_regular_file_gives_an_error(tmp_path: Path) -> None:
    for target, says in ((tmp_path, "not a regular file"), (Path(os.devnull), "not a regular file")):
        with pytest.raises(TraceWriteError, match=f"^{target}: not written: it is {says}$"):
            save(small_trace(), target)
    with pytest.raises(TraceWriteError, match="No such file or directory"):
        save(small_trace(), tmp_path / "nowhere" / "t.msgpack")


def test_provenance_that_json_cannot_express_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceWriteError, match="a PosixPath, which is not a JSON value"):
        save(Trace(provenance={"script": Path("train.py")}), tmp_path / "t.msgpack")


def test_writing_to_a_closed_stream_raises_an_error(tmp_path: Path) -> None:
    stream = TraceStream(tmp_path / "t.part")
    stream.close()

    with pytest.raises(TraceWriteError, match="the stream is closed"):
        stream.add_strings(["late"])


@pytest.mark.parametrize("is_reused", [False, True])
def test_a_stream_with_a_closed_file_descriptor_writes_only_to_its_file(tmp_path: Path, is_reused: bool) -> None:
    """A script that becomes a daemon closes all file descriptors. The files that the script opens next get the numbers of the
    closed file descriptors."""
    trace, path, other = small_trace(), tmp_path / "t.part", tmp_path / "checkpoint.pt"
    stream = TraceStream(path)
    stream.header(trace)
    number = next(int(link.name) for link in Path("/proc/self/fd").iterdir() if os.path.realpath(link) == str(path))
    os.close(number)
    if is_reused:
        assert os.open(other, os.O_WRONLY | os.O_CREAT) == number
    stream.add_strings(trace.strings.texts)
    stream.add("steps", trace.steps)
    stream.close()

    assert load(path).steps.number.tolist() == [5, 6]
    if is_reused:
        os.close(number)
        assert other.read_bytes() == b""


def test_added_rows_can_be_read_while_the_stream_is_open(tmp_path: Path) -> None:
    trace, path = small_trace(), tmp_path / "t.part"
    stream = TraceStream(path)
    stream.header(trace)
    stream.add_strings(trace.strings.texts)
    stream.add("steps", trace.steps)

    seen = load(path)
    stream.close()

    assert seen.steps.number.tolist() == [5, 6] and not len(seen.host)
    assert seen.problems == {"clipped-spans": 2, "truncated-file": 1}
    assert load(path).problems == {"clipped-spans": 2}


def test_a_table_with_more_rows_than_bytes_is_rejected() -> None:
    packed = pack_table(Steps.of(number=[7, 7], rank=[0, 0]))
    assert unpack_table(Steps, packed).number.tolist() == [7, 7]

    for rows, says in ((MAX_ROWS, "bytes for"), (MAX_ROWS + 1, "claims"), (-1, "claims"), (3, "bytes for")):
        with pytest.raises(Damaged, match=says):
            unpack_table(Steps, packed | {"rows": rows})
    with pytest.raises(Damaged, match="claims 2 rows"):
        unpack_table(Steps, {"rows": 2, "columns": {"number": 7}})


def test_a_long_column_is_decoded_in_several_pieces() -> None:
    rows = np.arange(40_000, dtype=np.int64)
    start_ns = rows * rows % 7_919 - 5 * rows  # the values fall and rise
    spans = Steps.of(start_ns=start_ns, number=2**62 - rows, rank=rows % 3)

    back = unpack_table(Steps, pack_table(spans))

    assert (back.start_ns == start_ns).all() and (back.number == 2**62 - rows).all() and (back.rank == rows % 3).all()


@SAME_FOLDER
@given(trace=traces())
def test_a_lazily_loaded_trace_has_the_same_columns(tmp_path: Path, trace: Trace) -> None:
    save(trace, tmp_path / "t.msgpack")

    assert differences(load(tmp_path / "t.msgpack", is_lazy=True), trace) == []


def test_a_lazily_loaded_column_is_checked_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = small_trace()
    trace.steps.number = np.full(len(trace.steps), 1 << 62)  # the value exceeds its limit by one
    monkeypatch.setattr("traces.format.trace_file.checks.fault", lambda trace: None)
    save(trace, tmp_path / "t.msgpack")
    monkeypatch.undo()
    with pytest.raises(TraceFormatError, match=r"steps\.number holds"):
        load(tmp_path / "t.msgpack")

    lazy = load(tmp_path / "t.msgpack", is_lazy=True)

    assert (lazy.steps.start_ns == trace.steps.start_ns).all()
    with pytest.raises(TraceFormatError, match=r"steps\.number holds"):
        _ = lazy.steps.number


def long_trace(rows: int = 20_000) -> Trace:
    """Return a trace whose host table is stored in several items if a test reduces the rows per item."""
    trace = Trace(strings=Strings(["aten::mm"]), threads=[Thread(0, 1), Thread(1, 1)])
    lengths = np.random.default_rng(0).integers(1, 1 << 40, rows)
    trace.host = HostSpans.of(thread=np.arange(rows) * 2 // rows, start_ns=np.cumsum(lengths), duration_ns=lengths // 2)
    return trace


def test_a_lazy_trace_decompresses_only_the_tables_that_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a host table in four frames WHEN rows of the second frame are read THEN no other frame is decompressed."""
    monkeypatch.setattr(items, "_ITEM_ROWS", 5_000)
    save(long_trace(), tmp_path / "t.msgpack")
    decompressed = frames_that_are_decompressed(monkeypatch)

    host = load(tmp_path / "t.msgpack", is_lazy=True).host
    some = host.take(np.arange(6_000, 7_000))

    assert len(host) == 20_000 and not decompressed
    assert (some.start_ns == long_trace().host.start_ns[6_000:7_000]).all() and len(decompressed) == 1
    # AND rows of several frames are returned in the requested order
    for rows in (slice(None, None, 7), np.arange(20_000)[::-3], np.arange(20_000) % 5 == 0, np.arange(4_990, 10_010)):
        taken, expected = host.take(rows).columns(), long_trace().host.take(rows).columns()
        assert all(np.array_equal(taken[column], expected[column]) for column in expected)


def frames_that_are_decompressed(monkeypatch: pytest.MonkeyPatch, piece_bytes: int = 1 << 20) -> Counter[int]:
    """Return a counter that counts the decompressed bytes of each large frame."""
    read = Counter[int]()

    def pieces(frame: Frame, at_most: int = piece_bytes) -> Iterator[bytes]:
        for piece in of_frame(frame, at_most):
            if frame.content_bytes > 32 << 10:
                read[frame.offset_bytes] += len(piece)
            yield piece

    of_frame = Frame.pieces
    monkeypatch.setattr(Frame, "pieces", pieces)
    return read


@pytest.mark.parametrize("has_nested_first", [False, True])
def test_reading_the_ranks_of_rows_decompresses_only_the_beginning_of_each_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_nested_first: bool
) -> None:
    """GIVEN a host table in four frames WHEN the ranks of rows are read THEN only the beginning of each frame is decompressed.
    In files of earlier versions, the columns are at the end, so whole frames are decompressed."""
    if has_nested_first:
        monkeypatch.setattr(items, "pack_table", lambda *of: dict(sorted(pack_table(*of).items(), reverse=True)))
    monkeypatch.setattr(items, "_ITEM_ROWS", 5_000)
    save(long_trace(), tmp_path / "t.msgpack")
    decompressed = frames_that_are_decompressed(monkeypatch, piece_bytes=6_000)

    host = load(tmp_path / "t.msgpack", is_lazy=True).host

    assert (host.thread == long_trace().host.thread).all() and len(decompressed) == 4
    assert sum(size_bytes < 10_000 for size_bytes in decompressed.values()) == (0 if has_nested_first else 2)
    assert all(np.array_equal(column, getattr(host, name)) for name, column in long_trace().host.columns().items())


def test_a_lazily_loaded_trace_has_the_same_ranks_as_a_fully_loaded_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "_ITEM_ROWS", 5_000)
    save(long_trace(), tmp_path / "t.msgpack")
    whole, lazy = (trace_of_ranks(load(tmp_path / "t.msgpack", is_lazy=lazy), [1]) for lazy in (False, True))
    assert differences(lazy, whole) == [] and len(whole.host) == 10_000


def test_reading_one_of_many_ranks_decompresses_a_small_part_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, rows = 8, 60_000
    trace = Trace(strings=Strings(["aten::mm"]), threads=[Thread(rank, 1) for rank in range(ranks)])
    starts_ns = np.cumsum(np.random.default_rng(0).integers(1, 1 << 20, ranks * rows))
    trace.host = HostSpans.of(thread=np.arange(ranks * rows) // rows, start_ns=starts_ns)
    save(trace, tmp_path / "t.msgpack")
    decompressed = frames_that_are_decompressed(monkeypatch, _PIECE_BYTES)

    host = trace_of_ranks(load(tmp_path / "t.msgpack", is_lazy=True), [3]).host

    assert (host.start_ns == starts_ns[3 * rows : 4 * rows]).all()
    frames = scan((tmp_path / "t.msgpack").read_bytes()).frames
    assert sum(decompressed.values()) < 0.6 * sum(frame.content_bytes for frame in frames)


def test_a_lazy_trace_reports_a_damaged_large_frame_when_it_is_read(tmp_path: Path) -> None:
    """GIVEN a large frame that ends in the middle of a table WHEN a column is read THEN the error contains the frame's
    offset."""
    trace = long_trace()
    head, host = header_item(trace, row_counts(trace)), b"".join(table_items("host", trace.host, 0, compact=True))
    parts: list[bytes] = []
    writer = FrameWriter(parts.append)
    for content in (head + b"".join(strings_item(trace.strings.texts)), host[:-1]):
        writer.add(DATA, content)
    writer.add(END, end_item(1, row_counts(trace)))
    (tmp_path / "t.msgpack").write_bytes(b"".join(parts))

    lazy = load(tmp_path / "t.msgpack", is_lazy=True)

    with pytest.raises(TraceFormatError, match=rf"t.msgpack: not a readable trace at byte {17 + len(parts[1])}: "):
        _ = lazy.host.start_ns


def test_lazy_reading_of_a_large_frame_reads_all_of_its_tables(tmp_path: Path) -> None:
    """GIVEN two tables in one large frame, which this version never writes WHEN the file is loaded lazily THEN both tables are
    read."""
    trace = long_trace()
    trace.steps = Steps.of(start_ns=[5], duration_ns=[6])
    tables = [b"".join(table_items(name, getattr(trace, name), 0, compact=True)) for name in ("host", "steps")]
    parts: list[bytes] = []
    writer = FrameWriter(parts.append)
    writer.add(DATA, header_item(trace, row_counts(trace)) + b"".join(strings_item(trace.strings.texts)))
    writer.add(DATA, b"".join(tables))
    writer.add(END, end_item(1, row_counts(trace)))
    (tmp_path / "t.msgpack").write_bytes(b"".join(parts))
    assert differences(load(tmp_path / "t.msgpack", is_lazy=True), trace) == []


@pytest.mark.parametrize(("name", "bar"), [("v100_resnet50_workers0", 8), ("a100_nccl_args_rank0of2", 7), ("mi250_minitoy", 3)])
def test_trace_files_are_much_smaller_than_compressed_json(tmp_path: Path, shared_traces: Path, name: str, bar: int) -> None:
    """A training recording is at most an eighth as large as its .json.gz file, a recording with NCCL a seventh, and a tiny
    recording a third."""
    original = shared_traces / f"{name}.json.gz"
    trace = read_kineto(original)

    save(trace, tmp_path / "t.msgpack")

    assert differences(load(tmp_path / "t.msgpack"), trace) == []
    assert (tmp_path / "t.msgpack").stat().st_size <= original.stat().st_size / bar


def test_large_content_is_compressed_faster_and_can_be_read() -> None:
    content = np.random.default_rng(0).integers(0, 4, (1 << 20) + 1).astype("u1").tobytes()
    payload = compress(LZMA_PLANES, content)
    assert Frame(0, DATA, LZMA_PLANES, len(content), payload).content() == content
    assert len(payload) < len(content) / 3.3  # only two bits of each byte are random


@pytest.mark.parametrize(("levels", "is_written"), [(31, True), (32, False)])
def test_provenance_of_up_to_32_levels_can_be_written_and_read(tmp_path: Path, levels: int, is_written: bool) -> None:
    """The header itself is one level of nesting, so provenance may have 31 levels."""
    provenance: Any = "innermost"
    for _ in range(levels):
        provenance = {"a": provenance}
    if is_written:
        save(Trace(provenance=provenance), tmp_path / "x.msgpack")
        assert load(tmp_path / "x.msgpack").provenance == provenance
    else:
        with pytest.raises(TraceWriteError, match="more than 32 levels"):
            save(Trace(provenance=provenance), tmp_path / "x.msgpack")


@pytest.mark.parametrize(("size_bytes", "codec"), [(4096, STORED), (4097, DEFLATED)])
def test_a_growing_file_compresses_data_of_more_than_4_kib(tmp_path: Path, size_bytes: int, codec: int) -> None:
    stream = TraceStream(tmp_path / "x.msgpack")
    stream.add_items([bytes(size_bytes)], {})
    (frame,) = scan((tmp_path / "x.msgpack").read_bytes()).frames
    assert (frame.codec, frame.content()) == (codec, bytes(size_bytes))
