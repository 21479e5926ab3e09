"""Tests that flushed data in the recorder's file is readable without delay, and that a full disk ends only the recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tracer.fakes import FakeClock
from tracer.writing.output import RecordingFile
from traces.format.step_block import StepBlock
from traces.format.trace_file import TraceStream, load
from traces.model.trace import NONE, Trace, TraceWriteError


def output_at(path: Path) -> RecordingFile:
    clock: Any = FakeClock()
    return RecordingFile(path, clock)


def test_flushed_rows_can_be_read_before_the_end(tmp_path: Path) -> None:
    output = output_at(tmp_path / "x.part")
    output.add("steps", rank=0, number=0, start_ns=5, duration_ns=7, kind=1)
    output.flush(Trace(provenance={"a": 1}))
    output.add("steps", rank=0, number=1, start_ns=12, duration_ns=7)
    trace = load(tmp_path / "x.part")
    assert trace.steps.number.tolist() == [0]
    assert trace.steps.recorded_step.tolist() == [NONE]
    assert trace.provenance == {"a": 1} and trace.problems == {"truncated-file": 1}
    output.close(Trace(provenance={"a": 2}))
    trace = load(tmp_path / "x.part")
    assert (len(trace.steps), trace.provenance, trace.problems) == (2, {"a": 2}, {})


def test_a_file_has_unwritten_rows_until_the_next_write(tmp_path: Path) -> None:
    def row() -> None:
        output.add("steps", rank=0, number=0, start_ns=5, duration_ns=7, kind=1)

    def block() -> None:
        output.add_block(StepBlock(0, 0, 1, 1, 2, [output.text("forward")], [0], [1], [5, 7, 12]))

    output = output_at(tmp_path / "x.part")
    assert not output.has_rows
    for add in (row, block):
        add()
        assert output.has_rows
        output.flush(Trace())
        assert not output.has_rows


def test_the_time_between_writes_grows_to_half_a_second(tmp_path: Path) -> None:
    output = output_at(tmp_path / "x.part")
    pauses_ns = []
    for _ in range(8):
        output.flush(Trace())
        pauses_ns.append(output.due_ns - output._clock.perf_ns())
    assert [pause_ns // 10**6 for pause_ns in pauses_ns] == [10, 20, 40, 80, 160, 320, 500, 500]


def test_rows_added_after_the_recording_was_closed_are_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A daemon thread of the script may train until the process ends."""
    output = output_at(tmp_path / "x.part")
    output.close(Trace())
    output.add("steps", rank=0, number=0, start_ns=5, duration_ns=7)
    output.flush(None)
    assert len(load(tmp_path / "x.part").steps) == 0
    assert capsys.readouterr().err == ""


def test_an_empty_recording_has_only_a_header(tmp_path: Path) -> None:
    output = output_at(tmp_path / "x.part")
    output.close(Trace())
    assert len(load(tmp_path / "x.part").steps) == 0


@pytest.mark.parametrize("call", range(4))
def test_a_failed_write_ends_the_recording_with_one_error_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: int
) -> None:
    """For each k, the k-th write fails. The recorder then prints one line and raises no exception. The beginning of the file is
    readable."""
    left = [call]

    def failing(method: Any) -> Any:
        def attempt(self: TraceStream, *args: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise TraceWriteError(self.path, "No space left on device")
            return method(self, *args)

        return attempt

    for name in ("header", "add_strings", "add_items", "close"):
        monkeypatch.setattr(TraceStream, name, failing(getattr(TraceStream, name)))
    output = output_at(tmp_path / "x.part")
    for number in range(3):
        output.add("steps", number=number, start_ns=number, duration_ns=1)
        output.text(f"text {number}")
        output.flush(Trace())
    output.close(Trace())
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "the script continues" in said[0] and "No space left on device" in said[0]
    assert output.is_ended


def test_a_missing_output_folder_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = output_at(tmp_path / "no" / "x.part")
    output.add("steps", number=0)
    output.flush(Trace())
    assert "No such file or directory" in capsys.readouterr().err


def test_recorded_rows_with_different_columns_are_written_in_order(tmp_path: Path) -> None:
    """GIVEN rows of which some lack a column THEN all rows are written in the order of their numbers."""
    output = output_at(tmp_path / "t.part")
    assert output.add("steps", number=5, start_ns=1) == 0
    assert output.add_all("steps", [(("number", "duration_ns"), 6, 3), (("number", "duration_ns"), 7, 4)]) == 1
    assert output.add("steps", number=8, start_ns=2) == 3
    output.close(Trace(grain="phase"))
    steps = load(tmp_path / "t.part").steps
    assert steps.number.tolist() == [5, 6, 7, 8] and steps.start_ns.tolist() == [1, 0, 0, 2]
    assert steps.duration_ns.tolist() == [0, 3, 4, 0] and steps.rank.tolist() == [0] * 4
