"""The script's host threads as rows of the timeline: one per thread that lives, not one per thread that ever lived.

nn.DataParallel makes a thread per replica and step; a run of thousands of steps must not make thousands of rows.

    threads = HostThreads()
    thread = threads.begin(now_ns)      # in the thread itself, once: a row that no living thread has
    threads.play(thread, "replica 0")   # from now on it is that one, as the one of the step before was
"""

from __future__ import annotations

import threading

from replayer.timing.scheduler import HostThread
from traces.model import Thread


class _Tenancy:
    """A thread's hold on its row; kept by the thread alone, so it ends with the thread."""

    def __init__(self, idle: list[int], row: int) -> None:
        self._idle = idle
        self.row: int | None = row

    def __del__(self) -> None:
        if self.row is not None:
            self._idle.append(self.row)


class HostThreads:
    """All host threads of this process that used the device. `told` is what the timeline says of them, by row."""

    def __init__(self) -> None:
        self.told: list[Thread] = []
        self._idle: list[int] = []  # rows whose threads have ended
        self._parts: dict[str, int] = {}  # rows of threads that are made anew again and again
        self._local = threading.local()
        self._lock = threading.Lock()

    def begin(self, now_ns: int) -> HostThread:
        """The calling thread, new to the device; its virtual present is `now_ns`."""
        with self._lock:
            try:
                row = self._idle.pop()
            except IndexError:
                row = len(self.told)
                current = threading.current_thread()
                role = "main" if current is threading.main_thread() else "other"
                self.told.append(Thread(0, row, current.name, role))
        self._local.tenancy = _Tenancy(self._idle, row)
        return HostThread(row, now_ns)

    def row_of(self, name: str) -> int:
        """The row of a thread that is none of Python's: one of autograd's, say, that works for a device of its own."""
        with self._lock:
            row = self._parts.get(name)
            if row is None:
                row = self._parts[name] = len(self.told)
                self.told.append(Thread(0, row, name, "backward"))
        return row

    def play(self, thread: HostThread, name: str) -> None:
        """The calling thread, which is `thread`, plays the part of this name: its row is that of all who do."""
        tenancy: _Tenancy = self._local.tenancy
        if tenancy.row is None:
            return  # it does already
        with self._lock:
            row = self._parts.get(name)
            if row is None:
                row = self._parts[name] = tenancy.row
                self.told[row] = Thread(0, row, name)
            else:
                self._idle.append(tenancy.row)
            tenancy.row = None
        thread.row = row
