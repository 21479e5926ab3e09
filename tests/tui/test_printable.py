"""Tests that control characters in recorded names are not printed, but colour codes of this tool are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.replayer.recordings import Op, make_recording
from traces.drawing.safe_text import escape
from traces.format.trace_file import save
from tui.cli import run
from tui.formatting import paint, printable
from tui.view.picture import picture


def test_control_characters_are_replaced_but_colour_codes_are_kept() -> None:
    hostile = "\x1b]0;title\x07 \x9b31m \x1b[5m \r \u202e \ttab\n"

    assert printable(hostile, colour=True) == "\ufffd]0;title\ufffd \ufffd31m \ufffd \ufffd \ufffd \ttab\n"
    assert printable(paint("x", "red", colour=True), colour=True) == "\x1b[31mx\x1b[0m"
    assert printable(paint("x", "red", colour=True), colour=False) == "\ufffdx\ufffd"


HOSTILE = "Tesla \x1b]0;owned\x07 \x1b[5mT4\x9b31m\u202e"


def test_no_output_contains_the_escape_sequences_of_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GIVEN a recording with escape sequences in its names WHEN the recording is printed, drawn or exported THEN no output
    contains them. The picture is valid XML."""
    trace = make_recording([("forward", 0, 100)], [Op(f"aten::mm {HOSTILE}", 10, 20, kernel=(20, 5))])
    trace.devices = [replace(device, name=HOSTILE) for device in trace.devices]
    save(trace, tmp_path / "t.msgpack")
    name = str(tmp_path / "t.msgpack")
    for words in (["info", name], ["predict", name, "--on-gpu", "v100"], ["explain", name, name], ["diff", name, name]):
        assert run(words) == 0, words
    found = capsys.readouterr()
    assert "\x1b" not in found.out + found.err and "\x07" not in found.out + found.err
    drawn = picture([name], 120, 30)
    ElementTree.fromstring(drawn)
    assert "\x1b" not in drawn + trace._repr_html_()
    assert run(["export", name, "-o", str(tmp_path / "t.json")]) == 0
    exported = (tmp_path / "t.json").read_text()
    assert "Tesla \\u001b" in exported and not {"\x1b", "\x9b", "\u202e"} & set(exported)
    assert escape(HOSTILE + "<") == "Tesla \ufffd]0;owned\ufffd \ufffdT4\ufffd31m\ufffd&lt;"
