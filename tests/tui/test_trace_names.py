"""Tests that commands accept recordings of torch.profiler instead of trace files, and import them first."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.traces.handmade import training
from traces.format.trace_file import load, save
from traces.kineto.reading.sources import is_profiler_recording
from traces.model.trace import TraceError
from tui.cli import run
from tui.trace_names import load_replayable, load_trace, viewable


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that contains a trace file and its export to the profiler's format."""
    monkeypatch.chdir(tmp_path)
    save(training(), Path("a.msgpack"))
    assert run(["export", "a.msgpack", "-o", "a.json.gz", "-q"]) == 0
    return tmp_path


def test_info_of_a_profiler_recording_equals_info_of_the_imported_trace(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for name in ("a.msgpack", "a.json.gz"):
        assert run(["info", name, "--json"]) == 0
        printed.append(json.loads(capfd.readouterr().out)["counts"])
    assert printed[0] == printed[1] and printed[0]["kernels"] > 0


def test_profiler_recordings_can_be_compared_and_plotted(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", "a.msgpack", "a.json.gz"]) == 0
    assert "B  a.json.gz" in capfd.readouterr().out
    assert run(["view", "a.json.gz", "--screenshot", "a.svg"]) == 0
    picture = Path("a.svg").read_text()
    assert picture.startswith("<svg") and "a.json.gz" in picture and "trace-import" not in picture
    capfd.readouterr()
    assert run(["view", "a.json.gz"]) == 0
    said = capfd.readouterr().out
    assert "--trace a.json.gz" in said and "trace-import" not in said


def test_a_folder_of_ranks_is_one_trace(folder: Path) -> None:
    Path("ranks").mkdir()
    shutil.copy("a.json.gz", "ranks/rank0.json.gz")
    assert len(load_trace("ranks").device.start_ns) == len(load_trace("a.msgpack").device.start_ns)


def test_a_replay_of_a_profiler_recording_uses_an_imported_file(folder: Path) -> None:
    path, trace = load_replayable("a.json.gz")
    assert path.name == "a.msgpack" and path.parent != folder
    assert load(path).device.start_ns.tolist() == trace.device.start_ns.tolist()
    assert Path(viewable("a.json.gz")).read_bytes() == path.read_bytes() and viewable("a.msgpack") == "a.msgpack"


def test_a_file_may_have_a_former_name_of_a_library_trace(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy("a.msgpack", "p100.msgpack")
    assert load_trace("p100.msgpack").devices == training().devices
    assert "is now called" not in capfd.readouterr().err


def test_imported_files_are_removed_when_the_command_ends(folder: Path) -> None:
    (folder / "tmp").mkdir()
    words = [sys.executable, "-m", "tui.cli", "view", "a.json.gz", "--screenshot", "a.svg"]
    subprocess.run(words, check=True, env=os.environ | {"TMPDIR": str(folder / "tmp")}, timeout=60)
    assert list((folder / "tmp").iterdir()) == []


def test_errors_name_the_profiler_recording_and_not_the_imported_file(folder: Path) -> None:
    Path("idle.json").write_text('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]}')
    with pytest.raises(TraceError, match=r"^idle\.json contains no GPU work to replay"):
        load_replayable("idle.json")


@pytest.mark.parametrize(
    ("start", "is_one"),
    [
        (b'{"a"', True),
        (b"\xef\xbb\xbf\n [{", True),
        (b"\x1f\x8b", True),
        (b"PK\x03\x04", True),
        (b"", False),
        (b"\x92\xac", False),
    ],
)
def test_a_profiler_recording_is_recognized_by_its_first_bytes(tmp_path: Path, start: bytes, is_one: bool) -> None:
    (tmp_path / "file").write_bytes(start)
    assert is_profiler_recording(tmp_path / "file") is is_one
    assert is_profiler_recording(tmp_path) and not is_profiler_recording(tmp_path / "missing")
