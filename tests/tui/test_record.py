"""Tests what `trace record` writes after the script has ended: one merged file, or the partial files of the processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from traces.format.trace_file import TraceStream, load, save
from traces.model.run import Run
from traces.model.trace import Steps, Thread, Trace, TraceWriteError
from traces.script.launch import ChildResult
from tui.commands import record
from tui.commands.record import run
from tui.options import RecordOptions


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which a fake script is recorded. The script ends with exit code 0."""
    monkeypatch.chdir(tmp_path)

    def ran(*arguments: Any, **options: Any) -> ChildResult:
        stream = TraceStream(tmp_path / "x.msgpack.4711.part")
        stream.header(Trace(grain="phase", threads=[Thread(0, 1, "main", "main")], runs={0: Run()}))
        stream.add("steps", Steps.of(number=[0, 1], start_ns=[5, 15], duration_ns=[10, 10]))
        stream.close()
        return ChildResult(0, 4711, *(frozenset({4711}),) * 3)

    monkeypatch.setattr(record, "run_child", ran)
    return tmp_path


TRAIN = RecordOptions(["train.py"], Path("x.msgpack"), grain="phase")


def test_record_merges_the_partial_files_into_one(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TRAIN) == 0
    assert os.listdir(place) == ["x.msgpack"] and len(load(place / "x.msgpack").steps) == 2
    assert "trace: wrote x.msgpack" in capsys.readouterr().err


def test_record_deletes_the_file_that_the_profiler_leaves_on_a_full_disk(place: Path) -> None:
    (place / "x.msgpack.4711.profile.json.tmp").touch()
    assert run(TRAIN) == 0
    assert os.listdir(place) == ["x.msgpack"]


def test_record_names_the_signal_that_killed_the_script(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: Callable[..., ChildResult] = vars(record)["run_child"]
    code = 128 + signal.SIGSEGV
    monkeypatch.setattr(record, "run_child", lambda *words, **options: replace(ended(*words, **options), returncode=code))
    assert run(TRAIN) == code
    assert capsys.readouterr().err.startswith("trace: SIGSEGV ended the script, after 2 steps.\ntrace: wrote x.msgpack")


def test_a_program_started_by_exec_has_a_separate_partial_file(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GIVEN a program with 2 steps that replaces itself with a program with 3 steps (os.exec) THEN the longer recording is
    kept."""
    first: Callable[..., ChildResult] = vars(record)["run_child"]

    def ran(*arguments: Any, **options: Any) -> ChildResult:
        stream = TraceStream(place / "x.msgpack.4711.2.part")
        stream.header(Trace(grain="phase", threads=[Thread(0, 1, "main", "main")], runs={0: Run()}))
        stream.add("steps", Steps.of(number=[0, 1, 2], start_ns=[5, 15, 25], duration_ns=[10, 10, 10]))
        stream.close()
        return first(*arguments, **options)

    monkeypatch.setattr(record, "run_child", ran)
    assert run(TRAIN) == 0
    assert os.listdir(place) == ["x.msgpack"] and len(load(place / "x.msgpack").steps) == 3
    assert "2 processes were recorded as 1 rank;" in capsys.readouterr().err


def test_the_longest_recording_of_each_rank_is_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process without steps, for example a helper of `multiprocessing`, is not counted."""
    first: Callable[..., ChildResult] = vars(record)["run_child"]

    def ran(*arguments: Any, **options: Any) -> ChildResult:
        for pid, rank, steps in ((4712, 1, 1), (4713, 1, 3), (4714, 1, 0)):
            stream = TraceStream(place / f"x.msgpack.{pid}.part")
            stream.header(Trace(grain="phase", threads=[Thread(rank, 1, "main", "main")], runs={rank: Run()}))
            times = {"start_ns": [5 + 10 * n for n in range(steps)], "duration_ns": [10] * steps}
            stream.add("steps", Steps.of(rank=[rank] * steps, number=range(steps), **times))
            stream.close()
        return first(*arguments, **options)

    monkeypatch.setattr(record, "run_child", ran)
    assert run(TRAIN) == 0
    trace = load(place / "x.msgpack")
    assert [(trace.steps.rank == rank).sum() for rank in trace.ranks] == [2, 3]
    assert "3 processes were recorded as 2 ranks;" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 3])
def test_record_returns_the_scripts_exit_code_unless_saving_fails(
    place: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """GIVEN a script that ends with `code` WHEN its recording cannot be written, or Ctrl-C stops the writing THEN the command
    ends with `code`. If `code` is 0, the command ends with an error code."""
    first: Callable[..., ChildResult] = vars(record)["run_child"]
    monkeypatch.setattr(record, "run_child", lambda *words, **options: replace(first(*words, **options), returncode=code))
    monkeypatch.setattr(record, "merge_ranks", lambda traces: signal.raise_signal(signal.SIGINT))
    assert run(TRAIN) == (code or 128 + signal.SIGINT)

    def full(traces: list[Trace]) -> None:
        raise TraceWriteError(place, "No space left on device")

    os.remove(place / "x.msgpack.4711.part")
    monkeypatch.setattr(record, "merge_ranks", full)
    assert run(TRAIN) == (code or 2)


@pytest.mark.parametrize("where", ["load", "merge_ranks"])
def test_a_second_ctrl_c_keeps_and_names_the_partial_files(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(record, where, interrupted)
    assert run(TRAIN) == 128 + signal.SIGINT
    assert os.listdir(place) == ["x.msgpack.4711.part"]
    assert capsys.readouterr().err.splitlines() == [
        "trace: interrupted before x.msgpack was written",
        "trace: the recording is kept in x.msgpack.4711.part",
    ]


def test_ctrl_c_without_a_recording_reports_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(record, "run_child", lambda *arguments, **options: ChildResult(0, 4711, *(frozenset[int](),) * 3))
    monkeypatch.setattr(record, "explain_empty_run", lambda *arguments: signal.raise_signal(signal.SIGINT))
    assert run(TRAIN) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "trace: interrupted before x.msgpack was written\n"


def test_ctrl_c_during_the_write_takes_effect_after_the_file_is_complete(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = save

    def interrupted(trace: Trace, path: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        whole(trace, path)

    monkeypatch.setattr(record, "save", interrupted)
    assert run(TRAIN) == 128 + signal.SIGINT
    assert os.listdir(place) == ["x.msgpack"]
    assert capsys.readouterr().err == "trace: wrote x.msgpack\n"


def test_a_full_disk_keeps_and_names_the_partial_files(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(trace: Trace, path: Path) -> None:
        raise TraceWriteError(path, "No space left on device")

    monkeypatch.setattr(record, "save", full)
    assert run(TRAIN) == 2
    assert os.listdir(place) == ["x.msgpack.4711.part"]
    assert "kept in x.msgpack.4711.part" in capsys.readouterr().err
    os.remove(place / "x.msgpack.4711.part")
    assert run(replace(TRAIN, output=place / "x.msgpack")) == 2
    assert f"kept in {place / 'x.msgpack.4711.part'}" in capsys.readouterr().err
