"""Tests when the recorder's profile begins and ends. It never begins or ends in a capture, waits without limit or creates a
CUDA context."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tracer.fakes import FakeClock, FakeCuda, FakeProfiles
from tracer import profile as profile_module
from tracer.device.device_access import DeviceAccess
from tracer.profile import Profiler

DENIED = "WARNING:2026-11-25 01:49:04 15122:15122 init.cpp:102] failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)\n"


class FakeKineto:
    """A fake of torch.profiler._KinetoProfile that logs its calls in `calls`."""

    calls: list[str]
    cuda: FakeCuda
    says = ""

    def __init__(self, activities: list[str], experimental_config: Any, **options: Any) -> None:
        self.calls.append("+".join(activities))
        self.calls.append(f"trace_only {experimental_config.options.get('trace_only')}")

    def prepare_trace(self) -> None:
        self.calls.append("prepare")
        os.write(2, self.says.encode())

    def start_trace(self) -> None:
        self.cuda.check()
        self.calls.append("start")

    def stop_trace(self) -> None:
        self.cuda.check()
        self.calls.append("stop")

    def export_chrome_trace(self, path: str) -> None:
        self.calls.append(Path(path).name)


class Profiled:
    """A profiler in a fake environment."""

    def __init__(self, *, gpus: int = 1, stacks: bool = False, has_trace_only: bool = True) -> None:
        self.clock = FakeClock()
        self.cuda = FakeCuda(self.clock)
        self.calls: list[str] = []

        class Settings:
            if has_trace_only:
                trace_only = False

            def __init__(self, **options: Any) -> None:
                self.options = options

        class Kineto(FakeKineto):
            calls, cuda = self.calls, self.cuda

        class Range:
            def __init__(self, name: str) -> None: ...

            def __enter__(self) -> None: ...

            def __exit__(self, *raised: object) -> None: ...

        self.kineto = Kineto
        torch: Any = SimpleNamespace(
            empty=lambda size: None,
            is_warn_always_enabled=lambda: False,
            set_warn_always=lambda always: None,
            cuda=SimpleNamespace(device_count=lambda: gpus),
            autograd=SimpleNamespace(_profiler_enabled=lambda: False, profiler=SimpleNamespace(record_function=Range)),
            profiler=SimpleNamespace(
                ProfilerActivity=SimpleNamespace(CPU="CPU", CUDA="CUDA"),
                _KinetoProfile=Kineto,
                profiler=SimpleNamespace(_WARNINGS_SHOWN=set()),
            ),
            _C=SimpleNamespace(_profiler=SimpleNamespace(_ExperimentalConfig=Settings)),
        )
        self.profiles = FakeProfiles()  # these are the profiles of the script
        access = DeviceAccess(self.cuda, self.cuda.captures, self.profiles)
        events: Any = SimpleNamespace(access=access, clock=self.clock, devices=[0])
        self.profiler = Profiler(torch, Path("t.profile.json"), events, stacks)

    def steps(self, *actions: str) -> None:
        for number, action in enumerate(actions):
            self.profiler.begin_step(number, action)
            self.profiler.end_step(number)


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "PATIENCE_NS", 200_000_000)


def test_a_profile_covers_the_two_requested_steps() -> None:
    here = Profiled()
    here.cuda.launch(5_000)
    here.steps("prepare", "record", "record", "")
    assert here.calls == ["CPU+CUDA", "trace_only True", "prepare", "start", "stop", "t.profile.json"]
    assert here.profiler.use().steps == (1, 2)


def test_the_profiler_starts_after_the_device_is_idle() -> None:
    here = Profiled()
    here.cuda.launch(5_000_000)
    began_ns = here.clock.ns
    here.steps("prepare")
    assert here.clock.ns == began_ns
    here.steps("record")
    assert here.clock.ns == began_ns + 5_000_000


@pytest.mark.parametrize(("stacks", "has_trace_only"), [(True, True), (False, False)])
def test_the_profiler_keeps_all_events_if_stacks_are_recorded(stacks: bool, has_trace_only: bool) -> None:
    here = Profiled(stacks=stacks, has_trace_only=has_trace_only)
    here.steps("prepare")
    assert here.calls[1] == "trace_only None"


def test_a_profile_neither_begins_nor_ends_during_a_graph_capture() -> None:
    here = Profiled()
    here.cuda.captures.add("graph")
    here.steps("prepare")
    assert here.calls == []
    here.cuda.captures.clear()
    here.steps("prepare", "record")
    begun = list(here.calls)
    here.cuda.captures.add("graph")
    here.steps("")
    assert here.calls == begun and here.cuda.destroyed_captures == 0
    here.cuda.captures.clear()
    here.steps("")
    assert here.calls[len(begun) :] == ["stop", "t.profile.json"]


def test_the_profiler_starts_only_after_the_script_has_used_the_gpu() -> None:
    here = Profiled()
    here.cuda.used = False
    assert here.profiler.must_wait
    here.steps("prepare")
    assert here.calls == []
    here.cuda.used = True
    assert not here.profiler.must_wait
    here.steps("prepare")
    assert here.calls[0] == "CPU+CUDA"


def test_only_the_host_is_profiled_without_a_gpu() -> None:
    here = Profiled(gpus=0)
    here.cuda.used = False
    here.steps("prepare", "record", "")
    assert not here.profiler.must_wait and here.calls[0] == "CPU" and here.calls[-1] == "t.profile.json"


def test_no_profile_is_started_while_the_script_prepares_its_own() -> None:
    """GIVEN a profile that the script has prepared THEN the recorder prepares its profile only after the script's profile has
    ended."""
    here = Profiled()
    here.profiles.add("prepared")
    here.steps("prepare")
    assert here.calls == [] and here.profiler.wanted and not here.profiler.active
    assert here.profiler.use().failed == "the script was already profiling itself"
    here.profiles.clear()
    here.steps("prepare", "record", "")
    assert here.calls[2:] == ["prepare", "start", "stop", "t.profile.json"]
    assert here.profiler.use().failed is None


def test_a_step_is_not_profiled_if_the_gpu_was_too_busy_before_it() -> None:
    """GIVEN two steps to profile WHEN the GPU does not become idle in time before the first one THEN only the second one is
    recorded."""
    here = Profiled()
    here.steps("prepare")
    recorded = []
    for number in (1, 2):
        here.cuda.hangs = number == 1
        here.profiler.begin_step(number, "record")
        recorded.append(here.profiler.is_recording)
        here.profiler.end_step(number)
    assert recorded == [False, True] and here.profiler.use().steps == (2,)


def test_a_profile_without_a_complete_step_is_not_written() -> None:
    """GIVEN a script that starts its own profile in the first profiled step THEN the recorder writes only its next profile."""
    here = Profiled()
    here.steps("prepare")
    here.profiler.begin_step(1, "record")
    assert here.profiler.is_recording
    here.profiler.make_way()
    assert not here.profiler.is_recording and here.calls[-1] == "stop"
    here.profiler.end_step(1)
    for number, action in ((2, "prepare"), (3, "record"), (4, "")):
        here.profiler.begin_step(number, action)
        here.profiler.end_step(number)
    assert here.calls[-1] == "t.profile.json" and here.profiler.use().steps == (3,)


def test_at_exit_the_profile_is_written_without_starting_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since Python 3.12, no thread can be started after the script has ended."""
    here = Profiled()
    here.steps("prepare", "record")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    here.profiler.stop(at_end=True)
    assert here.calls[-2:] == ["stop", "t.profile.json"] and here.profiler.use().steps == (1,)


def test_the_profile_is_discarded_if_the_device_hangs() -> None:
    here = Profiled()
    here.steps("prepare", "record")
    here.cuda.hangs = True
    here.steps("")
    assert here.profiler.use().steps == (1,)
    here.profiler.stop(at_end=True)
    assert "stop" not in here.calls
    use = here.profiler.use()
    assert use.steps == () and use.failed is not None and "did not finish" in use.failed


def test_the_profile_is_discarded_if_the_device_fails() -> None:
    here = Profiled()
    here.steps("prepare", "record")
    here.cuda.error = "CUDA error: device-side assert triggered"
    here.steps("")
    assert "stop" not in here.calls
    assert here.profiler.use().failed == "the device did not finish: CUDA error: device-side assert triggered"


def test_messages_of_kineto_are_recorded_and_other_output_is_forwarded(capfd: pytest.CaptureFixture[str]) -> None:
    here = Profiled()
    here.kineto.says = (
        DENIED
        + "INFO:2026-11-25 01:49:04 1:1 init.cpp:105] see https://...\nUSDT:2026-11-25 profiler_start\n"
        + "[W1125 01:57:31.04 CPUAllocator.cpp:245] Memory block of unknown size was allocated before ...\n"
        + "[rank0]:[W1125 01:57:31.04 CPUAllocator.cpp:245] Memory block of unknown size was allocated before ...\n"
        + "ERROR: External init callback must run in same thread as registerClient (1 != 2)\n"
        + "WARNING: the script's own\n"
    )
    here.steps("prepare")
    assert capfd.readouterr().err == "WARNING: the script's own\n"
    assert here.profiler.use().warnings == ("failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)",)


def _in_thread(*calls: Callable[[], None]) -> None:
    thread = threading.Thread(target=lambda: [call() for call in calls])
    thread.start()
    thread.join()


def test_another_thread_does_not_end_the_profile_of_the_main_thread() -> None:
    """GIVEN a profile of the main thread WHEN another thread trains from step 2 on THEN the main thread ends the profile. The
    profile contains step 1."""
    here = Profiled()
    here.steps("prepare", "record")
    profiler = here.profiler
    _in_thread(
        lambda: profiler.begin_step(2, "record"),
        lambda: profiler.end_step(2),
        lambda: profiler.begin_step(3, ""),
        profiler.stop,
    )
    assert here.calls[-1] == "start" and not _recording_in_thread(profiler)
    profiler.stop(at_end=True)
    assert here.calls[-2:] == ["stop", "t.profile.json"]
    assert profiler.use().steps == (1,)


def _recording_in_thread(profiler: Profiler) -> bool:
    found: list[bool] = []
    _in_thread(lambda: found.append(profiler.is_recording))
    return found[0]


def test_the_main_thread_may_end_the_profile_of_another_thread() -> None:
    here = Profiled()
    _in_thread(lambda: here.steps("prepare", "record"))
    assert here.profiler.all_threads
    here.profiler.stop(at_end=True)
    assert here.calls[-2:] == ["stop", "t.profile.json"]


def test_a_signal_during_the_start_of_a_profile_is_handled_afterwards() -> None:
    """GIVEN a signal handler that raises WHEN its signal arrives while a profile starts THEN the profile first starts. Then the
    exception reaches the script."""
    here = Profiled()

    def late(*_: object) -> None:
        raise TimeoutError

    def prepare_trace(kineto: FakeKineto) -> None:
        signal.raise_signal(signal.SIGALRM)
        kineto.calls.append("prepare")

    here.kineto.prepare_trace = prepare_trace  # type: ignore[assignment, method-assign]
    before = signal.signal(signal.SIGALRM, late)
    try:
        with pytest.raises(TimeoutError):
            here.profiler.begin_step(0, "prepare")
    finally:
        signal.signal(signal.SIGALRM, before)
    here.steps("record", "")
    assert here.profiler.use().steps == (0,) and here.calls[-2:] == ["stop", "t.profile.json"]


def test_a_process_forked_after_a_profile_exits_without_running_c_plus_plus_destructors(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr(os, "register_at_fork", lambda after_in_child: registered.append(after_in_child))
    profile_module._guard_forks.cache_clear()
    Profiled().steps("")
    assert not registered
    Profiled().steps("prepare")
    Profiled().steps("prepare")
    (end_without_destructors,) = registered
    # GIVEN a function that was registered earlier and aborts the process, like a destructor that fails
    if (child := os.fork()) == 0:
        libc = ctypes.CDLL(None)
        libc.on_exit(libc.abort, None)
        end_without_destructors()
        libc.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
