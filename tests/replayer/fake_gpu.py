"""Contains a fake GPU with streams, events and phases, for tests of the surfaces. Time advances only if a test advances it.

    gpu = SurfaceGpu(devices=2)
    gpu.work(gpu.stream(0), 5_000_000)  # runs kernels for 5 ms
    gpu.synchronize_device(0)           # advances gpu.now_ns to 5_000_000
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from replayer import state
from replayer.recording.data_parallel_stages import CopyMethod
from replayer.recording.recorded_regions import RecordedRegions
from replayer.timing.cuda_graph import CapturedGraph, GraphCapture
from replayer.timing.stream import VirtualEvent, VirtualStream
from replayer.timing.timeline.timeline_writer import LoaderWait
from tests.replayer.fakes import FakeGpu
from traces.model.machine import DeviceProperties, Machine
from traces.model.trace import Column, Device, Trace
from traces.names.cards import known_properties

GIB = 1 << 30


class SurfaceGpu(FakeGpu):
    """The list `phases` logs "+name" at the begin of a phase and "-name" at its end. It logs "step" for a step of the first
    optimizer, and "exhausted" for loader_exhausted.

    The list `modules` logs the ids of the outermost modules called, and whether gradients were enabled.
    """

    def __init__(self, devices: int = 1, name: str = "Tesla V100-SXM2-16GB", **properties: Any) -> None:
        super().__init__(devices, capacity_bytes=16 * GIB)
        self.machine = Machine(cuda="10.2", cudnn=7605)
        self.phases: list[str] = []
        self.ranges: list[str] = []  # Each range adds "+" when it begins and its name when it ends.
        self.modules: list[tuple[int, bool]] = []
        self.now_ns = 0
        self.assumes_sizes = False
        self.captures: list[GraphCapture] = []
        self.worked_ns = 0
        self.replayed: list[CapturedGraph] = []
        self.made_streams: list[VirtualStream] = []
        self.recording = SimpleNamespace(copy_method=CopyMethod.COPIES, regions=RecordedRegions())
        self.plays_peer_copies = True
        self.simulator = SimpleNamespace(tracker=SimpleNamespace(number=0))  # This is the number of the current step.
        for device in self.devices:
            recorded = Device(0, device.index, name, properties=DeviceProperties(**properties))
            device.name, device.properties = name, known_properties(recorded)

    def autocast_entered(self, dtype: str) -> None:
        pass

    @contextmanager
    def without_copies_to_peers(self) -> Iterator[None]:
        self.plays_peer_copies = False
        yield
        self.plays_peer_copies = True

    def copy_to_peer(self, signature: Any, size_bytes: int, source: int, target: int) -> None:
        if self.plays_peer_copies:
            super().copy_to_peer(signature, size_bytes, source, target)

    def work(self, stream: VirtualStream, duration_ns: int) -> None:
        stream.push(self.now_ns, 0, 0, duration_ns)

    def set_stream(self, stream: VirtualStream) -> None:
        self.nodes.leave(self.stream(self.device()))
        self.set_device(stream.device)
        self.local.call_on(stream)

    def new(self, device: int, priority: int = 0) -> VirtualStream:
        self.made_streams.append(VirtualStream(device, len(self.made_streams) + 1, priority))
        return self.made_streams[-1]

    def record_event(self, event: VirtualEvent, stream: VirtualStream) -> None:
        event.device, event.time_ns = stream.device, max(stream.ready_ns, self.now_ns)

    def wait_event(self, stream: VirtualStream, event: VirtualEvent) -> None:
        if event.time_ns is not None:
            stream.wait(event.time_ns)

    def wait_stream(self, stream: VirtualStream, other: VirtualStream) -> None:
        stream.wait(other.ready_ns)

    def begin_capture(self, pool: int, *, mode: str, refuse: Any) -> GraphCapture:
        thread: Any = None
        self.captures.append(GraphCapture(self.stream(self.device()), thread, pool, mode=mode, refuse=refuse))
        return self.captures[-1]

    def end_capture(self, capture: GraphCapture) -> CapturedGraph:
        self.captures.remove(capture)
        return capture.end()

    def capture_of(self, stream: VirtualStream) -> GraphCapture | None:
        return next((capture for capture in self.captures if stream in capture), None)

    def replay_graph(self, graph: CapturedGraph) -> None:
        self.replayed.append(graph)

    def is_capturing(self, stream: VirtualStream) -> bool:
        return self.capture_of(stream) is not None

    @property
    def clock(self) -> SimpleNamespace:
        return SimpleNamespace(now_ns=lambda: self.now_ns)

    def work_ns(self) -> int:
        return self.worked_ns

    def open_ranges(self, *names: str) -> AbstractContextManager[None]:
        return nullcontext()

    def begin_range(self) -> Callable[[str], None]:
        self.ranges.append("+")
        return self.ranges.append

    def watch(self) -> None:
        """The fake GPU runs nothing, so there is nothing to store."""

    def watched(self) -> tuple[Trace, Column]:
        return Trace(devices=[Device(0, device.index, device.name) for device in self.devices]), np.empty(0, np.int64)

    @property
    def loader_waits(self) -> list[LoaderWait]:
        return []

    def has_passed(self, time_ns: int) -> bool:
        return time_ns <= self.now_ns

    def query_event(self, event: VirtualEvent) -> bool:
        return event.time_ns is None or self.has_passed(event.time_ns)

    def query(self, stream: VirtualStream) -> bool:
        return stream.ready_ns <= self.now_ns

    def synchronize_event(self, event: VirtualEvent) -> None:
        self.now_ns = max(self.now_ns, event.time_ns or 0)

    def synchronize(self, stream: VirtualStream) -> None:
        self.now_ns = max(self.now_ns, stream.ready_ns)

    def synchronize_device(self, device: int) -> None:
        for stream in [self.devices[device].default_stream, *self.made_streams]:
            if stream.device == device:
                self.synchronize(stream)

    def elapsed_ms(self, start: VirtualEvent, end: VirtualEvent) -> float:
        assert start.time_ns is not None and end.time_ns is not None
        return (end.time_ns - start.time_ns) / 1e6

    def enter_phase(self, name: str) -> None:
        self.phases.append(f"+{name}")

    def leave_phase(self, name: str, error: BaseException | None = None) -> None:
        self.phases.append(f"-{name}")

    def optimizer_stepped(self, is_first: bool) -> None:
        if is_first:
            self.phases.append("step")

    def module_returned(self) -> None:
        pass

    def module_called(self, number: int, grad_enabled: bool) -> None:
        self.modules.append((number, grad_enabled))

    def autograd_recorded(self, uses_gradients: bool) -> None:
        self.phases.append("recorded on gradients" if uses_gradients else "recorded")

    def loader_exhausted(self) -> None:
        self.phases.append("exhausted")

    def host_now_ns(self) -> int:
        return self.now_ns


def use(devices: int = 1, name: str = "Tesla V100-SXM2-16GB", **properties: Any) -> SurfaceGpu:
    """Make a fake GPU the virtual GPU of this process. The script's first use of CUDA finds this GPU."""
    fake = SurfaceGpu(devices, name, **properties)
    state.start(lambda: fake)  # type: ignore[arg-type, return-value]
    return fake
