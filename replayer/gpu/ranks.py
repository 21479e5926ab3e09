"""Runs collectives, such as all-reduces, on the CUDA streams of this rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from replayer.cost_model.collective_costs import CollectiveCosts, GroupOperation, Times, Transfer
from replayer.gpu.launches import ScriptLaunches
from replayer.timing.stream import VirtualStream
from replayer.torch_types import TorchAny
from traces.model.trace import NONE, DeviceKind


class LeavableGroup(Protocol):
    def finish(self, wait: bool = True) -> None:
        """Compute the end times of the group's operations."""

    def finish_writes_to(self, tensor: TorchAny) -> None:
        """Compute the end times of collectives that write to `tensor`. Skip a collective if some ranks have not called it."""

    def leave(self, failed: bool = False) -> None:
        """Tell all other ranks that this rank has ended."""


class RankOperations:
    def __init__(self, launches: ScriptLaunches, costs: CollectiveCosts) -> None:
        self.costs = costs
        # returns by how many nanoseconds this rank's clock is ahead of the first rank's clock
        self.read_clock_offset: Callable[[], int] | None = None
        self.deadlocks: TorchAny = None  # see replayer/distributed/store_exchange.py
        self._launches = launches
        self._groups: list[LeavableGroup] = []

    def join(self, group: LeavableGroup) -> None:
        self._groups.append(group)

    def leave(self) -> None:
        for group in self._groups:
            group.leave(failed=True)

    def finish(self, *, wait: bool) -> None:
        for group in self._groups:
            group.finish(wait)

    def finish_writes_to(self, tensor: TorchAny) -> None:
        for group in self._groups:
            group.finish_writes_to(tensor)

    def launch(self, device: int, call_ns: int) -> tuple[int, int]:
        launches = self._launches
        simulator = launches.simulator
        with launches.looking as thread:
            simulator.tracker.add_gpu_work_so_far(thread)
            row = simulator.timeline.call(thread.row, "cudaLaunchKernelExC", call_ns, call_ns)
            launched_ns = max(thread.host_ns, launches.clock.now_ns()) + simulator.recording.latency_ns
            return row, max(launched_ns, launches.current.caller_of(thread, device).stream.ready_ns)

    def communicate(
        self, stream: VirtualStream, call: GroupOperation, transfer: Transfer, label: str, times_ns: Times, row: int
    ) -> None:
        simulator = self._launches.simulator
        timeline = simulator.timeline
        with self._launches.looking:
            start_ns, end_ns = max(times_ns.ready, stream.ready_ns), times_ns.end
            stream.wait(start_ns)
            if call.group_size > 1 or transfer.duration_ns:
                stream.push(start_ns, 0, 0, end_ns - start_ns)
                name = timeline.strings.add(label) if transfer.kernel == NONE else transfer.kernel
                place = stream.device, stream.number, int(DeviceKind.KERNEL), name
                timeline.work((*place, start_ns, end_ns - start_ns, row, call.size_bytes, int(transfer.origin)))
            timeline.collective(*call, (times_ns.call, start_ns, end_ns))
            simulator.stats.charged_ns[transfer.origin] += transfer.duration_ns
