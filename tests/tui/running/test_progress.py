"""Tests when the elapsed time of a long task is shown."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace

import pytest

from tui.running import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def clock(*times_s: float) -> SimpleNamespace:
    return SimpleNamespace(monotonic=iter(times_s).__next__)


class Waits:
    """Fakes an Event that is set after a number of waits. `periods_s` contains the duration of each wait."""

    def __init__(self, unset: int, periods_s: list[float]) -> None:
        self.unset, self.periods_s = unset, periods_s

    def wait(self, timeout_s: float) -> bool:
        self.periods_s.append(timeout_s)
        return len(self.periods_s) > self.unset

    def set(self) -> None:
        pass


@pytest.mark.parametrize(
    ("unset", "periods_s", "shown"),
    [
        (0, [0.5], ""),
        (1, [0.5, 0.2], "\r\x1b[Kreading x ... 3 s\r\x1b[K"),
        (2, [0.5, 0.2, 0.2], "\r\x1b[Kreading x ... 3 s\r\x1b[Kreading x ... 8 s\r\x1b[K"),
    ],
)
def test_a_terminal_shows_the_seconds_of_a_long_task_and_erases_them(
    unset: int, periods_s: list[float], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a task that has taken 3 s and then 7.6 s THEN the terminal shows 3 s and then 8 s. In the end, the line is
    erased."""
    terminal, waited_s = Terminal(), list[float]()
    threads = SimpleNamespace(Event=lambda: Waits(unset, waited_s), Thread=threading.Thread)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress, "threading", threads)
    monkeypatch.setattr(progress, "time", clock(100.0, 103.0, 107.6))
    with progress.working("reading x"):
        pass
    assert (terminal.getvalue(), waited_s) == (shown, periods_s)


@pytest.mark.parametrize(
    ("stream", "quiet", "ticks"),
    [(Terminal(), False, ["x"]), (Terminal(), True, []), (io.StringIO(), False, []), (io.StringIO(), True, [])],
)
def test_progress_is_shown_only_on_a_terminal_and_without_quiet(
    stream: io.StringIO, quiet: bool, ticks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticked: list[str] = []
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "is_quiet", lambda: quiet)
    monkeypatch.setattr(progress, "_tick", lambda what, done: ticked.append(what))
    with progress.working("x"):
        pass
    assert ticked == ticks


def test_a_verbose_command_prints_the_time_of_a_task(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "is_verbose", lambda: True)
    monkeypatch.setattr(progress, "time", clock(100.0, 102.54))
    with progress.working("reading x"):
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "trace: reading x took 2.5 s\n"
