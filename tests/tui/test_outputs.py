"""Tests that output files are complete or missing, and that text is coloured only on a terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.traces.handmade import training
from traces.combining.merge import merge_ranks
from traces.format.trace_file import save
from tui.commands import export
from tui.errors import line_for
from tui.outputs import open_standard_streams, require_writable, write_json
from tui.terminal import terminal_style


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_json_file_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    # WHEN the value cannot be written as JSON THEN the old file is unchanged, and there is no other file
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_writing_json_to_a_deleted_folder_creates_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_json(tmp_path / "gone" / "r.json", {})
    assert list(tmp_path.iterdir()) == []


def test_writing_json_to_a_device_file_does_not_replace_the_device_file() -> None:
    null = Path("/dev/null")
    write_json(null, {"a": 1})
    assert null.is_char_device()


def test_an_output_path_that_cannot_be_written_is_rejected(tmp_path: Path) -> None:
    require_writable(None)
    require_writable(tmp_path / "new.json")
    for path, kind in ((tmp_path, IsADirectoryError), (tmp_path / "no" / "r.json", FileNotFoundError)):
        with pytest.raises(kind) as caught:
            require_writable(path)
        assert line_for(caught.value) is not None


def test_output_is_coloured_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert terminal_style(Terminal()) == {"width": 77, "colour": True}
    assert terminal_style(io.StringIO()) == {"width": 100, "colour": False}
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal_style(Terminal())["colour"] is False


def test_two_traces_are_exported_into_one_file_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(training(), tmp_path / "t.msgpack")
    (tmp_path / "out").mkdir()
    assert export.run("t.msgpack", "t.msgpack", Path("out"), json=False) == 0
    assert "wrote out/both.json.gz; open it" in capsys.readouterr().err and (tmp_path / "out/both.json.gz").is_file()


def test_an_export_of_many_ranks_prints_the_first_and_the_last_file_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for ranks, files in ((2, "x_rank0.json.gz, x_rank1.json.gz"), (9, "x_rank0.json.gz to x_rank8.json.gz (9 files)")):
        save(merge_ranks([training()] * ranks, range(ranks)), tmp_path / "t.msgpack")
        assert export.run("t.msgpack", None, Path("x.json.gz"), json=False) == 0
        assert f"wrote {files}; open each file in ui.perfetto.dev" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", b"2 us +-3 % -> \\u20ac##"), ("latin-1", b"2 \xb5s \xb13 % -> \\u20ac##"), ("utf-8", None)],
)
def test_characters_that_a_terminal_cannot_show_are_replaced_readably(encoding: str, shown: bytes | None) -> None:
    open_standard_streams()
    text = "2 µs ±3 % → €█▁"
    assert text.encode(encoding, "trace") == (text.encode() if shown is None else shown)
