"""Provides fakes for tests of the recorder: a clock that tests set, CUDA events, and a profiler that only logs its calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tracer.device.boundary_events import BoundaryEvents
from tracer.device.device_access import DeviceAccess
from tracer.own_cost import OwnCost
from tracer.recorder import Recorder
from tracer.recording_writer import RecorderParts
from tracer.schedule import Schedule
from tracer.writing.flight_recorder import FlightRecord
from tracer.writing.output import RecordingFile
from tracer.writing.thread_rows import ThreadRows
from traces.model.machine import Machine
from traces.model.run import CompiledCode, LoaderSettings, ProfilerUse, RecorderNotes, Run
from traces.model.trace import Device
from traces.script.step_rule import Optimizers


class FakeClock:
    """A clock that stands still until a test moves it."""

    offset_ns = 0  # this is the difference of `now_ns` and `perf_ns`
    reading_ns = 0  # each call of `perf_ns` takes this time

    def __init__(self, now_ns: int = 1_000_000) -> None:
        self.ns = now_ns

    def now_ns(self) -> int:
        return self.ns + self.offset_ns

    def perf_ns(self) -> int:
        self.ns += self.reading_ns
        return self.ns

    def thread_ns(self) -> int:
        return self.ns

    def sleep(self, duration_ns: int) -> None:
        self.ns += duration_ns


class CudaError(RuntimeError):
    """The error that torch raises for a CUDA error."""


class FakeCuda:
    """Fake devices whose streams are busy until `busy_until_ns`. A fake event is complete when the clock has passed its time.

    The fakes follow CUDA's rules. During a capture, most calls fail and invalidate the capture. After a sticky error, all calls
    fail. A device that hangs never completes an event.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.busy_until_ns: dict[int, int] = {}
        self.device = 0
        self.stream = 0
        self.contexts = {0, 1}
        self.used = True
        self.capturing = False  # true if the current stream captures a graph
        self.captures: set[str] = set()  # these are the captures of all streams
        self.destroyed_captures = 0
        self.error = ""
        self.hangs = False
        self.calls = 0  # counts the calls that reach the device
        self.made = 0  # counts the events that were created
        self.recorded = 0  # counts how often events were recorded
        self.asked = 0  # counts the queries whether the current stream captures

    def is_initialized(self) -> bool:
        return self.used

    def is_current_stream_capturing(self) -> bool:
        self.asked += 1
        return self.capturing

    def current_device(self) -> int:
        return self.device

    def set_device(self, device: int) -> None:
        self.device = device

    def current_stream(self, device: int) -> FakeStream:
        return FakeStream(device, self.stream)

    def current_handle(self, device: int) -> int:
        return self.stream

    def device_count(self) -> int:
        return 4

    def has_context(self, device: int) -> bool:
        return device in self.contexts

    def launch(self, duration_ns: int, device: int = 0) -> None:
        self.busy_until_ns[device] = max(self.busy_until_ns.get(device, 0), self.clock.ns) + duration_ns

    def synchronize(self, device: int) -> None:
        self.check()
        while self.hangs:
            time.sleep(3600)
        self.clock.ns = max(self.clock.ns, self.busy_until_ns.get(device, 0))

    def check(self) -> None:
        """Count a call that reaches the device, and raise the error that CUDA would raise."""
        self.calls += 1
        if self.capturing or self.captures:
            self.destroyed_captures += 1
            raise CudaError("CUDA error: operation not permitted when stream is capturing")
        if self.error:
            raise CudaError(self.error)

    def elapsed_ms(self, events: list[FakeEvent], device: int) -> list[float]:
        return [start.elapsed_time(end) for start, end in pairwise(events)]

    def event(self) -> FakeEvent:
        self.made += 1
        return FakeEvent(self)


class FakeProfiles(set[str]):
    """The running profiles of the script, and whether a profile with device activities has ever begun."""

    has_attached = False


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self._device: int | None = None
        self.ns = 0

    def record(self, stream: FakeStream) -> None:
        self._cuda.check()
        self._cuda.recorded += 1
        assert self._device in (None, stream.device_index), "an event belongs to the device that it was first recorded on"
        self._device = stream.device_index
        self.ns = max(self._cuda.busy_until_ns.get(stream.device_index, 0), self._cuda.clock.ns)

    def query(self) -> bool:
        self._cuda.check()
        return not self._cuda.hangs and self.ns <= self._cuda.clock.ns

    def elapsed_time(self, end: FakeEvent) -> float:
        self._cuda.check()
        assert self._device == end._device
        return (end.ns - self.ns) / 1e6


class FakeStream(NamedTuple):
    device_index: int
    cuda_stream: int = 0


class FakeProfiler:
    """A fake profiler that stores the calls that it receives."""

    wanted = True
    paused = False
    all_threads = False
    active = False
    is_recording = False
    is_beginning = False
    must_wait = False

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.steps: list[int] = []

    def begin_step(self, number: int, action: str) -> None:
        if action:
            self.told.append((action, number))
        self.active = action == "prepare" or (self.active and action == "record")
        self.is_recording = self.active and action == "record"

    def end_step(self, number: int) -> None: ...

    def make_way(self) -> None:
        self.told.append(("make way", None))
        self.active = self.is_recording = False

    def stop(self, at_end: bool = False) -> None:
        self.told.append(("stop", None))

    def use(self) -> ProfilerUse:
        return ProfilerUse(tuple(self.steps))


class FakeFacts:
    """Fake facts about a process with one device, which is listed when it is first mentioned."""

    def __init__(self) -> None:
        self.devices: list[Device] = []
        self.compiling_evaluations: list[int] = []
        self.rank = 0

    def device_row(self, index: int) -> int:
        for row, device in enumerate(self.devices):
            if device.index == index:
                return row
        self.devices.append(Device(0, index, f"Fake {index}"))
        return len(self.devices) - 1

    @property
    def extent(self) -> tuple[int, ...]:
        return (len(self.devices),)

    def run(self, step_ns: float, cost_ns: int, set_up_ns: int, profiler: ProfilerUse) -> Run:
        compiled = CompiledCode(compiling_evaluations=tuple(self.compiling_evaluations))
        return Run(recorder=RecorderNotes(overhead_ns_per_step=round(step_ns)), compiled=compiled)

    def provenance(self) -> dict[str, Any]:
        return {}

    def machine(self) -> Machine:
        return Machine()

    def lacks(self, has_profile: bool) -> list[str]:
        return []

    def loader(self, loader: object, describe: Callable[[], LoaderSettings]) -> int:
        return 0

    def read_reducers(self) -> None: ...

    def joined_group(self, rank: int) -> None:
        self.rank = rank

    def current_device_row(self) -> int:
        return self.device_row(0)

    def at_end(self, access: DeviceAccess) -> None: ...

    def failed(self, error: BaseException | None) -> None: ...


class FakeFlightRecorder:
    """A fake flight recorder. Each read takes `look_ns` and returns `found`, and a read is due after every second step."""

    def __init__(self) -> None:
        self.clock: FakeClock | None = None
        self.look_ns = 0
        self.found: list[FlightRecord] = []
        self.reads: list[bool] = []
        self.steps = self.spent_ns = 0

    def joined_group(self) -> None: ...

    def is_due(self) -> bool:
        self.steps += 1
        return self.steps % 2 == 0

    def read(self, last: bool = False) -> list[FlightRecord]:
        self.reads.append(last)
        if self.clock is not None:
            self.clock.ns += self.look_ns
        found, self.found = self.found, []
        return found

    def facts(self) -> dict[str, int]:
        return {"looks": len(self.reads)}

    def lacks(self) -> list[str]:
        return ["some"]


class Bench:
    """A recorder in a fake environment, and the calls that a script makes. The method `run` lets time pass."""

    def __init__(
        self,
        folder: Path,
        schedule: Schedule | None = None,
        flight: FakeFlightRecorder | None = None,
        optimizers: Optimizers | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.cuda = FakeCuda(self.clock)
        self.profiler = FakeProfiler()
        self.profiler.wanted = schedule is not None
        self.path = folder / "run.part"
        clock: Any = self.clock
        cuda: Any = self.cuda
        profiler: Any = self.profiler
        facts: Any = FakeFacts()
        any_flight: Any = flight
        if optimizers is None:
            optimizers = Optimizers()
            optimizers.add(self)  # the script has one optimizer
        self.output = RecordingFile(self.path, clock)
        self.profiles = FakeProfiles()
        self.access = DeviceAccess(self.cuda, self.cuda.captures, self.profiles)
        self.recorder = Recorder(
            self.output,
            RecorderParts(
                facts, BoundaryEvents(cuda, clock, self.access), profiler, ThreadRows(rank=0), OwnCost(clock), any_flight
            ),
            schedule or Schedule(warmup=1, clean=100, profiled=0),
            optimizers,
        )
        self.model = object()
        self.operation_ends_ns = 0  # the operation runs in parallel with the script

    def run(self, duration_ns: int, device_ns: int = 0) -> None:
        """Let the host work for `duration_ns`. At the start, the host launches `device_ns` of GPU work."""
        if device_ns:
            self.cuda.launch(device_ns)
        self.clock.ns += duration_ns

    def train_step(self, load_ns: int = 10, accumulate: int = 1) -> None:
        """Run a training step as in a plain training loop, in which the host runs ahead of the GPU."""
        recorder = self.recorder
        for _ in range(accumulate):
            self.load(load_ns)
            recorder.module_called(id(self.model), True)
            self.run(100, 1000)
            recorder.loss_called()
            self.run(10, 50)
            recorder.enter_phase("backward")
            self.run(200, 2000)
            recorder.leave_phase("backward")
        recorder.enter_phase("optimizer")
        self.run(30, 100)
        recorder.leave_phase("optimizer")
        recorder.optimizer_stepped(True)

    def end_step(self) -> None:
        """Run the backward pass and the optimizer of a step. Both take no time."""
        for phase in ("backward", "optimizer"):
            self.recorder.enter_phase(phase)
            self.recorder.leave_phase(phase)
        self.recorder.optimizer_stepped(True)

    def evaluate_batch(self) -> None:
        self.load(10)
        self.recorder.module_called(id(self.model), False)
        self.run(100, 900)

    def load(self, load_ns: int) -> None:
        self.recorder.enter_phase("loader")
        self.run(load_ns)
        self.recorder.leave_phase("loader")
