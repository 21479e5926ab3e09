"""Tests that signals are deferred while a protected block runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest

from traces.script.deferred_signals import before_abrupt_ends, deferred_signals
from traces.script.patching import PATCHES

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def handled() -> Iterator[Callable[[signal.Signals, Callable[[int, FrameType | None], None]], None]]:
    """Return a function that sets a signal's handler. The old handlers are restored after the test."""
    before: dict[signal.Signals, object] = {}

    def handle(number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> None:
        before.setdefault(number, signal.signal(number, handler))

    yield handle
    for number, handler in before.items():
        signal.signal(number, handler)  # type: ignore[arg-type]


def test_ctrl_c_is_raised_after_the_protected_block_ends() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), deferred_signals():
        signal.raise_signal(signal.SIGINT)
        done.append("the rest")
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2])
def test_an_exception_raised_by_a_signal_handler_is_deferred(handled: Callable[..., None], number: signal.Signals) -> None:
    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(number)

    handled(number, leave)
    done = []
    with pytest.raises(SystemExit), deferred_signals():
        signal.raise_signal(number)
        done.append("the rest")
    assert done and signal.getsignal(number) is leave


def test_all_handlers_are_restored_if_one_raises_an_exception_meanwhile(
    handled: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts, set_handler = [KeyboardInterrupt()], signal.signal

    def interrupted(number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        set_handler(number, handler)
        if handler is leave and interrupts:
            raise interrupts.pop()  # as if the signal had arrived now, and its handler had raised an exception

    def leave(number: int, frame: FrameType | None) -> None: ...

    handled(signal.SIGUSR2, leave)
    with pytest.raises(KeyboardInterrupt), deferred_signals():
        monkeypatch.setattr("traces.script.deferred_signals._signal", SimpleNamespace(signal=interrupted))
    assert signal.getsignal(signal.SIGUSR2) is leave
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_deferred_signal_handlers_are_called_in_order(handled: Callable[..., None]) -> None:
    came = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        handled(number, lambda number, frame: came.append((number, frame is not None)))
    with deferred_signals():
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        assert not came
    assert came == [(signal.SIGUSR1, True), (signal.SIGTERM, True)]


def test_deferred_signals_can_be_nested() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), deferred_signals():
        with deferred_signals():
            signal.raise_signal(signal.SIGINT)
        done.append("outer")
    assert done == ["outer"]


def test_signal_handlers_are_restored_if_the_protected_block_raises_an_error(handled: Callable[..., None]) -> None:
    came = []
    handled(signal.SIGTERM, lambda number, frame: came.append(number))
    with pytest.raises(ValueError, match="disk"), deferred_signals():
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("disk")
    assert came == [signal.SIGTERM]


def test_ignored_signals_stay_ignored(handled: Callable[..., None]) -> None:
    handled(signal.SIGHUP, signal.SIG_IGN)
    with deferred_signals():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.raise_signal(signal.SIGHUP)


def test_deferring_signals_does_not_affect_other_threads() -> None:
    found = []

    def look() -> None:
        with deferred_signals():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


ENDS = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from traces.script.deferred_signals import at_exit

def finish():
    print("begun", flush=True)
    signal.raise_signal(signal.SIGINT)
    print("ended", flush=True)

at_exit(finish)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", ENDS + script], capture_output=True, text=True, timeout=60)


def test_the_exit_handler_prints_nothing_on_stderr() -> None:
    done = run("print('script')")
    assert (done.stdout, done.stderr, done.returncode) == ("script\nbegun\nended\n", "", 0)


def test_an_exit_handler_called_early_does_not_run_again() -> None:
    """GIVEN a script that calls the function that `at_exit` returned WHEN the interpreter exits THEN `finish` does not run
    again, not even in a forked process."""
    done = run(
        "end = at_exit(lambda: print('once', flush=True))\nif os.fork() == 0:\n    end()\n    os._exit(0)\nos.wait()\nend()"
    )
    assert done.stdout.splitlines() == ["once", "begun", "ended"]


def test_the_exit_handler_runs_even_if_ctrl_c_arrives_just_before_it() -> None:
    """The signal arrives before the interpreter calls its first exit function."""
    done = run(
        "import atexit, threading\n"
        "def first():\n"
        "    sys.setprofile(lambda frame, event, arg: event == 'call' and frame.f_code.co_name == 'once' and"
        " (sys.setprofile(None), signal.raise_signal(signal.SIGINT)))\n"
        "atexit.register(first)\n"
    )
    assert done.stdout == "begun\nended\n"
    assert done.stderr.count("KeyboardInterrupt") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_does_not_call_the_exit_function_of_its_parent() -> None:
    done = run("import os\nif not os.fork(): sys.exit()\nos.wait(); print('parent', flush=True)")
    assert done.stdout == "parent\nbegun\nended\n"


@pytest.mark.parametrize(
    ("call", "ends"),
    [
        (lambda: os._exit(3), True),
        (lambda: os.abort(), True),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), True),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), True),
        (lambda: os.killpg(0, signal.SIGKILL), True),
        (lambda: signal.raise_signal(signal.SIGALRM), True),
        (lambda: os.kill(os.getpid(), 0), False),  # this call only checks whether the process exists
        (lambda: os.kill(os.getpid(), signal.SIGINT), False),  # Python raises KeyboardInterrupt
        (lambda: os.kill(os.getppid(), signal.SIGTERM), False),
        (lambda: signal.raise_signal(signal.SIGCHLD), False),  # the operating system ignores this signal by default
    ],
)
def test_the_recording_is_saved_before_the_script_calls_exec_or_kills_itself(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], object], ends: bool
) -> None:
    calls: list[str] = []
    for owner, names in ((os, ("_exit", "execv", "execve", "abort", "kill", "killpg")), (signal, ("raise_signal",))):
        for name in names:
            monkeypatch.setattr(owner, name, lambda *_: calls.append("the original"))
    before_abrupt_ends(lambda: calls.append("finish"))
    try:
        call()
    finally:
        PATCHES.undo()
    assert calls == (["finish"] if ends else []) + ["the original"]
