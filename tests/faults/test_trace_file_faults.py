"""Tests damaged files: truncated at any byte, with any flipped bit, or on a disk that fills up at any write. A reader returns
the right data or the undamaged beginning, marked as incomplete, or raises TraceFormatError (traces/format/FORMAT.md)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.traces.sound_traces import differences, small_trace
from traces.format.frames import FRAME, HEADER
from traces.format.items import block_item, row_items
from traces.format.step_block import StepBlock
from traces.format.trace_file import TraceStream, load, save
from traces.model.invariants import fault
from traces.model.trace import NONE, TABLES, Parts, Phases, Trace, TraceFormatError, TraceWriteError

REFERENCES = {"host.parent", "device.launch", "values.step", "parts.phase"}  # references to lost rows become NONE


def compact(path: Path) -> None:
    save(small_trace(), path)


def streamed(path: Path) -> None:
    """Write a file whose frames have one row each. Most truncated files then contain only some rows of a table."""
    trace = small_trace()
    stream = TraceStream(path)
    try:
        stream.header(trace)
        stream.add_strings(trace.strings.texts)
        for name in reversed(TABLES):  # rows are written before the rows that they refer to
            for row in range(len(getattr(trace, name))):
                stream.add(name, getattr(trace, name).take(slice(row, row + 1)))
    finally:
        stream.close()


def recorded(path: Path) -> None:
    """Write steps as the recorder does, as blocks and as rows of plain numbers."""
    stream = TraceStream(path)
    stream.header(Trace())
    stream.add_strings(["forward", "other"])
    for number in range(0, 6, 3):
        start_ns = 100 + number * 10
        times_ns = [start_ns + at for at in (0, 4, 10, 14, 20)]
        block = StepBlock(0, number, 0, 2, 2, [0, 1], [0, 1], [1, 2], times_ns)
        stream.add_items([block_item(block)], {"steps": 2, "phases": 4})
        row = number + 2, start_ns + 20, 10
        stream.add_items(row_items("steps", ("number", "start_ns", "duration_ns"), [row]), {"steps": 1})
        rows = [(number + at, number + at, 0.5) for at in range(3)]
        stream.add_items(row_items("values", ("step", "read", "value"), rows), {"values": 3})
    stream.close()


def test_a_recording_cut_at_any_byte_is_recovered_and_a_damaged_one_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "t.part"
    recorded(path)
    data, whole = path.read_bytes(), load(path)
    assert whole.steps.number.tolist() == list(range(6)) and len(whole.phases) == 8 and len(whole.values) == 6
    for length in range(HEADER.size, len(data)):
        path.write_bytes(data[:length])
        try:
            found = load(path)
        except TraceFormatError as error:
            assert "nothing to recover" in str(error) and length < 400
        else:
            assert_flagged_prefix(found, whole)
    for at, byte in enumerate(data):
        path.write_bytes(data[:at] + bytes([byte ^ (1 << at % 8)]) + data[at + 1 :])
        with pytest.raises(TraceFormatError):
            load(path)


def assert_flagged_prefix(found: Trace, whole: Trace) -> None:
    assert found.problems == whole.problems | {"truncated-file": 1}
    assert found.lacks[:-1] == whole.lacks and found.lacks[-1].startswith("the end of the recording: the file is truncated at")
    assert found.strings.texts == whole.strings.texts[: len(found.strings)]
    assert (found.devices, found.threads, found.provenance) == (whole.devices, whole.threads, whole.provenance)
    assert fault(found) is None
    for name, kind in TABLES.items():
        mine, all_of_it = getattr(found, name), getattr(whole, name)
        for column in kind.DTYPES.keys() - {reference.partition(".")[2] for reference in REFERENCES}:
            assert getattr(mine, column).tolist() == getattr(all_of_it, column)[: len(mine)].tolist()


@pytest.mark.parametrize("write", [compact, pytest.param(streamed, marks=pytest.mark.program)])
def test_a_file_truncated_at_any_byte_is_read_or_rejected(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "t.msgpack"
    write(path)
    data = path.read_bytes()
    assert differences(load(path), small_trace()) == []
    first_frame = HEADER.size + FRAME.size + int.from_bytes(data[HEADER.size + 1 : HEADER.size + 5], "big") - 13

    for length in range(len(data)):
        path.write_bytes(data[:length])
        if length < first_frame:
            with pytest.raises(TraceFormatError, match=r"the file is empty|nothing to recover") as error:
                load(path)
            assert "\n" not in str(error.value) and str(path) in str(error.value)
        else:
            assert_flagged_prefix(load(path), small_trace())


def test_a_truncated_file_reports_the_lost_tables(tmp_path: Path) -> None:
    path = tmp_path / "t.msgpack"
    trace = small_trace()
    trace.provenance["long"] = [str(number**9) for number in range(9000)]  # a long header puts the tables into a separate frame
    save(trace, path)
    data = path.read_bytes()
    assert data.count(b"\xc9\0\0") == 3  # the three frames contain texts, tables and the end
    cut = data.rindex(b"\xc9\0\0") - 1
    path.write_bytes(data[:cut])

    assert load(path).lacks == [
        "memory addresses",
        f"the end of the recording: the file is truncated at byte {cut}, 2 of 2 rows of steps are missing,"
        " 2 of 2 rows of phases are missing, 4 of 4 rows of host are missing, 2 of 2 rows of device are missing,"
        " 2 of 2 rows of memory are missing, 1 of 1 rows of values are missing, 2 of 2 rows of parts are missing,"
        " 2 of 2 rows of batches are missing, 1 of 1 rows of collectives are missing",
    ]


@pytest.mark.parametrize("write", [compact, streamed])
def test_a_file_with_any_flipped_byte_is_rejected(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "t.msgpack"
    write(path)
    data = path.read_bytes()

    with path.open("r+b", buffering=0) as file:
        for at, byte in enumerate(data):
            for mask in (255, *(1 << bit for bit in range(8))):
                os.pwrite(file.fileno(), bytes([byte ^ mask]), at)
                with pytest.raises(TraceFormatError) as error:
                    load(path)
                assert "\n" not in str(error.value) and str(path) in str(error.value)
            os.pwrite(file.fileno(), data[at : at + 1], at)
    assert differences(load(path), small_trace()) == []


def test_stages_keep_their_phases_after_phases_of_lost_steps_are_removed(tmp_path: Path) -> None:
    """Phases can be stored in any order. In this file, the phases belong to steps 2, 0 and 1, and step 2 is lost."""
    trace, path = small_trace(), tmp_path / "t.part"
    stream = TraceStream(path)
    stream.header(trace)
    stream.add_strings(trace.strings.texts)
    stream.add("steps", trace.steps)
    stream.add("phases", Phases.of(step=[2, 0, 1], name=[0] * 3, start_ns=[2000, 100, 1100]))
    stream.add("parts", Parts.of(phase=[0, 1, 2, 3, NONE], name=[1] * 5))

    found = load(path)

    stream.close()
    assert found.phases.step.tolist() == [0, 1] and found.parts.phase.tolist() == [NONE, 0, 1, NONE, NONE]


def test_bytes_after_the_end_of_the_file_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "t.msgpack"
    compact(path)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\0\0")

    with pytest.raises(TraceFormatError, match=f"at byte {size}: 2 bytes follow the end frame"):
        load(path)


class Disk:
    """Replaces os.write. It writes at most 40 bytes at a time, and fails at the k-th call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_at: int, error: BaseException) -> None:
        self.calls = 0
        self._write = os.write
        self._fails_at = fails_at
        self._error = error
        monkeypatch.setattr(os, "write", self)

    def __call__(self, file: int, data: memoryview) -> int:
        self.calls += 1
        if self.calls == self._fails_at:
            raise self._error
        return self._write(file, data[:40])


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_while_saving_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.msgpack"
    path.write_bytes(b"what was there before")

    for fails_at in range(1, 100):
        with monkeypatch.context() as patch:
            disk = Disk(patch, fails_at, FULL)
            try:
                save(small_trace(), path)
            except TraceWriteError as error:
                assert str(error) == f"{path}: not written: No space left on device"
                assert isinstance(error, OSError)
            else:
                break
        assert os.listdir(tmp_path) == ["t.msgpack"] and path.read_bytes() == b"what was there before"

    assert 5 < disk.calls < fails_at
    assert os.listdir(tmp_path) == ["t.msgpack"] and differences(load(path), small_trace()) == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_after_the_last_write_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, call, fail)

    with pytest.raises(TraceWriteError, match=r"t\.msgpack: not written: Input/output error"):
        save(small_trace(), tmp_path / "t.msgpack")

    assert os.listdir(tmp_path) == []


def test_an_interrupted_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk(monkeypatch, 3, KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        save(small_trace(), tmp_path / "t.msgpack")

    assert os.listdir(tmp_path) == []


def test_rows_written_before_the_disk_filled_up_are_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.part"
    recovered = 0

    for fails_at in range(1, 200):
        with monkeypatch.context() as patch:
            Disk(patch, fails_at, FULL)
            try:
                streamed(path)
            except TraceWriteError as error:
                assert str(error) == f"{path}: not written: No space left on device"
            else:
                break
        try:
            found = load(path)
        except TraceFormatError as error:
            assert (recovered == 0 and "nothing to recover" in error.reason) or error.reason == "the file is empty"
        else:
            recovered += 1
            assert_flagged_prefix(found, small_trace())

    assert 20 < recovered < fails_at
    assert differences(load(path), small_trace()) == []


def test_after_a_failed_write_a_stream_rejects_further_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = TraceStream(tmp_path / "t.part")
    stream.header(small_trace())
    with monkeypatch.context() as patch:
        Disk(patch, 2, FULL)
        with pytest.raises(TraceWriteError, match="No space left on device"):
            stream.add_strings(["a text that does not compress: 0123456789 abcdefghijklmnopqrstuvwxyz"])

    with pytest.raises(TraceWriteError, match="an earlier write failed"):
        stream.add_strings(["one more"])
    stream.close()

    assert load(tmp_path / "t.part").strings.texts == []
