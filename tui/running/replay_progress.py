"""Prints the progress of a long replay on stderr, if stderr is a terminal.

    with reporting_steps(folder, ["train.py", "--steps", "500"], recorded) as meanwhile:
        run_child(..., meanwhile=meanwhile)
    # trace: step 40 of 500, 2.1 steps/s, 3 min 39 s left

The total number of steps comes from the script's options or from the recording.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from traces.format.growing_file import StepCount, timeline_of
from traces.model.trace import Trace, TraceFormatError
from tui.formatting import count_text, counted
from tui.running.narration import say
from tui.running.progress import ERASE
from tui.terminal import is_quiet

_FIRST_STEP_S = 1  # seconds between checks for the first step; time before the first step is not counted
_LOOK_S = (10, 20, 30, 60)  # seconds between printed lines; the last value is used repeatedly
_STEPS_OPTION = re.compile(r"--(?:max[-_]|num[-_])?(?:steps|iters|iterations)(?:=(\d+))?$")


@contextmanager
def reporting_steps(folder: Path, words: Sequence[str], recorded: Trace) -> Iterator[Callable[[Popen[bytes]], None]]:
    done = threading.Event()
    expected = expected_steps(words, recorded)

    def tell(child: Popen[bytes]) -> None:
        if sys.stderr.isatty() and not is_quiet():
            threading.Thread(target=_print_progress, args=(folder, child.pid, expected, done), daemon=True).start()

    try:
        yield tell
    finally:
        done.set()


def expected_steps(words: Sequence[str], recorded: Trace) -> int | None:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if found := _STEPS_OPTION.match(word):
            number = found[1] or following
            return int(number) if number.isdecimal() else None
    run = recorded.run_of(recorded.ranks[0])  # only `trace record` stores the script and records whole runs
    if run.script is None or Path(words[0]).name != run.script.name or run.argv != tuple(words[1:]):
        return None
    return int((recorded.steps.rank == recorded.steps.rank.min(initial=0)).sum()) or None


def progress_text(steps: int, expected: int | None, per_s: float) -> str:
    rate = f"{per_s:.3g} steps/s" if per_s >= 1 else f"{1 / per_s:.3g} s per step"
    if expected is None or steps > expected:
        return f"{counted(steps, 'step')}, {rate}"
    return f"step {count_text(steps)} of {count_text(expected)}, {rate}, {_span_text((expected - steps) / per_s)} left"


def _span_text(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _print_progress(folder: Path, pid: int, expected: int | None, done: threading.Event) -> None:
    count: StepCount | None = None
    before = 0, 0.0
    lines = 0
    while not done.wait(_LOOK_S[min(lines, len(_LOOK_S) - 1)] if before[0] else _FIRST_STEP_S):
        try:
            if count is None and (file := timeline_of(folder, pid)) is not None:
                count = StepCount(file)
            now = count.now() if count is not None else 0, time.monotonic()
        except (TraceFormatError, OSError):
            return  # the folder was deleted, or the timeline has a problem that the replay reports at the end
        if before[0] and now[0] > before[0]:
            text = progress_text(now[0], expected, (now[0] - before[0]) / (now[1] - before[1]))
            sys.stderr.write(ERASE)
            say(text)
            lines += 1
        if now[0] > before[0]:
            before = now
