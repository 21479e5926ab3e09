"""Tests which arguments of a command line belong to trace, and which belong to the script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from tui.argv import split
from tui.cli import run

OPTIONS = {"--trace": True, "-o": True, "--output": True, "--loader": True, "--strict": False, "--help": False}

TABLE = [
    # A row has the command line, and then the arguments of trace and of the script, separated by "|".
    ("train.py", "| train.py"),
    ("train.py --trace t", "--trace t | train.py"),
    ("train.py --trace=t --lr 0.1", "--trace=t | train.py --lr 0.1"),
    ("train.py --lr 0.1 --trace t -v", "--trace t | train.py --lr 0.1 -v"),
    ("--trace t train.py", "--trace t | train.py"),
    ("-o r --strict train.py --trace t", "-o r --strict --trace t | train.py"),
    ("-or train.py --trace t", "-or --trace t | train.py"),
    ("--output=r train.py --trace t", "--output=r --trace t | train.py"),
    # After the script, every option except --trace belongs to the script.
    ("train.py --trace t -o x --strict --help -t5", "--trace t | train.py -o x --strict --help -t5"),
    ("train.py --tra t", "| train.py --tra t"),
    ("train.py --tracefile t", "| train.py --tracefile t"),
    # Only the first --trace belongs to trace.
    ("--trace t train.py --trace u", "--trace t | train.py --trace u"),
    ("--trace=t train.py --trace=u", "--trace=t | train.py --trace=u"),
    ("train.py --trace t --trace u", "--trace t | train.py --trace u"),
    # After "--", no argument belongs to trace. A "--" before the script is dropped.
    ("--trace t -- train.py --trace u", "--trace t | train.py --trace u"),
    ("--trace t -- -m package --strict", "--trace t | -m package --strict"),
    ("train.py --trace t -- --trace u", "--trace t | train.py -- --trace u"),
    ("train.py -- --trace u", "| train.py -- --trace u"),
    # After -m MODULE, options belong to the module.
    ("-m package.train --trace t -o x", "--trace t | -m package.train -o x"),
    ("--strict -m package --lr 1 --trace t", "--strict --trace t | -m package --lr 1"),
    ("-mpackage --trace t", "--trace t | -mpackage"),
    ("-m --trace --trace t", "--trace t | -m --trace"),
    # After -c CODE, options belong to the code.
    ("-o r -c import --trace t -o x", "-o r --trace t | -c import -o x"),
    # The word "python" before the script is dropped.
    ("--trace t python train.py --lr 1", "--trace t | train.py --lr 1"),
    ("python3 -m package.train --trace t", "--trace t | -m package.train"),
    ("python3.12 -u train.py", "| -u train.py"),
    # Options of python may come directly before the script.
    ("-u train.py -o x", "| -u train.py -o x"),
    ("-o r -u -W error train.py --trace t", "-o r --trace t | -u -W error train.py"),
    ("-o -u train.py", "-o -u | train.py"),
    ("-o r -- python train.py", "-o r | train.py"),
    ("python", "|"),
    ("python.py python", "| python.py python"),
    # An option's value may look like a script or an option.
    ("--trace train.py train.py", "--trace train.py | train.py"),
    ("-o --strict train.py", "-o --strict | train.py"),
    ("train.py --trace --lr", "--trace --lr | train.py"),
    ("- --trace t", "--trace t | -"),
    # An unknown option before the script is passed to trace, which rejects it.
    ("--frobnicate train.py", "--frobnicate | train.py"),
    ("-o", "-o |"),
    ("", "|"),
]


@pytest.mark.parametrize(("words", "expected"), TABLE)
def test_arguments_are_split_between_trace_and_the_script(words: str, expected: str) -> None:
    ours, _, script = expected.partition("|")
    assert split(words.split(), OPTIONS) == (ours.split(), script.split())


def test_a_trace_option_that_the_command_lacks_is_passed_to_the_script() -> None:
    assert split(["-o", "r", "train.py", "--trace", "t"], {"-o": True}) == (["-o", "r"], ["train.py", "--trace", "t"])


def test_a_trace_option_without_its_file_is_rejected() -> None:
    with pytest.raises(typer.BadParameter, match="FILE"):
        split(["train.py", "--trace"], OPTIONS)


some_words = st.lists(st.sampled_from(["train.py", "--trace=t", "-o", "x", "--strict", "--", "-m", "--lr", "-", "0.1"]))


@given(some_words)
def test_splitting_a_command_line_neither_loses_nor_adds_arguments(words: list[str]) -> None:
    ours, script = split(words, OPTIONS)
    dropped = 1 if len(ours) + len(script) < len(words) else 0
    assert sorted([*ours, *script, *["--"] * dropped]) == sorted(words)


@given(some_words)
def test_arguments_of_the_script_keep_their_order(words: list[str]) -> None:
    _, script = split(["--trace=t", "train.py", *words], OPTIONS)
    assert script == ["train.py", *words]


@pytest.mark.parametrize(("installer", "file"), [("uv", "uv-receipt.toml"), ("pipx", "pipx_metadata.json")])
def test_a_note_says_that_scripts_run_in_the_environment_of_trace(
    installer: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    words = ["replay", "train.py", "--trace", str(tmp_path / "none")]
    run(words)
    assert "environment" not in capsys.readouterr().err
    (tmp_path / file).touch()
    run(words)
    run(["-q", *words])
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith(f"trace: {installer} installed trace into a separate environment")
    assert not any("environment" in line for line in others)
