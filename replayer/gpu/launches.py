"""Launches kernels, copies and CUDA graphs on the virtual GPU.

    launches.launch(signature, device=0)
    launches.copy(signature, "h2d", 4 << 20, device=0, blocking=True)
    with launches.looking as thread:      # here, all launches so far have been simulated
        ...

Note [Played in batches]
    A launch only stores the op, the stream and the time. The timeline is computed later ("played"): after a few hundred
    launches, or when the script reads the device's state. Computing the timeline in batches is three times as fast, because
    Python's caches stay warm.

Note [Three entries per op]
    Pending ops are in one flat list with three entries per op: caller, signature and time. `+=` of a tuple is atomic, so no
    lock is needed. A list of tuples would give Python's garbage collector one more object per op.

Note [Our own time]
    A virtual clock is paused while the timeline is computed, because a real GPU works in parallel with its host. Launching an
    op also takes time on a real host, so the clock is not paused during launches.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter_ns  # surfaces/time.py may patch the module
from typing import Any, NamedTuple

from replayer.cost_model.copy_costs import Copy, CopyCosts
from replayer.gpu.current_streams import CurrentStreams
from replayer.memory.op_rows import PER_OP, OpRows
from replayer.op_signature import OpSignature
from replayer.timing.cuda_graph import CapturedGraph, GraphCapture
from replayer.timing.host_threads import Caller, HostThread
from replayer.timing.simulator import Simulator
from replayer.timing.stream import VirtualEvent, VirtualStream
from traces.model.trace import NONE, DeviceKind, Origin

Launch = Callable[[Caller, OpSignature], None]


class NodeWatch(NamedTuple):
    thread: int
    next_node: Callable[[], int]  # returns the number of the calling thread's next autograd node
    before: int
    found: Callable[[], None]


class LaunchPath:
    def __init__(self, launch: Launch) -> None:
        self.lock = threading.RLock()
        self.launch_by = self._launch_with_kernels = launch
        self._threads_with_kernels_off: list[int] = []  # threads that are inside a `kernels_off` block
        self._watch: NodeWatch | None = None

    def watch_nodes(self, next_node: Callable[[], int], found: Callable[[], None]) -> None:
        self._watch = NodeWatch(threading.get_ident(), next_node, next_node(), found)
        self.set_launch(self._launch_with_kernels)

    def stop_watching(self) -> None:
        if self._watch is not None and self._watch.thread == threading.get_ident():
            self._watch = None
            self.set_launch(self._launch_with_kernels)

    def set_launch(self, launch: Launch) -> None:
        with self.lock:
            self._launch_with_kernels = launch
            self.launch_by = self._launch_unless_kernels_off if self._threads_with_kernels_off else launch
            if self._watch is not None:
                self.launch_by = self._launch_watched

    def _launch_watched(self, caller: Caller, signature: OpSignature) -> None:
        watch = self._watch
        if watch is not None and threading.get_ident() == watch.thread and watch.next_node() != watch.before:
            self.stop_watching()
            watch.found()
        self._launch_unless_kernels_off(caller, signature)

    def _launch_unless_kernels_off(self, caller: Caller, signature: OpSignature) -> None:
        if threading.get_ident() not in self._threads_with_kernels_off:
            self._launch_with_kernels(caller, signature)

    @contextmanager
    def kernels_off(self) -> Iterator[None]:
        me = threading.get_ident()
        self._threads_with_kernels_off.append(me)
        self.set_launch(self._launch_with_kernels)
        try:
            yield
        finally:
            self._threads_with_kernels_off.remove(me)
            self.set_launch(self._launch_with_kernels)


_BATCH = 256

_USUAL_CLOCK_KHZ = 1_410_000  # the clock rate of an A100

_NOTHING: AbstractContextManager[None] = nullcontext()


class LockedGpu:
    """Simulates all launched ops, and locks the virtual GPU until the `with` block ends."""

    __slots__ = ("_clock", "_launches", "_lock")

    def __init__(self, launches: ScriptLaunches) -> None:
        self._launches = launches
        self._clock = launches.clock
        self._lock = launches.lock

    def __enter__(self) -> HostThread:
        self._lock.acquire()
        self._clock.pause()  # see Note [Our own time]
        try:
            self._launches.flush()
            return self._launches.current.thread()
        except BaseException:
            self._clock.resume()
            self._lock.release()
            raise

    def __exit__(self, *_error: object) -> None:
        self._clock.resume()
        self._lock.release()


class ScriptLaunches(LaunchPath):
    def __init__(self, current: CurrentStreams, simulator: Simulator, transfers: CopyCosts) -> None:
        super().__init__(self._note)
        self.current = current
        self.simulator = simulator
        self.clock = simulator.clock
        self.transfers = transfers
        self.looking = LockedGpu(self)
        self.captures: list[GraphCapture] = []  # the CUDA graphs that the script is capturing now
        self._fault: Callable[[], BaseException] | None = None  # all later CUDA calls raise this error
        self.pending: list[Any] = []  # see Note [Three entries per op]
        self.op_rows = OpRows(self.pending)
        self._devices = current.devices
        self._timeline = simulator.timeline
        self._batch = PER_OP if simulator.strict else PER_OP * _BATCH  # --strict raises at the first unknown op
        self._numbers: list[tuple[int, int]] = []
        self._threads_without_peer_copies: set[int] = set()
        self._in_turns: list[HostThread] | None = None  # the threads that take turns in `in_turns`

    def launch(self, signature: OpSignature, device: int) -> None:
        # see Note [Played in batches]
        if signature.launches:
            self.launch_by(self.current.caller(device), signature)

    def _note(self, caller: Caller, signature: OpSignature) -> None:
        ahead_ns = self.clock.ahead_ns
        pending = self.pending
        pending += (caller, signature, self.clock.now_ns() if ahead_ns is None else perf_counter_ns() + ahead_ns)
        if len(pending) >= self._batch:
            self.flush()

    def number_nodes(self, node_number: Callable[[], tuple[int, int]]) -> None:
        """See Note [Numbered steps] in steps.py."""
        numbers, note = self._numbers, self._note

        def launch_numbered(caller: Caller, signature: OpSignature) -> None:
            numbers.append(node_number())
            note(caller, signature)

        self.set_launch(launch_numbered)

    def stop_numbering(self) -> None:
        self.set_launch(self._note)

    def flush(self) -> None:
        with self.lock:
            if self._in_turns is not None and not self.takes_turns:
                return  # for example, the thread of a DataLoader that pins batches
            pending, timeline = self.pending, self._timeline
            row, count = timeline.host_rows, len(pending) // PER_OP
            timeline.ranges.assign_rows(row, count)
            if pending:
                while noted := pending[:]:
                    del pending[: len(noted)]
                    if self.captures:
                        noted = self._not_captured(noted)
                        self._numbers.clear()
                    if self._numbers:
                        self._write_node_numbers()
                    if noted:
                        self.simulator.play_all(noted[::3], noted[1::3], noted[2::3])
            self.op_rows.played(count, row, timeline.host_rows)
            for device in self._devices:
                device.allocator.execute_pending()
            if count:
                timeline.hand_over_if_due()

    def _write_node_numbers(self) -> None:
        numbers, row = self._numbers[:], self._timeline.host_rows
        del self._numbers[: len(numbers)]
        for at, (sequence, forward) in enumerate(numbers):
            if sequence != NONE:
                self._timeline.nodes.extend((row + at, sequence, forward))

    def _not_captured(self, pending: list[Any]) -> list[Any]:
        rest: list[Any] = []
        for caller, signature, called_ns in zip(pending[::3], pending[1::3], pending[2::3], strict=True):
            if (capture := self.capture_of(caller.stream)) is not None:
                capture.add_work(self.simulator.play_node, caller.stream, signature, None)
            else:
                rest += (caller, signature, called_ns)
        return rest

    @contextmanager
    def in_turns(self, threads: list[HostThread]) -> Iterator[None]:
        """Let threads take turns: simulate the first launch of each thread, then the second, and so on. See Note [Replicas take
        turns] in surfaces/torch_nn_parallel.py."""
        self.flush()
        batch, self._batch = self._batch, sys.maxsize
        self._in_turns = threads
        try:
            yield
        finally:
            self._batch, self._in_turns = batch, None
            with self.lock:
                callers = self.pending[::3]
                if len({id(caller.stream) for caller in callers}) == 1:
                    number = {id(thread): i for i, thread in enumerate(threads)}
                    order = turn_order([number.get(id(caller.thread), len(threads)) for caller in callers])
                    self.pending[:] = [self.pending[PER_OP * i + part] for i in order for part in range(PER_OP)]
                    if len(self._numbers) == len(order):
                        self._numbers[:] = [self._numbers[i] for i in order]
                    ranges, row = self._timeline.ranges, self._timeline.host_rows
                    ranges.assign_rows(row, len(order))
                    ranges.reordered(row, order)

    @property
    def takes_turns(self) -> bool:
        return self._in_turns is not None and self.current.known_thread() in self._in_turns

    def calls(self) -> int:
        return self._timeline.host_rows + len(self.pending) // PER_OP

    def work_ns(self) -> int:
        self.flush()
        return sum(self.simulator.stats.charged_ns.values())

    # --- copies

    def copying(self) -> AbstractContextManager[None]:
        # see Note [The host's time in a library call] in steps.py
        return _NOTHING if self.simulator.recording.library_pace is None else self._paused()

    @contextmanager
    def _paused(self) -> Iterator[None]:
        self.clock.pause()
        try:
            yield
        finally:
            self.clock.resume()

    def copy(
        self,
        signature: OpSignature,
        kind: str,
        size_bytes: int,
        device: int,
        blocking: bool,
        pinned: bool = False,
        moves_tensor: bool = False,
    ) -> None:
        """Launch a copy between CPU and GPU ("h2d", "d2h") or inside a GPU ("d2d"). The host waits for a blocking copy."""
        library = self.simulator.recording.library_pace if kind == "h2d" and not pinned else None
        library_ns = None if library is None else library.copy_ns(size_bytes)
        tracker, scheduler = self.simulator.tracker, self.simulator.scheduler
        with self.looking as thread:
            copy = self.transfers.copy(kind, pinned, size_bytes)
            if library_ns is not None:
                copy = copy._replace(duration_ns=library_ns, origin=Origin.PUBLISHED)
            stream = self.current.caller_of(thread, device).stream
            if self.captured(stream, signature, copy, blocking):
                return
            if kind == "h2d":
                tracker.enter(thread, "h2d", moves_tensor)
            end_ns = self.simulator.play(thread, stream, signature, self.clock.now_ns(), copy)
            if kind == "d2h" and blocking:
                tracker.add_gpu_work_so_far(thread)
                end_ns = max(end_ns, stream.ready_ns)
            if blocking:
                scheduler.script_waits(thread, end_ns, thread.after_wait_ns)
            if kind == "h2d":
                tracker.leave(thread, "h2d")

    @contextmanager
    def without_copies_to_peers(self) -> Iterator[None]:
        self._threads_without_peer_copies.add(threading.get_ident())
        try:
            yield
        finally:
            self._threads_without_peer_copies.discard(threading.get_ident())

    def copy_to_peer(self, signature: OpSignature, size_bytes: int, source: int, target: int) -> None:
        """Launch a copy to another GPU. The copy waits for the current streams of both GPUs, and both streams wait for the copy
        (PyTorch's Copy.cu)."""
        if self._threads_without_peer_copies and threading.get_ident() in self._threads_without_peer_copies:
            return
        with self.looking as thread:
            stream, other = (self.current.caller_of(thread, device).stream for device in (source, target))
            copy = self.transfers.copy("p2p", False, size_bytes)
            if self.captured(stream, signature, copy, blocking=False):
                return
            stream.wait(other.ready_ns)
            self.simulator.play(thread, stream, signature, self.clock.now_ns(), copy)
            other.wait(stream.ready_ns)

    def spin(self, cycles: int, device: int) -> None:
        duration_ns = cycles * 1_000_000 // (self._devices[device].properties.clock_rate or _USUAL_CLOCK_KHZ)
        work = Copy("spin_kernel", NONE, duration_ns, Origin.ROOFLINE, frozenset(), DeviceKind.KERNEL)
        signature = OpSignature("cuda::_sleep", (), ())
        with self.looking as thread:
            stream = self.current.caller_of(thread, device).stream
            if not self.captured(stream, signature, work, blocking=False):
                self.simulator.play(thread, stream, signature, self.clock.now_ns(), work)

    # --- CUDA graphs

    def begin_capture(self, pool: int, *, mode: str, refuse: Callable[[], BaseException]) -> GraphCapture:
        with self.looking as thread:
            stream = self.current.caller_of(thread, thread.device).stream
            capture = GraphCapture(stream, thread, pool, mode=mode, refuse=refuse)
            self.captures.append(capture)
            return capture

    def end_capture(self, capture: GraphCapture) -> CapturedGraph:
        with self.looking:
            self.captures.remove(capture)
            return capture.end()

    def replay_graph(self, graph: CapturedGraph) -> None:
        with self.looking as thread:
            stream = self.current.caller_of(thread, graph.origin.device).stream
            self.simulator.play_graph(thread, stream, graph, self.clock.now_ns())
            for compute in graph.computing:
                compute()

    def fail(self, error: Callable[[], BaseException], *, now: bool) -> None:
        """Raise a kernel's error. If `now` is True, raise the error immediately. Otherwise, raise the error when the host next
        waits for the GPU."""
        self._fault = error
        if now:
            self.raise_fault()

    def raise_fault(self) -> None:
        if self._fault is not None:
            self.launch_by = lambda _caller, _signature: self.raise_fault()
            raise self._fault()

    def is_capturing(self, stream: VirtualStream) -> bool:
        return self.capture_of(stream) is not None

    def capture_of(self, captured: VirtualStream | VirtualEvent) -> GraphCapture | None:
        return next((capture for capture in self.captures if captured in capture), None)

    def check_may_wait(self, of: VirtualStream | VirtualEvent | None = None) -> None:
        """Raise the error of a failed kernel. Raise CUDA's error if the current capture of a CUDA graph forbids waiting."""
        self.raise_fault()
        for capture in self.captures:
            capture.refuse(self.current.thread(), of)

    def captured(self, stream: VirtualStream, signature: OpSignature, copy: Copy | None, blocking: bool) -> bool:
        if blocking:
            self.raise_fault()
            if self.captures:
                self.check_may_wait(stream)
        capture = self.capture_of(stream)
        if capture is not None:
            capture.add_work(self.simulator.play_node, stream, signature, copy)
        return capture is not None


def turn_order(threads: list[int]) -> list[int]:
    """Return the order in which ops run if several threads take turns, one op at a time."""
    counts = Counter[int]()
    turns = []
    for thread in threads:
        turns.append((counts[thread], thread))
        counts[thread] += 1
    return sorted(range(len(threads)), key=turns.__getitem__)
