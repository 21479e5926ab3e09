"""Tests ranks that are forked before the script starts: their environment variables, and how a run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from traces.bootstrap import _trace_ranks

BOOTSTRAP = Path(__file__).parents[3] / "traces/bootstrap"
START = f"""
import os, signal, sys, time
sys.path.insert(0, {str(BOOTSTRAP)!r})
import _trace_ranks

def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())  # write whole lines, because ranks write at the same time
"""
FORK = """
rank = _trace_ranks.fork_ranks(3)
_trace_ranks.mark_rank(rank)
"""


@pytest.mark.parametrize(("other", "expected"), [(0, True), (1, False)])
def test_a_process_in_the_foreground_of_a_terminal_receives_its_signals(
    monkeypatch: pytest.MonkeyPatch, other: int, expected: bool
) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    monkeypatch.setattr(_trace_ranks, "open", lambda path, mode: os.fdopen(nothing, mode), raising=False)
    monkeypatch.setattr(os, "tcgetpgrp", lambda file: os.getpgrp() + other)
    assert _trace_ranks._in_foreground_of_a_terminal() is expected


def test_a_process_without_a_terminal_is_not_in_the_foreground(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str, mode: str) -> None:
        raise OSError

    monkeypatch.setattr(_trace_ranks, "open", missing, raising=False)
    assert not _trace_ranks._in_foreground_of_a_terminal()


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", START + script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})


def test_each_rank_knows_its_local_rank_and_the_number_of_its_machine() -> None:
    done = run(FORK + "say(*(os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'GROUP_RANK')))", LOCAL_WORLD_SIZE="2")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["0 0 0", "1 1 0", "2 0 1"]


@pytest.mark.parametrize(
    ("ends", "code", "told"),
    [("os._exit(5)", 5, "exit code 5"), ("os.kill(os.getpid(), signal.SIGKILL)", 137, "signal SIGKILL")],
)
def test_a_rank_that_fails_ends_all_ranks(ends: str, code: int, told: str) -> None:
    began_s = time.monotonic()
    done = run(f"{FORK}\nif rank == 1: {ends}\ntime.sleep(50)", LOCAL_WORLD_SIZE="3")
    assert done.returncode == code and time.monotonic() - began_s < 25
    assert done.stderr == f"trace: rank 1 of 3 ended with {told}; stopping the others\n"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_is_passed_on_to_all_ranks(name: str) -> None:
    """The ranks have no terminal that sends the signal to them."""
    script = f"{FORK}\nif rank == 0: os.kill(os.getppid(), signal.{name})\ntime.sleep(50)"
    done = run(f"os.setsid()\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n{script}", LOCAL_WORLD_SIZE="3")
    assert done.returncode == 128 + signal.Signals[name]
    assert f"ended with signal {name}" in done.stderr


def test_after_a_rank_fails_the_other_ranks_have_time_to_clean_up() -> None:
    script = f"""
ready = [os.pipe() for _ in range(2)]
{FORK}
def clean_up(number, frame):
    say("cleaned up", rank)
    os._exit(0)
if rank == 2:
    [os.read(read, 1) for read, _ in ready]
    os._exit(5)
signal.signal(signal.SIGTERM, clean_up)
os.write(ready[rank][1], b"x")
while True: time.sleep(0.01)
"""
    done = run(script, LOCAL_WORLD_SIZE="3")
    assert done.returncode == 5 and sorted(done.stdout.splitlines()) == ["cleaned up 0", "cleaned up 1"]


@pytest.mark.parametrize(("code", "words"), [(5, "rank 0 waits in all_reduce\n"), (1, "")])
def test_after_a_rank_was_killed_another_rank_can_report_its_operation(code: int, words: str) -> None:
    """After an exception (exit code 1), all other ranks are stopped immediately, so the exception is printed last."""
    script = f'''
{FORK}
if rank == 1: os._exit({code})
if rank == 0:
    time.sleep(0.5)
    os.write(2, b"rank 0 waits in all_reduce" + bytes([10]))
    os._exit(1)
time.sleep(50)
'''
    done = run(script, LOCAL_WORLD_SIZE="3")
    assert done.returncode == code
    assert done.stderr == f"trace: rank 1 of 3 ended with exit code {code}; stopping the others\n{words}"


def test_random_numbers_of_numpy_differ_between_ranks() -> None:
    done = run(f"import numpy\n{FORK}\nsay(numpy.random.randint(1 << 30))", LOCAL_WORLD_SIZE="3")
    assert len(set(done.stdout.split())) == 3


def test_at_exit_only_modules_of_the_script_are_freed() -> None:
    """GIVEN an object of the script, and an object of a module that was imported before the fork THEN only the script's object
    is freed."""
    script = f"""
import atexit, types
class Told:
    def __init__(self, name): self.name = name
    def __del__(self): os.write(1, f"{{self.name}} freed\\n".encode())
shared = types.ModuleType("shared"); shared.thing = Told("shared"); sys.modules["shared"] = shared
{FORK}
own = types.ModuleType("own"); own.thing = Told("own"); sys.modules["own"] = own
del own, shared
_trace_ranks.leave_shared_modules()
"""
    assert run(script, LOCAL_WORLD_SIZE="3").stdout == "own freed\n" * 3


def test_modules_are_looked_up_on_the_import_path_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "beside.py").touch()
    script = f"""
before = list(sys.path)
with _trace_ranks.path_of({str(tmp_path / "train.py")!r}):
    print(sys.path[0], _trace_ranks.is_there("beside"))
print(sys.path == before, _trace_ranks.is_there("no_such_module"))
with _trace_ranks.path_of("-c"):
    print(sys.path[0] == os.getcwd())
with _trace_ranks.path_of({str(tmp_path)!r}):
    print(sys.path[0])
"""
    assert run(script).stdout.splitlines() == [f"{tmp_path} True", "True False", "True", f"{tmp_path}"]
