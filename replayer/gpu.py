"""The virtual GPU: devices, streams, events and host threads as a script sees them through torch.

`tensor.py` calls `launch`, `copy` and `read` for what the script does; the surfaces call the rest. Time is the player's.

    gpu = VirtualGpu(recording, clock, timeline, ...)
    gpu.launch(signature, device=0)
    gpu.synchronize_device(0)       # returns when the device's recorded time has passed

Streams and events follow CUDA: work on one stream runs in order, an event is the end of what its stream held when it was
recorded, and the host waits only in the calls in which CUDA would.

Note [Played in batches]
    A launch only notes the op, its stream and the time; some hundred of them are played together, or as soon as anything
    looks at the device or the phase changes. Nobody can tell, for nothing on the timeline depends on when it is worked out;
    but playing them one after another, with the interpreter's caches warm, takes a third of the time.

Note [Three entries per op]
    The launched ops that wait to be played are one flat list: caller, signature and time of each. `+=` of a tuple takes effect
    at once, so threads (autograd's, replicas) add to it without a lock. In three lists two threads could mix up the entries,
    and tuples kept in a list would each be one more object for Python's garbage collector.

Note [Our own time]
    What this module takes to work the timeline out is no time of the script's: a real GPU works beside its host. On a virtual
    clock time stands still meanwhile. What tensors and dispatch take counts, as a real host's launching does.

Note [Numbered steps]
    Which op of the backward pass belongs to which module is known by autograd's numbers. To ask for them takes 0.2 us per op,
    too much for every step, and steps repeat: so they are noted in the first training steps, and steps with the same ops get
    theirs afterwards (traces/node_numbers.py).

Note [The host's time in a cell]
    What a cell of the library tells of a phase was measured from when the host entered it until the device was done, so it
    holds what that host took to launch. What this machine takes for the same calls (copies, the model's, zero_grad, backward,
    step) does not count beside it: on a virtual clock time stands still in them. On the wall clock it cannot, and a host that
    takes longer than the phase makes it longer.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter_ns  # by name, for what the module holds may be patched: surfaces/time.py
from typing import TYPE_CHECKING, Any

from replayer.cost_model.collectives import CollectiveCosts, GroupOperation, Times, Transfer
from replayer.cost_model.copies import Copy, CopyCosts
from replayer.errors import NotEmulated
from replayer.memory import cudnn_workspaces
from replayer.memory.capacity import capacity_of
from replayer.memory.cublas_workspaces import BlasWorkspaces
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.request_log import RequestLog
from replayer.memory.op_places import OpPlaces
from replayer.memory.tensor_allocator import TensorAllocator
from replayer.op_signature import OpSignature
from replayer.recording.cell_pace import CellPace
from replayer.recording.kept_workspaces import keeps_workspaces
from replayer.recording.recorded_run import RecordedRun
from replayer.recording.replicas import add_devices
from replayer.recording.values.assumed_values import AssumedValues
from replayer.recording.values.output_sizes import RecordedOutputSizes
from replayer.recording.values.recorded_values import RecordedValues
from replayer.recording.workspaces import Workspaces, WorkspaceSequence
from replayer.timing.clock import Clock
from replayer.timing.cuda_graph import CapturedGraph, GraphCapture
from replayer.timing.host_threads import Caller, HostThread, HostThreads
from replayer.timing.simulator import Simulator
from replayer.timing.steps.data_parallel import OpenRegion
from replayer.timing.stream import VirtualEvent, VirtualStream
from replayer.timing.timeline.host_ranges import NAMED
from traces.cards import known_properties
from traces.machine import DeviceProperties
from traces.model import NONE, Column, Device, DeviceKind, Origin, Shape, Thread, Trace
from traces.modules import ModuleNames
from traces.script_hooks import ModuleMarks
from traces.steps import Optimizers
from traces.workload_observer import WorkloadObserver

if TYPE_CHECKING:
    from replayer.timing.timeline.timeline_writer import LoaderWait, TimelineWriter

# Phases entered by name whose time a cell of the library holds; see Note [The host's time in a cell].
_OF_CELLS = frozenset({"zero_grad", "backward", "optimizer"})

# Training steps in which autograd's numbers are noted; the first may be unlike the others (lazy states, warm-up).
_NUMBERED_STEPS = 3

# Ops noted before they are played: a few milliseconds of a script, less than the host may run ahead anyway.
_BATCH = 256


_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(slots=True, eq=False)
class VirtualDevice:
    """One virtual CUDA device."""

    index: int
    name: str
    properties: DeviceProperties  # all that are known, of the recording and of the card
    allocator: TensorAllocator  # by which tensors use the memory
    default_stream: VirtualStream

    @property
    def memory(self) -> DeviceMemory:
        """The device's memory with all allocations and frees so far executed."""
        return self.allocator.flush()


class _Looking:
    """Lock the GPU and play all pending ops, before the script reads the device's state or moves on. Gives the calling thread.

    No generator: a phase of the script comes through here twice, each time with none of it in the processor's caches.
    """

    __slots__ = ("_gpu", "_lock")

    def __init__(self, gpu: VirtualGpu, lock: threading.RLock) -> None:
        self._gpu = gpu
        self._lock = lock

    def __enter__(self) -> HostThread:
        self._lock.acquire()
        self._gpu.clock.pause()  # see Note [Our own time]
        try:
            self._gpu.flush()
            return self._gpu.thread()
        except BaseException:
            self._gpu.clock.resume()
            self._lock.release()
            raise

    def __exit__(self, *_error: object) -> None:
        self._gpu.clock.resume()
        self._lock.release()


class VirtualGpu:
    """All virtual devices of this process."""

    def __init__(
        self,
        trace: Trace,
        rank: int,
        clock: Clock,
        timeline: TimelineWriter,
        *,
        strict: bool,
        pad_loader: bool,
        memory_bytes: Sequence[int] = (),
        devices: Sequence[Device] = (),
        gpus: int = 0,
        link_gbps: float = 0,
        optimizers: Optimizers | None = None,
        cells: CellPace | None = None,
        keep_requests: bool = False,
        step_ended: Callable[[int, int], None] | None = None,
        improving: bool = True,
        node_number: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """`memory_bytes` gives the devices other capacities than the recorded ones: one for all of them, or one each.

        `devices` are what the script sees, if that is not what `rank` was recorded with; or `gpus` is how many of them. Copies
        between them go at `link_gbps` (0: as recorded, else by the kind of device). `optimizers` are the script's. `cells`
        tell the times where `trace` has none.
        With `keep_requests` each device's memory has a log of its requests (device/request_log.py). `step_ended` is told how
        many training steps, and how many of both kinds, have ended, as soon as that is known. `improving`: values that were
        not recorded are those of a run that makes progress. `node_number` gives autograd's numbers of the op under way
        (tensor/node_numbers.py); see Note [Numbered steps].
        """
        self.recording = RecordedRun.of(trace, rank)
        self.recording.devices = list(devices) or self.recording.devices
        self.recording.cells = cells
        if gpus:
            add_devices(self.recording, gpus)
        optimizers = optimizers if optimizers is not None else Optimizers()
        self.simulator = Simulator(self.recording, clock, timeline, optimizers, strict=strict, pad_loader=pad_loader)
        self.clock = clock
        self._speed = float(clock.speed)
        self.timeline = timeline
        self.machine = trace.machine_of(rank)
        self._threads = HostThreads()
        self.simulator.scheduler.row_of = self._threads.row_of
        self._transfers = CopyCosts.of(trace, self.recording.speed, link_gbps)
        self.collective_costs = CollectiveCosts.of(trace)
        self._peers: list[Callable[[bool], None]] = []  # settle what goes on between this process and others
        self._workspaces = Workspaces.of(trace, self.recording, rank)
        properties = [known_properties(device) for device in self.recording.devices]
        self._estimates_workspaces = keep_requests and not len(trace.memory)
        self.blas = BlasWorkspaces(self.machine, [of.major or 0 for of in properties], [of.gcnArchName for of in properties])
        if (kept := keeps_workspaces(trace, rank, self.blas.usual_bytes)) is not None:
            self.blas.kept = kept
        self._values = RecordedValues.of(trace, rank)
        self.assumed = AssumedValues(lambda: self.simulator.tracker.trained, improving=improving)
        self.assumes_sizes = improving and not strict  # of results whose shape depends on values
        self._selections = RecordedOutputSizes.of(trace, rank)
        self.capture: GraphCapture | None = None  # a CUDA graph's, under way
        self._settled_in = self._froze = False
        self._in_cell = False  # a cell tells what the module call under way takes
        self._trained = self._ended = 0  # training steps so far, and steps of both kinds
        self._keep_requests = keep_requests
        self._step_ended = step_ended
        self._has_home = False  # the first device used becomes the script's primary one, `StreamScheduler.home`
        self.local = threading.local()  # of a thread: `thread`, and its `callers` by device, once it has used the GPU
        self._lock = threading.RLock()
        self._looking = _Looking(self, self._lock)
        self._stream_count = 0
        self._pending: list[Any] = []  # see Note [Three entries per op]
        self._places = OpPlaces(self._pending)
        self._batch = 3 if strict else 3 * _BATCH  # under --strict the op that does not match must be the one that fails
        sizes = [*memory_bytes, *[memory_bytes[-1] if len(memory_bytes) == 1 else None] * len(self.recording.devices)]
        self.devices = [self._device(i, device, sizes[i]) for i, device in enumerate(self.recording.devices)]
        self._module_names: dict[int, int] = {}  # of living modules, by identity: as `HostRanges` takes them
        self._names = ModuleNames()
        self._numbers: list[tuple[int, int]] = []  # of the pending ops
        if node_number is not None:
            self._number_nodes(node_number)
        if cells is not None:
            self.workload.on_every_call = self._watch_call

    def _device(self, index: int, device: Device, given_bytes: int | None) -> VirtualDevice:
        import torch  # the script has imported it by now

        capacity = capacity_of(self.machine, device, torch.__version__, given_bytes)
        thread = self.thread()

        def wait_until(time_ns: int) -> None:
            self.simulator.scheduler.block(thread, time_ns)

        memory = DeviceMemory(index, *capacity, host_now_ns=lambda: thread.host_ns, wait_until_ns=wait_until)
        if self._keep_requests:
            memory.requests = RequestLog()
        allocator = TensorAllocator(memory, lambda: thread.host_ns, self.timeline.memory, self._places)
        stream = self.simulator.scheduler.stream(index, 0)
        return VirtualDevice(index, device.name, known_properties(device), allocator, stream)

    def device_count(self) -> int:
        return len(self.devices)

    # --- what tensors do

    def launch(self, signature: OpSignature, device: int) -> None:
        """The op's kernels go on this thread's current stream of `device`; see Note [Played in batches]."""
        if signature.launches:
            self.launch_by(self.caller(device), signature)

    def launch_by(self, caller: Caller, signature: OpSignature) -> None:
        """`launch` of an op that reaches the device, for who knows the caller."""
        ahead_ns = self.clock.ahead_ns
        pending = self._pending
        pending += (caller, signature, self.clock.now_ns() if ahead_ns is None else perf_counter_ns() + ahead_ns)
        if len(pending) >= self._batch:
            self.flush()

    def _number_nodes(self, node_number: Callable[[], tuple[int, int]]) -> None:
        """See Note [Numbered steps]. Of what a CUDA graph captures none are noted: it is not played when it is called."""
        numbers, launch = self._numbers, self.launch_by

        def launch_numbered(caller: Caller, signature: OpSignature) -> None:
            numbers.append(node_number())
            launch(caller, signature)

        self.launch_by = launch_numbered  # type: ignore[method-assign]

    def flush(self) -> None:
        """Play what has been launched."""
        with self._lock:
            pending, timeline = self._pending, self.timeline
            row, count = timeline.host_rows, len(pending) // 3
            timeline.ranges.place(row, count)
            if pending:
                while noted := pending[:]:
                    del pending[: len(noted)]  # others may have noted more since
                    if self.capture is not None:
                        noted = self._not_captured(self.capture, noted)
                        self._numbers.clear()
                    if self._numbers:
                        self._place_numbers()
                    if noted:
                        self.simulator.play_all(noted[::3], noted[1::3], noted[2::3])
            self._places.played(count, row, timeline.host_rows)
            for device in self.devices:
                device.allocator.settle()
            if count:
                timeline.relieve()

    def _place_numbers(self) -> None:
        """The numbers are those of the ops that come next."""
        numbers, row = self._numbers[:], self.timeline.host_rows
        del self._numbers[: len(numbers)]
        for at, (sequence, forward) in enumerate(numbers):
            if sequence != NONE:
                self.timeline.nodes.extend((row + at, sequence, forward))

    def _not_captured(self, capture: GraphCapture, pending: list[Any]) -> list[Any]:
        """Those of the pending ops that no CUDA graph captures; the others are noted in it."""
        rest: list[Any] = []
        for caller, signature, called_ns in zip(pending[::3], pending[1::3], pending[2::3], strict=True):
            if caller.stream in capture:
                capture.note(self.simulator.play_node, caller.stream, signature, None)
            else:
                rest += (caller, signature, called_ns)
        return rest

    def _captured(self, stream: VirtualStream, signature: OpSignature, copy: Copy | None, blocking: bool) -> bool:
        """Whether a CUDA graph captures this copy. Raises CUDA's error for one that waits."""
        if self.capture is None or (stream not in self.capture and not blocking):
            return False
        if blocking:
            self.capture.refuse(self.thread())
        if stream in self.capture:
            self.capture.note(self.simulator.play_node, stream, signature, copy)
        return stream in self.capture

    def copy_to_peer(self, signature: OpSignature, size_bytes: int, source: int, target: int) -> None:
        """A copy to another device: on the source's stream, in order with the target's (copy_kernel_cuda, Copy.cu)."""
        with self._looking as thread:
            stream, other = self._current(thread, source), self._current(thread, target)
            copy = self._transfers.copy("p2p", False, size_bytes)
            if self._captured(stream, signature, copy, blocking=False):
                return
            stream.wait(other.ready_ns)
            self.simulator.play(thread, stream, signature, self.clock.now_ns(), copy)
            other.wait(stream.ready_ns)

    def copying(self) -> AbstractContextManager[None]:
        """Around a copy from the host, the making of its target included. See Note [The host's time in a cell]."""
        return _NOTHING if self.recording.cells is None else self._paused()

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
        cells = self.recording.cells if kind == "h2d" and not pinned else None
        told_ns = None if cells is None else cells.copy_ns(size_bytes)
        with self._looking as thread:
            copy = self._transfers.copy(kind, pinned, size_bytes)
            if told_ns is not None:
                copy = copy._replace(duration_ns=told_ns, origin=Origin.PUBLISHED)
            if self._captured(self._current(thread, device), signature, copy, blocking):
                return
            if kind == "h2d":
                self.simulator.tracker.enter(thread, "h2d")
            end_ns = self.simulator.play(thread, self._current(thread, device), signature, self.clock.now_ns(), copy)
            if kind == "d2h" and blocking:
                self.simulator.tracker.settle(thread)
                end_ns = max(end_ns, self._current(thread, device).ready_ns)
            if blocking:
                self.simulator.scheduler.block(thread, end_ns, thread.after_wait_ns)
            if kind == "h2d":
                self.simulator.tracker.leave(thread, "h2d")

    def read(self, signature: OpSignature, device: int, dtype: str, count: int) -> list[float] | None:
        """The host reads `count` elements: it waits for the stream, then gets what was recorded, or None."""
        with self._looking as thread:
            stream = self._current(thread, device)
            self._captured(stream, signature, None, blocking=True)
            self.simulator.play(thread, stream, signature, self.clock.now_ns(), self._transfers.read(count * 8))
            self.simulator.tracker.settle(thread)
            self.simulator.scheduler.block(thread, stream.ready_ns, thread.after_wait_ns)
            tracker = self.simulator.tracker
            values = self._values.next(count, tracker.number, tracker.row_of_values)
            if values is None:
                self.simulator.stats.reads_unrecorded += 1
            return values

    def recorded_output_size(self, op: str, shape: Shape) -> int | None:
        """The recorded output size of the next call of a data-dependent op on a tensor of this shape; None if not recorded."""
        tracker = self.simulator.tracker
        return self._selections.next(op, shape, tracker.number, tracker.step.step.row, tracker.row_of_values)

    def workspaces_of(self, signature: OpSignature) -> WorkspaceSequence:
        """What the op takes for itself and gives back before it returns, as far as the recording tells; estimated where a
        script's requests are kept to be run on other cards."""
        if self._estimates_workspaces:
            return cudnn_workspaces.of_convolution(signature)
        return self._workspaces.of_op(self.recording.keys[signature])

    # --- threads, devices and streams

    def thread(self) -> HostThread:
        """The calling host thread, made at first use."""
        thread: HostThread | None = getattr(self.local, "thread", None)
        if thread is None:
            thread = self.local.thread = self._threads.begin(self.clock.now_ns())
            self.local.callers = thread.callers
        return thread

    @property
    def threads(self) -> list[Thread]:
        """The host threads, by their rows of the timeline."""
        return self._threads.rows

    def present_ns(self) -> int:
        """The calling thread's virtual present as it has been played, whatever the clock says."""
        self.flush()
        return self.thread().host_ns

    def come_to_present(self) -> None:
        """The calling thread looks at its clock: really wait until it is as late as the recorded host would have it.

        Only for clocks on which waiting takes no time; on the machine's a script that is ahead sees its own pace, see
        `_AHEAD_NS` in simulator.py. Without effect in a thread that did not use the device.
        """
        thread: HostThread | None = getattr(self.local, "thread", None)
        if thread is not None:
            self.flush()
            self.simulator.scheduler.wait(thread.host_ns)

    def begin_thread(self, name: str, since_ns: int) -> None:
        """The calling thread was made at `since_ns`. A thread of this name is made in each step: all share one timeline row."""
        thread = self.thread()
        self._threads.share_row(thread, name)
        thread.host_ns = since_ns

    def await_thread(self, ended_ns: int) -> None:
        """The calling thread has waited for another one, which ended then."""
        thread = self.thread()
        thread.host_ns = max(thread.host_ns, ended_ns)

    def _caller(self, thread: HostThread, device: int) -> Caller:
        caller = thread.callers.get(device)
        if caller is None:
            if not self._has_home:
                self._has_home = True
                self.simulator.scheduler.home = self.timeline.home = device
            caller = thread.call_on(self.devices[device].default_stream)
        return caller

    def _current(self, thread: HostThread, device: int) -> VirtualStream:
        return self._caller(thread, device).stream

    def current_device(self) -> int:
        return self.thread().device

    def set_device(self, index: int) -> None:
        self.thread().device = index

    def caller(self, device: int) -> Caller:
        """The calling thread on its current stream of `device`: `local.callers[device]` once it has used that."""
        return self._caller(self.thread(), device)

    def current_stream(self, device: int) -> VirtualStream:
        return self.caller(device).stream

    def set_stream(self, stream: VirtualStream) -> None:
        """Make `stream` the current one of its device, and its device the current one."""
        thread = self.thread()
        thread.device = stream.device
        thread.call_on(stream)

    def new_stream(self, device: int, priority: int = 0) -> VirtualStream:
        with self._lock:
            self._stream_count += 1
            return self.simulator.scheduler.stream(device, self._stream_count, priority)

    # --- events and waiting

    def record_event(self, event: VirtualEvent, stream: VirtualStream) -> None:
        with self._looking as thread:
            if self.capture is not None and self.capture.record(event, stream):
                self.capture.note(_record, event, stream)
                return
            self.simulator.tracker.settle(thread)
            event.device = stream.device
            event.time_ns = max(stream.ready_ns, self._now(thread))
            if event.awaited:
                event.awaited = False
                self.simulator.stats.events_never_recorded -= 1

    def stream_wait_event(self, stream: VirtualStream, event: VirtualEvent) -> None:
        """Later work on `stream` starts no earlier than the event; one that was never recorded is no wait, as in CUDA."""
        with self._looking:
            if self.capture is not None and self.capture.has_event(event):
                self.capture.join(stream)
                self.capture.note(_wait, stream, event)
            elif event.time_ns is None:
                self._await_nothing(event)
            else:
                stream.wait(event.time_ns)

    def stream_wait_stream(self, stream: VirtualStream, other: VirtualStream) -> None:
        """Later work on `stream` starts no earlier than all that `other` holds now: an event between the two."""
        with self._looking as thread:
            if self.capture is not None and other in self.capture:
                self.capture.join(stream, other)
                self.capture.note(_wait, stream, other)
                return
            self.simulator.tracker.settle(thread)
            stream.wait(other.ready_ns)

    def _await_nothing(self, event: VirtualEvent) -> None:
        """See Note [Waits on unrecorded events] in stream.py."""
        if not event.awaited:
            event.awaited = True
            self.simulator.stats.events_never_recorded += 1

    def has_passed(self, time_ns: int) -> bool:
        """Whether this virtual time has passed."""
        return time_ns <= self.clock.now_ns()

    def query_event(self, event: VirtualEvent) -> bool:
        self._forbid_in_capture()
        return event.time_ns is None or event.time_ns <= self.clock.poll_ns()

    def query_stream(self, stream: VirtualStream) -> bool:
        self._forbid_in_capture()
        self.flush()
        return stream.ready_ns <= self.clock.poll_ns()

    def synchronize_event(self, event: VirtualEvent) -> None:
        self._forbid_in_capture()
        if event.time_ns is None:
            with self._lock:
                self._await_nothing(event)
        else:
            self.simulator.scheduler.block(self.thread(), event.time_ns)

    def synchronize_stream(self, stream: VirtualStream) -> None:
        self._forbid_in_capture()
        with self._looking as thread:
            self.simulator.tracker.settle(thread)
            self.simulator.scheduler.block(thread, stream.ready_ns)

    def work_ns(self) -> int:
        """How long all work so far takes on its devices."""
        self.flush()
        return sum(self.simulator.stats.charged_ns.values())

    # --- profiles that the script makes of itself, and its names for ranges

    def begin_range(self) -> Callable[[str], None]:
        """The calling thread enters a range, which lies in its row; what is returned ends it and wants its name."""
        with self._looking as thread:
            start_ns, row = self._now(thread), thread.row

        def end(name: str) -> None:
            with self._looking as thread:
                self.timeline.range(row, name, start_ns, max(self._now(thread), start_ns))

        return end

    def watch(self) -> None:
        """Keep what is played from now on for `watched`."""
        with self._looking:
            self.timeline.watch()

    def watched(self) -> tuple[Trace, Column]:
        """Ops, device work and memory events since `watch`, and per memory event the host row that begins next, or NONE."""
        with self._looking as thread:
            self.simulator.tracker.settle(thread)
            return self.timeline.watched(Trace(devices=self.recording.devices, threads=self.threads))

    @property
    def loader_waits(self) -> list[LoaderWait]:
        """The script's waits for a batch since `watch`."""
        return self.timeline.loader_waits

    # --- CUDA graphs

    def begin_capture(self, pool: int, *, everywhere: bool, refuse: Callable[[], BaseException]) -> None:
        """What this thread's current stream, and those that wait for it, are given goes into a CUDA graph and is not played.

        `pool` is the number of its private memory pool; the rest as GraphCapture has it.
        """
        with self._looking as thread:
            stream = self._current(thread, thread.device)
            self.capture = GraphCapture(stream, thread, pool, everywhere=everywhere, refuse=refuse)

    def end_capture(self) -> CapturedGraph:
        with self._looking:
            assert self.capture is not None
            graph, self.capture = self.capture.end(), None
            return graph

    def replay_graph(self, graph: CapturedGraph) -> None:
        """Play all that was captured on this thread's current stream."""
        with self._looking as thread:
            self.simulator.play_graph(thread, self._current(thread, graph.origin.device), graph, self.clock.now_ns())
            for compute in graph.computing:
                compute()

    def is_capturing(self, stream: VirtualStream) -> bool:
        return self.capture is not None and stream in self.capture

    def _forbid_in_capture(self) -> None:
        if self.capture is not None:
            self.capture.refuse(self.thread())

    def _moves_on(self, thread: HostThread, call: Callable[..., None], *args: Any) -> bool:
        """Call the tracker, or note that for each replay of the graph that the script captures; whether it was called."""
        if self.capture is not None and thread is self.capture.thread:
            self.capture.note(call, *args)
            return False
        call(thread, *args)
        return True

    # --- between ranks

    def join(self, settle: Callable[[bool], None]) -> None:
        """This process takes part in a group; `settle` finds out when what is under way there ends, waiting or not."""
        self._peers.append(settle)

    def arrival_ns(self, device: int) -> int:
        """When work launched now behind all that the current stream of `device` holds could start on an idle stream."""
        if self.capture is not None:
            raise NotEmulated("torch.distributed while a CUDA graph captures", "communicate outside of the graph")
        with self._looking as thread:
            self.simulator.tracker.settle(thread)
            return max(self._now(thread) + self.recording.latency_ns, self._current(thread, device).ready_ns)

    def communicate(self, stream: VirtualStream, call: GroupOperation, transfer: Transfer, label: str, times_ns: Times) -> None:
        """Put an operation between ranks on `stream`, from when this rank was ready until the data had come."""
        with self._looking:
            start_ns, end_ns = max(times_ns.ready, stream.ready_ns), times_ns.end
            stream.wait(start_ns)
            stream.push(start_ns, 0, 0, end_ns - start_ns)
            name = self.timeline.strings.add(label) if transfer.kernel == NONE else transfer.kernel
            place = stream.device, stream.number, int(DeviceKind.KERNEL), name
            self.timeline.work((*place, start_ns, end_ns - start_ns, NONE, call.size_bytes, int(transfer.origin)))
            self.timeline.collective(*call, times_ns.call, end_ns - start_ns)
            self.simulator.stats.charged_ns[transfer.origin] += transfer.duration_ns

    def synchronize_device(self, device: int) -> None:
        self._forbid_in_capture()
        for settle in self._peers:
            settle(True)
        with self._looking as thread:
            self.simulator.tracker.settle(thread)
            streams = [s.ready_ns for s in self.simulator.scheduler.streams.values() if s.device == device]
            self.simulator.scheduler.block(thread, max(streams, default=0))

    def elapsed_ms(self, start: VirtualEvent, end: VirtualEvent) -> float:
        if start.time_ns is None or end.time_ns is None:
            raise ValueError("both events must be recorded before their time is taken")
        return (end.time_ns - start.time_ns) / 1e6 / self._speed  # as the script's own clock would tell

    # --- phases of the script

    def enter_phase(self, name: str) -> None:
        with self._looking as thread:
            if self._moves_on(thread, self.simulator.tracker.enter, name):
                self._settle_in()
                if name in _OF_CELLS and self.recording.cells is not None:
                    self.clock.pause()

    def leave_phase(self, name: str) -> None:
        with self._looking as thread:
            if name in _OF_CELLS and self.recording.cells is not None:
                self.clock.resume()
            self._moves_on(thread, self.simulator.tracker.leave, name)

    def loss_called(self) -> None:
        """The script calls a loss that is told by its own name only, not by those of the ops that it is made of."""
        with self._looking as thread:
            self._moves_on(thread, self.simulator.tracker.loss_called)

    def optimizer_stepped(self, is_first: bool) -> None:
        """An optimizer's step() has returned; that of the first one ends a step."""
        with self._looking as thread:
            if self._moves_on(thread, self.simulator.tracker.optimizer_stepped, is_first):
                self._settle_in()

    def _watch_call(
        self, module: Any, inputs: Iterable[tuple[Shape, str]], autocast: str | None, grad_enabled: bool
    ) -> Callable[[], None]:
        """What a cell of the library tells of the call that begins, on the device that the script works on. Returns what is to
        be called at its end. See Note [The host's time in a cell]."""
        cells = self.recording.cells
        assert cells is not None
        with self._looking:
            cells.watch(module, inputs, autocast, grad_enabled)
            self._in_cell = cells.tells_call
            memory = self.devices[max(self.simulator.scheduler.home, 0)].memory
            memory.limit_to(cells.memory_limit(memory.peak_allocated_bytes))
            memory.returns_pieces = cells.is_known_to_fit
        return self._cell_returned

    def _cell_returned(self) -> None:
        if self._in_cell:
            self._in_cell = False
            self.clock.resume()

    def module_called(self, module: object, grad_enabled: bool) -> None:
        """The script calls a module, not within another one's call."""
        with self._looking as thread:
            if self._moves_on(thread, self.simulator.tracker.module_called, id(module), grad_enabled):
                self._settle_in()
                if self._in_cell:
                    self.clock.pause()

    def module_marks(self, module: object) -> ModuleMarks | None:
        """Where this thread notes calls of modules while an outermost one is under way; of a replica, nothing is noted: they
        are made anew in each step."""
        if getattr(module, "_is_replica", False):
            return None
        thread, ranges = self.thread(), self.timeline.ranges
        ranges.under_way += 1
        if not ranges.begun_ns:
            ranges.begun_ns = thread.host_ns
        return ranges.of_thread(thread.row).append, self._pending, self._module_names.get, self._name_module

    def modules_left(self) -> None:
        """The outermost call has returned."""
        self.timeline.ranges.under_way -= 1

    def _name_module(self, module: object) -> int:
        with self._lock:
            return self._names.keep(module, self._module_names, lambda name: (self.timeline.strings.add(name) + 1) * NAMED)

    def module_returned(self) -> None:
        """That module has returned. Nothing that was called in it need be played for that."""
        self.simulator.tracker.module_returned()

    @property
    def workload(self) -> WorkloadObserver:
        """Notes what the script trains, until it is known."""
        return self.simulator.tracker.workload

    def loader_exhausted(self) -> None:
        """The loader that the script has just left had no batch for it."""
        with self._looking as thread:
            self.simulator.tracker.loader_exhausted(thread)

    def begin_part(self, name: str, device: int) -> OpenRegion:
        """The script enters a part of nn.DataParallel that is timed on this device."""
        with self._looking as thread:
            return self.simulator.tracker.begin_part(thread, name, device)

    def end_part(self, part: OpenRegion) -> None:
        """The script leaves it."""
        with self._looking as thread:
            self.simulator.tracker.end_part(thread, part)

    def _settle_in(self) -> None:
        """A step may have ended. After a training step allocations are expected to repeat themselves.

        After the first step: what there is of ours by now, a hundred thousand objects of recording and plans, stays; full
        collections in the midst of a step need not visit it again and again."""
        tracker = self.simulator.tracker
        if tracker.trained != self._trained:
            self._trained = tracker.trained
            if self._trained >= _NUMBERED_STEPS:
                vars(self).pop("launch_by", None)
            for device in self.devices:
                device.allocator.end_step()
        if self._step_ended is not None and tracker.number != self._ended:
            self._ended = tracker.number
            self._step_ended(tracker.trained, tracker.number)
        if self._settled_in or not tracker.number:
            return
        self._settled_in = True
        if gc.get_freeze_count():  # by who forked this rank: to thaw that at the end would write to all that the ranks share
            return
        gc.collect()
        gc.freeze()
        self._froze = True

    @contextmanager
    def thawed(self) -> Iterator[None]:
        """Meanwhile collections visit every object; what is left is kept out of them again."""
        if self._froze:
            gc.unfreeze()
        yield
        if self._froze:
            gc.freeze()

    def stop(self) -> None:
        """The script has ended."""
        for settle in self._peers:
            settle(False)
        with self._looking as thread:
            self.simulator.tracker.stop(thread)
            if self._froze:
                gc.unfreeze()  # or what the interpreter frees at its end would count as leaked

    def host_now_ns(self) -> int:
        """The calling thread's virtual present."""
        self.flush()
        return self._now(self.thread())

    def _now(self, thread: HostThread) -> int:
        return max(thread.host_ns, self.clock.now_ns())


def _record(_thread: HostThread, event: VirtualEvent, stream: VirtualStream) -> None:
    """An event within a CUDA graph is recorded at each replay."""
    event.time_ns = stream.ready_ns


def _wait(_thread: HostThread, stream: VirtualStream, until: VirtualStream | VirtualEvent) -> None:
    time_ns = until.ready_ns if isinstance(until, VirtualStream) else until.time_ns
    if time_ns is not None:
        stream.wait(time_ns)
