"""Tests that a growing trace file can be read. After each byte, the complete rows are read, and in the end all rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traces.handmade import replay_of, training
from traces.format.growing_file import Follower, timeline_of
from traces.format.trace_file import TraceStream, load
from traces.model.row_order import in_order
from traces.model.trace import TABLES, Thread, Trace, TraceFormatError


@pytest.fixture
def written(tmp_path: Path) -> bytes:
    """Return a file like that of a replay: each table is written in parts, and the header with all threads comes last."""
    whole = replay_of(training(steps=2))
    stream = TraceStream(tmp_path / "whole")
    stream.header(Trace(devices=whole.devices, threads=whole.threads[:1]))
    stream.add_strings(whole.strings.texts)
    half = len(whole.host) // 2
    for rows in (slice(0, half), slice(half, None)):
        stream.add("host", whole.host.take(rows))
    stream.add("phases", whole.phases)  # phases are written before the steps that they refer to
    for name in ("steps", "device", "memory"):
        stream.add(name, getattr(whole, name))
    stream.header(whole)
    stream.close()
    return (tmp_path / "whole").read_bytes()


def same(one: Trace, other: Trace) -> bool:
    tables = all(
        (getattr(one, name).columns()[column] == values).all()
        for name in TABLES
        for column, values in getattr(other, name).columns().items()
    )
    return tables and one.strings.texts == other.strings.texts and one.threads == other.threads


def test_a_growing_file_can_be_read_piece_by_piece(tmp_path: Path, written: bytes) -> None:
    # GIVEN a file that grows by one byte at a time
    path = tmp_path / "t.part"
    path.touch()
    follower = Follower(path)
    seen: list[Trace] = []
    with path.open("ab", buffering=0) as file:
        for byte in written:
            file.write(bytes([byte]))
            # WHEN the file is read after each byte
            if follower.more():
                seen.append(follower.trace())
    # THEN each trace is valid, no rows disappear, and the last trace has all rows of the file in order
    assert len(seen) >= 6 and follower.ended and not follower.more()
    rows = [sum(len(getattr(trace, name)) for name in TABLES) for trace in seen]
    assert rows == sorted(rows)
    path.write_bytes(written)
    assert same(seen[-1], in_order(load(path)))


def test_threads_that_are_not_yet_in_the_file_get_placeholder_names(tmp_path: Path) -> None:
    stream = TraceStream(tmp_path / "t")
    trace = training(steps=1)
    stream.header(Trace(devices=trace.devices, threads=[Thread(0, 1, "MainThread", "main")]))
    stream.add_strings(trace.strings.texts)
    stream.add("host", trace.host)
    follower = Follower(tmp_path / "t")
    assert follower.more()
    assert [thread.role for thread in follower.trace().threads] == ["main", "other"]
    stream.close()


def test_missing_threads_of_a_growing_file_belong_to_the_lowest_rank(tmp_path: Path) -> None:
    trace = training(steps=1)
    stream = TraceStream(tmp_path / "t")
    stream.header(Trace(devices=trace.devices, threads=[Thread(3, 1, "MainThread", "main")]))
    stream.add_strings(trace.strings.texts)
    stream.add("host", trace.host)
    follower = Follower(tmp_path / "t")
    assert follower.more() and follower.trace().ranks == [0, 3]
    assert [thread.rank for thread in follower.trace().threads] == [3, 0]
    stream.close()


def test_references_to_rows_become_valid_when_a_growing_file_contains_the_rows(tmp_path: Path) -> None:
    # GIVEN device work that was written before the calls that launched the work
    trace = training(steps=1)
    stream = TraceStream(tmp_path / "t")
    stream.header(trace)
    stream.add_strings(trace.strings.texts)
    stream.add("device", trace.device)
    follower = Follower(tmp_path / "t")
    follower.more()
    assert (follower.trace().device.launch == -1).all()
    # WHEN the calls are written
    stream.add("host", trace.host)
    assert follower.more()
    # THEN each piece of work has its launch
    assert (follower.trace().device.launch == trace.device.launch).all()
    stream.close()


def test_a_damaged_growing_file_is_reported(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(written[:-40] + b"\xff" + written[-39:])
    with pytest.raises(TraceFormatError, match="wrong checksum"):
        Follower(path).more()
    with pytest.raises(TraceFormatError, match="No such file"):
        Follower(tmp_path / "nope").more()


def test_a_process_without_a_timeline_file_uses_its_childrens_largest_file(tmp_path: Path) -> None:
    assert timeline_of(tmp_path, 7) is None
    for pid, size in ((8, 10), (9, 30), (10, 20)):
        (tmp_path / f"replay-{pid}.msgpack").write_bytes(bytes(size))
    assert timeline_of(tmp_path, 7) == tmp_path / "replay-9.msgpack"
    assert timeline_of(tmp_path, 8) == tmp_path / "replay-8.msgpack"
