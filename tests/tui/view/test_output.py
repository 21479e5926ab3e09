"""Tests that the script's output is kept unchanged while the app uses the terminal, and printed at the end."""

from __future__ import annotations

import io
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.view.script_output import Lines, ScriptOutput

_PROGRAM = """
import sys
print(sys.stdout.isatty(), sys.stderr.isatty())
print("to stderr", file=sys.stderr)
print("20 %\\r40 %\\r100 %")
print("\\x1b[31mred\\x1b[0m", end="")
"""


class Screen:
    """Fakes stdout, and stores what is written."""

    def __init__(self) -> None:
        self.buffer = io.BytesIO()

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


def screened(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Replace sys.stdout. This is not a fixture, because pytest would replace sys.stdout again."""
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    return screen


def wait_for(condition: str, output: ScriptOutput) -> None:
    deadline = time.monotonic() + 20
    while condition not in "\n".join(output.tail(50)):
        assert time.monotonic() < deadline, output.tail(50)
        time.sleep(0.002)


def test_the_script_writes_to_a_pseudo_terminal_and_no_output_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screened(monkeypatch)
    with ScriptOutput(stdout=True, stderr=True) as output:
        command = [sys.executable, "-c", _PROGRAM]
        subprocess.run(command, stdout=output.stdout, stderr=output.stderr, check=True)
        wait_for("red", output)
        # While the app is open, the output is shown in the app and not printed.
        assert output.tail(9) == ["True True", "to stderr", "100 %", "\x1b[31mred\x1b[0m"]
        assert output.tail(1) == ["\x1b[31mred\x1b[0m"] and screen.buffer.getvalue() == b""
        # After the app is closed, all output is printed, and later output is printed immediately.
        output.release()
        printed = screen.buffer.getvalue()
        assert printed == b"True True\nto stderr\n20 %\r40 %\r100 %\n\x1b[31mred\x1b[0m"
        subprocess.run([sys.executable, "-c", "print('more')"], stdout=output.stdout, check=True)
        wait_for("more", output)
    assert screen.buffer.getvalue() == printed + b"more\n"


def test_the_output_of_the_script_is_printed_even_if_the_app_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screened(monkeypatch)
    with pytest.raises(ZeroDivisionError), ScriptOutput(stdout=True, stderr=False) as output:
        subprocess.run([sys.executable, "-c", "print('kept')"], stdout=output.stdout, check=True)
        wait_for("kept", output)
        raise ZeroDivisionError
    assert screen.buffer.getvalue() == b"kept\n"


def test_a_redirected_output_stream_is_not_captured() -> None:
    with ScriptOutput(stdout=False, stderr=True) as output:
        assert output.stdout is None and output.stderr is not None


@given(st.binary(max_size=60), st.integers(1, 7))
def test_captured_output_lines_do_not_depend_on_how_the_output_is_split(data: bytes, size: int) -> None:
    at_once, piecewise = Lines(), Lines()
    at_once.feed(data)
    for begin in range(0, len(data), size):
        piecewise.feed(data[begin : begin + size])
    assert piecewise.tail(100) == at_once.tail(100)


def test_only_the_last_state_of_a_progress_bar_is_kept() -> None:
    lines = Lines()
    for part in (b"epoch 1\n 10 %", b"\r 20 %", b"\r 30 %\r"):
        lines.feed(part)
    assert lines.tail(5) == ["epoch 1", " 30 %"]
