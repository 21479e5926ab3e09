"""Keeps the virtual time of each CPU thread, and assigns a row of the timeline to each thread.

    threads = HostThreads()
    thread = threads.begin(now_ns)      # called in the new thread
    threads.use_shared_row(thread, "replica 0")   # uses the row that a thread with this name had in the previous step

Note [Threads beside the script]
    A thread that copies batches works while the script's thread is in any phase. The thread's ops take their recorded host
    time. They do not wait for their recorded start in the phase. The thread's ops do not begin or prolong phases of the script.
    The op's recorded call may be in any phase of the step.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from replayer.timing.stream import VirtualStream
from traces.model.trace import Thread


@dataclass(slots=True, eq=False)
class HostThread:
    row: int
    host_ns: int  # the thread's virtual time
    segment: object = None  # the thread's current recorded phase
    position_ns: int = 0  # the thread's host time since the start of this phase
    device: int = 0
    after_wait_ns: int = 0  # recorded host time of the last op after it had waited for the device
    has_maker: bool = False  # True for threads that work on the script's phases, such as those of replicas
    callers: dict[int, Caller] = field(default_factory=dict)
    _known: dict[VirtualStream, Caller] = field(default_factory=dict)

    def start_from(self, maker: HostThread) -> None:
        self.has_maker = True
        self.host_ns, self.segment, self.position_ns = maker.host_ns, maker.segment, maker.position_ns

    def is_beside(self, script: HostThread | None) -> bool:
        # see Note [Threads beside the script]
        return script is not None and script is not self and not self.has_maker

    def wait_for(self, other: HostThread) -> None:
        self.host_ns = max(self.host_ns, other.host_ns)
        if other.segment is self.segment:
            self.position_ns = max(self.position_ns, other.position_ns)
        else:
            self.segment, self.position_ns = other.segment, other.position_ns

    def position_in(self, segment: object, first_ns: int) -> int:
        if self.segment is not segment:
            self.segment, self.position_ns = segment, first_ns
        return self.position_ns

    def call_on(self, stream: VirtualStream) -> Caller:
        caller = self.callers[stream.device] = self._known.setdefault(stream, Caller(self, stream))
        return caller


@dataclass(slots=True, eq=False)
class Caller:
    thread: HostThread
    stream: VirtualStream


class _Tenancy:
    def __init__(self, idle: list[int], row: int) -> None:
        self._idle = idle
        self.row: int | None = row

    def __del__(self) -> None:
        if self.row is not None:
            self._idle.append(self.row)


class HostThreads:
    def __init__(self) -> None:
        self.rows: list[Thread] = []
        self._idle: list[int] = []
        self._shared: dict[str, int] = {}
        self._local = threading.local()
        self._lock = threading.Lock()

    def begin(self, now_ns: int) -> HostThread:
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
        """Return the timeline row of a C++ thread, such as PyTorch's autograd thread."""
        with self._lock:
            row = self._shared.get(name)
            if row is None:
                row = self._shared[name] = len(self.rows)
                self.rows.append(Thread(0, row, name, "backward"))
        return row

    def use_shared_row(self, thread: HostThread, name: str) -> None:
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
