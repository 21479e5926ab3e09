"""Represents the script's host threads as rows of the timeline. After a thread has ended, another thread can reuse its row.

nn.DataParallel creates a thread per replica and step. Reusing rows keeps the timeline from getting thousands of thread rows.

    threads = HostThreads()
    thread = threads.begin(now_ns)      # called in the new thread
    threads.share_row(thread, "replica 0")   # the row of the previous step's thread with this name
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from replayer.timing.stream import VirtualStream
from traces.model.trace import Thread


@dataclass(slots=True, eq=False)
class HostThread:
    """Represents one host thread of the script. `host_ns` is the thread's virtual time.

    `position_ns` is the recorded host time, within the recorded `segment`, that the thread has reached. Threads that run at the
    same time each have their own position, so the recorded time of one thread is not added to the time of another thread.
    """

    row: int
    host_ns: int
    segment: object = None
    position_ns: int = 0
    device: int = 0
    after_wait_ns: int = 0  # recorded host time in the last op after its wait for the device
    callers: dict[int, Caller] = field(default_factory=dict)
    _known: dict[VirtualStream, Caller] = field(default_factory=dict)

    def start_from(self, maker: HostThread) -> None:
        """A new thread begins at the time and position of the thread that created it."""
        self.host_ns, self.segment, self.position_ns = maker.host_ns, maker.segment, maker.position_ns

    def wait_for(self, other: HostThread) -> None:
        """Continue at the time and position that `other` has reached, if they are later."""
        self.host_ns = max(self.host_ns, other.host_ns)
        if other.segment is self.segment:
            self.position_ns = max(self.position_ns, other.position_ns)
        else:
            self.segment, self.position_ns = other.segment, other.position_ns

    def position_in(self, segment: object, first_ns: int) -> int:
        """Return the thread's position in `segment`. If the thread enters the segment now, its position is `first_ns`."""
        if self.segment is not segment:
            self.segment, self.position_ns = segment, first_ns
        return self.position_ns

    def call_on(self, stream: VirtualStream) -> Caller:
        """Make `stream` the thread's current stream of its device."""
        caller = self.callers[stream.device] = self._known.setdefault(stream, Caller(self, stream))
        return caller


@dataclass(slots=True, eq=False)
class Caller:
    """Represents the caller of an op: a host thread and a stream.

    Each combination of thread and stream has one `Caller` object.
    """

    thread: HostThread
    stream: VirtualStream


class _Tenancy:
    """Marks a timeline row as used by a thread.

    Only the thread itself refers to its row marker, so the marker is freed when the thread ends.
    """

    def __init__(self, idle: list[int], row: int) -> None:
        self._idle = idle
        self.row: int | None = row

    def __del__(self) -> None:
        if self.row is not None:
            self._idle.append(self.row)


class HostThreads:
    """Lists all host threads of this process that used the device. `rows` has their timeline entries."""

    def __init__(self) -> None:
        self.rows: list[Thread] = []
        self._idle: list[int] = []
        self._shared: dict[str, int] = {}
        self._local = threading.local()
        self._lock = threading.Lock()

    def begin(self, now_ns: int) -> HostThread:
        """Register the calling thread at its first use of the device. The thread's virtual time is `now_ns`."""
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
        """Return the row of a thread that Python did not start. An example is autograd's thread of one device."""
        with self._lock:
            row = self._shared.get(name)
            if row is None:
                row = self._shared[name] = len(self.rows)
                self.rows.append(Thread(0, row, name, "backward"))
        return row

    def share_row(self, thread: HostThread, name: str) -> None:
        """Move the calling `thread` to the timeline row that all threads of this name share."""
        tenancy: _Tenancy = self._local.tenancy
        if tenancy.row is None:
            return
        with self._lock:
            row = self._shared.get(name)
            if row is None:
                row = self._shared[name] = tenancy.row
                self.rows[row] = Thread(0, row, name)
            else:
                self._idle.append(tenancy.row)
            tenancy.row = None
        thread.row = row
