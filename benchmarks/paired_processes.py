"""Compares the step times of two processes that run alternately, one without the recorder and the other under `trace record`.

    paired = measure(["benchmarks/recording_cost.py", "--serve", "60 modules"], seconds=10)
    paired.added.processor_us      # what the recorder adds to a step

While one process runs for 128 steps or half a second (a turn), the other process waits. The recorder reads CUDA events after
every 128 steps and twice a second, so it reads CUDA events in every turn. The recorded turn is compared with the unrecorded
turns before and after it, to cancel slow changes of the machine's speed. The result is the median of these differences.
Processor times are those of the script's thread. Processor times depend less on the machine's other programs than elapsed
times. The fast steps of the fastest turn depend on other programs the least (LOW). The processor time of the recorder's own
thread, which writes to the file, is measured separately.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from statistics import mean, median
from types import FrameType
from typing import Any, NamedTuple

from benchmarks.record_command import ROOT, record_command
from traces.script.patching import OUR_MODULES

SETTLING, SETTLING_S = 128, 1.0  # number of steps before the first turn; fewer steps if they take more seconds than this
IN_TURN, IN_TURN_US, LEAST_IN_TURN = 128, 5e5, 6  # largest number of steps, wanted µs, and smallest number of steps in a turn
LOW = 0.1  # a turn's fast step time is this quantile of its step times
LEAST_TURNS = 6
COUNTED = 5  # steps whose calls are counted; the smallest count is used, because some steps also read CUDA events
LIMIT_S = 300.0  # time limit for the start of a process, and for a turn

Step = Callable[[], tuple[int, int]]  # a training step; returns the time of other work, and its processor time, in ns


class Turn(NamedTuple):
    """Contains the mean times of the steps in one turn, in microseconds, and the time of a fast step."""

    clock_us: float  # elapsed time of a step, without the other work
    processor_us: float  # processor time of a step, without the other work
    whole_us: float
    low_us: float  # elapsed time of a fast step, without the other work
    writer_us: float  # processor time of the recorder's threads since the previous turn


@dataclass(frozen=True)
class Added:
    """Contains the time in microseconds that the recorder adds to a step: medians of the differences between turns, except for
    `low_us` and `writer_us`."""

    clock_us: float
    low_us: float  # difference between the fast steps of the fastest turns
    processor_us: float
    writer_us: float  # mean processor time of the recorder's threads


class Calls(NamedTuple):
    """Counts the calls that the recorder makes in one training step."""

    python: int  # number of calls of this project's functions
    c: int  # number of C functions that this project's functions call, without calls for CUDA events
    events: int  # number of recorded CUDA events


@dataclass(frozen=True)
class Paired:
    turns: int  # number of turns with the recorder
    bare_us: float
    whole_us: float  # an unrecorded step with its other work
    added: Added
    reported_us: float  # added time according to the recorder
    calls: Calls


class MeasurementError(Exception):
    """Raised if a process ended early, or wrote no recording."""


def now_ns() -> int:
    """Return the machine's time. In a replay, the other functions of the module `time` return virtual time."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def serve(step: Step, address: str) -> None:
    """Run turns of `step` when the measuring process asks for a turn, until that process closes the connection."""
    began_ns = now_ns()
    for number in range(SETTLING):
        step()
        if number >= LEAST_IN_TURN and now_ns() > began_ns + SETTLING_S * 1e9:
            break
    writer_ns = _writer_ns()
    with Client(address, family="AF_UNIX") as measuring:
        while steps := measuring.recv():
            if steps > 0:
                turn = _turn(step, steps)
                before_ns, writer_ns = writer_ns, _writer_ns()
                measuring.send(turn._replace(writer_us=(writer_ns - before_ns) / steps / 1e3))
            else:
                measuring.send(min(_calls(step) for _ in range(COUNTED)))


def _writer_ns() -> int:
    first = {thread: _outermost(frame) for thread, frame in sys._current_frames().items()}
    ours = [thread for thread, frame in first.items() if frame.f_globals.get("__name__", "").startswith(OUR_MODULES)]
    return sum(map(time.clock_gettime_ns, map(time.pthread_getcpuclockid, ours)))


def _outermost(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def _calls(step: Step) -> Calls:
    names: list[str] = []

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event in ("call", "c_call") and frame.f_globals.get("__name__", "").startswith(OUR_MODULES):
            names.append("" if event == "call" else called.__qualname__)

    sys.setprofile(note)
    step()
    sys.setprofile(None)
    python, events = names.count(""), sum(name.endswith("EventBase.record") for name in names)
    return Calls(python, len(names) - python - events, events)


def _turn(step: Step, steps: int) -> Turn:
    step()  # not measured, because the caches are cold
    filled_processor_ns = 0
    own_ns: list[int] = []  # own time of each step, without the other work
    start_ns = before_ns = now_ns()
    start_processor_ns = time.thread_time_ns()
    for _ in range(steps):
        filled_ns, processor_ns = step()
        filled_processor_ns += processor_ns
        after_ns = now_ns()
        own_ns.append(after_ns - before_ns - filled_ns)
        before_ns = after_ns
    processor_ns = time.thread_time_ns() - start_processor_ns
    low_ns = sorted(own_ns)[int(LOW * steps)]
    found_ns = sum(own_ns) / steps, (processor_ns - filled_processor_ns) / steps, (before_ns - start_ns) / steps, low_ns, 0
    return Turn(*(of / 1e3 for of in found_ns))


def measure(words: list[str], seconds: float, on: str = "") -> Paired:
    """Compare the script with and without the recorder for `seconds` seconds. The last argument of the script is the address of
    the socket.

    Args:
        on: a recording, whose virtual GPU the script uses; "" for the machine's GPU

    Raises MeasurementError.
    """
    from traces.format.trace_file import load

    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "run.msgpack"

        def bare_command(script: list[str]) -> list[str]:
            # The clocks are those of `trace record --on`. With any other clock, a replay waits, and the wait would hide the
            # recorder's time.
            replay = ["-m", "tui.cli", "replay", "-q", "--trace", on, "--clock", "recorded", "--loader", "recorded"]
            return [sys.executable, *([*replay, "-o", f"{folder}/replay.msgpack"] if on else []), *script]

        def recorded_command(script: list[str]) -> list[str]:
            return record_command({"script": script, "output": str(recording), "grain": "phase", "on": on or None})

        bare_process = _Process(bare_command, words, folder, "bare")
        with bare_process as bare, _Process(recorded_command, words, folder, "recorded") as recorded:
            turns, bares = _alternate(bare.turn, recorded.turn, seconds)
            calls = recorded.calls()
        notes = load(recording).run_of(0).recorder
    if notes is None:
        raise MeasurementError("the recorder did not report its overhead")
    return Paired(
        len(turns),
        median(turn.clock_us for turn in bares),
        median(turn.whole_us for turn in bares),
        _summary(turns, bares),
        notes.overhead_ns_per_step / 1e3,
        calls,
    )


def _alternate(bare: Callable[[int], Turn], recorded: Callable[[int], Turn], seconds: float) -> tuple[list[Turn], list[Turn]]:
    """Return the turns with the recorder, and the turns before, between and after them without the recorder."""
    in_turn = min(max(round(IN_TURN_US / bare(LEAST_IN_TURN).whole_us), LEAST_IN_TURN), IN_TURN)
    recorded(in_turn)
    with_recorder, bares = list[Turn](), [bare(in_turn)]
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(with_recorder) < LEAST_TURNS:
        with_recorder.append(recorded(in_turn))
        bares.append(bare(in_turn))
    return with_recorder, bares


def _summary(with_recorder: list[Turn], bares: list[Turn]) -> Added:
    turns = list(zip(with_recorder, bares[:-1], bares[1:], strict=True))
    clock_us, processor_us = (median(turn[of] - (before[of] + after[of]) / 2 for turn, before, after in turns) for of in (0, 1))
    low_us = min(turn.low_us for turn in with_recorder) - min(turn.low_us for turn in bares)
    return Added(clock_us, low_us, processor_us, mean(turn.writer_us for turn in with_recorder))


class _Process:
    """Runs the script in a process that waits between its turns."""

    def __init__(self, command: Callable[[list[str]], list[str]], words: list[str], folder: str, name: str) -> None:
        address = f"{folder}/{name}.socket"
        self._listener = Listener(address, family="AF_UNIX")
        self._process = subprocess.Popen(command([*words, address]), cwd=ROOT)
        self._connection: Connection | None = None

    def __enter__(self) -> _Process:
        # accept() itself has no time limit, so this limit detects a failed start
        listening = self._listener._listener._socket  # type: ignore[attr-defined]
        listening.settimeout(LIMIT_S)
        self._connection = self._listener.accept()
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.send(0)
        if self._process.wait(LIMIT_S):
            raise MeasurementError(f"a process ended with exit code {self._process.returncode}")
        self._listener.close()

    def turn(self, steps: int) -> Turn:
        return Turn(*self._ask(steps))

    def calls(self) -> Calls:
        return Calls(*self._ask(-1))

    def _ask(self, steps: int) -> Any:
        assert self._connection is not None
        self._connection.send(steps)
        if not self._connection.poll(LIMIT_S):
            raise MeasurementError("a process does not answer")
        try:
            return self._connection.recv()
        except EOFError:
            raise MeasurementError("a process ended early") from None
