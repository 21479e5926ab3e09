"""Lets a test program log the times of its phases, so that tests can check the recorder.

    with timed("backward"):
        loss.backward()

The log is `$MARKS/<pid>.tsv`: name, start and end in nanoseconds since the Unix epoch, and the thread's processor time at the
start in nanoseconds. The processor time does not depend on the load of the machine.
"""

from __future__ import annotations

import os
import time
from types import TracebackType


class timed:
    """Logs the times of entering and leaving the `with` block."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._start_ns, self._processor_ns = time.time_ns(), time.thread_time_ns()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        end_ns = time.time_ns()
        folder = os.environ.get("MARKS")
        if folder:
            with open(os.path.join(folder, f"{os.getpid()}.tsv"), "a") as file:
                file.write(f"{self._name}\t{self._start_ns}\t{end_ns}\t{self._processor_ns}\n")
