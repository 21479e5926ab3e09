"""Tests Python's `time` on a virtual clock. Each test runs in a fork of an interpreter that has imported torch (warm.py)."""

from __future__ import annotations

import _thread
import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
from types import ModuleType
from typing import Any

import pytest

from replayer.surfaces.time import PatchedTime
from replayer.timing.clock import POLL_NS, RecordedClock, VirtualClock

HOUR = 3_600.0
CLOCKS = ("time", "perf_counter", "monotonic")


def module(name: str, text: str) -> Any:
    """A module that is already imported."""
    made = ModuleType(name)
    sys.modules[name] = made
    exec(text, made.__dict__)
    return made


@pytest.mark.parametrize("name", CLOCKS)
def test_patched_clocks_start_at_the_current_time_and_skip_sleeps(name: str) -> None:
    before = getattr(time, name)(), getattr(time, f"{name}_ns")()
    PatchedTime(VirtualClock()).install()
    after = getattr(time, name)(), getattr(time, f"{name}_ns")()
    assert 0 <= after[0] - before[0] < 60 and 0 <= after[1] - before[1] < 60 * 10**9
    time.sleep(HOUR)
    assert HOUR <= getattr(time, name)() - after[0] < HOUR + 60
    assert HOUR * 10**9 <= getattr(time, f"{name}_ns")() - after[1] < (HOUR + 60) * 10**9


def test_c_code_may_call_the_patched_functions() -> None:
    """`atexit.register(time.sleep, 1)` calls the patched function without a Python caller. New threads do this too."""
    threads: set[int] = set()
    errors: list[object] = []
    sys.unraisablehook = errors.append

    class Clock(VirtualClock):
        def now_ns(self) -> int:
            threads.add(threading.get_ident())
            return super().now_ns()

    PatchedTime(Clock()).install()
    started = _thread.start_new_thread(time.perf_counter, ())
    while not errors and started not in threads:
        os.sched_yield()
    assert not errors


def test_a_wait_for_the_gpu_advances_the_clocks_of_the_script() -> None:
    clock = VirtualClock()
    PatchedTime(clock).install()
    began = time.perf_counter()
    clock.wait_until(clock.now_ns() + int(HOUR * 10**9))
    assert HOUR <= time.perf_counter() - began < HOUR + 60


def test_a_loop_that_polls_the_time_ends_on_the_recorded_clock() -> None:
    PatchedTime(RecordedClock()).install()
    began_ns, asked = time.monotonic_ns(), 0
    while time.monotonic_ns() < began_ns + 1_000_000:
        asked += 1
    assert asked == 1_000_000 // POLL_NS - 1


def test_functions_imported_before_install_are_patched_and_install_can_be_repeated() -> None:
    script = module("train", "from time import perf_counter as now, sleep\nimport time\n")
    patched_time = PatchedTime(VirtualClock())
    patched_time.install()
    once = time.sleep
    patched_time.install()
    assert time.sleep is once
    began = script.now()
    script.sleep(HOUR)
    assert HOUR <= script.now() - began < HOUR + 60
    assert script.sleep is script.time.sleep
    assert pickle.loads(pickle.dumps(time.sleep)) is time.sleep


def test_multiprocessing_and_distributed_modules_use_real_time() -> None:
    taken = module("multiprocessing.mine", "from time import monotonic\nimport time\ndef now(): return time.monotonic()\n")
    named = module("torch.distributed.mine", "import time\ndef now(): return time.time()\n")
    other = module("multiprocessing_like", "import time\ndef now(): return time.monotonic()\n")
    real = time.monotonic
    before = [taken.now(), other.now(), named.now()]
    PatchedTime(VirtualClock()).install()
    time.sleep(HOUR)
    assert taken.monotonic is real
    assert threading._time is real  # type: ignore[attr-defined] # what Event.wait and Condition.wait reckon by
    assert [now() - then >= HOUR for now, then in zip((taken.now, other.now, named.now), before, strict=True)] == [
        False,
        True,
        False,
    ]


def test_a_second_thread_sleeps_until_the_virtual_time_is_reached() -> None:
    PatchedTime(VirtualClock()).install()
    woken = []

    def poll() -> None:
        time.sleep(HOUR)
        woken.append(time.monotonic())

    began = time.monotonic()
    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    time.sleep(HOUR / 2)
    assert not woken and time.monotonic() - began < HOUR
    time.sleep(HOUR)
    poller.join(timeout=30)
    assert woken and woken[0] - began >= HOUR


def test_sleep_rejects_the_same_arguments_as_time_sleep() -> None:
    PatchedTime(VirtualClock()).install()
    refused: list[tuple[Any, type[Exception]]] = [(-1, ValueError), ("1", TypeError), (float("nan"), ValueError)]
    for seconds, error in refused:
        with pytest.raises(error):
            time.sleep(seconds)
    time.sleep(0)


def test_a_forked_child_runs_in_real_time_until_it_uses_the_gpu() -> None:
    clock = VirtualClock()
    patched_time = PatchedTime(clock)
    patched_time.install()
    time.sleep(HOUR)
    began = time.monotonic()
    clock.pause()  # the process is forked while it waits for a batch
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        forked = time.monotonic() - began
        time.sleep(0.002)
        slept = time.monotonic() - began
        patched_time.install()
        time.sleep(HOUR)
        jumped = time.monotonic() - began
        os.write(writer, f"{0 <= forked < 60} {0.002 <= slept < 60} {jumped >= HOUR}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"True True True"


@pytest.mark.parametrize("lacking", ["", "waitid"])  # before Python 3.13, macOS has no os.waitid
def test_a_loop_that_waits_for_a_child_process_takes_real_time(lacking: str) -> None:
    """GIVEN a child process that ends after 0.3 s WHEN the script polls it every 10 ms THEN about 30 polls are enough."""
    for clock in (VirtualClock(), RecordedClock()):
        PatchedTime(clock).install()
        child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait(0.3)"])
        polls, began = 0, time.monotonic()
        with pytest.MonkeyPatch.context() as changed:
            changed.delattr(os, lacking or "none", raising=False)
            while child.poll() is None:
                time.sleep(0.01)
                polls += 1
        assert polls < 1_000 and time.monotonic() - began < 60


def test_sleeps_take_no_real_time_if_there_is_nothing_to_wait_for() -> None:
    PatchedTime(VirtualClock()).install()
    began = time.monotonic()
    for _ in range(1_800):
        time.sleep(2)
    assert HOUR <= time.monotonic() - began < HOUR + 60


def test_sleep_takes_no_real_time_after_gpu_use_while_a_child_runs() -> None:
    """GIVEN a script that uses the GPU between its sleeps THEN the sleeps take no real time."""
    patched_time, calls = PatchedTime(VirtualClock()), itertools.count()
    patched_time.install()
    patched_time.calls_of_device = lambda: next(calls)
    child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait(5)"])
    began = time.monotonic()
    for _ in range(600):
        time.sleep(6)
    assert child.poll() is None
    assert HOUR <= time.monotonic() - began < HOUR + 60
    child.wait()
