"""Work that the script launches: kernels, copies, and CUDA graphs of both.

    launches.launch(signature, device=0)
    launches.copy(signature, "h2d", 4 << 20, device=0, blocking=True)
    with launches.looking as thread:      # everything launched so far has been played
        ...

Note [Played in batches]
    A launch only notes the op, its stream and the time. A few hundred launches are played together, or whatever is there when
    something looks at the device or the phase changes. The result is the same, because nothing on the timeline depends on when
    it is worked out. Playing them one after another, with the interpreter's caches warm, takes a third of the time.

Note [Three entries per op]
    The launched ops that wait to be played are one flat list: caller, signature and time of each. `+=` of a tuple takes effect
    at once, so threads (autograd's, replicas) add to it without a lock. In three lists two threads could mix up the entries,
    and tuples kept in a list would each be one more object for Python's garbage collector.

Note [Our own time]
    The time that the virtual GPU takes to work out the timeline is not the script's: a real GPU works beside its host. On a
    virtual clock time stands still meanwhile. The time of tensors and dispatch counts, as a real host's launching does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter_ns  # by name, because the module's attributes may be patched: surfaces/time.py
from typing import Any

from replayer.cost_model.copies import Copy, CopyCosts
from replayer.gpu.current_streams import CurrentStreams
from replayer.gpu.device import VirtualDevice
from replayer.memory.op_places import OpPlaces
from replayer.op_signature import OpSignature
from replayer.timing.cuda_graph import CapturedGraph, GraphCapture
from replayer.timing.host_threads import Caller, HostThread
from replayer.timing.simulator import Simulator
from replayer.timing.stream import VirtualStream
from traces.model.trace import NONE, Origin

# Ops noted before they are played: a few milliseconds of a script, less than the host may run ahead anyway.
_BATCH = 256

_NOTHING: AbstractContextManager[None] = nullcontext()


class Looking:
    """Lock the GPU and play all pending ops, before the script reads the device's state or moves on. Gives the calling thread.

    Not a generator: a phase of the script comes through here twice, each time with none of it in the processor's caches.
    """

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


class ScriptLaunches:
    """Notes what is launched and plays it. `devices` is the GPU's own list."""

    def __init__(
        self, devices: list[VirtualDevice], current: CurrentStreams, simulator: Simulator, transfers: CopyCosts, *, strict: bool
    ) -> None:
        self.current = current
        self.simulator = simulator
        self.clock = simulator.clock
        self.transfers = transfers
        self.lock = threading.RLock()
        self.looking = Looking(self)
        self.capture: GraphCapture | None = None  # the CUDA graph's that is being captured
        self.pending: list[Any] = []  # see Note [Three entries per op]
        self.places = OpPlaces(self.pending)
        # Note an op that reaches the device.
        self.launch_by: Callable[[Caller, OpSignature], None] = self._note
        self._devices = devices
        self._timeline = simulator.timeline
        self._batch = 3 if strict else 3 * _BATCH  # under --strict the op that does not match must be the one that fails
        self._numbers: list[tuple[int, int]] = []  # of the pending ops
        self._peerless: set[int] = set()  # threads that are within `peer_copies_left_out`

    def launch(self, signature: OpSignature, device: int) -> None:
        """The op's kernels go on this thread's current stream of `device`; see Note [Played in batches]."""
        if signature.launches:
            self.launch_by(self.current.caller(device), signature)

    def _note(self, caller: Caller, signature: OpSignature) -> None:
        ahead_ns = self.clock.ahead_ns
        pending = self.pending
        pending += (caller, signature, self.clock.now_ns() if ahead_ns is None else perf_counter_ns() + ahead_ns)
        if len(pending) >= self._batch:
            self.flush()

    def number_nodes(self, node_number: Callable[[], tuple[int, int]]) -> None:
        """Note autograd's numbers of each op, until `stop_numbering`; see Note [Numbered steps] in steps.py.

        Ops that a CUDA graph captures get none: they are not played when they are called.
        """
        numbers, note = self._numbers, self._note

        def launch_numbered(caller: Caller, signature: OpSignature) -> None:
            numbers.append(node_number())
            note(caller, signature)

        self.launch_by = launch_numbered

    def stop_numbering(self) -> None:
        self.launch_by = self._note

    def flush(self) -> None:
        """Play what has been launched."""
        with self.lock:
            pending, timeline = self.pending, self._timeline
            row, count = timeline.host_rows, len(pending) // 3
            timeline.ranges.place(row, count)
            if pending:
                while noted := pending[:]:
                    del pending[: len(noted)]  # other threads may have noted more since
                    if self.capture is not None:
                        noted = self._not_captured(self.capture, noted)
                        self._numbers.clear()
                    if self._numbers:
                        self._place_numbers()
                    if noted:
                        self.simulator.play_all(noted[::3], noted[1::3], noted[2::3])
            self.places.played(count, row, timeline.host_rows)
            for device in self._devices:
                device.allocator.settle()
            if count:
                timeline.relieve()

    def _place_numbers(self) -> None:
        """The numbers belong to the ops that come next."""
        numbers, row = self._numbers[:], self._timeline.host_rows
        del self._numbers[: len(numbers)]
        for at, (sequence, forward) in enumerate(numbers):
            if sequence != NONE:
                self._timeline.nodes.extend((row + at, sequence, forward))

    def _not_captured(self, capture: GraphCapture, pending: list[Any]) -> list[Any]:
        """Those of the pending ops that no CUDA graph captures; the others are noted in it."""
        rest: list[Any] = []
        for caller, signature, called_ns in zip(pending[::3], pending[1::3], pending[2::3], strict=True):
            if caller.stream in capture:
                capture.note(self.simulator.play_node, caller.stream, signature, None)
            else:
                rest += (caller, signature, called_ns)
        return rest

    def work_ns(self) -> int:
        """How long all work so far takes on its devices."""
        self.flush()
        return sum(self.simulator.stats.charged_ns.values())

    # --- copies

    def copying(self) -> AbstractContextManager[None]:
        """Around a copy from the host, the making of its target included. See Note [The host's time in a cell] in steps.py."""
        return _NOTHING if self.simulator.recording.cells is None else self._paused()

    @contextmanager
    def _paused(self) -> Iterator[None]:
        self.clock.pause()
        try:
            yield
        finally:
            self.clock.resume()

    def copy(
        self, signature: OpSignature, kind: str, size_bytes: int, device: int, blocking: bool, pinned: bool = False
    ) -> None:
        """A copy of kind "h2d", "d2h" or "d2d"; if blocking, the host waits for its end."""
        cells = self.simulator.recording.cells if kind == "h2d" and not pinned else None
        told_ns = None if cells is None else cells.copy_ns(size_bytes)
        tracker, scheduler = self.simulator.tracker, self.simulator.scheduler
        with self.looking as thread:
            copy = self.transfers.copy(kind, pinned, size_bytes)
            if told_ns is not None:
                copy = copy._replace(duration_ns=told_ns, origin=Origin.PUBLISHED)
            stream = self.current.caller_of(thread, device).stream
            if self.captured(stream, signature, copy, blocking):
                return
            if kind == "h2d":
                tracker.enter(thread, "h2d")
            end_ns = self.simulator.play(thread, stream, signature, self.clock.now_ns(), copy)
            if kind == "d2h" and blocking:
                tracker.settle(thread)
                end_ns = max(end_ns, stream.ready_ns)
            if blocking:
                scheduler.block(thread, end_ns, thread.after_wait_ns)
            if kind == "h2d":
                tracker.leave(thread, "h2d")

    @contextmanager
    def peer_copies_left_out(self) -> Iterator[None]:
        """Within, this thread's copies to other devices take no time: what is done instead of them is played."""
        self._peerless.add(threading.get_ident())
        try:
            yield
        finally:
            self._peerless.discard(threading.get_ident())

    def copy_to_peer(self, signature: OpSignature, size_bytes: int, source: int, target: int) -> None:
        """A copy to another device: on the source's stream, in order with the target's (copy_kernel_cuda, Copy.cu)."""
        if self._peerless and threading.get_ident() in self._peerless:
            return
        with self.looking as thread:
            stream, other = (self.current.caller_of(thread, device).stream for device in (source, target))
            copy = self.transfers.copy("p2p", False, size_bytes)
            if self.captured(stream, signature, copy, blocking=False):
                return
            stream.wait(other.ready_ns)
            self.simulator.play(thread, stream, signature, self.clock.now_ns(), copy)
            other.wait(stream.ready_ns)

    # --- CUDA graphs

    def begin_capture(self, pool: int, *, everywhere: bool, refuse: Callable[[], BaseException]) -> None:
        """Work on this thread's current stream, and on those that wait for it, goes into a CUDA graph and is not played.

        `pool` is the number of its private memory pool; the rest as GraphCapture has it.
        """
        with self.looking as thread:
            stream = self.current.caller_of(thread, thread.device).stream
            self.capture = GraphCapture(stream, thread, pool, everywhere=everywhere, refuse=refuse)

    def end_capture(self) -> CapturedGraph:
        with self.looking:
            assert self.capture is not None
            graph, self.capture = self.capture.end(), None
            return graph

    def replay_graph(self, graph: CapturedGraph) -> None:
        """Play all that was captured on this thread's current stream."""
        with self.looking as thread:
            stream = self.current.caller_of(thread, graph.origin.device).stream
            self.simulator.play_graph(thread, stream, graph, self.clock.now_ns())
            for compute in graph.computing:
                compute()

    def is_capturing(self, stream: VirtualStream) -> bool:
        return self.capture is not None and stream in self.capture

    def forbid_in_capture(self) -> None:
        """Raise CUDA's error if this thread must not wait for the device because a CUDA graph is being captured."""
        if self.capture is not None:
            self.capture.refuse(self.current.thread())

    def captured(self, stream: VirtualStream, signature: OpSignature, copy: Copy | None, blocking: bool) -> bool:
        """Whether a CUDA graph captures this copy. Raises CUDA's error for one that waits."""
        if self.capture is None or (stream not in self.capture and not blocking):
            return False
        if blocking:
            self.capture.refuse(self.current.thread())
        if stream in self.capture:
            self.capture.note(self.simulator.play_node, stream, signature, copy)
        return stream in self.capture
