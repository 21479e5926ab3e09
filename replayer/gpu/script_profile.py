"""Supports scripts that use torch.profiler or torch.cuda.nvtx."""

from __future__ import annotations

from collections.abc import Callable

from replayer.gpu.launches import ScriptLaunches
from replayer.timing.timeline.timeline_writer import LoaderWait
from traces.model.trace import Column, Trace


class ScriptProfile:
    """Collects the virtual GPU's work while torch.profiler runs in the script."""

    def __init__(self, launches: ScriptLaunches) -> None:
        self._launches = launches
        self._timeline = launches.simulator.timeline

    def begin_range(self) -> Callable[[str], None]:
        """Begin a range in the timeline. The returned function ends the range and sets its name."""
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
        """Return a trace of the ops and the GPU work since the call of `watch`."""
        simulator = self._launches.simulator
        with self._launches.looking as thread:
            simulator.tracker.add_gpu_work_so_far(thread)
            threads = self._launches.current.threads
            return self._timeline.watched(Trace(devices=simulator.recording.devices, threads=threads))

    @property
    def loader_waits(self) -> list[LoaderWait]:
        return self._timeline.loader_waits
