"""Tests the messages about how a script ended, and about options that were passed to the script by mistake."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from traces.script.launch import ChildResult
from tui.argv import ScriptCommand
from tui.running import narration
from tui.running.narration import ending_text, explain_empty_run, hint_misplaced_option

NO_PID = frozenset[int]()
CHILD = frozenset((5,))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (ChildResult(1, 5, NO_PID, NO_PID, NO_PID), ""),  # Python has printed the error itself
        (ChildResult(143, 5, CHILD, CHILD, CHILD), "SIGTERM ended the script"),  # Python does not print why
        (ChildResult(0, 5, NO_PID, NO_PID, NO_PID), "the script's interpreter ignores PYTHONPATH (python -I, -E or -S?)"),
        (
            ChildResult(0, 5, frozenset((6,)), CHILD, CHILD),
            "the script's interpreter ignores PYTHONPATH (python -I, -E or -S?)",
        ),
        (ChildResult(0, 5, CHILD, NO_PID, NO_PID), "the script did not import torch"),
        (ChildResult(0, 5, CHILD, CHILD, NO_PID), ""),  # the child process has printed why it could not start
        (ChildResult(0, 5, CHILD, CHILD, CHILD), "the script ran no step"),
    ],
)
def test_a_run_that_recorded_nothing_is_explained_with_one_reason(
    result: ChildResult, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    explain_empty_run(result, "recorded", "ran no step")
    assert capsys.readouterr().err == (said and f"trace: nothing was recorded: {said}\n")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "the script ended with exit code 1"),
        (128, "the script ended with exit code 128"),
        (129, "SIGHUP ended the script"),
        (143, "SIGTERM ended the script"),
        (160, "the script ended with exit code 160"),  # 32 is not the number of a signal
        (255, "the script ended with exit code 255"),
    ],
)
def test_exit_codes_above_128_are_reported_as_signals(code: int, text: str) -> None:
    assert ending_text(code) == text


class Replay(ScriptCommand):
    def __init__(self) -> None:
        self.name = "replay"

    def option_names(self, ctx: object) -> dict[str, bool]:
        return {"--out-file": True, "-o": True}


@pytest.mark.parametrize(
    ("text", "words", "refused", "option"),
    [
        ("", ["--out-file", "a"], False, "--out-file"),
        ("", ["7", "--out-file=a"], False, "--out-file"),
        ("args.out_file", ["--out-file", "a"], False, ""),  # the script has this option
        ("args.out_file", ["--out-file", "a"], True, "--out-file"),  # the script rejected this option
        ("args.out_file", ["--out-file", "a.msgpack"], False, "--out-file"),
        ("args.out_file", ["--out-file=a.msgpack"], False, "--out-file"),
        ("args.out_file", ["--out-file", "a", "b.msgpack"], False, ""),
        ("", ["-o", "a"], False, ""),  # many scripts have options of one letter
        ("", ["-o", "a"], True, "-o"),
        ("", ["-o", "a.msgpack"], False, "-o"),
        ("", ["--other", "a.msgpack"], True, ""),
        ("args.out_file", ["--out-file", "a", "-o", "a.msgpack"], False, "-o"),
    ],
)
def test_a_hint_names_misplaced_trace_options_that_the_script_does_not_accept(
    text: str,
    words: list[str],
    refused: bool,
    option: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "train.py").write_text(text)
    monkeypatch.setattr(narration, "get_current_context", lambda silent: SimpleNamespace(command=Replay()))
    hint_misplaced_option([str(tmp_path / "train.py"), *words], refused=refused)
    expected = f"trace: {option} was passed to the script; put options of trace replay before the script\n"
    assert capsys.readouterr().err == (option and expected)


@pytest.mark.parametrize("context", [None, SimpleNamespace(command=SimpleNamespace(name="view"))])
def test_options_are_reported_only_by_commands_that_run_a_script(
    context: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narration, "get_current_context", lambda silent: context)
    hint_misplaced_option(["train.py", "-o", "a.msgpack"], refused=True)
    assert capsys.readouterr().err == ""
