"""The script's host threads as rows of the timeline: a row is reused once its thread has ended.

nn.DataParallel makes a thread per replica and step; a run of thousands of steps must not make thousands of rows.

    threads = HostThreads()
    thread = threads.begin(now_ns)      # in the thread itself, once: a row that no living thread has
    threads.share_row(thread, "replica 0")   # the same row as the thread of this name in the step before
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from replayer.timing.stream import VirtualStream
from traces.model.trace import Thread


@dataclass(slots=True, eq=False)
class HostThread:
    """One host thread of the script: `host_ns` is its virtual present."""

    row: int  # of the timeline's threads
    host_ns: int
    device: int = 0
    after_wait_ns: int = 0  # in the op played last, the recorded host's own time after that had waited for the device
    callers: dict[int, Caller] = field(default_factory=dict)  # by device: with its current stream
    _known: dict[VirtualStream, Caller] = field(default_factory=dict)

    def call_on(self, stream: VirtualStream) -> Caller:
        """`stream` is the thread's current one of its device from now on."""
        caller = self.callers[stream.device] = self._known.setdefault(stream, Caller(self, stream))
        return caller


@dataclass(slots=True, eq=False)
class Caller:
    """Who calls an op: a host thread on a stream. There is one object for each two, whatever was current in between."""

    thread: HostThread
    stream: VirtualStream


class _Tenancy:
    """A thread's hold on its row; kept by the thread alone, so it ends with the thread."""

    def __init__(self, idle: list[int], row: int) -> None:
        self._idle = idle
        self.row: int | None = row

    def __del__(self) -> None:
        if self.row is not None:
            self._idle.append(self.row)


class HostThreads:
    """All host threads of this process that used the device. `rows` are their entries in the timeline."""

    def __init__(self) -> None:
        self.rows: list[Thread] = []
        self._idle: list[int] = []  # rows whose threads have ended
        self._shared: dict[str, int] = {}  # rows of threads that are made anew again and again
        self._local = threading.local()
        self._lock = threading.Lock()

    def begin(self, now_ns: int) -> HostThread:
        """The calling thread, new to the device; its virtual present is `now_ns`."""
        with self._lock:
            try:
                row = self._idle.pop()
            except IndexError:
                row = len(self.rows)
                current = threading.current_thread()
                role = "main" if current is threading.main_thread() else "other"
                self.rows.append(Thread(0, row, current.name, role))
        self._local.tenancy = _Tenancy(self._idle, row)
        return HostThread(row, now_ns)

    def row_of(self, name: str) -> int:
        """The row of a thread that Python did not start, such as autograd's thread of one device."""
        with self._lock:
            row = self._shared.get(name)
            if row is None:
                row = self._shared[name] = len(self.rows)
                self.rows.append(Thread(0, row, name, "backward"))
        return row

    def share_row(self, thread: HostThread, name: str) -> None:
        """Give `thread`, the calling one, the timeline row that all threads of this name share."""
        tenancy: _Tenancy = self._local.tenancy
        if tenancy.row is None:
            return  # it has that row already
        with self._lock:
            row = self._shared.get(name)
            if row is None:
                row = self._shared[name] = tenancy.row
                self.rows[row] = Thread(0, row, name)
            else:
                self._idle.append(tenancy.row)
            tenancy.row = None
        thread.row = row
