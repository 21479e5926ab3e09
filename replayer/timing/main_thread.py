"""Finds out whether the main thread is waiting for a sleeping thread.

    watch = MainThreadWatch()
    sleep(0.1)
    watch.waits_for_a_thread()      # True if the main thread spent this time in `Thread.join`, `Queue.get` or `Lock.acquire`

On systems other than Linux, the answer is a guess, because only Linux reports whether a thread sleeps.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from time import clock_gettime_ns, perf_counter_ns

try:
    from time import pthread_getcpuclockid  # macOS has no such function
except ImportError:
    pthread_getcpuclockid = None  # type: ignore[assignment]

# A thread counts as waiting if it uses less than 5 % of a CPU core.
_COMPUTING_SHARE = 0.05
_COMPUTING_NS = 1_000_000
_WAIT_FOR_PROCESSES = frozenset(("multiprocessing", "selectors", "socket", "ssl", "subprocess"))


class MainThreadWatch:
    def __init__(self) -> None:
        self._thread = threading.main_thread()
        self._begin_ns, self._begin_cpu_ns = perf_counter_ns(), self._cpu_ns()

    def waits_for_a_thread(self) -> bool:
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return True
        modules = self._modules()
        if modules[0].partition(".")[0] in _WAIT_FOR_PROCESSES or "torch.utils.data.dataloader" in modules:
            return False
        if modules[0] == threading.__name__:
            return True
        # The main thread may call a C function that waits, such as `Lock.acquire`.
        passed_ns, computed_ns = perf_counter_ns() - self._begin_ns, self._cpu_ns() - self._begin_cpu_ns
        return computed_ns <= max(_COMPUTING_SHARE * passed_ns, _COMPUTING_NS) and self._sleeps()

    def _cpu_ns(self) -> int:
        identity = self._thread.ident
        if pthread_getcpuclockid is None or identity is None or not self._thread.is_alive():
            return 0
        return clock_gettime_ns(pthread_getcpuclockid(identity))

    def _sleeps(self) -> bool:
        try:
            fields = Path(f"/proc/self/task/{self._thread.native_id}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return True
        return fields.rpartition(")")[2].split()[0] == "S"

    def _modules(self) -> list[str]:
        modules, frame = [], sys._current_frames().get(self._thread.ident or 0)
        while frame is not None:
            modules.append(str(frame.f_globals.get("__name__", "")))
            frame = frame.f_back
        return modules or [""]
