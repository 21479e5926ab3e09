"""Emulates all GPUs of a process.

    gpu = VirtualGpu(trace, rank=0, clock=clock, timeline=timeline)
    gpu.launches.launch(signature, device=0)
    gpu.streams.synchronize_device(0)       # returns when the device's recorded time has passed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from replayer.cost_model.collective_costs import CollectiveCosts
from replayer.cost_model.copy_costs import CopyCosts
from replayer.gpu.current_streams import CurrentStreams
from replayer.gpu.device import VirtualDevice
from replayer.gpu.launches import ScriptLaunches
from replayer.gpu.ranks import RankOperations
from replayer.gpu.steps import ScriptSteps, StepEnded
from replayer.gpu.streams import Streams
from replayer.gpu.values import ReadValues
from replayer.memory.capacity import capacity_of
from replayer.memory.cublas_workspaces import BlasWorkspaces
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.request_log import RequestLog
from replayer.memory.scratch_memory import winograd_workspaces
from replayer.memory.tensor_allocator import TensorAllocator
from replayer.op_signature import OpSignature
from replayer.recording.library_pace import LibraryPace
from replayer.recording.recorded_run import RecordedRun
from replayer.recording.replicas import add_devices
from replayer.recording.workspaces import Workspaces, WorkspaceSequence, keeps_workspaces, ops_with_products
from replayer.timing.clock import Clock
from replayer.timing.simulator import Simulator
from replayer.timing.timeline.timeline_writer import LoaderWait, TimelineWriter
from traces.model.trace import Column, Device, Trace
from traces.names.cards import known_properties
from traces.script.configuration import ReplayConfig
from traces.script.step_rule import Optimizers


class ScriptProfile:
    def __init__(self, launches: ScriptLaunches) -> None:
        self._launches = launches
        self._timeline = launches.simulator.timeline

    def begin_range(self) -> Callable[[str], None]:
        with self._launches.looking as thread:
            start_ns, row = max(thread.host_ns, self._launches.clock.now_ns()), thread.row

        def end(name: str) -> None:
            with self._launches.looking as thread:
                end_ns = max(thread.host_ns, self._launches.clock.now_ns())
                self._timeline.range(row, name, start_ns, max(end_ns, start_ns))

        return end

    def watch(self) -> None:
        with self._launches.looking:
            self._timeline.watch()

    def watched(self) -> tuple[Trace, Column]:
        simulator = self._launches.simulator
        with self._launches.looking as thread:
            simulator.tracker.add_gpu_work_so_far(thread)
            threads = self._launches.current.threads
            return self._timeline.watched(Trace(devices=simulator.recording.devices, threads=threads))

    @property
    def loader_waits(self) -> list[LoaderWait]:
        return self._timeline.loader_waits


@dataclass(frozen=True)
class ScriptLinks:
    devices: Sequence[Device] = ()  # if given, these devices replace the recorded devices
    slowdown: float = 1.0  # GPU work takes this many times as long
    optimizers: Optimizers = field(default_factory=Optimizers)
    library_pace: LibraryPace | None = None  # published times of the phases
    # arguments: the number of finished training steps, and the number of all finished steps
    step_ended: StepEnded | None = None
    node_number: Callable[[], tuple[int, int]] | None = None  # see tensor/node_numbers.py


class VirtualGpu:
    def __init__(
        self,
        trace: Trace,
        rank: int,
        clock: Clock,
        timeline: TimelineWriter,
        config: ReplayConfig | None = None,
        links: ScriptLinks | None = None,
    ) -> None:
        config, links = config or ReplayConfig(), links or ScriptLinks()
        self.clock = clock
        self.timeline = timeline
        self.machine = trace.machine_of(rank)
        self.recording = recording = RecordedRun(trace, rank, links.slowdown)
        recording.devices = list(links.devices) or recording.devices
        recording.library_pace = links.library_pace
        if config.gpus:
            add_devices(recording, config.gpus)
        self.simulator = Simulator(recording, clock, timeline, links.optimizers, config)
        self.simulator.tracker.grads_enabled = torch.is_grad_enabled
        self.devices: list[VirtualDevice] = []
        self.current = CurrentStreams(self.devices, self.simulator.scheduler)
        transfers = CopyCosts.of(trace, recording.speed, config.link_gbps)
        transfers.slowdown = links.slowdown
        self.launches = ScriptLaunches(self.current, self.simulator, transfers)
        self.ranks = RankOperations(self.launches, CollectiveCosts.of(trace))
        self.streams = Streams(self.launches, self.ranks)
        self.values = ReadValues(self.launches, trace, rank, improving=config.values != "constant")
        self.steps = ScriptSteps(self.launches, self.ranks, links.step_ended)
        self.profile = ScriptProfile(self.launches)
        self._workspaces = Workspaces.of(trace, recording, rank)
        self._with_products = ops_with_products(trace)
        self._estimates_workspaces = config.steps > 0 and not len(trace.memory)
        properties = [known_properties(device) for device in recording.devices]
        self.blas = BlasWorkspaces(self.machine, [of.major or 0 for of in properties], [of.gcnArchName for of in properties])
        if (kept := keeps_workspaces(trace, rank, frozenset(self.blas.default_bytes))) is not None:
            self.blas.kept = kept
        given = config.gpu_memory_bytes
        sizes = [*given, *[given[-1] if len(given) == 1 else None] * len(recording.devices)]
        for index, device in enumerate(recording.devices):
            self.devices.append(self._device(index, device, sizes[index], keep_requests=config.steps > 0))
        if links.node_number is not None:
            self.launches.number_nodes(links.node_number)

    def _device(self, index: int, device: Device, given_bytes: int | None, *, keep_requests: bool) -> VirtualDevice:
        capacity = capacity_of(self.machine, device, torch.__version__, given_bytes)
        thread, scheduler, timeline = self.current.thread(), self.simulator.scheduler, self.timeline

        wait_until = partial(scheduler.block, thread)
        memory = DeviceMemory(index, *capacity, host_now_ns=lambda: thread.host_ns, wait_until_ns=wait_until)
        if keep_requests:
            memory.requests = RequestLog()
        allocator = TensorAllocator(memory, lambda rows, ops: timeline.memory(rows, ops, thread.host_ns), self.launches.op_rows)
        return VirtualDevice(index, device.name, known_properties(device), allocator, scheduler.stream(index, 0))

    def calls_product(self, signature: OpSignature) -> bool:
        """Return True if the op uses a matrix product internally, and cuBLAS keeps the workspace of the matrix product."""
        return self.blas.kept and signature.op in self._with_products and not any(0 in shape for shape in signature.shapes)

    def workspaces_of(self, signature: OpSignature) -> WorkspaceSequence:
        if self._estimates_workspaces:
            return winograd_workspaces(signature)
        return self._workspaces.of_op(self.recording.keys[signature])
